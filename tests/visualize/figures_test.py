"""The pixels of attention figures are right, and files are written completely."""

import io
import os
import warnings

import numpy as np
import pytest
from PIL import Image

from tfcap import visualize
from tfcap.visualize import figures, maps
from tfcap.visualize.attention import Attended, Details, Layer

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
    pixels = visualize.panel(GREY, weights, BOXES, SIZE)
    assert pixels.shape == (60, 90, 3) and pixels.dtype == np.uint8
    expected = BOXES[strongest] * [90, 60, 90, 60]
    np.testing.assert_allclose(outlined(pixels), expected, atol=1)


def test_the_brightness_of_a_region_follows_its_weight():
    """The strongest region is the picture; others are paler, and pixels without a box palest."""
    weights = np.array([0.6, 0.3, 0.1])
    pixels = visualize.panel(GREY, weights, BOXES, SIZE)
    middles = [(15, 18), (45, 67), (12, 67)]  # row and column
    first, second, third = (int(pixels[row, column, 0]) for row, column in middles)
    nowhere = int(pixels[55, 3, 0])
    # With three regions full strength is 1.
    np.testing.assert_allclose(first, 255 - 135 * (0.25 + 0.75 * 0.6), atol=1)
    np.testing.assert_allclose(second, 255 - 135 * (0.25 + 0.75 * 0.3), atol=1)
    assert 120 < first < second < third < nowhere == 221


def test_a_region_with_all_weight_shows_the_picture_unchanged():
    pixels = visualize.panel(GREY, np.array([1.0, 0, 0]), BOXES, SIZE)
    assert (pixels[4:26, 4:32] == 120).all()


def test_in_overlapping_regions_the_strongest_counts():
    """A weak region of the whole picture changes nothing inside a strong one, in any order."""
    boxes = np.array([[0, 0, 0.4, 0.5], [0, 0, 1, 1], [0.5, 0.5, 1, 1]], np.float32)
    for order in ([0, 1, 2], [2, 1, 0]):
        weights = np.array([0.9, 0.1, 0])[order]
        pixels = visualize.panel(GREY, weights, boxes[order], SIZE, full=0.9)
        assert (pixels[4:26, 4:32] == 120).all() and 190 < pixels[50, 70, 0] < 221


@pytest.mark.parametrize("cell", range(6))
def test_a_grid_gives_a_heat_map(cell):
    """The cell with the weight is reddest; far cells show the picture, a little paler."""
    pixels = visualize.panel(GREY, np.eye(6)[cell], GRID, SIZE)
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
    seen = Attended(["a", "dog"], np.stack([flat, np.eye(100)[77]]), cells, "attention")
    pixels = image(visualize.figure(GREY, seen, size=SIZE))[36 : 36 + 60]
    first, second = pixels[:, 112:202], pixels[:, 212:302]
    assert redness(second) > 100 > 20 > redness(first)


def test_a_word_that_looks_everywhere_is_no_hot_spot():
    nearly = np.full([1, 6], 1 / 6) + np.eye(6)[:1] * 0.02
    seen = Attended(["a"], nearly, GRID, "attention")
    alone = image(visualize.figure(GREY, seen, size=SIZE))[36 : 36 + 60, 112:202]
    whole = visualize.panel(GREY, np.eye(6)[4], GRID, SIZE)
    assert redness(alone) < 0.5 * redness(whole)


def test_the_weight_of_a_uniform_distribution_is_printed(monkeypatch):
    found = []
    monkeypatch.setattr(figures, "labelled", lambda pixels, texts: found.extend(texts) or b"")
    seen = attended(boxes=GRID)
    visualize.figure(GREY, seen)
    assert "uniform 0.17" in [text for _, _, text, *_ in found]


@pytest.mark.parametrize("boxes", [BOXES, GRID], ids=["boxes", "grid"])
def test_zero_and_nan_weights_give_a_pale_picture(boxes):
    """NaN weights come from a training that has diverged; they give no warning."""
    for value in (0, np.nan):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pixels = visualize.panel(GREY, np.full(len(boxes), value), boxes, SIZE)
            png = visualize.figure(
                GREY, Attended(["a"], np.full((1, len(boxes)), value), boxes, "attention")
            )
        assert (pixels == pixels[0, 0]).all() and image(png).any()


