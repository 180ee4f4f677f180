"""The page in a real browser: a picture is dropped, words are tapped, and errors are sentences.

The tests need Debian's chromium and chromium-driver and the package selenium, else are skipped.
"""

import json
import os
import shutil
import time

import numpy as np
import pytest
from helpers.browser import start
from helpers.webpages import serving
from PIL import Image

import tfcap
from tfcap.visualize.demo import Model

pytestmark = pytest.mark.slow

# For every visible text the contrast with what is behind it, and a part of the text.
CONTRASTS = """
const channel = (c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
const parse = (text) => {
  const numbers = text.match(/[\\d.e-]+/g).map(Number);
  const most = text.startsWith("color(") ? 1 : 255;
  return [numbers.slice(0, 3).map((n) => n / most), numbers[3] ?? 1];
};
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const owner = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
  if (!text || !owner.checkVisibility()) continue;
  if (owner.closest("button:disabled, noscript, .skip")) continue;
  let behind = owner;
  const back = () => parse(getComputedStyle(behind).backgroundColor);
  while (back()[1] === 0) behind = behind.parentElement;
  const both = [light(parse(getComputedStyle(owner).color)[0]), light(back()[0])];
  const contrast = (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
  found.push([back()[1] === 1 ? contrast : 0, text.slice(0, 40)]);
}
return found;
"""


@pytest.fixture(scope="module")
def browser():
    camera = "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"
    yield from start(*camera)


@pytest.fixture
def page(browser, site):
    """The page, opened anew in a window of 1280 x 900 pixels."""
    resize(browser, 1280, 900)
    colours(browser, "light")
    browser.get_log("performance")
    browser.get(site.url)
    wait(browser, "Ready.")
    yield browser
    refused = [one for one in browser.get_log("browser") if "status of 4" not in one["message"]]
    assert refused == []  # no error of a script and no blocked request


def resize(browser, width, height, mobile=False):
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": mobile})


def colours(browser, scheme):
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


def one(page, selector):
    return page.find_element("css selector", selector)


def all_of(page, selector):
    return page.find_elements("css selector", selector)


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing came"
        time.sleep(0.02)


def wait(page, beginning, place="#state"):
    until(lambda: one(page, place).text.startswith(beginning))


def drop(page, path):
    """Drops a file on the page, as a file manager does."""
    frame = one(page, "#stage").rect
    at = {"x": frame["x"] + 40, "y": frame["y"] + 40}
    data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        page.execute_cdp_cmd("Input.dispatchDragEvent", {"type": kind, **at, "data": data})


def caption_of(page, model=0):
    words = all_of(all_of(page, ".model")[model], ".word:not(.end)")
    return " ".join(word.text for word in words)


def widest(page):
    return page.execute_script("return document.scrollingElement.scrollWidth")


def test_a_dropped_picture_is_captioned_without_any_other_network(page, site, pictures):
    (answer,) = site.predict(pictures[0])
    before = page.execute_script("return [...document.querySelectorAll('main *')].length")
    stage, card = one(page, "#stage").rect, one(page, ".model").rect
    drop(page, pictures[0])
    wait(page, f"Captioned {os.path.basename(pictures[0])}")
    assert caption_of(page) == caption_of(page, 1) == answer["captions"][0] and before
    assert one(page, "#stage").rect == stage  # nothing has jumped
    assert one(page, ".model").rect["y"] == card["y"]
    script = "return [...document.querySelectorAll(arguments[0])].map(w => w.style.cssText)"
    chances = [f"--p: {100 * np.exp(log):.1f};" for log in answer["log_probs"][0]]
    assert page.execute_script(script, ".run-0 .word") == chances
    assert set(page.execute_script(script, ".run-1 .word")) == {""}
    assert "gives no probabilities of words and no attention" in all_of(page, ".model")[1].text
    scores = [score.text for score in all_of(page, ".run-0 .score")]
    assert scores == [f"{score:.2f}".replace("-", "\u2212") for score in answer["scores"]]
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    urls = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    assert any(url.endswith(":predict") for url in urls)
    assert not [url for url in urls if not url.startswith((site.url, "blob:", "data:"))]


