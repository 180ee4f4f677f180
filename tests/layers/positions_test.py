"""Position codes: their numbers, and the table that a checkpoint can hold."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfcap.layers.positions import PositionCodes, RegionPositions, sinusoids


@pytest.mark.parametrize("width", [6, 7])
def test_even_channels_are_sines_and_odd_ones_cosines(width):
    codes = sinusoids(5, width)
    assert codes.shape == (5, width) and codes.dtype == np.float32
    for position in range(5):
        for channel in range(width):
            angle = position * np.exp(-(channel // 2 * 2) * np.log(10000) / width)
            expected = np.cos(angle) if channel % 2 else np.sin(angle)
            assert abs(codes[position, channel] - expected) < 1e-6


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_stored_codes_are_a_weight_that_is_not_trained(policy):
    layer = PositionCodes(5, 6, stored=True, dtype=keras.DTypePolicy(policy))
    result = layer(tf.constant([3, 0]))
    assert result.dtype == layer.compute_dtype
    np.testing.assert_array_equal(result, sinusoids(5, 6)[[3, 0]].astype(result.dtype.name))
    (table,) = layer.non_trainable_variables
    assert table.name == "table" and table.dtype == "float32" and not layer.trainable_variables
    table.assign(np.ones((5, 6)))
    np.testing.assert_array_equal(layer(tf.constant([4])), np.ones((1, 6)))


def test_each_region_gets_the_learned_code_of_its_place():
    layer = RegionPositions(5)
    features = np.random.default_rng(1).normal(size=(2, 7, 5)).astype(np.float32)
    result = layer(features)
    kernel, bias = (variable.numpy() for variable in layer.trainable_variables)
    sines, cosines = sinusoids(7, 64)[:, 0::2], sinusoids(7, 64)[:, 1::2]
    codes = np.concatenate([sines, cosines], axis=1) @ kernel + bias
    np.testing.assert_allclose(result, features + codes[None], atol=1e-5)
    assert np.abs(codes[1:] - codes[:-1]).max(1).min() > 1e-2  # no two places are alike


def test_there_is_no_largest_number_of_regions():
    layer = RegionPositions(3, dtype=keras.DTypePolicy("mixed_float16"))
    call = tf.function(layer, input_signature=[tf.TensorSpec([None, None, 3])])
    for regions in (1, 600):
        result = call(tf.zeros([1, regions, 3]))
        assert result.shape == (1, regions, 3) and result.dtype == layer.compute_dtype
        assert np.isfinite(result).all()
