"""The small network for drawings: its first weights, its grid, its places."""

import numpy as np
import pytest
import tensorflow as tf

from tfcap.backbones.backbone import Backbone
from tfcap.files import file_sha256


@pytest.fixture(scope="module")
def small():
    return Backbone("small_cnn", image_size=48)


def pictures(seed=0):
    numbers = np.random.default_rng(seed).integers(0, 256, [2, 48, 48, 3])
    return tf.constant(numbers, tf.float32)


def test_the_first_weights_and_their_file_are_always_the_same(small, tmp_path):
    again = Backbone("small_cnn", image_size=48)
    names = [layer.name for layer in again.model.layers]
    files = [tmp_path / f"{name}.weights.h5" for name in ("one", "other")]
    for backbone, file in zip((small, again), files, strict=True):
        backbone.network.save(file)
    assert file_sha256(files[0]) == file_sha256(files[1])
    assert [layer.name for layer in again.model.layers] == names
    np.testing.assert_array_equal(again.extract(pictures()), small.extract(pictures()))
    kernel, bias = (v.numpy() for v in again.model.weights[:2])
    assert kernel.std() > 0.1 and not bias.any()


def test_the_network_knows_where_a_pixel_is(small):
    """A picture of one colour has other features at the left than at the right."""
    grey = tf.fill([1, 48, 48, 3], 100.0)
    features = small.extract(grey)[0].numpy().reshape(3, 3, -1)
    assert np.abs(features[1, 0] - features[1, 2]).max() > 0.05
