"""The size that the head of a file claims is read inside the graph as Python reads it."""

import struct
import time

import numpy as np
import pytest
import tensorflow as tf
from helpers import picture_bytes

from tfcap import picture_files
from tfcap.data import picture_heads

FILES = {
    "JPEG": picture_bytes.file("JPEG"),
    "progressive JPEG": picture_bytes.file("JPEG", progressive=True),
    "PNG": picture_bytes.file("PNG"),
    "BMP": picture_bytes.file("BMP"),
    "GIF": picture_bytes.file("GIF"),
    "animated GIF": picture_bytes.file("GIF", frames=5),
    "WebP": picture_bytes.file("WebP"),
    "lossless WebP": picture_bytes.file("WebP", lossless=True),
    "extended WebP": picture_bytes.file("WebP", exif=b"Exif\0\0II*\0\x08\0\0\0\0\0"),
}


@pytest.fixture(scope="module")
def claimed():
    signature = [tf.TensorSpec([], tf.string)]
    function = tf.function(picture_heads.claimed_pixels, signature, autograph=False)
    return lambda content: int(function(tf.constant(content)))


def _in_python(content):
    frames, width, height = picture_files.claimed_size(content)
    return max(frames, 1) * min(width, 2**31) * min(height, 2**31)


@pytest.mark.parametrize("name", FILES)
def test_whole_and_damaged_files_claim_the_same_in_the_graph_and_in_python(name, claimed):
    whole = FILES[name]
    frames = 5 if name == "animated GIF" else 1
    assert claimed(whole) == _in_python(whole) == frames * 40 * 24
    rng = np.random.default_rng(3)
    for number in range(60):
        content = bytearray(whole)
        if number % 3 == 0:
            del content[rng.integers(3, len(content)) :]
        else:
            for place in rng.integers(2, min(len(content), 120), 2):
                content[place] = rng.integers(256)
        if picture_files.kind(bytes(content)) == "JPEG":
            continue  # libjpeg reads them; see below
        pixels = claimed(bytes(content))
        expected = _in_python(bytes(content))
        if pixels == picture_heads.UNKNOWN:
            assert picture_files.kind(bytes(content)) == "WebP" and expected == 0
        else:
            assert pixels == expected


def test_a_jpeg_claims_what_its_decoder_reads(claimed):
    """Segments, fill bytes and bytes between segments may precede the size."""
    whole = FILES["JPEG"]
    comment = struct.pack(">BBH", 0xFF, 0xFE, 2 + 60_000) + b"\xff\xc0" * 30_000
    for before in (b"", comment, comment * 3, b"\xff" * 9, b"\xff\xd0", b"\xff\xff\xfe\0\4ab"):
        content = whole[:2] + before + whole[2:]
        assert claimed(content) == _in_python(content) == 40 * 24
    for content in (whole[:100], b"\xff\xd8\xff", b"\xff\xd8\xff\xd9"):
        assert _in_python(content) == 0
        with pytest.raises(tf.errors.InvalidArgumentError):
            claimed(content + b"\0" * 3)


def test_the_largest_frame_of_a_gif_counts_for_all(claimed):
    """TensorFlow makes room for the largest frame, not for the size in the head of the file."""
    frame = b",\0\0\0\0" + struct.pack("<HH", 20_000, 30_000) + b"\0\x02\x02\x44\x01\0"
    content = FILES["GIF"][:-1] + frame + b";"
    assert claimed(content) == _in_python(content) == 2 * 20_000 * 30_000
    head = content[:6] + struct.pack("<HH", 10, 10) + content[10:]
    assert claimed(head) == 2 * 20_000 * 30_000


def test_the_walk_through_a_gif_is_fast_and_limited(claimed):
    head = FILES["GIF"][:10] + b"\0\0\0"
    frame = b",\0\0\0\0" + struct.pack("<HH", 9, 9) + b"\0\x02"
    full = frame + (b"\xff" + bytes(255)) * 20_000 + b"\0"  # five megabytes in full blocks
    begin = time.process_time()
    assert claimed(head + full + frame + b"\0;") == 2 * 40 * 24
    assert time.process_time() - begin < 1
    comments = b"!\xfe\0" * 11_000
    assert claimed(head + comments + b";") == picture_heads.UNKNOWN
    assert claimed(head + comments[:9_000] + b";") == 40 * 24
    assert claimed(head + b",") == claimed(head + b"!") == 40 * 24


def test_each_bad_file_has_its_reason():
    files = [b"", b"text", b"BM", *(content[:40] for content in FILES.values())]
    files.append(picture_bytes.file("WebP", frames=2))
    found = [text.decode() for text in picture_heads.refusals(tf.constant(files)).numpy()]
    kinds = [name.split()[-1] for name in FILES]
    bmp = "a BMP file that is truncated, compressed or has a table of colours"
    assert found == [
        "the file is empty",
        "not a JPEG, PNG, BMP, GIF or WebP file",
        bmp,
        *(bmp if kind == "BMP" else f"a truncated or damaged {kind} file" for kind in kinds),
        "an animated WebP file",
    ]


@pytest.mark.parametrize(("mode", "expected"), [("RGB", False), ("L", False), ("P", True)])
def test_a_bmp_with_a_table_of_colours_is_known(mode, expected):
    """The decoder would take its numbers for shades of grey."""
    content = picture_bytes.file("BMP", mode=mode)
    assert bool(picture_heads.has_table_of_colours(tf.constant(content))) == expected
    cut = picture_heads.has_table_of_colours(tf.constant(content[:40]))
    assert bool(cut) == (mode != "RGB")