def sharpen(page):
    """Gives every word of the answer a strongest region; the small model attends evenly."""
    page.execute_script(
        "models[0].answer.attention.forEach((seen) => seen.peaks.fill(0.5)); models[0].show(0);"
    )


def test_a_word_shows_its_attention_by_pointer_and_keys(page, site, pictures):
    from selenium.webdriver import ActionChains, Keys

    (answer,) = site.predict(pictures[1], attention="attention")
    drop(page, pictures[1])
    wait(page, "Captioned")
    words = all_of(page, ".run-0 .word")
    ActionChains(page).move_to_element(words[2]).perform()
    told, peak = one(page, "#told").text, answer["attention"][0]["peaks"][2]
    assert f"spread evenly, attention at most {peak:.2f} (uniform 0.03)" in told
    assert not all_of(page, ".overlay")
    sharpen(page)
    words = all_of(page, ".run-0 .word")
    ActionChains(page).move_to_element(words[2]).perform()
    assert len(all_of(page, ".overlay .strongest")) == 1
    told = one(page, "#told").text
    assert told.startswith(f"“{words[2].text}”: probability ") and "attention 0.50" in told
    picture, drawn = one(page, "#shown").rect, one(page, ".overlay").rect
    assert drawn["width"] == pytest.approx(picture["width"], abs=2)
    assert drawn["height"] == pytest.approx(picture["height"], abs=2)
    words[2].click()
    words[2].send_keys(Keys.ARROW_RIGHT)
    assert one(page, "#told").text.startswith(f"“{words[3].text}”")
    page.switch_to.active_element.send_keys(Keys.END)
    assert one(page, "#told").text.startswith(f"“{words[-1].text}”")
    page.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert one(page, "#told").text == "" and not all_of(page, ".overlay")
    all_of(page, ".run-0 .beams button")[1].click()
    assert caption_of(page) == answer["captions"][1]
    assert all_of(page, ".run-0 .beams button")[1].get_attribute("aria-pressed") == "true"
    sharpen(page)
    all_of(page, ".run-0 .word")[0].click()
    assert all_of(page, ".overlay .strongest")
    # The captions of the small model are cut before they end.
    assert one(page, ".run-0 .text").text.endswith("cut at 12 words")
    short = {"captions": ["a dog"], "scores": [-1], "words": [["a", "dog"]]}
    short["log_probs"] = [[-0.1, -0.2, -0.6931]]
    page.execute_script("models[0].fill(arguments[0])", short)
    assert "cut at" not in one(page, ".run-0 .text").text
    one(page, ".run-0 .word.end").click()
    assert one(page, "#told").text == "“end”: probability 0.50 that the caption ends here"
    assert not all_of(page, ".overlay")


def test_a_telephone_shows_all_of_it_and_a_tap_shows_the_attention(page, pictures):
    resize(page, 360, 760, mobile=True)
    one(page, "#file").send_keys(pictures[0])
    wait(page, "Captioned")
    for summary in all_of(page, "summary"):
        summary.click()
    assert widest(page) == 360
    small = [b.rect["height"] for b in all_of(page, "button") if b.is_displayed()]
    assert min(small) >= 30
    sharpen(page)
    word = all_of(page, ".run-0 .word")[1]
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", word)
    at = page.execute_script("return arguments[0].getBoundingClientRect().toJSON()", word)
    point = {"x": at["x"] + at["width"] / 2, "y": at["y"] + at["height"] / 2}
    touch = "Input.dispatchTouchEvent"
    page.execute_cdp_cmd(touch, {"type": "touchStart", "touchPoints": [point]})
    page.execute_cdp_cmd(touch, {"type": "touchEnd", "touchPoints": []})
    until(lambda: all_of(page, ".overlay .strongest"))
    assert one(page, "#told").text.startswith(f"“{word.text}”")


