"""Picture files are decoded and turned upright inside the graph."""

import io
import struct

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tfcap.data import pictures

HEIGHT, WIDTH = 24, 40
ORIENTATION, SHORT, LONG = 0x0112, 3, 4


@pytest.fixture(scope="module")
def decode():
    signature = [tf.TensorSpec([], tf.string)]
    return tf.function(pictures.decode, input_signature=signature, autograph=False)


def _scene():
    """A picture uint8 [H, W, 3] without symmetry: each place is recognised by its colour."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    return np.stack([rows * 10, columns * 6, np.full_like(rows, 77)], 2).astype(np.uint8)


def _stored(scene, number):
    """The pixels that a camera stores so that the orientation `number` shows `scene`."""
    method = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,  # the camera lay on its side; 6 turns it back clockwise
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    image = Image.fromarray(scene)
    return image.transpose(method[number]) if number > 1 else image


def _exif(entries, order="<", offset=8, magic=42):
    """EXIF with entries (tag, type, count, value) in its first directory at `offset`."""
    start = {"<": b"II", ">": b"MM"}[order] + struct.pack(order + "HI", magic, offset)
    directory = struct.pack(order + "H", len(entries))
    for tag, kind, count, value in entries:
        value = struct.pack(order + ("HH" if kind == SHORT else "I"), *value)
        directory += struct.pack(order + "HHI", tag, kind, count) + value
    return start.ljust(offset, b"\0") + directory + struct.pack(order + "I", 0)


def _short(number, tag=ORIENTATION, count=1):
    return tag, SHORT, count, (number, 0)


def _jpeg(image=None):
    stream = io.BytesIO()
    (image or Image.fromarray(_scene())).save(stream, "JPEG", quality=95)
    return stream.getvalue()


def _segment(marker, content):
    return struct.pack(">HH", marker, len(content) + 2) + content


def _with_exif(exif, jpeg=None, before=b"", after=b""):
    """A JPEG whose second segment, behind `before`, is EXIF."""
    jpeg = jpeg or _jpeg()
    return jpeg[:2] + before + _segment(0xFFE1, b"Exif\0\0" + exif) + after + jpeg[2:]


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("number", range(1, 9))
def test_every_orientation_of_a_jpeg_is_turned_upright(number, order, decode):
    content = _with_exif(_exif([_short(number)], order), _jpeg(_stored(_scene(), number)))
    assert pictures.orientation(tf.constant(content)) == number
    upright = decode(tf.constant(content))
    assert upright.dtype == tf.uint8 and upright.shape == (HEIGHT, WIDTH, 3)
    assert np.abs(upright.numpy().astype(int) - _scene()).mean() < 2
    np.testing.assert_array_equal(pictures.decode(tf.constant(content)), upright)  # eagerly


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_exif_that_pillow_writes_is_applied(form, decode):
    exif = Image.Exif()
    exif[0x010F], exif[ORIENTATION], exif[0x0131] = "a camera", 8, "a program"
    options = {"lossless": True} if form == "WEBP" else {}
    stream = io.BytesIO()
    _stored(_scene(), 8).save(stream, form, exif=exif, **options)
    upright = decode(tf.constant(stream.getvalue())).numpy().astype(int)
    assert np.abs(upright - _scene()).mean() < (2 if form == "JPEG" else 1e-9)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP", "GIF", "WEBP"])
def test_a_picture_without_exif_is_as_tensorflow_decodes_it(form, decode):
    stream = io.BytesIO()
    Image.fromarray(_scene()).save(stream, form)
    content = tf.constant(stream.getvalue())
    expected = tf.io.decode_image(content, 3, expand_animations=False)
    np.testing.assert_array_equal(decode(content), expected)
