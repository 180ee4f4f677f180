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


def test_embedding_starts_normal():
    seeds.set_seed(1)
    layer = common.embedding(300, 64, "words")
    rows = layer(tf.range(300)).numpy()
    assert abs(rows.mean()) < 0.02 and abs(rows.std() - 1) < 0.02
    assert np.abs(rows[0]).max() > 1  # padding has a row like any other


def test_layer_norm_uses_the_epsilon_of_pytorch():
    """The input has a variance as small as the epsilon."""
    x = np.random.default_rng(0).normal(size=(3, 4, 5)).astype("float32") * 3e-3 + 1
    np.testing.assert_allclose(common.layer_norm("norm")(x), normalised(np.float64(x)), atol=1e-3)


def test_activations_equal_their_formulas():
    x = np.linspace(-4, 4, 33).astype("float32")
    expected = np.where(x > 0, x, 1.3 * np.expm1(x / 1.3))
    np.testing.assert_allclose(common.activation("celu")(x), expected, atol=1e-6)
    np.testing.assert_allclose(common.activation("relu")(x), np.maximum(x, 0))
    with pytest.raises(ValueError, match="activation must be one of relu, celu, none, not 'elu'"):
        common.activation("elu")


def test_gated_equals_its_formula():
    x = np.random.default_rng(0).normal(size=(2, 3, 8)).astype("float32")
    expected = x[..., :4] / (1 + np.exp(-x[..., 4:]))
    np.testing.assert_allclose(common.gated(tf.constant(x)), expected, atol=1e-6)


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_head_norm_normalises_each_head_of_each_position(heads):
    """Statistics never mix two positions."""
    rng = np.random.default_rng(heads)
    layer = common.HeadNorm(heads)
    x = rng.normal(size=(2, 3, 8))
    layer.build(x.shape)
    gamma, beta = rng.normal(size=(2, 8))
    layer.gamma.assign(gamma)
    layer.beta.assign(beta)
    depth = 8 // heads
    expected = np.zeros((2, heads, 3, depth))
    for n, h, t in np.ndindex(2, heads, 3):
        channels = slice(h * depth, (h + 1) * depth)
        expected[n, h, t] = normalised(x[n, t, channels]) * gamma[channels] + beta[channels]
    np.testing.assert_allclose(layer(tf.constant(x, tf.float32)), expected, atol=1e-5)


def test_head_norm_of_large_float16_numbers_is_finite():
    """Statistics are float32, because squares above 256 overflow float16."""
    x = np.array([[[300.0, 500.0, -400.0, 900.0]]])
    layer = common.HeadNorm(1, dtype="mixed_float16")
    found = layer(tf.constant(x, tf.float16))
    assert found.dtype == tf.float16
    np.testing.assert_allclose(tf.cast(found[:, 0], tf.float32), normalised(x), atol=2e-3)


def test_feed_forward_equals_its_formula():
    rng = np.random.default_rng(0)
    layer = common.FeedForward(6, 9, dropout=0.5)
    x = rng.normal(size=(2, 3, 6))
    layer(tf.constant(x, tf.float32))
    for variable in layer.trainable_variables:
        variable.assign(rng.normal(size=variable.shape))
    w1, b1, w2, b2 = (v.numpy() for d in (layer.fc1, layer.fc2) for v in (d.kernel, d.bias))
    gamma, beta = layer.layer_norms.gamma.numpy(), layer.layer_norms.beta.numpy()

    def formula(inner=1.0, outer=1.0):
        hidden = np.maximum(x @ w1 + b1, 0) * inner
        return normalised(x + (hidden @ w2 + b2) * outer) * gamma + beta

    call = lambda training: layer(tf.constant(x, tf.float32), training=training)  # noqa: E731
    np.testing.assert_allclose(call(False), formula(), atol=1e-4)
    assert np.abs(call(True) - formula()).max() > 0.1
    # There are two dropouts: after the ReLU, and before the residual.
    inner, outer = rng.normal(size=(2, 3, 9)), rng.normal(size=(2, 3, 6))
    layer.inner_dropout = lambda x, training: x * inner.astype("float32")
    layer.dropout = lambda x, training: x * outer.astype("float32")
    np.testing.assert_allclose(call(True), formula(inner, outer), atol=1e-4)
