"""The bytes of a picture that are stored in its record."""

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tfcap.data import pictures
from tfcap.preparing.pictures import _kept

SIZE = 56  # of the backbone; the shorter side of a kept picture is then at most 64


def encoded(height, width, form="JPEG", noise=False, **options):
    """A file with a smooth picture, or with noise, which no encoder makes small."""
    if noise:
        pixels = np.random.default_rng(1).integers(0, 256, [height, width, 3], np.uint8)
    else:
        y, x = np.mgrid[:height, :width]
        pixels = np.stack([255 * x / width, 255 * y / height, 0 * x + 90], -1).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form, **options)
    return buffer.getvalue()


def decoded(content):
    return tf.cast(pictures.decode(content), tf.float32)


def keep(content):
    return _kept(tf.constant(content), pictures.decode(content), SIZE).numpy()


@pytest.mark.parametrize("form", ["JPEG", "PNG", "GIF"])
def test_a_small_file_is_kept_byte_for_byte(form):
    content = encoded(64, 80, form)
    assert keep(content) == content


@pytest.mark.parametrize(
    ("sides", "expected"), [((256, 128), (128, 64)), ((65, 65), (64, 64)), ((90, 2000), (64, 256))]
)
def test_a_large_picture_becomes_a_small_jpeg_of_its_aspect(sides, expected):
    """A picture that is longer than four times its width is squeezed: it would fill the record."""
    content = encoded(*sides)
    small = keep(content)
    assert small[:3] == b"\xff\xd8\xff" and tuple(pictures.decode(small).shape[:2]) == expected
    whole = tf.image.resize(decoded(content), expected, antialias=True)
    assert np.abs(decoded(small) - whole).mean() < 2
