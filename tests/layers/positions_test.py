"""Position codes: their numbers, and the table that a checkpoint can hold."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfcap.layers.positions import PositionCodes, sinusoids


@pytest.mark.parametrize("width", [6, 7])
def test_even_channels_are_sines_and_odd_ones_cosines(width):
    codes = sinusoids(5, width)
    assert codes.shape == (5, width) and codes.dtype == np.float32
    for position in range(5):
        for channel in range(width):
            angle = position * np.exp(-(channel // 2 * 2) * np.log(10000) / width)
            expected = np.cos(angle) if channel % 2 else np.sin(angle)
            assert abs(codes[position, channel] - expected) < 1e-6


def test_codes_are_looked_up_and_are_no_weight():
    layer = PositionCodes(5, 6)
    np.testing.assert_array_equal(layer(tf.constant([3, 0])), sinusoids(5, 6)[[3, 0]])
    assert not layer.variables


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_stored_codes_are_a_weight_that_is_not_trained(policy):
    layer = PositionCodes(5, 6, stored=True, dtype=keras.DTypePolicy(policy))
    found = layer(tf.constant([3, 0]))
    assert found.dtype == layer.compute_dtype
    np.testing.assert_array_equal(found, sinusoids(5, 6)[[3, 0]].astype(found.dtype.name))
    (table,) = layer.non_trainable_variables
    assert table.name == "table" and table.dtype == "float32" and not layer.trainable_variables
    table.assign(np.ones((5, 6)))
    np.testing.assert_array_equal(layer(tf.constant([4])), np.ones((1, 6)))
