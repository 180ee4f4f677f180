"""What a file is, why it is refused as a picture, and which way up it is."""

import io

import numpy as np
import pytest
import tensorflow as tf
from helpers import picture_bytes
from helpers.picture_bytes import SIZE
from PIL import Image, features

from tfcap import picture_files
from tfcap.data import pictures


@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP", "GIF", "WebP"])
def test_a_truncated_file_is_refused_by_its_kind(form):
    whole = picture_bytes.file(form)
    assert picture_files.kind(whole) == form
    assert pictures.decode(tf.constant(whole)).shape == (*SIZE[::-1], 3)
    for size in (len(whole) // 2, 30):
        with pytest.raises(tf.errors.InvalidArgumentError):
            pictures.decode(tf.constant(whole[:size]))
        assert "a truncated" in picture_files.refusal(whole[:size])
        assert f"{form} file" in picture_files.refusal(whole[:size])


REFUSED = {
    "empty": (b"", "the file is empty. Copy or download it again."),
    "text": (b"no picture", "Received: a file of an unknown kind. Check the file."),
    "PDF": (b"%PDF-1.7\n", "Received: PDF data. Convert it to JPEG or PNG."),
    "SVG": (b'<?xml version="1.0"?>\n<svg width="4">', "Received: SVG data. Convert it"),
    "HTML": (b"\n<!DOCTYPE html><html>404", "Received: HTML data. The web page was saved"),
    "HEIC": (b"\0\0\0\x18ftypheic\0\0\0\0", "Received: HEIC data. Convert it"),
    "video": (b"\0\0\0\x18ftypmp42\0\0\0\0", "Received: video data. Save one of its frames"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_is_no_picture_is_refused_with_its_kind(name):
    content, sentence = REFUSED[name]
    with pytest.raises(tf.errors.InvalidArgumentError):
        pictures.decode(tf.constant(content))
    found = picture_files.refusal(content)
    assert sentence in found and "\n" not in found


@pytest.mark.parametrize("form", ["TIFF", "AVIF", "JPEG2000"])
def test_a_picture_of_another_kind_is_refused_with_its_kind(form):
    if form == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow cannot write AVIF")
    content = picture_bytes.file(form)
    with pytest.raises(tf.errors.InvalidArgumentError):
        pictures.decode(tf.constant(content))
    kind = "JPEG 2000" if form == "JPEG2000" else form
    expected = "a picture must be JPEG, PNG, BMP, GIF or WebP. "
    expected += f"Received: {kind} data. Convert it to JPEG or PNG."
    assert picture_files.refusal(content) == expected


def test_an_animated_gif_gives_its_first_frame():
    content, still = picture_bytes.file("GIF", frames=3), picture_bytes.file("GIF")
    assert picture_files.is_animated(content) and not picture_files.is_animated(still)
    with Image.open(io.BytesIO(content)) as image:
        first = np.asarray(image.convert("RGB"))
    np.testing.assert_array_equal(pictures.decode(tf.constant(content)), first)
    assert not picture_files.is_animated(content[:20])


def test_an_animated_webp_is_refused():
    for options in ({}, {"lossless": True}):
        content, still = (
            picture_bytes.file("WebP", frames=2, **options),
            picture_bytes.file("WebP", **options),
        )
        assert picture_files.is_animated(content) and not picture_files.is_animated(still)
        with pytest.raises(tf.errors.InvalidArgumentError):
            pictures.decode(tf.constant(content))
        assert "an animated WebP file" in picture_files.refusal(content)


@pytest.mark.parametrize("number", range(1, 9))
def test_pillow_and_the_graph_turn_a_picture_the_same_way(number):
    exif = Image.Exif()
    exif[0x0112] = number
    content = picture_bytes.file("PNG", exif=exif)
    with Image.open(io.BytesIO(content)) as image:
        turned = np.asarray(picture_files.upright(image))
    np.testing.assert_array_equal(pictures.decode(tf.constant(content)), turned)


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I"])
def test_grey_pictures_of_16_bits_keep_their_brightness(mode):
    values = np.linspace(0, 65_535, 64 * 48).reshape(48, 64).astype(np.uint16)
    content = io.BytesIO()
    Image.fromarray(values).save(content, "PNG")
    kind = {"I;16": "<u2", "I;16B": ">u2", "I": np.int32}[mode]
    image = Image.frombytes(mode, (64, 48), values.astype(kind).tobytes())
    grey = np.asarray(picture_files.upright(image).convert("RGB"))
    np.testing.assert_array_equal(pictures.decode(tf.constant(content.getvalue())), grey)


def test_damaged_exif_leaves_a_picture_as_it_is():
    content = picture_bytes.file("PNG", exif=b"Exif\0\0this is no EXIF")
    with Image.open(io.BytesIO(content)) as image:
        turned = np.asarray(picture_files.upright(image))
    np.testing.assert_array_equal(pictures.decode(tf.constant(content)), turned)


# Form of the file -> options, and sides that it can claim.
CLAIMS = {
    "JPEG": ("JPEG", {}, (30_000, 30_000)),
    "progressive": ("JPEG", {"progressive": True}, (40, 24)),
    "PNG": ("PNG", {}, (30_000, 30_000)),
    "GIF": ("GIF", {}, (0xFFFF, 0xFFFF)),
    "BMP": ("BMP", {}, (0x7FFFFFFF, 0x7FFFFFFF)),
    "lossy WebP": ("WebP", {}, (16_383, 16_383)),
    "lossless WebP": ("WebP", {"lossless": True}, (16_384, 16_384)),
    "extended WebP": ("WebP", {"exif": b"Exif\0\0II*\0\x08\0\0\0\0\0"}, (1 << 24, 255)),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_small_file_that_claims_gigabytes_is_refused_before_it_is_decoded(name):
    form, options, sides = CLAIMS[name]
    whole = picture_bytes.file(form, **options)
    assert picture_files.claimed_size(whole) == (1, *SIZE)
    if sides == SIZE:  # its head is in another place, which `claiming` does not know
        return
    content = picture_bytes.claiming(form, *sides, **options)
    assert picture_files.claimed_size(content) == (1, *sides)
    with pytest.raises(tf.errors.InvalidArgumentError, match="too many pixels"):
        pictures.decode(tf.constant(content))
    found = picture_files.refusal(content)
    assert f"a {form} file must have at most 178956970 pixels. Received: {sides[0]} x" in found


def test_all_frames_of_a_gif_count():
    """The decoder reads every frame, and makes room for the largest."""
    content = picture_bytes.file("GIF", frames=7)
    assert picture_files.claimed_size(content) == (7, *SIZE)
    found = picture_files.refusal(content, 7 * 40 * 24 - 1)
    assert "at most 6719 pixels in all. Received: 7 frames of 40 x 24" in found
    with pytest.raises(tf.errors.InvalidArgumentError, match="too many pixels"):
        pictures.decode(tf.constant(content), 7 * 40 * 24 - 1)
    assert pictures.decode(tf.constant(content), 7 * 40 * 24).shape == (*SIZE[::-1], 3)


def test_a_bmp_from_the_top_and_short_files_claim_what_they_have():
    whole = bytearray(picture_bytes.file("BMP"))
    whole[22:26] = (-SIZE[1]).to_bytes(4, "little", signed=True)
    assert picture_files.claimed_size(bytes(whole)) == (1, *SIZE)
    assert pictures.decode(tf.constant(bytes(whole))).shape == (*SIZE[::-1], 3)
    for content in (b"GIF8", b"", b"\xff\xd8\xff", b"RIFF\0\0\0\0WEBPVP9X"):
        assert picture_files.claimed_size(content)[1:] == (0, 0)


def test_the_size_of_a_picture_is_that_of_the_upright_one(tmp_path):
    image = Image.new("RGB", (30, 20))
    image.save(tmp_path / "plain.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "turned.jpg", exif=exif)
    (tmp_path / "none.jpg").write_bytes(b"no picture")
    sizes = [
        picture_files.upright_size(tmp_path / name)
        for name in ("plain.png", "turned.jpg", "none.jpg", "a")
    ]
    assert sizes == [(30, 20), (20, 30), None, None]
    assert picture_files.upright_size(io.BytesIO((tmp_path / "turned.jpg").read_bytes())) == (
        20,
        30,
    )
