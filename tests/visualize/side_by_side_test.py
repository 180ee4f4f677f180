"""Figures of several models: one block for each, the strongest region outlined."""

import io
import os

import numpy as np
import pytest
from PIL import Image

from tfcap.visualize import figures, side_by_side
from tfcap.visualize.attention import Attended

GREY = np.full((60, 90, 3), 120, np.uint8)
BOXES = np.array([[0, 0, 0.4, 0.5], [0.5, 0.5, 1, 1], [0.6, 0.1, 0.9, 0.3]], np.float32)
GRID = np.array([[x / 2, y / 2, x / 2 + 0.5, y / 2 + 0.5] for y in (0, 1) for x in (0, 1)])


def attended(words, boxes, strongest):
    weights = np.full((len(words.split()), len(boxes)), 0.1, np.float32)
    weights[:, strongest] = 0.7
    return Attended(words.split(), weights, boxes, "attention")


def pixels(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def test_each_model_has_a_row_with_its_strongest_region_outlined(monkeypatch):
    texts = []
    real = figures.labelled
    monkeypatch.setattr(
        side_by_side, "labelled", lambda page, found: texts.extend(found) or real(page, found)
    )
    models = [("X-LAN", attended("a red dog", BOXES, 1)), ("Up-Down", attended("a cat", GRID, 2))]
    page = pixels(side_by_side.rows(GREY, models, 90))
    written = [text for _, _, text, *_ in texts]
    assert written[0] == "X-LAN: a red dog   (attention, uniform 0.33)"
    assert "Up-Down: a cat   (attention, uniform 0.25)" in written
    assert [
        text for text in written if text in ("a", "red", "dog", "cat")
    ] == "a red dog a cat".split()
    assert written.count("0.70") == 5
    heads = [12 + 30, 12 + 30 + 100 + 30]  # where the panels of both models begin
    for head, seen in zip(heads, (models[0][1], models[1][1]), strict=True):
        np.testing.assert_array_equal(page[head : head + 60, 12:102], GREY)
        for word in range(len(seen.words)):
            left = 12 + (word + 1) * 100
            panel = page[head : head + 60, left : left + 90]
            rows, columns = np.nonzero((panel == figures.OUTLINE).all(-1))
            found = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            expected = seen.boxes[seen.weights[0].argmax()] * [90, 60, 90, 60]
            np.testing.assert_allclose(found, expected, atol=1)
        assert (page[head : head + 60, 12 + (len(seen.words) + 1) * 100 :] == 255).all()


def test_a_long_caption_goes_on_in_the_next_row():
    models = [("one", attended("word " * 9, BOXES, 0)), ("two", attended("end", BOXES, 0))]
    page = pixels(side_by_side.rows(GREY, models, 90))
    tops = [12 + 30, 12 + 30 + 100, 12 + 30 + 200 + 30]
    assert [int((page[top + 30, 12::100] < 250).all(-1).sum()) for top in tops] == [8, 2, 2]
    assert page.shape[1] == 12 + 8 * 100 - 10 + 12


def test_captions_without_words_and_models_without_attention_are_drawn():
    empty = Attended([], np.zeros((0, 3), np.float32), BOXES, "attention")
    blind = Attended(["a"], np.zeros((1, 4), np.float32), GRID, "contribution")
    page = pixels(side_by_side.rows(GREY, [("one", empty), ("two", blind)], 90))
    assert not (page == figures.OUTLINE).all(-1).any()


@pytest.fixture
def pictures(tmp_path):
    paths = {}
    for image, name in ((3, "a/dog.png"), (5, "b/cat.jpg"), (7, "b/broken.png")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(GREY).save(path)
        paths[image] = str(path)
    (tmp_path / "b" / "broken.png").write_bytes(b"no picture")
    return paths


def test_a_figure_is_written_for_each_picture_that_can_be_read(tmp_path, pictures):
    first = {image: attended("a dog", BOXES, 0) for image in (3, 5, 7, 9)}
    folder = tmp_path / "figures" / "new"
    models = {"one": first, "two": {3: attended("a cat", GRID, 1)}}
    assert side_by_side.write_figures(folder, pictures, models) == 2
    assert sorted(os.listdir(folder)) == ["cat.png", "dog.png"]
    both, one = (pixels((folder / name).read_bytes()) for name in ("dog.png", "cat.png"))
    assert len(both) - len(one) == len(one) - 12


def test_a_figure_never_overwrites_a_picture(tmp_path, pictures):
    other = tmp_path / "own" / "bird.png"
    other.parent.mkdir()
    Image.fromarray(GREY).save(other)
    models = {"one": {8: attended("a", BOXES, 0)}}
    with pytest.raises(ValueError, match="would overwrite the picture .*bird.png. Give another"):
        side_by_side.write_figures(other.parent, {**pictures, 8: str(other)}, models)
    assert os.listdir(other.parent) == ["bird.png"]
    with Image.open(other) as kept:
        assert kept.size == (90, 60)


def test_pictures_of_the_same_name_have_different_figures(tmp_path, pictures):
    other = tmp_path / "c" / "dog.png"
    other.parent.mkdir()
    Image.fromarray(GREY).save(other)
    models = {"one": {image: attended("a", BOXES, 0) for image in (3, 8)}}
    side_by_side.write_figures(tmp_path / "out", {**pictures, 8: str(other)}, models)
    assert sorted(os.listdir(tmp_path / "out")) == ["3-dog.png", "8-dog.png"]
