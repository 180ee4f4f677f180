"""The built-in data set: scenes, pictures and captions that tell the truth."""

import json
import pathlib
import re

import numpy as np
import pytest
from PIL import Image

from tfcap import errors, files
from tfcap.prepare import prepare
from tfcap.preparing import shapes

SMALL = {"train": 300, "val": 30, "test": 20}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shapes")
    path = pathlib.Path(shapes.DATA.write(folder, SMALL, seed=3))
    return folder, json.loads(path.read_text())["images"]


def test_no_scene_is_in_two_splits_or_twice():
    splits = shapes.DATA.different({"train": 2000, "val": 200, "test": 200}, seed=1)
    assert {split: len(members) for split, members in splits.items()} == {
        "train": 2000,
        "val": 200,
        "test": 200,
    }
    every = [frozenset(scene) for members in splits.values() for scene in members]
    assert len(set(every)) == 2400


def test_boxes_hold_objects_of_their_colour_and_nothing_lies_outside(written):
    folder, images = written
    for image in images[:60]:
        pixels = np.asarray(Image.open(folder / "images" / image["filename"]), np.float32)
        outside = np.ones(pixels.shape[:2], bool)
        for name, box in zip(image["objects"], image["boxes"], strict=True):
            x1, y1, x2, y2 = (number * shapes.IMAGE_SIZE for number in box)
            assert 0 <= x1 < x2 <= shapes.IMAGE_SIZE and 0 <= y1 < y2 <= shapes.IMAGE_SIZE
            size, colour, _ = name.split()
            centre = pixels[int((y1 + y2) / 2), int((x1 + x2) / 2)]
            assert np.abs(centre - shapes.COLOURS[colour]).max() <= 13
            assert (x2 - x1 > 18) == (size == "big") or "diamond" in name
            outside[int(y1) : int(np.ceil(y2)), int(x1) : int(np.ceil(x2))] = False
        assert pixels[outside].min() >= 200  # light background, nothing else
    backgrounds = {tuple(np.asarray(Image.open(folder / "images" / i["filename"]))[0, 0])
                   for i in images[:60]}  # fmt: skip
    assert len(backgrounds) >= 5


_NUMBERS = {"a": 1, "an": 1, "two": 2, "three": 3, "four": 4}
_SIZES = {"big": "big", "large": "big", "small": "small", "little": "small"}
_PHRASE = re.compile(
    r"\b(a|an|two|three|four) (?:(big|large|small|little) )?"
    rf"({'|'.join(shapes.COLOURS)}) ({'|'.join(shapes.KINDS)})(es|s)?\b"
)


def _meant(match, image):
    """Middles of the objects that a phrase names, after checking that it counts them right."""
    number, size, colour, kind, plural = match.groups()
    middles = []
    for name, (x1, y1, x2, y2) in zip(image["objects"], image["boxes"], strict=True):
        if name.split()[1:] == [colour, kind]:
            assert size is None or name.split()[0] == _SIZES[size]
            middles.append(((x1 + x2) / 2, (y1 + y2) / 2))
    assert len(middles) == _NUMBERS[number] and bool(plural) == (len(middles) > 1)
    return np.array(middles)


def _check_caption(text, image):
    """Reads a caption by rules of its own, holds it against the boxes, returns what it says."""
    phrases = list(_PHRASE.finditer(text.lower()))
    assert phrases
    positions = [_meant(match, image) for match in phrases]
    rest = _PHRASE.sub("#", text.lower())
    for words, axis, sign in (("to the left of", 0, 1), ("to the right of", 0, -1),
                              ("above", 1, 1), ("below", 1, -1)):  # fmt: skip
        if f"# {words} #" in rest:
            first, second = sign * positions[0][:, axis], sign * positions[1][:, axis]
            assert first.max() + 0.15 < second.min()
    sides = (
        ("top", 1, 0, 0.4),
        ("bottom", 1, 0.6, 1),
        ("middle", 1, 0.3, 0.7),
        (r"on the left|left corner", 0, 0, 0.4),
        (r"on the right|right corner", 0, 0.6, 1),
    )
    for words, axis, low, high in sides:
        if re.search(words, rest):
            assert low < positions[0][0, axis] < high
    return rest


def test_captions_are_true(written):
    _, images = written
    forms = {_check_caption(s["raw"], image) for image in images for s in image["sentences"]}
    said = " ".join(forms)
    for words in ("to the left of", "to the right of", "above", "below", "corner", "middle", "and"):
        assert words in said


@pytest.mark.slow
def test_same_seed_same_bytes_and_a_second_call_changes_nothing(written, tmp_path):
    folder, images = written
    again = pathlib.Path(shapes.DATA.write(tmp_path, SMALL, seed=3))
    assert again.read_bytes() == (folder / shapes.DATA.caption_file).read_bytes()
    for image in images[::20]:
        name = image["filename"]
        assert (tmp_path / "images" / name).read_bytes() == (folder / "images" / name).read_bytes()
    before = again.stat().st_mtime_ns
    shapes.DATA.write(tmp_path, SMALL, seed=3)
    assert again.stat().st_mtime_ns == before


def test_a_finished_directory_is_read_without_its_lock(written):
    folder, _ = written
    with files.lock(folder, "shapes", "wait"):  # another process has it
        assert shapes.DATA.write(folder, SMALL, seed=3) == str(folder / "dataset_shapes.json")


def test_other_settings_are_refused_and_foreign_pictures_survive(tmp_path):
    few = {"train": 2, "val": 1, "test": 1}
    shapes.DATA.write(tmp_path, few | {"train": 4})
    holiday = tmp_path / "images" / "holiday.png"
    holiday.write_bytes(b"mine")
    with pytest.raises(ValueError, match="has shapes with other settings.*`overwrite`"):
        shapes.DATA.write(tmp_path, few)
    before = {path: path.read_bytes() for path in (tmp_path / "images").iterdir()}
    for wrong in ({"workers": 0}, {"grid": 0}):
        with pytest.raises(errors.UsageError, match="must be at least 1, not 0"):
            prepare(tmp_path, source="shapes", **few, overwrite=True, **wrong)
    assert before == {path: path.read_bytes() for path in (tmp_path / "images").iterdir()}
    with files.lock(tmp_path, "shapes", ""):
        with pytest.raises(ValueError, match="is writing to"):
            shapes.DATA.write(tmp_path, few, overwrite=True)
    shapes.DATA.write(tmp_path, few, overwrite=True)
    assert sorted(p.name for p in (tmp_path / "images").iterdir()) == [
        "holiday.png", "test_000000.png", "train_000000.png", "train_000001.png",
        "val_000000.png",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="`train` of shapes must be at least 1"):
        shapes.DATA.write(tmp_path / "none", {"train": 0})
