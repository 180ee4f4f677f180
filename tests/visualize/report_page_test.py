"""The page of a report in a real browser: sorting, attention, light and dark.

The tests need Debian's chromium and chromium-driver and the package selenium, else are skipped.
"""

import pytest
from helpers import report_world
from helpers.browser import all_of, brightness, colours, one, requested, resize, start

from tfcap.metrics.bootstrap import Compared
from tfcap.metrics.results import Scores
from tfcap.visualize import report

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser():
    yield from start()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return report_world.write(tmp_path_factory.mktemp("report"))


@pytest.fixture
def page(browser, world):
    """The page, opened anew in a window of 1280 x 900 pixels."""
    resize(browser, 1280, 900)
    colours(browser, "light")
    requested(browser)
    browser.get(world[0].as_uri())
    yield browser
    assert browser.get_log("browser") == []  # no error of a script and no blocked request


def choose(page, name, value):
    """Chooses an option of a list or types into a field, with the events of a real user."""
    field = one(page, f"#{name}")
    if field.tag_name == "select":
        for option in field.find_elements("css selector", "option"):
            if option.get_attribute("value") == value:
                option.click()
    else:
        field.clear()
        field.send_keys(value)


def listed(page):
    """The ids of the images in the list, in order."""
    return [1 + int(card.get_attribute("data-image")) for card in all_of(page, "#list .card")]


def test_the_page_opens_without_network_and_shows_foreign_markup_as_text(page):
    assert [url for url in requested(page) if not url.startswith("data:")] == [page.current_url]
    assert one(page, "h1").text == page.title == "Tests <i>&"
    assert one(page, "#count").text == f"{report_world.IMAGES} images"
    choose(page, "find", "picture9.png")
    assert listed(page) == [9]
    assert one(page, "#list .caption .text").text == f"a {report_world.ATTACK}"
    assert report_world.ATTACK in one(page, "#list .references").text
    assert page.title == "Tests <i>&" and not all_of(page, "#list .references img")


def test_images_are_sorted_by_every_key(page, world):
    _, result, (_, first, second), _ = world
    scores = {image: result.scores["first"].per_image[image]["CIDEr"] for image in first}
    others = {image: result.scores["second & <b>"].per_image[image]["CIDEr"] for image in first}
    shown = listed(page)
    assert 20 <= len(shown) <= report_world.IMAGES
    assert [scores[i] for i in shown] == sorted(scores.values(), reverse=True)[: len(shown)]
    choose(page, "direction", "1")
    assert listed(page)[:5] == sorted(scores, key=lambda i: (scores[i], i))[:5]
    choose(page, "sort", "difference")
    change = {i: others[i] - scores[i] for i in first}
    assert change[listed(page)[0]] == pytest.approx(min(change.values()), abs=0.01)
    choose(page, "sort", "name")
    assert listed(page)[:3] == [1, 2, 3]  # picture2 before picture10
    choose(page, "run", "1")
    choose(page, "metric", "0")
    assert all_of(page, "#list .points b")[0].text.startswith("BLEU-1 ")
    choose(page, "find", "picture4.png")
    assert "(empty)" in all_of(page, "#list .caption .text")[1].text
    choose(page, "find", "BLUE left square")
    assert sorted(listed(page)) == [i for i in first if report_world.truth(i) == ("blue", "square")]


def test_pointing_at_a_word_shows_its_attention(page):
    from selenium.webdriver import ActionChains, Keys

    choose(page, "find", "picture5.png")
    words = all_of(page, "#list .caption.run-0 .word")
    assert [word.text for word in words] == "a green square on the left".split()
    assert not all_of(page, ".overlay")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", words[2])
    ActionChains(page).move_to_element(words[2]).perform()
    (box,) = all_of(page, ".overlay .strongest")
    # The strongest cell of the third word is cell 11 of 4 x 4: third row, third column.
    assert [float(box.get_attribute(name)) for name in ("x", "y")] == pytest.approx(
        [500, 500], abs=0.1
    )
    assert float(box.get_attribute("width")) == pytest.approx(250, abs=0.1)
    weak, strong = sorted(
        {float(region.get_attribute("fill-opacity")) for region in all_of(page, ".region")}
    )
    assert weak == pytest.approx(strong * 0.02 / 0.7, abs=0.005)
    assert len(all_of(page, ".overlay .region")) == 16
    assert "“square”: strongest in cell 11 of 16, attention 0.70" in one(page, ".told").text
    words[2].send_keys(Keys.ARROW_RIGHT)
    assert "“on”" in one(page, ".told").text and len(all_of(page, ".strongest")) == 1
    assert page.switch_to.active_element.text == "on"
    page.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not all_of(page, ".overlay") and one(page, ".told").text == ""
    choose(page, "find", "picture2.png")
    assert not all_of(page, "#list .word.seen")  # image 2 has no attention