def panels(pixels):
    """Counts the panels of each row: grey areas in a white figure."""
    below = pixels[30:]  # without the title
    rows = np.flatnonzero(np.diff((below[:, 12:14] < 250).all((1, 2)).astype(int)) == 1)
    lines = [(below[row + 3] < 250).all(-1).astype(int) for row in rows]
    return [int((np.diff(line) == 1).sum()) for line in lines]


@pytest.mark.parametrize("count, expected", [(1, [2]), (4, [4, 1]), (7, [4, 4])])
def test_a_panel_for_each_word_after_the_picture(count, expected):
    seen = attended("word " * count)
    png = visualize.figure(GREY, seen, size=SIZE, columns=4)
    assert panels(image(png)) == expected
    first = image(png)[36 : 36 + 60, 12 : 12 + 90]
    assert (first == 120).all()  # the unchanged picture


def test_each_head_has_its_row():
    seen = attended()
    rows = [(f"head {h}", seen.weights) for h in range(4)]
    one = image(visualize.figure(GREY, seen, size=110))
    all_heads = image(visualize.table(GREY, seen, rows))
    height = round(110 * 60 / 90)
    rows = [70 + i * (height + 10) for i in range(4)]
    columns = [102 + i * 120 for i in range(3)]
    for word, x in enumerate(columns):
        strips = [all_heads[y : y + height, x : x + 110] for y in rows]
        expected = one[36 : 36 + height, 12 + (word + 1) * 120 :][:, :110]
        for strip in strips:  # every head has the same weights here
            np.testing.assert_array_equal(strip, expected)


def test_a_figure_shows_kind_and_words_without_math_markup(monkeypatch):
    found = []
    monkeypatch.setattr(figures, "labelled", lambda pixels, texts: found.extend(texts) or b"")
    visualize.figure(GREY, attended("a $5$ note", kind="contribution"))
    texts = [text for _, _, text, *_ in found]
    assert texts[0] == "contribution of the regions (gradient x input): a $5$ note"
    assert {"a", "$5$", "note"} < set(texts)
    monkeypatch.undo()
    assert visualize.figure(GREY, attended("a $5$ $x^ note")).startswith(b"\x89PNG")


def test_a_caption_without_words_gives_only_the_picture():
    png = visualize.figure(GREY, Attended([], np.zeros((0, 3), np.float32), BOXES, "attention"))
    assert panels(image(png)) == [1]


def test_missing_glyphs_give_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        visualize.figure(GREY, attended("कुत्ता 狗"))


def expansion(path, *shapes):
    rng = np.random.default_rng(0)
    kinds = ("forward_a", "forward_b", "backward_a", "backward_b")
    return [
        Layer(path, kind, "regions", rng.random(shape, np.float32))
        for kind, shape in zip(kinds, shapes, strict=True)
    ]


@pytest.fixture(scope="module")
def whole():
    seen, rng = attended(), np.random.default_rng(2)
    cross = rng.dirichlet(np.ones(3), (2, 3)).astype("float32")
    decoder = [
        *expansion("decoder/0/expansion", (3, 4, 3), (3, 4, 3), (3, 3, 4), (3, 3, 4)),
        Layer("decoder/0/cross_att", "attention", "regions", cross),
        Layer("decoder/1/cross_att", "attention", "regions", cross),
        Layer("decoder/1/cross_att", "channel", "channels", rng.random((2, 3, 5))),
    ]
    encoder = expansion("encoder/0/expansion", (4, 3), (4, 3), (3, 4), (3, 4))
    return Details(seen, encoder, decoder)