def test_all_text_is_readable_in_both_colour_schemes(page, pictures, tmp_path):
    one(page, "#file").send_keys(pictures[0])
    wait(page, "Captioned")
    for summary in all_of(page, "summary"):
        summary.click()
    # One word as sure and one as doubtful as can be.
    page.execute_script(
        "const all = document.querySelectorAll('.run-0 .word.sure');"
        "all[0].style.setProperty('--p', 100); all[1].style.setProperty('--p', 0);"
        "look(all[2]); tell('An error.', 'error')"
    )
    for scheme in ("light", "dark"):
        colours(page, scheme)
        contrasts = page.execute_script(CONTRASTS)
        assert len(contrasts) > 40
        assert min(contrasts)[0] >= 4.5, sorted(contrasts)[:5]
        shot = tmp_path / f"{scheme}.png"
        page.save_screenshot(str(shot))
        with Image.open(shot) as image:
            assert (np.asarray(image.convert("L")).mean() > 128) == (scheme == "light")


def test_options_change_the_captions_and_bad_ones_are_sentences(page, site, pictures):
    one(page, "#file").send_keys(pictures[2])
    wait(page, "Captioned")
    one(page, "#options-box summary").click()
    beam = one(page, "#option-beam")
    beam.clear()
    beam.send_keys("3\t")
    until(lambda: len(all_of(page, ".run-0 .beams li")) == 3)
    assert one(page, "#changes").text == "--decoding=beam=3"
    wait(page, "Captioned")
    assert len(all_of(page, ".run-1 .beams li")) == 2  # the export keeps its own
    field = one(page, "#option-temperature")
    field.clear()
    field.send_keys("0\t")
    wait(page, f"{os.path.basename(pictures[2])}: task.decoding.temperature must be above 0")
    assert "error" in one(page, "#state").get_attribute("class")
    one(page, "#options button").click()
    wait(page, "Captioned")
    assert one(page, "#changes").text == "" and len(all_of(page, ".run-0 .beams li")) == 2
    assert not one(page, "#option-seed").is_displayed()


def test_an_export_that_samples_gets_a_seed(browser, captioner, pictures, tmp_path):
    served = os.path.dirname(
        captioner.with_decoding("search=sample,samples=2").export(tmp_path / "served")
    )
    with serving({"captions": Model("s", tfcap.load(served))}) as site:
        browser.get(site.url)
        one(browser, "#file").send_keys(pictures[0])
        wait(browser, "Captioned")
        one(browser, "#options-box summary").click()
        assert one(browser, "#fixed").is_displayed() and one(browser, "#again").text == "Draw again"
        first = [text.text for text in all_of(browser, ".beams li")]
        field = one(browser, "#option-seed")
        field.clear()
        field.send_keys("9\t")
        until(lambda: [text.text for text in all_of(browser, ".beams li")] not in (first, []))


def test_what_is_no_picture_gets_a_sentence(page, tmp_path, pictures):
    text = tmp_path / "notes & <b>.png"
    text.write_text("no picture")
    drop(page, text)
    wait(page, "notes & <b>.png: A picture must be JPEG, PNG, BMP, GIF or WebP.")
    assert one(page, "#empty").is_displayed() and not all_of(page, ".model .word")
    big = tmp_path / "big.png"
    shutil.copy(pictures[0], big)
    os.truncate(big, 20_000_001)
    drop(page, big)
    wait(page, "A picture must have at most 20 MB. big.png has 20.0 MB.")
    drop(page, pictures[0])
    wait(page, "Captioned")


def test_a_photograph_of_the_camera_and_a_pasted_picture_are_captioned(page, pictures):
    one(page, "#camera").click()
    until(lambda: page.execute_script("return document.getElementById('video').videoWidth > 0"))
    one(page, "#take").click()
    wait(page, "Captioned camera.jpg")
    assert not one(page, "#camera-box").is_displayed() and caption_of(page)
    page.execute_async_script(
        """
        const done = arguments[0], canvas = element("canvas", { width: 40, height: 30 });
        canvas.getContext("2d").fillRect(5, 5, 20, 20);
        canvas.toBlob((blob) => {
          const data = new DataTransfer();
          data.items.add(new File([blob], "image.png"));
          const options = { clipboardData: data, bubbles: true };
          document.body.dispatchEvent(new ClipboardEvent("paste", options));
          done();
        });
        """
    )
    wait(page, "Captioned image.png")
