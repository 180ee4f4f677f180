"""Tensors of PyTorch in layers of Keras, compared with what PyTorch defines."""

import keras
import numpy as np
import pytest

from tfcap.preparing.features.networks import assign

rng = np.random.default_rng(3)


def _tensor(*shape):
    return rng.normal(size=shape).astype(np.float32)


def _convolved(image, weight, bias):
    """A convolution as PyTorch defines it, [C, H, W] to [O, H - k + 1, W - k + 1]."""
    size = weight.shape[-1]
    rows, columns = image.shape[1] - size + 1, image.shape[2] - size + 1
    result = np.zeros([len(weight), rows, columns])
    for y in range(rows):
        for x in range(columns):
            part = image[:, y : y + size, x : x + size]
            result[:, y, x] = (weight * part).sum((1, 2, 3)) + bias
    return result


def test_a_convolution_gives_the_numbers_of_pytorch():
    tensors = {"a.weight": _tensor(4, 3, 2, 2), "a.bias": _tensor(4)}
    layer, image = keras.layers.Conv2D(4, 2), _tensor(3, 5, 6)
    layer.build((None, 5, 6, 3))
    assign(layer, tensors, "a")
    found = layer(image.transpose(1, 2, 0)[None])[0].numpy().transpose(2, 0, 1)
    wanted = _convolved(image, tensors["a.weight"], tensors["a.bias"])
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_depthwise_convolution_reads_one_channel_each():
    tensors = {"a.weight": _tensor(3, 1, 2, 2)}
    layer, image = keras.layers.DepthwiseConv2D(2, use_bias=False), _tensor(3, 5, 6)
    layer.build((None, 5, 6, 3))
    assign(layer, tensors, "a")
    found = layer(image.transpose(1, 2, 0)[None])[0].numpy().transpose(2, 0, 1)
    for channel in range(3):
        own = slice(channel, channel + 1)
        wanted = _convolved(image[own], tensors["a.weight"][own], 0)
        np.testing.assert_allclose(found[own], wanted, rtol=1e-4, atol=1e-5)


def test_a_dense_layer_reads_a_flattened_grid_in_the_order_of_pytorch():
    tensors = {"a.weight": _tensor(5, 4 * 6), "a.bias": _tensor(5)}
    layer, grid = keras.layers.Dense(5), _tensor(4, 2, 3)  # [C, H, W]
    layer.build((None, 24))
    assign(layer, tensors, "a", channels=4)
    found = layer(grid.transpose(1, 2, 0).reshape(1, -1))[0]
    wanted = tensors["a.weight"] @ grid.ravel() + tensors["a.bias"]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_batch_normalization_takes_the_statistics():
    names = ("weight", "bias", "running_mean", "running_var")
    tensors = {f"a.{name}": np.abs(_tensor(3)) + 0.1 for name in names}
    layer, x = keras.layers.BatchNormalization(epsilon=1e-3), _tensor(2, 3)
    layer.build((None, 3))
    assign(layer, tensors, "a")
    scale, shift, mean, variance = (tensors[f"a.{name}"] for name in names)
    wanted = (x - mean) / np.sqrt(variance + 1e-3) * scale + shift
    np.testing.assert_allclose(layer(x, training=False), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "tensors, message",
    [
        ({"a.bias": _tensor(4)}, "the file has no tensor a.weight"),
        ({"a.weight": np.ones([4, 3, 2, 2], int)}, "a.weight is int64"),
        ({"a.weight": _tensor(4, 3, 3, 2)}, r"a.weight gives \[3, 2, 3, 4\], not \[2, 2, 3, 4\]"),
        ({"a.weight": _tensor(4, 12)}, r"gives \[4, 12\]"),
        ({"a.weight": _tensor(4, 3, 2, 2), "a.bias": _tensor(3)}, "a.bias gives"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_are_named(tensors, message):
    layer = keras.layers.Conv2D(4, 2)
    layer.build((None, 5, 6, 3))
    with pytest.raises(ValueError, match=message):
        assign(layer, tensors, "a")
