"""TIFF files become PNG files without loss, or are refused in a sentence."""

import io

import numpy as np
import pytest
from helpers import picture_bytes, tiff
from PIL import Image

from tfcap import images
from tfcap.data import pictures

_RANDOM = np.random.default_rng(1)


def numbers(*shape, kind=np.uint8):
    return _RANDOM.integers(0, np.iinfo(kind).max, (24, 40, *shape), kind, endpoint=True)


pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of damaged tags
RGB, GREY, DEEP = numbers(3), numbers(), numbers(kind=np.uint16)
DEEP_RGB = numbers(3, kind=np.uint16)
INKS = numbers(4)
TWELVE = np.arange(4096, dtype=np.uint16).reshape(64, 64)


def packed(values):
    """12 bits of each number, two numbers in three bytes."""
    first, second = values.reshape(-1, 2).T
    three = np.stack([first >> 4, (first & 15) << 4 | second >> 8, second & 255], -1)
    return three.astype(np.uint8).reshape(len(values), -1)


def of_twelve_bits():
    content = tiff.file(packed(TWELVE), bits=12)
    width, wrong = (struct_of(side) for side in (64, 96))
    return content.replace(wrong, width, 1)


def struct_of(side):
    return b"\0\1\4\0\1\0\0\0" + side.to_bytes(4, "little")  # the tag 256, the width


SAME = {
    "RGB": (tiff.file(RGB, tiff.RGB), RGB),
    "grey": (tiff.file(GREY), GREY),
    "inverted grey": (tiff.file(GREY, tiff.WHITE_IS_ZERO), 255 - GREY),
    "grey of 16 bits": (tiff.file(DEEP), DEEP >> 8),
    "inverted grey of 16 bits": (tiff.file(DEEP, tiff.WHITE_IS_ZERO), (65535 - DEEP) >> 8),
    "grey of 12 bits": (of_twelve_bits(), TWELVE >> 4),
    "RGB of 16 bits": (tiff.file(DEEP_RGB, tiff.RGB), DEEP_RGB >> 8),
    "RGB and infrared": (tiff.file(INKS, tiff.RGB, tags={338: (0,)}), INKS[..., :3]),
    "RGB and alpha": (tiff.file(INKS, tiff.RGB, tags={338: (2,)}), INKS[..., :3]),
    "palette": (picture_bytes.file("TIFF", mode="P"), picture_bytes.file("PNG", mode="P")),
    "black and white": (picture_bytes.file("TIFF", mode="1"), picture_bytes.file("PNG", mode="1")),
    "big-endian": (picture_bytes.file("TIFF", big_tiff=True), picture_bytes.file("PNG")),
    **{
        name: (picture_bytes.file("TIFF", compression=name), picture_bytes.file("PNG"))
        for name in ("tiff_lzw", "tiff_deflate", "packbits")
    },
}


@pytest.mark.parametrize("name", SAME)
def test_a_tiff_file_has_the_pixels_of_the_same_png(name):
    content, wanted = SAME[name]
    wanted = pictures.read(wanted) if isinstance(wanted, bytes) else wanted
    wanted = wanted if wanted.ndim == 3 else np.repeat(wanted[..., None], 3, 2)
    np.testing.assert_array_equal(pictures.read(content), wanted)


def test_cmyk_is_read_as_the_decoder_of_jpeg_reads_it():
    inks = 255 - INKS.astype(int)
    wanted = inks[..., :3] * inks[..., 3:] / 255
    assert np.abs(pictures.read(tiff.file(INKS, tiff.CMYK)) - wanted).max() <= 1


@pytest.mark.parametrize("compression", [None, "tiff_lzw"])
@pytest.mark.parametrize("number", range(1, 9))
def test_a_tiff_file_is_turned_upright(number, compression):
    exif = Image.Exif()
    exif[0x0112] = number
    options = {"exif": exif}
    turned = picture_bytes.file("TIFF", compression=compression, **options)
    assert images.upright_size(io.BytesIO(turned)) == ((24, 40) if number > 4 else (40, 24))
    np.testing.assert_array_equal(
        pictures.read(turned), pictures.read(picture_bytes.file("PNG", **options))
    )


def test_the_first_page_counts():
    content, first = picture_bytes.file("TIFF", frames=3), picture_bytes.file("TIFF")
    assert images.has_pages(content) and not images.has_pages(first)
    assert not images.has_pages(picture_bytes.file("GIF", frames=3))
    np.testing.assert_array_equal(pictures.read(content), pictures.read(first))


def test_other_files_are_not_changed():
    content = picture_bytes.file("PNG")
    assert images.readable(content) is content


_FLOATS = DEEP.astype(np.float32)
REFUSED = {
    "floats": (tiff.file(_FLOATS, tags={339: (3,)}), "numbers are no colours of a screen"),
    "32 bits": (tiff.file(DEEP.astype(np.uint32)), "numbers are no colours of a screen"),
    "signed": (tiff.file(DEEP.view(np.int16), tags={339: (2,)}), "no colours of a screen"),
    "LAB": (tiff.file(RGB, tiff.LAB), "numbers are no colours of a screen"),
    "bands of a satellite": (
        tiff.file(numbers(8), tags={338: (0,) * 7}),
        "a TIFF file of a kind that Pillow does not read",
    ),
    "truncated": (tiff.file(RGB, tiff.RGB).replace(RGB.tobytes(), b""), "damaged"),
    "cut": (picture_bytes.file("TIFF", compression="tiff_lzw")[:-100], "damaged"),
    "half": (picture_bytes.file("TIFF", compression="tiff_lzw")[:1500], "damaged"),
    "head": (b"II*\0", "damaged"),
    "huge": (
        tiff.file(RGB, tiff.RGB, tags={256: [60_000], 257: [60_000], 278: [60_000]}),
        "more than 178956970 pixels",
    ),
    "a huge tile": (
        tiff.file(RGB, tiff.RGB, tags={322: [60_000], 323: [60_000]}),
        "a tile has more than 178956970 pixels",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_converted_has_a_reason_of_one_line(name, capfd):
    content, sentence = REFUSED[name]
    with pytest.raises(ValueError, match=sentence) as error:
        pictures.read(content)
    assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("seed", range(200))
def test_a_damaged_file_gives_a_reason_or_pixels(seed):
    rng = np.random.default_rng(seed)
    content = bytearray(SAME[["RGB", "tiff_lzw", "packbits", "palette"][seed % 4]][0])
    for place in rng.integers(0, len(content), 8):
        content[place] = rng.integers(256)
    content[-200 + rng.integers(200)] = rng.integers(256)  # the directory is at the end
    try:
        assert pictures.read(bytes(content)).ndim == 3
    except ValueError as error:
        assert "\n" not in str(error)
