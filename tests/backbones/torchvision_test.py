"""AlexNet and VGG-16 with weights of torchvision, against plain renderings of its networks."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import torch_writer

from tfcap.backbones.backbone import Backbone
from tfcap.backbones.saved import digest

# Of each convolution torchvision's number, the width, kernel, stride and padding, and the size of
# the window whose maximum is taken after it, with stride 2.
ALEXNET = [(0, 64, 11, 4, 2, 3), (3, 192, 5, 1, 2, 3), (6, 384, 3, 1, 1, 0), (8, 256, 3, 1, 1, 0),
           (10, 256, 3, 1, 1, 3)]  # fmt: skip
VGG16 = [(number, width, 3, 1, 1, 2 * (number in (2, 7, 14, 21, 28)))
         for width, numbers in ((64, (0, 2)), (128, (5, 7)), (256, (10, 12, 14)),
                                (512, (17, 19, 21)), (512, (24, 26, 28)))
         for number in numbers]  # fmt: skip


def state_dict(convolutions, dense, flattened):
    """Random tensors with the names and shapes of torchvision's network."""
    rng, made, channels = np.random.default_rng(8), {}, 3

    def drawn(name, *shape):
        scale = np.float32((2 / np.prod(shape[1:])) ** 0.5)
        # A prime number of values, again and again: drawing each would take most of the time.
        made[f"{name}.weight"] = np.resize(rng.standard_normal(10_007, np.float32), shape) * scale
        made[f"{name}.bias"] = rng.standard_normal(shape[0], np.float32) * np.float32(0.1)

    for number, width, kernel, *_ in convolutions:
        drawn(f"features.{number}", width, channels, kernel, kernel)
        channels = width
    drawn(f"classifier.{dense[0]}", 4096, flattened)
    drawn(f"classifier.{dense[1]}", 4096, 4096)
    return made


def rendered(tensors, convolutions, dense, pictures):
    """The last map [B, n, n, C], and fc7 [B, 4096] after its ReLU."""
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    x = ((pictures / 255 - mean) / std).astype(np.float32)
    for number, _, _, stride, padding, window in convolutions:
        x = np.pad(x, [(0, 0), (padding, padding), (padding, padding), (0, 0)])
        kernel = tensors[f"features.{number}.weight"].transpose(2, 3, 1, 0)
        x = tf.nn.conv2d(x, kernel, stride, "VALID") + tensors[f"features.{number}.bias"]
        x = tf.nn.relu(x)
        if window:
            x = tf.nn.max_pool2d(x, window, 2, "VALID")
    grid = x.numpy()
    vector = grid.transpose(0, 3, 1, 2).reshape(len(grid), -1)  # [C, H, W]
    for number in dense:
        weight, bias = (tensors[f"classifier.{number}.{part}"] for part in ("weight", "bias"))
        vector = np.maximum(vector @ weight.T + bias, 0)
    return grid.reshape(len(grid), -1, grid.shape[-1]), vector[:, None]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "convolutions", "dense", "side"),
    [("alexnet", ALEXNET, (1, 4), 224), ("vgg16", VGG16, (0, 3), 64)],
)
def test_weights_of_torchvision_give_its_features(name, convolutions, dense, side, tmp_path):
    flattened = {"alexnet": 9216, "vgg16": 512 * (side // 32) ** 2}[name]
    tensors = state_dict(convolutions, dense, flattened)
    torch_writer.write(tmp_path / "weights.pth", tensors)
    pictures = np.random.default_rng(1).uniform(0, 255, (2, side, side, 3)).astype(np.float32)
    grid, fc7 = rendered(tensors, convolutions, dense, pictures)
    assert fc7.shape == (2, 1, 4096) and fc7.min() == 0 and fc7.std() > 0.1
    for vector in (True, False):
        backbone = Backbone(name, weights=tmp_path / "weights.pth", image_size=side, vector=vector)
        wanted = fc7 if vector or name == "alexnet" else grid
        result = backbone.extract(tf.constant(pictures)).numpy()
        assert (backbone.num_regions, backbone.feature_dim) == wanted.shape[1:]
        np.testing.assert_allclose(result, wanted, rtol=3e-3, atol=3e-3)
    path = tmp_path / "backbone.weights.h5"
    backbone.network.save(path)
    made_by = backbone.made_by(path.name, digest(path))
    assert made_by.get("scaling") == (None if name == "alexnet" else "torch")
    again = Backbone.from_fingerprint({"backbone": made_by}, tmp_path)
    np.testing.assert_array_equal(again.extract(pictures), result)
    kept = {"features.0.weight": tensors["features.0.weight"]}
    torch_writer.write(tmp_path / "weights.pth", kept)
    with pytest.raises(ValueError, match=f"do not fit {name} .*features.0.bias"):
        Backbone(name, weights=tmp_path / "weights.pth", image_size=side)
