"""What a file is, why it is refused as a picture, and which way up it is."""

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, features

from tfcap import picture_files
from tfcap.data import pictures

SIZE = (40, 24)  # width and height


def _file(form, frames=1, **options):
    noise = np.random.default_rng(1).integers(0, 256, (frames, *SIZE[::-1], 3), np.uint8)
    first, *others = (Image.fromarray(frame) for frame in noise)
    stream = io.BytesIO()
    if others:
        options |= {"save_all": True, "append_images": others}
    first.save(stream, form, **options)
    return stream.getvalue()


@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP", "GIF", "WebP"])
def test_a_truncated_file_is_refused_by_its_kind(form):
    whole = _file(form)
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
    content = _file(form)
    with pytest.raises(tf.errors.InvalidArgumentError):
        pictures.decode(tf.constant(content))
    kind = "JPEG 2000" if form == "JPEG2000" else form
    expected = "a picture must be JPEG, PNG, BMP, GIF or WebP. "
    expected += f"Received: {kind} data. Convert it to JPEG or PNG."
    assert picture_files.refusal(content) == expected


def test_an_animated_gif_gives_its_first_frame():
    content, still = _file("GIF", frames=3), _file("GIF")
    assert picture_files.is_animated(content) and not picture_files.is_animated(still)
    with Image.open(io.BytesIO(content)) as image:
        first = np.asarray(image.convert("RGB"))
    np.testing.assert_array_equal(pictures.decode(tf.constant(content)), first)
    assert not picture_files.is_animated(content[:20])


def test_an_animated_webp_is_refused():
    for options in ({}, {"lossless": True}):
        content, still = _file("WebP", frames=2, **options), _file("WebP", **options)
        assert picture_files.is_animated(content) and not picture_files.is_animated(still)
        with pytest.raises(tf.errors.InvalidArgumentError):
            pictures.decode(tf.constant(content))
        assert "an animated WebP file" in picture_files.refusal(content)


@pytest.mark.parametrize("number", range(1, 9))
def test_pillow_and_the_graph_turn_a_picture_the_same_way(number):
    exif = Image.Exif()
    exif[0x0112] = number
    content = _file("PNG", exif=exif)
    with Image.open(io.BytesIO(content)) as image:
        turned = np.asarray(picture_files.upright(image))
    np.testing.assert_array_equal(pictures.decode(tf.constant(content)), turned)


def test_damaged_exif_leaves_a_picture_as_it_is():
    content = _file("PNG", exif=b"Exif\0\0this is no EXIF")
    with Image.open(io.BytesIO(content)) as image:
        turned = np.asarray(picture_files.upright(image))
    np.testing.assert_array_equal(pictures.decode(tf.constant(content)), turned)


@pytest.mark.parametrize(
    ("form", "places", "order"),
    [("PNG", (16, 20, 24), "big"), ("GIF", (6, 8, 10), "little"), ("BMP", (18, 22, 26), "little")],
)
def test_a_small_file_that_claims_gigabytes_is_refused_before_it_is_decoded(form, places, order):
    whole = _file(form)
    assert picture_files.claimed_size(whole) == SIZE
    for sides in ((30_000, 30_000), (0xFFFF, 0xFFFF)):
        content = bytearray(whole)
        for start, end, side in zip(places, places[1:], sides, strict=False):
            content[start:end] = side.to_bytes(end - start, order)
        with pytest.raises(tf.errors.InvalidArgumentError, match="too many pixels"):
            pictures.decode(tf.constant(bytes(content)))
        found = picture_files.refusal(bytes(content))
        assert f"a {form} file must have at most 268435456 pixels. Received: {sides[0]} x" in found


def test_a_bmp_from_the_top_and_short_files_claim_what_they_have():
    whole = bytearray(_file("BMP"))
    whole[22:26] = (-SIZE[1]).to_bytes(4, "little", signed=True)
    assert picture_files.claimed_size(bytes(whole)) == SIZE
    assert pictures.decode(tf.constant(bytes(whole))).shape == (*SIZE[::-1], 3)
    assert picture_files.claimed_size(b"GIF8") == picture_files.claimed_size(b"") == (0, 0)


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
