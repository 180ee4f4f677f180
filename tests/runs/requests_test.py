"""Bad rows of a request become zeros with a status, and the others are decoded as without them."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import clips as small_clips
from helpers import picture_bytes

from tfcap.preparing.features.backbone import Backbone
from tfcap.preparing.features.frames import Clips
from tfcap.runs import requests

MOST = {"pictures": 40 * 24, "clips": 6 * 36 * 24}  # pixels of a file
GIF = small_clips.gif(small_clips.FRAMES)  # six frames of 36 x 24 pixels


@pytest.fixture(scope="module")
def backbones():
    pictures = Backbone("pixels", image_size=32)
    return {"pictures": pictures, "clips": Clips(Backbone("pixels", image_size=32, vector=True), 4)}


@pytest.fixture(scope="module")
def decoders(backbones):
    """The functions that servers of pictures and of clips call."""

    def make(name, most):
        backbone = backbones[name]

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
        def decode(contents):
            return requests.decode(contents, backbone.decode, backbone.decoded_shape, most)

        return decode

    return {name: make(name, most) for name, most in MOST.items()}


def _decoded(decoder, contents):
    images, status = decoder(tf.constant(contents, tf.string))
    return images.numpy(), [text.decode() for text in status.numpy()]


def test_bad_files_do_not_change_the_good_ones(decoders, backbones):
    good = [picture_bytes.file(form) for form in ("JPEG", "PNG", "BMP", "GIF", "WebP")]
    alone = [backbones["pictures"].decode(tf.constant(content)).numpy() for content in good]
    contents = [b"", *good[:2], good[0][:200], *good[2:], b"text"]
    images, status = _decoded(decoders["pictures"], contents)
    rows = [1, 2, 4, 5, 6]
    np.testing.assert_array_equal(images[rows], alone)
    assert not np.delete(images, rows, 0).any()
    assert status == [
        "the file is empty",
        *["ok"] * 2,
        "a truncated or damaged JPEG file",
        *["ok"] * 3,
        "not a JPEG, PNG, BMP, GIF or WebP file",
    ]


@pytest.mark.parametrize("form", ["JPEG", "PNG", "GIF", "WebP"])
def test_the_limit_counts_pixels(form, decoders):
    contents = [picture_bytes.file(form), picture_bytes.claiming(form, 31, 31)]
    images, status = _decoded(decoders["pictures"], contents)
    assert status == ["ok", "too many pixels: 961, at most 960"]
    assert images[0].any() and not images[1].any()


def test_a_batch_without_a_good_file_and_an_empty_one(decoders):
    images, status = _decoded(decoders["pictures"], [b"a", b"b"])
    assert images.shape == (2, 32, 32, 3) and not images.any()
    assert status == ["not a JPEG, PNG, BMP, GIF or WebP file"] * 2
    with pytest.raises(tf.errors.InvalidArgumentError, match="at least one image"):
        _decoded(decoders["pictures"], [])


def test_clips_behave_alike(decoders, backbones):
    """All frames of a clip count, because all are decoded."""
    long = small_clips.gif(np.concatenate([small_clips.FRAMES, 255 - small_clips.FRAMES]))
    contents = [GIF, GIF[:30], long, picture_bytes.file("PNG"), b"text"]
    images, status = _decoded(decoders["clips"], contents)
    assert images.shape == (5, 4, 32, 32, 3)
    for row in (0, 3):
        alone = backbones["clips"].decode(tf.constant(contents[row]))
        np.testing.assert_array_equal(images[row], alone)
    assert status == [
        "ok",
        "a truncated or damaged GIF file",
        f"too many pixels: {12 * 36 * 24}, at most {6 * 36 * 24}",
        "ok",
        "not a JPEG, PNG, BMP, GIF or WebP file",
    ]
