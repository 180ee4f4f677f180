"""Copies of a picture are found, other pictures are not; equal captions are counted."""

import io

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from tfcap.data import leaks


def photo(seed: int) -> Image.Image:
    """A picture with soft patches of colour, as photographs have, and some noise."""
    generator = np.random.default_rng(seed)
    patches = Image.fromarray(generator.integers(0, 256, (9, 12, 3), np.uint8))
    pixels = np.asarray(patches.resize((160, 120), Image.Resampling.BICUBIC), int)
    noisy = pixels + generator.integers(-8, 9, pixels.shape)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def saved(picture: Image.Image, kind: str = "JPEG", **options) -> io.BytesIO:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    file.seek(0)
    return file


def described(*files):
    return np.stack(list(leaks.describe_pictures(files))).astype(np.float32)


@pytest.mark.parametrize(
    "change",
    [
        lambda picture: saved(picture, quality=20),
        lambda picture: saved(picture.resize((80, 60)), "PNG"),
        lambda picture: saved(ImageEnhance.Brightness(picture).enhance(1.3), "WEBP"),
        lambda picture: saved(picture.crop((2, 1, 158, 119))),
        lambda picture: saved(picture.rotate(-90, expand=True), exif=turned_left()),
    ],
    ids=["quality", "half", "lighter", "cut", "turned"],
)
def test_a_changed_copy_is_found_among_others(change):
    originals = described(*(saved(photo(number), "PNG") for number in range(20)))
    copies = described(*(change(photo(number)) for number in range(20)))
    place, alike = leaks.most_alike(copies, originals)
    assert list(place) == list(range(20)) and alike.min() > leaks.SAME
    others = originals @ originals.T - 2 * np.eye(20)
    assert others.max() < leaks.SAME - 0.1


def turned_left() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 8
    return exif


def test_a_picture_of_one_colour_and_a_damaged_file_resemble_nothing(tmp_path):
    grey = saved(Image.new("RGB", (50, 40), "grey"))
    result = described(grey, grey, io.BytesIO(b"no picture"), str(tmp_path / "none.jpg"))
    assert not result.any()


def test_small_drawings_with_an_even_background_differ():
    """The signs of their differences are nearly all the same."""

    def drawing(place, colour):
        picture = Image.new("RGB", (96, 96), "white")
        picture.paste(colour, (*place, place[0] + 20, place[1] + 20))
        return saved(picture, "PNG")

    places = [(10, 10), (60, 10), (10, 60), (60, 60)]
    result = described(*(drawing(place, "red") for place in places), drawing(places[0], "blue"))
    assert (result @ result.T - np.eye(5)).max() < leaks.SAME


def test_the_most_alike_image_is_that_of_the_whole_table(monkeypatch):
    monkeypatch.setattr(leaks, "_ROWS", 7)
    monkeypatch.setattr(leaks, "_COLUMNS", 5)
    generator = np.random.default_rng(2)
    first, second = generator.normal(size=(30, 8)), generator.normal(size=(23, 8))
    place, alike = leaks.most_alike(first.astype("f2"), second.astype("f2"))
    table = first.astype("f2").astype("f4") @ second.astype("f2").astype("f4").T
    np.testing.assert_array_equal(place, table.argmax(axis=1))
    np.testing.assert_allclose(alike, table.max(axis=1), rtol=1e-6)


@pytest.mark.parametrize("width", [64, 600], ids=["short", "long"])
def test_features_of_a_copy_are_found_and_padding_does_not_count(width):
    generator = np.random.default_rng(3)
    # Positive, as after a ReLU: without their mean, all vectors have nearly one direction.
    features = 5 + generator.gamma(1, size=(40, 5, width)).astype(np.float32)
    mask = np.arange(5) < generator.integers(2, 6, (40, 1))
    copies = features * generator.normal(1, 0.001, features.shape).astype(np.float32)
    copies[~mask] = 99
    own = {
        "train": leaks.describe_features(features, mask),
        "val": leaks.describe_features(copies[10:], mask[10:]),
    }
    own = leaks.centred(own)
    place, alike = leaks.most_alike(own["val"], own["train"])
    assert list(place) == list(range(10, 40)) and alike.min() > leaks.SAME
    others = own["train"].astype("f4") @ own["train"].astype("f4").T - 2 * np.eye(40)
    assert others.max() < leaks.SAME


def test_captions_in_two_splits_are_counted():
    references = {
        "train": {1: ["A dog runs.", "a cat"], 2: ["Two dogs play in the snow .", "..."]},
        "val": {3: ["a dog, runs", "A DOG RUNS"], 4: ["two dogs play in the snow", "a bird"]},
        "test": {5: ["A cat!", "a bird"], 6: []},
    }
    result = leaks.shared_captions(references.__getitem__, list(references))
    assert result == {
        ("train", "val"): (3, 4, ["two dogs play in the snow", "a dog runs"]),
        ("train", "test"): (1, 2, ["a cat"]),
        ("val", "test"): (1, 2, ["a bird"]),
    }


def test_sentences_of_several_captions_are_counted(monkeypatch):
    monkeypatch.setattr(leaks, "_CHUNK", 2)
    captions = ["No edema. The heart is normal.", "The heart is normal! Size 1.5 cm. No edema"]
    captions += ["no edema . no edema . lungs are clear", "心臓は正常。肺は正常。", "肺は正常。"]
    result = leaks.repeated_sentences(captions)
    assert (result.total, result.repeated) == (10, 7)
    assert result.examples[0] == ("no edema", 3)
    assert dict(result.examples[1:]) == {"the heart is normal": 2, "肺は正常": 2}


def test_sentences_of_reports_are_those_of_their_cleaned_words():
    reports = ["1. No edema. 2. Size 1.5 cm.", "Size (15) cm.. no edema. no edema", "no edema . x"]
    result = leaks.repeated_sentences(reports, "iu_xray")
    assert (result.total, result.repeated) == (6, 5)
    assert result.examples == [("no edema", 3), ("size 15 cm", 2)]
    assert "size 15 cm" not in dict(leaks.repeated_sentences(reports).examples)
