"""The small shared layers against formulas, and their initial values."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import seeds

from tfcap.layers import common


def normalised(x):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)


def test_linear_starts_as_in_torch():
    """Weight and bias uniform within 1 / sqrt(inputs): the spread of U(-a, a) is a / sqrt(3)."""
    seeds.set_seed(1)
    layer = common.linear(64, 900, "a")
    x = np.random.default_rng(0).normal(size=(2, 64)).astype("float32")
    y = layer(x)
    for weight in (layer.kernel.numpy(), layer.bias.numpy()):
        assert np.abs(weight).max() <= 1 / 8 and np.abs(weight).max() > 0.99 / 8
        assert abs(weight.std() * np.sqrt(3) * 8 - 1) < 0.05
        assert abs(weight.mean()) < 0.01
    np.testing.assert_allclose(y, x @ layer.kernel.numpy() + layer.bias.numpy(), atol=1e-5)


def test_layer_norm_uses_the_epsilon_of_pytorch():
    """The input has a variance as small as the epsilon."""
    x = np.random.default_rng(0).normal(size=(3, 4, 5)).astype("float32") * 3e-3 + 1
    np.testing.assert_allclose(common.layer_norm("norm")(x), normalised(np.float64(x)), atol=1e-3)


@pytest.mark.parametrize("heads", [None, 2])
@pytest.mark.parametrize("order", [1, 2])
def test_gradients_of_a_norm_are_those_of_its_formula(heads, order):
    shape = (3, 4, 8)
    layer = common.HeadNorm(heads) if heads else common.layer_norm("norm")
    layer.build(shape)
    rng = np.random.default_rng(0)
    for weight in (layer.gamma, layer.beta):
        weight.assign(rng.normal(size=8))
    x, factor = (tf.Variable(rng.normal(size=shape), dtype=tf.float32) for _ in range(2))

    def literal(x):
        groups = tf.reshape(x, (3, 4, heads or 1, -1))
        centred = groups - tf.reduce_mean(groups, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centred), -1, keepdims=True)
        normal = tf.reshape(centred / tf.sqrt(variance + 1e-5), shape)
        return normal * layer.gamma + layer.beta

    def joined(x):
        y = layer(x)
        return tf.reshape(tf.transpose(y, (0, 2, 1, 3)), shape) if heads else y

    def gradients(function):
        sources = [x, layer.gamma.value, layer.beta.value]
        with tf.GradientTape(persistent=True) as second:
            with tf.GradientTape() as first:
                loss = tf.reduce_sum(tf.sin(function(x)) * factor)
            result = first.gradient(loss, sources)
            total = sum(tf.reduce_sum(tf.cos(gradient)) for gradient in result)
        return result if order == 1 else second.gradient(total, sources)

    for ours, expected in zip(gradients(joined), gradients(literal), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=2e-5)


def test_activations_equal_their_formulas():
    x = np.linspace(-4, 4, 33).astype("float32")
    expected = np.where(x > 0, x, 1.3 * np.expm1(x / 1.3))
    np.testing.assert_allclose(common.activation("celu")(x), expected, atol=1e-6)
    np.testing.assert_allclose(common.activation("relu")(x), np.maximum(x, 0))
    with pytest.raises(ValueError, match="`activation` must be one of relu, celu, none, not 'elu'"):
        common.activation("elu")


def test_head_norm_of_large_float16_numbers_is_finite():
    """Statistics are float32, because squares above 256 overflow float16."""
    x = np.array([[[300.0, 500.0, -400.0, 900.0]]])
    layer = common.HeadNorm(1, dtype="mixed_float16")
    result = layer(tf.constant(x, tf.float16))
    assert result.dtype == tf.float16
    np.testing.assert_allclose(tf.cast(result[:, 0], tf.float32), normalised(x), atol=2e-3)
