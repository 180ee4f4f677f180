"""The page of the demo in a real browser: a picture is dropped, words are tapped.

The tests need Debian's chromium and chromium-driver and the package selenium, else are skipped.
"""

import os
import time

import numpy as np
import pytest
from helpers.browser import all_of, brightness, colours, one, requested, resize, start

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser():
    yield from start()


@pytest.fixture
def page(browser, site):
    """The page, opened anew in a window of 1280 x 900 pixels."""
    resize(browser, 1280, 900)
    colours(browser, "light")
    requested(browser)
    browser.get(site.url)
    wait(browser, "Ready.")
    yield browser
    refused = [one for one in browser.get_log("browser") if "status of 4" not in one["message"]]
    assert refused == []  # no error of a script and no blocked request


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing came"
        time.sleep(0.02)


def wait(page, beginning, place="#state"):
    until(lambda: one(page, place).text.startswith(beginning))


def drop(page, *paths):
    """Drops files on the page, as a file manager does."""
    frame = one(page, "#stage").rect
    at = {"x": frame["x"] + 40, "y": frame["y"] + 40}
    data = {"items": [], "files": [*map(str, paths)], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        page.execute_cdp_cmd("Input.dispatchDragEvent", {"type": kind, **at, "data": data})


def caption_of(page, model=0):
    words = all_of(all_of(page, ".model")[model], ".word:not(.end)")
    return " ".join(word.text for word in words)


def test_a_dropped_picture_is_captioned_without_any_other_network(page, site, pictures):
    (answer,) = site.predict(pictures[0])
    stage = one(page, "#stage").rect
    drop(page, pictures[0])
    wait(page, f"Captioned {os.path.basename(pictures[0])}")
    assert caption_of(page) == caption_of(page, 1) == answer["captions"][0]
    assert one(page, "#stage").rect == stage  # nothing has jumped
    script = "return [...document.querySelectorAll(arguments[0])].map(w => w.style.cssText)"
    chances = [f"--p: {100 * np.exp(log):.1f};" for log in answer["log_probs"][0]]
    assert page.execute_script(script, ".run-0 .word") == chances
    assert "This is an exported model. It gives no attention" in all_of(page, ".model")[1].text
    assert not one(page, ".run-0 .confidence").is_displayed()  # the run is not calibrated
    page.execute_script("models[0].fill({ ...models[0].answer, confidences: [0.5, 0.25] });")
    assert one(page, ".run-0 .confidence").text == "confidence 0.50"
    page.execute_script("models[0].fill({ ...models[0].answer, confidences: [null, 0.25] });")
    assert not one(page, ".run-0 .confidence").text
    scores = [score.text for score in all_of(page, ".run-0 .score")]
    assert scores == [f"{score:.2f}".replace("-", "\u2212") for score in answer["scores"]]
    assert not [url for url in requested(page) if not url.startswith((site.url, "blob:", "data:"))]


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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_telephone_shows_all_of_it_and_a_tap_shows_the_attention(page, pictures, scheme):
    resize(page, 360, 760, mobile=True)
    colours(page, scheme)
    one(page, "#file").send_keys(pictures[0])
    wait(page, "Captioned")
    one(page, "summary").click()
    assert page.execute_script("return document.scrollingElement.scrollWidth") == 360
    assert (brightness(page) > 128) == (scheme == "light")
    sharpen(page)
    word = all_of(page, ".run-0 .word")[1]
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", word)
    at = page.execute_script("return arguments[0].getBoundingClientRect().toJSON()", word)
    point = {"x": at["x"] + at["width"] / 2, "y": at["y"] + at["height"] / 2}
    touch = "Input.dispatchTouchEvent"
    page.execute_cdp_cmd(touch, {"type": "touchStart", "touchPoints": [point]})
    page.execute_cdp_cmd(touch, {"type": "touchEnd", "touchPoints": []})
    until(lambda: all_of(page, ".overlay .strongest"))


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
    wait(page, f"{os.path.basename(pictures[2])}: task.decoding.temperature must be from 1e-6")
    assert "error" in one(page, "#state").get_attribute("class")
    one(page, "#options button").click()
    wait(page, "Captioned")
    assert one(page, "#changes").text == "" and len(all_of(page, ".run-0 .beams li")) == 2
    assert not one(page, "#option-seed").is_displayed()


def test_what_is_no_picture_gets_a_sentence(page, tmp_path, pictures):
    text = tmp_path / "notes & <b>.png"
    text.write_text("no picture")
    drop(page, text)
    wait(page, "notes & <b>.png: A picture must be JPEG, PNG, BMP, GIF, WebP or TIFF.")
    assert one(page, "#empty").is_displayed() and not all_of(page, ".model .word")
    text.write_bytes(bytes(20_000_001))
    drop(page, text)
    wait(page, "A picture must have at most 20 MB.")
    drop(page, pictures[0])
    wait(page, "Captioned")


def test_all_dropped_pictures_are_captioned_and_each_can_be_shown(page, site, pictures, tmp_path):
    bad = tmp_path / "notes.png"
    bad.write_text("no picture")
    drop(page, pictures[0], bad, pictures[1])
    wait(page, "Captioned 2 of 3 pictures in ")
    assert "notes.png: A picture must be JPEG" in one(page, "#state").text
    captions = [site.predict(path)[0]["captions"][0] for path in pictures[:2]]
    first, middle, last = all_of(page, "#strip button")
    assert [first.text, last.text] == captions == [caption_of(page), last.text]
    assert middle.text.startswith("A picture must be JPEG")
    last.click()
    assert caption_of(page) == caption_of(page, 1) == captions[1]
    assert last.get_attribute("aria-pressed") == "true"
    assert one(page, "#shown").get_attribute("alt").endswith(os.path.basename(pictures[1]))
    middle.click()
    assert one(page, "#state").text.startswith("notes.png: A picture must be JPEG")
    assert not all_of(page, ".model .word")
    last.click()
    one(page, "#again").click()
    wait(page, "Captioned 2 of 3 pictures in ")
    assert caption_of(page) == captions[1]
    resize(page, 360, 760, mobile=True)
    assert page.execute_script("return document.scrollingElement.scrollWidth") == 360
    drop(page, pictures[2])
    wait(page, f"Captioned {os.path.basename(pictures[2])} in ")
    assert not one(page, "#strip").is_displayed()