@pytest.mark.slow
def test_the_sheet_shows_all_parts(whole, monkeypatch):
    """The tables of layers and heads lie side by side; their labels name every row."""
    found = []
    real = figures.labelled
    monkeypatch.setattr(
        figures, "labelled", lambda pixels, texts: found.extend(texts) or real(pixels, texts)
    )
    pixels = image(visualize.sheet(GREY, whole))
    texts = [text for _, _, text, *_ in found]
    names = ["mean", "decoder/0", "decoder/1", "head 1", "head 2"]
    assert [text for text in texts if text in names] == names
    assert "layers, and heads of decoder/1/cross_att   (uniform 0.33)" in texts
    first = image(visualize.figure(GREY, whole.attended))
    channels = image(visualize.channel_figure(whole.attended.words, whole.last("channel")))
    np.testing.assert_array_equal(pixels[: len(first), : first.shape[1]], first)
    rows = {bytes(row.tobytes()) for row in pixels[:, : channels.shape[1]]}
    assert {bytes(row.tobytes()) for row in channels} <= rows
    below = pixels[len(first) + 100 :, :560]  # below the title and the words of the tables
    assert (pixels[len(first) + 100, 620:900] < 250).any() and (below < 250).any()
    assert pixels.shape[1] < 1250 and len(pixels) < 1800


def test_a_long_caption_has_one_table_of_small_panels(whole, monkeypatch):
    sizes = []
    real = figures.table
    monkeypatch.setattr(
        figures, "table", lambda *args: sizes.append((args[3], len(args[2]))) or real(*args)
    )
    seen = attended("word " * 15)
    rows = [(f"head {h}", seen.weights) for h in range(8)]
    figures._tables(GREY, seen, rows, "decoder/0")
    assert sizes == [(60, 9)]


def test_channels_and_expansions_are_drawn_in_the_right_places(whole, monkeypatch):
    """Compares every number of the arrays that the heat maps draw."""
    drawn = []
    real = maps._heat_map
    monkeypatch.setattr(
        maps,
        "_heat_map",
        lambda d, axis, values, *rest: drawn.append(values) or real(d, axis, values, *rest),
    )
    layer = whole.last("channel")
    assert image(visualize.channel_figure(whole.attended.words, layer)).any()
    for (head, word, channel), value in np.ndenumerate(layer.weights):
        assert drawn[0][word, head * 5 + channel] == value
    drawn.clear()
    assert image(visualize.expansion_figure(whole.encoder)).any()
    np.testing.assert_array_equal(drawn[0], whole.encoder[0].weights)
    np.testing.assert_array_equal(drawn[2], whole.encoder[2].weights.T)  # vectors x regions
    drawn.clear()
    dynamic = whole.decoder[:4]
    assert image(visualize.expansion_figure(dynamic, whole.attended.words)).any()
    for (word, vector, read), value in np.ndenumerate(dynamic[0].weights):
        assert drawn[0][word * 4 + vector, read] == value
    for (gathers, word, vector), value in np.ndenumerate(dynamic[2].weights):
        assert drawn[2][word * 4 + vector, gathers] == value


def test_after_an_error_the_old_figure_remains(tmp_path, whole, monkeypatch):
    path = tmp_path / "out.png"
    visualize.write_picture(path, GREY, whole.attended)
    assert path.read_bytes() == visualize.figure(GREY, whole.attended)
    with pytest.raises(ValueError, match="uint8.*Received: float64"):
        visualize.write_picture(path, GREY / 255, whole.attended)
    with pytest.raises(ValueError, match=r"must end in \.png. Received: .*out.jpg"):
        visualize.write_picture(tmp_path / "out.jpg", GREY, whole.attended)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        visualize.write_picture(path, GREY, attended(seed=5))
    assert path.read_bytes() == visualize.figure(GREY, whole.attended)
    assert os.listdir(tmp_path) == ["out.png"]


@pytest.mark.slow
def test_details_are_written_as_a_sheet(tmp_path, whole):
    visualize.write_picture(tmp_path / "out.PNG", GREY, whole)
    assert (tmp_path / "out.PNG").read_bytes() == visualize.sheet(GREY, whole)


def test_figures_of_several_pictures_have_different_names():
    assert visualize.picture_path("a/out.png", "photos/dog.jpg", False) == "a/out.png"
    assert visualize.picture_path("a/out.png", "photos/my.dog.jpg", True) == "a/out-my.dog.png"


def test_tall_and_tiny_pictures_are_drawn():
    for shape in ((400, 3, 3), (1, 1, 3), (2, 700, 3)):
        pixels = visualize.panel(np.zeros(shape, np.uint8), np.array([1, 0, 0.0]), BOXES, 50)
        assert max(pixels.shape) == 50 and min(pixels.shape[:2]) >= 1