def test_two_runs_are_shown_side_by_side_with_marked_differences(page):
    choose(page, "find", "picture5.png")
    left, right = all_of(page, "#list .caption")
    assert left.rect["y"] == right.rect["y"] and left.rect["x"] < right.rect["x"]
    marked = [word.text for word in all_of(page, "#list .run-0 .word.differs")]
    assert marked == ["on", "the", "left"] and not all_of(page, "#list .run-1 .word.differs")
    choose(page, "find", "picture6.png")
    assert [word.text for word in all_of(page, "#list .run-0 .word.differs")] == ["blue"]
    assert [word.text for word in all_of(page, "#list .run-1 .word.differs")] == ["pink"]
    boxes = all_of(page, "#shown input")
    boxes[0].click()
    assert [c.is_displayed() for c in all_of(page, "#list .caption")] == [False, True]
    boxes[0].click()
    assert all(c.is_displayed() for c in all_of(page, "#list .caption"))


def test_tiles_of_best_and_worst_images_open_the_image(page, world):
    _, result, (_, first, _), _ = world
    tiles = all_of(page, "#ends .tile")
    each = [scores.per_image for scores in result.scores.values()]
    changes = [each[1][image]["CIDEr"] - each[0][image]["CIDEr"] for image in each[0]]
    gains = min(6, sum(change > 0 for change in changes))
    losses = min(6, sum(change < 0 for change in changes))
    assert len(tiles) == 12 + gains + losses and gains + losses > 0
    shown = [float(tile.text.split()[0].replace("\u2212", "-")) for tile in tiles[12:]]
    assert all(change > 0 for change in shown[:gains])
    assert all(change < 0 for change in shown[gains:])
    scores = [each["CIDEr"] for each in result.scores["first"].per_image.values()]
    assert float(tiles[0].text.split()[0]) == pytest.approx(max(scores), abs=0.1)
    assert float(tiles[6].text.split()[0]) == pytest.approx(min(scores), abs=0.1)
    text = tiles[6].text.split("\n")[1]
    tiles[6].click()
    dialog = one(page, "dialog")
    assert dialog.is_displayed() and one(page, "dialog .caption .text").text == text
    one(page, "dialog .close").click()
    assert not dialog.is_displayed()


@pytest.mark.parametrize("size", [(1280, 900), (400, 800)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_wide_and_narrow_screens_in_light_and_dark(page, size, scheme):
    resize(page, *size, mobile=size[0] < 500)
    colours(page, scheme)
    assert page.execute_script("return document.scrollingElement.scrollWidth <= innerWidth")
    assert (brightness(page) > 128) == (scheme == "light")


def test_the_captions_of_a_folder_are_shown_in_its_order_without_scores(page, tmp_path):
    attack = report_world.ATTACK
    names = ["b.png", f"sea/{attack[:20]}.png", "a.png"]
    rows = [[name, f"a caption {n} {attack}", f"-{n}.5"] for n, name in enumerate(names)]
    pictures = [report_world.draw(tmp_path, number) for number in (1, 2, 7)]
    assert report.write_captions(tmp_path / "p.html", rows, pictures, "Captions of mine") == 2
    page.get((tmp_path / "p.html").as_uri())
    assert one(page, "h1").text == "Captions of mine" and one(page, "#about").text == "3 images"
    assert [name.text for name in all_of(page, "#list .name")] == names
    assert not [h.text for h in all_of(page, "h2") if h.is_displayed() and h.text != "Images"]
    assert [p.text for p in all_of(page, ".points")] == ["score -0.5", "score -1.5", "score -2.5"]
    choose(page, "sort", "name")
    assert [name.text for name in all_of(page, "#list .name")] == ["a.png", names[0], names[1]]
    choose(page, "find", "caption 1")
    assert listed(page) == [2]
    resize(page, 390, 844, mobile=True)
    assert page.execute_script("return document.documentElement.scrollWidth") <= 390


def test_words_of_a_caption_without_spaces_are_apart_and_shown_joined(page, tmp_path):
    scores = Scores({"CIDEr": 5.0}, {1: {"CIDEr": 5.0}})
    compared = Compared({"a": scores, "b": scores}, {"a": {}, "b": {}}, {"b": {}}, [])
    captions = {"a": {1: "两 只 hot dog 在 草地"}, "b": {1: "两 只 狗 在 草地"}}
    report.write(tmp_path / "r.html", captions, compared, {1: ["两只狗"]}, joined=True)
    page.get((tmp_path / "r.html").as_uri())
    texts = [caption.text for caption in all_of(page, "#list .text")]
    assert texts == ["两只hot dog在草地", "两只狗在草地"]
    words = [[w.text for w in all_of(c, ".word")] for c in all_of(page, "#list .text")]
    assert words == [["两", "只", "hot", "dog", "在", "草地"], ["两", "只", "狗", "在", "草地"]]
    assert [word.text for word in all_of(page, "#list .differs")] == ["hot", "dog", "狗"]
    choose(page, "find", "hot dog在草")
    assert listed(page) == [1]
