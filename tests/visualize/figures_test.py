"""The pixels of attention figures are right, and files are written completely."""

import io
import os
import warnings

import numpy as np
import pytest
from PIL import Image

from tfcap import errors
from tfcap.visualize import figures, fonts
from tfcap.visualize.attention import Attended

BOXES = np.array([[0, 0, 0.4, 0.5], [0.5, 0.5, 1, 1], [0.6, 0.1, 0.9, 0.3]], np.float32)
GRID = np.array(
    [[x / 3, y / 2, (x + 1) / 3, (y + 1) / 2] for y in range(2) for x in range(3)], np.float32
)
GREY = np.full((60, 90, 3), 120, np.uint8)
SIZE = 90


def image(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def outlined(pixels):
    """Returns left, top, right and bottom of the pixels with the colour of the outline."""
    rows, columns = np.nonzero((pixels == figures.OUTLINE).all(-1))
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


def attended(words="a red dog", boxes=BOXES, kind="attention", seed=0):
    words = words.split()
    weights = np.random.default_rng(seed).dirichlet(np.ones(len(boxes)), len(words))
    return Attended(words, weights.astype("float32"), boxes, kind)


@pytest.mark.parametrize("strongest", [0, 1, 2])
def test_the_strongest_region_is_outlined(strongest):
    weights = np.full(3, 0.1)
    weights[strongest] = 0.8
    pixels = figures.panel(GREY, weights, BOXES, 1.0)
    assert pixels.shape == (60, 90, 3) and pixels.dtype == np.uint8
    expected = BOXES[strongest] * [90, 60, 90, 60]
    np.testing.assert_allclose(outlined(pixels), expected, atol=1)


def test_the_brightness_of_a_region_follows_its_weight():
    """The strongest region is the picture; others are paler, and pixels without a box palest."""
    weights = np.array([0.6, 0.3, 0.1])
    pixels = figures.panel(GREY, weights, BOXES, 1.0)
    middles = [(15, 18), (45, 67), (12, 67)]  # row and column
    first, second, third = (int(pixels[row, column, 0]) for row, column in middles)
    nowhere = int(pixels[55, 3, 0])
    # With three regions full strength is 1.
    np.testing.assert_allclose(first, 255 - 135 * (0.25 + 0.75 * 0.6), atol=1)
    np.testing.assert_allclose(second, 255 - 135 * (0.25 + 0.75 * 0.3), atol=1)
    assert 120 < first < second < third < nowhere == 221


@pytest.mark.parametrize("cell", range(6))
def test_a_grid_gives_a_heat_map(cell):
    """The cell with the weight is reddest; far cells show the picture, a little paler."""
    pixels = figures.panel(GREY, np.eye(6)[cell], GRID, 1.0)
    assert not (pixels == figures.OUTLINE).all(-1).any()
    red = pixels[..., 0].astype(int) - pixels[..., 2]
    row, column = np.unravel_index(red.argmax(), red.shape)
    assert (row // 30, column // 30) == divmod(cell, 3)
    far = (1 - cell // 3) * 30 + 15, (2 - cell % 3) * 30 + 15
    if cell % 3 != 1:
        np.testing.assert_allclose(pixels[far], 140, atol=3)


def redness(pixels):
    return int((pixels[..., 0].astype(int) - pixels[..., 2]).max())


def test_all_words_of_a_caption_have_one_scale():
    """A word that looks nearly everywhere stays pale beside a word that looks at one cell."""
    sides = np.arange(10) / 10
    cells = np.array([[x, y, x + 0.1, y + 0.1] for y in sides for x in sides], np.float32)
    flat = np.full(100, 0.0096) + np.eye(100)[32] * 0.04  # five times as much as a uniform weight
    calls = Attended(["a", "dog"], np.stack([flat, np.eye(100)[77]]), cells, "attention")
    pixels = image(figures.figure(GREY, calls, size=SIZE))[36 : 36 + 60]
    first, second = pixels[:, 112:202], pixels[:, 212:302]
    assert redness(second) > 100 > 20 > redness(first)


@pytest.mark.parametrize("boxes", [BOXES, GRID], ids=["boxes", "grid"])
def test_zero_and_nan_weights_give_a_pale_picture(boxes):
    """NaN weights come from a training that has diverged; they give no warning."""
    for value in (0, np.nan):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pixels = figures.panel(GREY, np.full(len(boxes), value), boxes, 1.0)
            png = figures.figure(
                GREY, Attended(["a"], np.full((1, len(boxes)), value), boxes, "attention")
            )
        assert (pixels == pixels[0, 0]).all() and image(png).any()


def looking_at(words, boxes, strongest):
    weights = np.full((len(words.split()), len(boxes)), 0.1, np.float32)
    weights[:, strongest] = 0.7
    return Attended(words.split(), weights, boxes, "attention")


def test_each_model_has_a_row_with_its_strongest_region_outlined(monkeypatch):
    texts = []
    real = figures._labelled
    monkeypatch.setattr(
        figures, "_labelled", lambda page, found: texts.extend(found) or real(page, found)
    )
    models = [("X-LAN", looking_at("a red dog", BOXES, 1)), ("m-RNN", looking_at("a cat", GRID, 2))]
    page = image(figures.compared(GREY, models, 90))
    written = [text for _, _, text, *_ in texts]
    assert written[0] == "X-LAN: a red dog   (attention, uniform 0.33)"
    assert written.count("0.70") == 5
    heads = [12 + 30, 12 + 30 + 100 + 30]  # where the panels of both models begin
    for head, (_, calls) in zip(heads, models, strict=True):
        np.testing.assert_array_equal(page[head : head + 60, 12:102], GREY)
        for word in range(len(calls.words)):
            left = 12 + (word + 1) * 100
            expected = calls.boxes[calls.weights[0].argmax()] * [90, 60, 90, 60]
            panel = page[head : head + 60, left : left + 90]
            np.testing.assert_allclose(outlined(panel), expected, atol=1)


def test_the_caption_above_a_figure_goes_on_in_the_next_line(monkeypatch):
    """So a report of 60 words makes the page higher, and not wider."""
    titles = []
    real = figures._lines
    monkeypatch.setattr(figures, "_lines", lambda *title: titles.append(real(*title)) or titles[-1])
    report = attended(" ".join(["cardiomediastinal", "silhouette"] * 30))
    page = image(figures.figure(GREY, report, size=SIZE))
    beside = image(figures.compared(GREY, [("X-LAN", report), ("m-RNN", report)], SIZE))
    for pixels, lines, heads in ((page, titles[0], 1), (beside, titles[1], 2)):
        assert pixels.shape[1] == 1500 and 4 < len(lines) < 9
        assert " ".join(lines).count("silhouette") == 30
        assert 1000 < max(map(len, lines)) * 9 <= 1500 - 60
        rows = {1: 11, 2: 2 * 9}[heads]
        assert pixels.shape[0] < heads * (40 + 9 * 18) + rows * (60 + 44) + 20
    # Below the last line stands the picture.
    top = 12 + 24 + 18 * (len(titles[0]) - 1)
    np.testing.assert_array_equal(page[top : top + 60, 12:102], GREY)
    assert (page[top - 30 : top - 6, 12:900] < 128).any()


@pytest.mark.parametrize("caption", ["在草地上的狗" * 30, "กำลังยืน" * 30])
def test_a_long_caption_without_spaces_goes_on_in_the_next_line(caption):
    lines = figures._lines(f"attention: {caption}", 1500)
    assert len(lines) == 3 - (caption[0] == "ก") and "".join(lines) == f"attention: {caption}"
    assert max(map(fonts.width, lines)) <= (1500 - 60) / 9
    assert all(fonts.width(line[0]) for line in lines)  # no line begins with a mark


def test_a_figure_is_written_for_each_picture_that_can_be_read_and_none_is_overwritten(tmp_path):
    pictures = {3: tmp_path / "dog.png", 5: tmp_path / "b" / "dog.jpg", 7: tmp_path / "broken.png"}
    (tmp_path / "b").mkdir()
    for path in pictures.values():
        Image.fromarray(GREY).save(path)
    pictures[7].write_bytes(b"no picture")
    models = {"one": {i: looking_at("a dog", BOXES, 0) for i in (3, 5, 7, 9)}, "two": {}}
    assert figures.write_figures(tmp_path / "new", pictures, models) == 2
    assert sorted(os.listdir(tmp_path / "new")) == ["3-dog.png", "5-dog.png"]
    del pictures[5]
    with pytest.raises(errors.UsageError, match="overwrite the picture .*dog.png"):
        figures.write_figures(tmp_path, pictures, models)


def test_the_ending_says_the_form_of_a_figure(tmp_path):
    """The panels of a PNG have twice the pixels of those in TensorBoard, for print."""
    heads = {"out.PNG": b"\x89PNG", "out.pdf": b"%PDF", "out.svg": b"<?xml"}
    for name, head in heads.items():
        figures.write_figure(tmp_path / name, GREY, attended())
        content = (tmp_path / name).read_bytes()
        assert content.startswith(head)
        figures.write_figure(tmp_path / name, GREY, attended())
        assert (tmp_path / name).read_bytes() == content  # without a date
    pixels = image((tmp_path / "out.PNG").read_bytes())
    small = image(figures.figure(GREY, attended()))
    assert pixels.shape == (2 * small.shape[0], 2 * small.shape[1], 3)
    assert (pixels[72 : 72 + 240, 24 : 24 + 360] == 120).all()  # the picture
    with pytest.raises(ValueError, match=r"ends in one of \.png, \.pdf, \.svg, not .*out.jpg"):
        figures.write_figure(tmp_path / "out.jpg", GREY, attended())
