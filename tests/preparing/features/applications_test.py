"""VGG-16: the weights of torchvision, and fc7 of whole pictures."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import torch_writer

from tfcap.preparing.features.backbone import Backbone
from tfcap.preparing.features.saved import digest

# torchvision's features.N by N, and the widths; a maximum is taken after the last of each row.
VGG16 = [{0: 64, 2: 64}, {5: 128, 7: 128}, {10: 256, 12: 256, 14: 256},
         {17: 512, 19: 512, 21: 512}, {24: 512, 26: 512, 28: 512}]  # fmt: skip
SIDE = 64


@pytest.fixture(scope="module")
def tensors():
    """Random tensors with the names of torchvision's vgg16, for pictures of 64 pixels."""
    rng, made, channels = np.random.default_rng(8), {}, 3

    def drawn(name, *shape):
        scale = np.float32((2 / np.prod(shape[1:])) ** 0.5)
        # A prime number of values, again and again: drawing each would take most of the time.
        made[f"{name}.weight"] = np.resize(rng.standard_normal(10_007, np.float32), shape) * scale
        made[f"{name}.bias"] = rng.standard_normal(shape[0], np.float32) * np.float32(0.1)

    for number, width in (item for stage in VGG16 for item in stage.items()):
        drawn(f"features.{number}", width, channels, 3, 3)
        channels = width
    drawn("classifier.0", 4096, 512 * (SIDE // 32) ** 2)
    drawn("classifier.3", 4096, 4096)
    return made


@pytest.fixture(scope="module")
def path(tensors, tmp_path_factory):
    path = tmp_path_factory.mktemp("torch") / "vgg16.pth"
    torch_writer.write(path, tensors)
    return path


def _rendered(tensors, pictures):
    """torchvision's vgg16: the last map [B, n, n, 512], and fc7 [B, 4096] after its ReLU."""
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    x = ((pictures / 255 - mean) / std).astype(np.float32)
    for stage in VGG16:
        for number in stage:
            kernel = tensors[f"features.{number}.weight"].transpose(2, 3, 1, 0)
            x = tf.nn.conv2d(x, kernel, 1, "SAME") + tensors[f"features.{number}.bias"]
            x = tf.nn.relu(x)
        x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    grid = x.numpy()
    vector = grid.transpose(0, 3, 1, 2).reshape(len(grid), -1)  # [C, H, W]
    for number in (0, 3):
        weight, bias = (tensors[f"classifier.{number}.{part}"] for part in ("weight", "bias"))
        vector = np.maximum(vector @ weight.T + bias, 0)
    return grid, vector


@pytest.mark.slow
def test_vgg16_of_torchvision_gives_its_grid_and_fc7(tensors, path, tmp_path):
    pictures = np.random.default_rng(1).uniform(0, 255, (2, SIDE, SIDE, 3)).astype(np.float32)
    grid, fc7 = _rendered(tensors, pictures)
    assert grid.shape == (2, 2, 2, 512) and fc7.std() > 0.1
    for wanted, vector in ((grid.reshape(2, 4, 512), False), (fc7[:, None], True)):
        backbone = Backbone("vgg16", weights=path, image_size=SIDE, vector=vector)
        found = backbone.extract(tf.constant(pictures)).numpy()
        assert (backbone.num_regions, backbone.feature_dim) == wanted.shape[1:]
        np.testing.assert_allclose(found, wanted, rtol=3e-3, atol=3e-3)
        made_by = backbone.made_by("w.h5", None)
        assert made_by["scaling"] == "torch" and made_by.get("vector", False) is vector
    saved = tmp_path / "backbone.weights.h5"
    backbone.save_weights(saved)
    made_by = backbone.made_by(saved.name, digest(saved))
    again = Backbone.from_fingerprint({"backbone": made_by}, tmp_path)
    np.testing.assert_array_equal(again.extract(pictures), found)
