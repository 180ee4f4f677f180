"""What a file is, why it is refused as a picture, and which way up it is."""

import io
import mimetypes
import os

import numpy as np
import pytest
import tensorflow as tf
from helpers import picture_bytes
from PIL import Image

from tfcap import images
from tfcap.data import pictures

REFUSED = {
    "empty": (b"", "the file is empty"),
    "text": (b"no picture", "must be JPEG, PNG, BMP, GIF, WebP or TIFF"),
    "HTML": (b"\n<!DOCTYPE html><html>404", "perhaps a saved web page"),
    "video": (b"\0\0\0\x18ftypmp42\0\0\0\0", "a film, or a HEIC or AVIF picture"),
    "TIFF": (picture_bytes.file("TIFF"), "a TIFF file, which cannot be read"),
    "JPEG 2000": (picture_bytes.file("JPEG2000"), "a JPEG2000 file, which cannot be read"),
    "table": (picture_bytes.file("BMP", mode="P"), "has a table of colours"),
    "large PNG": (picture_bytes.claiming("PNG", 30_000, 30_000), "or it is damaged"),
    "large JPEG": (picture_bytes.claiming("JPEG", 30_000, 30_000), "more than 178956970 pixels"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_has_a_reason_of_one_line(name):
    content, sentence = REFUSED[name]
    with pytest.raises(tf.errors.InvalidArgumentError):
        pictures.decode(tf.constant(content))
    result = images.refusal(content)
    assert sentence in result and "\n" not in result


def test_an_animated_gif_gives_its_first_frame():
    content, still = picture_bytes.file("GIF", frames=3), picture_bytes.file("GIF")
    assert images.is_animated(content) and not images.is_animated(still)
    with Image.open(io.BytesIO(content)) as image:
        first = np.asarray(image.convert("RGB"))
    np.testing.assert_array_equal(pictures.decode(tf.constant(content)), first)
    assert not images.is_animated(content[:20])


def test_an_animated_webp_is_refused():
    for options in ({}, {"lossless": True}):
        content, still = (
            picture_bytes.file("WebP", frames=2, **options),
            picture_bytes.file("WebP", **options),
        )
        assert images.is_animated(content) and not images.is_animated(still)
        with pytest.raises(tf.errors.InvalidArgumentError):
            pictures.decode(tf.constant(content))
        assert "an animated WebP file" in images.refusal(content)


@pytest.mark.parametrize("number", range(1, 9))
def test_pillow_and_the_graph_turn_a_picture_the_same_way(number):
    exif = Image.Exif()
    exif[0x0112] = number
    content = picture_bytes.file("PNG", exif=exif)
    with Image.open(io.BytesIO(content)) as image:
        turned = np.asarray(images.upright(image))
    np.testing.assert_array_equal(pictures.decode(tf.constant(content)), turned)


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I"])
def test_grey_pictures_of_16_bits_keep_their_brightness(mode):
    values = np.linspace(0, 65_535, 64 * 48).reshape(48, 64).astype(np.uint16)
    content = io.BytesIO()
    Image.fromarray(values).save(content, "PNG")
    kind = {"I;16": "<u2", "I;16B": ">u2", "I": np.int32}[mode]
    image = Image.frombytes(mode, (64, 48), values.astype(kind).tobytes())
    grey = np.asarray(images.upright(image).convert("RGB"))
    np.testing.assert_array_equal(pictures.decode(tf.constant(content.getvalue())), grey)


@pytest.mark.parametrize(
    ("name", "kind", "readable"),
    [
        ("a.jfif", "JPEG", True),
        ("a.JPE", "JPEG", True),
        ("a.mpo", "MPO", True),
        ("a.apng", "PNG", True),
        ("4711", "JPEG", True),
        ("a.jpg.1", "WEBP", True),
        ("4711", "TIFF", True),
        ("a.tif", "TIFF", True),
        ("a.txt", "JPEG", False),
        ("._a.jpg", "JPEG", False),
    ],
)
def test_endings_tell_what_can_be_read_or_else_the_first_bytes(
    tmp_path, monkeypatch, name, kind, readable
):
    monkeypatch.setitem(mimetypes.types_map, ".1", "application/x-troff-man")  # as on Debian
    path = tmp_path / name
    path.write_bytes(picture_bytes.file(kind))
    assert images.is_picture(path) == readable
    if readable:
        assert pictures.read(path.read_bytes()).shape[2] == 3


def test_other_files_are_no_pictures(tmp_path):
    (tmp_path / "BM").write_text("BMW builds cars.")
    os.mkfifo(tmp_path / "pipe")
    assert not any(images.is_picture(tmp_path / name) for name in ("BM", "pipe", "missing", "."))


def test_pictures_that_are_not_decoded_are_counted_by_their_endings():
    names = ["a.HEIC", "x/b.heic", "c.jp2", "d.avif", "e.svg", "f.jpg", ".g.jp2", "jp2", "h.txt"]
    assert images.left_out(names) == (
        "5 pictures are left out (2 .heic, 1 .jp2, 1 .avif, 1 .svg): save them as JPEG or PNG"
    )
    assert images.left_out(["a.dng"]) == "1 picture is left out (1 .dng): save it as JPEG or PNG"
    assert images.left_out(["a.jfif", "b.txt"]) == ""
