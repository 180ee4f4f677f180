"""Pictures are read from files and from the bytes that a source gives."""

import dataclasses
import os

import numpy as np
import pytest
from helpers import literal_detector, picture_bytes
from helpers.sources import picture
from PIL import Image

from tfcap.backbones import detector
from tfcap.backbones.backbone import Backbone
from tfcap.preparing.pictures import DetectedRegions, Pictures
from tfcap.preparing.sources.entry import Entry, FilePart


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(5):
        picture(folder / f"{number}.{'jpg' if number % 2 else 'png'}", number)
    return folder


@pytest.fixture(scope="module")
def reader(folder):
    return Pictures(folder, Backbone("pixels"))


def entries(folder):
    return [
        Entry(number, f"{number}.{'jpg' if number % 2 else 'png'}", "val", ())
        for number in range(5)
    ]


def packed(folder, path):
    """The same pictures one after the other in a file, with zeros behind each."""
    parts, content = [], b""
    for entry in entries(folder):
        own = (folder / entry.file_name).read_bytes() + b"\0" * 7
        parts.append(entry._replace(content=FilePart(path, len(content), len(own))))
        content += own
    path.write_bytes(content)
    return parts


@pytest.mark.slow
def test_bytes_give_the_same_features_as_files(folder, reader, tmp_path):
    own = packed(folder, tmp_path / "shard")
    result = list(reader.read(own))
    assert [one.entry for one in result] == own
    for one, other in zip(result, reader.read(entries(folder)), strict=True):
        np.testing.assert_array_equal(one.features, other.features)
    mixed = list(reader.read([*own[:2], *entries(folder)[2:]]))
    assert all(one.reason is None for one in mixed)
    no_files = Pictures(None, reader.backbone)
    np.testing.assert_array_equal(next(no_files.read(own)).features, result[0].features)


def test_parts_that_cannot_be_read_are_skipped_with_the_reason(folder, reader, tmp_path):
    own = packed(folder, tmp_path / "shard")
    own[0] = own[0]._replace(content=FilePart(tmp_path / "none", 0, 9))
    own[2] = own[2]._replace(content=FilePart(tmp_path / "shard", 0, 10 << 30))
    own[3] = own[3]._replace(content=FilePart(tmp_path / "shard", 3, 50))
    own[4] = own[4]._replace(content=FilePart(tmp_path / "shard", 10**6, 50))
    reasons = [one.reason for one in reader.read(own)]
    parts = ["No such file", None, "at most 268435456", "or it is damaged",
             "ends before the picture"]  # fmt: skip
    assert reasons[1] is None
    assert all(part in reason for part, reason in zip(parts, reasons, strict=True) if part)


def test_a_missing_file_is_named(folder, reader):
    missing, pipe = (Entry(9, name, "val", ()) for name in ("none.jpg", "pipe.jpg"))
    os.mkfifo(folder / "pipe.jpg")  # reading it would wait for ever
    result = list(reader.read([entries(folder)[0], missing, pipe]))
    assert [one.reason for one in result] == [
        None,
        "the picture file does not exist. Add it, or correct its name",
        "the path is a directory or a device. Name a picture file",
    ]
    with pytest.raises(ValueError, match="is not a directory"):
        Pictures(folder / "none", reader.backbone)


def test_tiff_and_16_bits_are_read_and_noted(tmp_path, reader):
    """TIFF gives the features of a PNG; pictures whose 16 bits are hardly used are told."""
    grey = np.random.default_rng(1).integers(0, 65_535, (96, 96), np.uint16)
    grey[:8, :8] = 65_535
    for name, values in {
        "deep": grey,
        "dark": grey >> 4,
        "eight": (grey >> 8).astype(np.uint8),
    }.items():
        Image.fromarray(values).save(tmp_path / f"{name}.png")
        Image.fromarray(values).save(tmp_path / f"{name}.tif")
    pages = {"save_all": True, "append_images": [Image.new("L", (9, 9))]}
    Image.fromarray(grey).save(tmp_path / "pages.tiff", **pages)
    names = ["eight.png", "eight.tif", "deep.png", "deep.tif", "pages.tiff", "dark.png", "dark.tif"]
    own = [Entry(number, name, "val", ()) for number, name in enumerate(names)]
    first, *others = Pictures(tmp_path, reader.backbone).read(own)
    for one in others[:4]:
        np.testing.assert_array_equal(one.features, first.features)
    assert [first.notes, *(one.notes for one in others[:3])] == [()] * 4
    assert [len(one.notes) for one in others[3:]] == [1, 1, 1]
    assert "several pages" in others[3].notes[0] and "nearly black" in others[4].notes[0]


@pytest.mark.slow
def test_a_detector_notes_only_dark_pictures(tmp_path):
    """It reads pictures less a mean, so that grey ones have small numbers, too."""
    sizes = dataclasses.replace(
        literal_detector.NARROW, short=96, long=160, candidates=100, proposals=20, boxes=(4, 8)
    )
    weights, card = literal_detector.random_weights(sizes), literal_detector.card_of(sizes)
    detector.write(tmp_path / "weights", weights, card)
    grey = np.random.default_rng(1).integers(0, 150 << 8, (96, 96), np.uint16)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    Image.fromarray(grey >> 4).save(tmp_path / "dark.png")
    own = [Entry(number, f"{name}.png", "val", ()) for number, name in enumerate(("grey", "dark"))]
    read = DetectedRegions(tmp_path, detector.load(tmp_path / "weights")).read(own)
    assert [len(one.notes) for one in read] == [0, 1]


def test_a_tiff_that_cannot_be_converted_is_skipped(tmp_path, reader):
    (tmp_path / "a.tif").write_bytes(picture_bytes.file("TIFF", mode="LAB"))
    (tmp_path / "b.tif").write_bytes(picture_bytes.file("TIFF")[:-40])
    own = [Entry(number, f"{name}.tif", "val", ()) for number, name in enumerate("ab")]
    reasons = [one.reason for one in Pictures(tmp_path, reader.backbone).read(own)]
    assert "(Pillow calls them LAB). Scale them" in reasons[0] and "damaged" in reasons[1]
