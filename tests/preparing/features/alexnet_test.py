"""AlexNet against a plain rendering of torchvision's network."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import torch_writer

from tfcap.preparing.features.backbone import Backbone
from tfcap.preparing.features.saved import digest

CONVOLUTIONS = {0: (64, 3, 11), 3: (192, 64, 5), 6: (384, 192, 3), 8: (256, 384, 3),
                10: (256, 256, 3)}  # fmt: skip


def _state_dict():
    """Random tensors with the names and shapes of torchvision's alexnet."""
    rng = np.random.default_rng(5)

    def drawn(*shape):
        # A prime number of values, again and again: drawing each would take most of the time.
        values = np.resize(rng.random(10_007, np.float32) - np.float32(0.5), shape)
        return values * np.float32((12 / np.prod(shape[1:])) ** 0.5)

    tensors = {}
    for number, (out, channels, size) in CONVOLUTIONS.items():
        tensors[f"features.{number}.weight"] = drawn(out, channels, size, size)
        tensors[f"features.{number}.bias"] = drawn(out)
    for number, channels in ((1, 9216), (4, 4096)):
        tensors[f"classifier.{number}.weight"] = drawn(4096, channels)
        tensors[f"classifier.{number}.bias"] = drawn(4096)
    return tensors


def _fc7(tensors, picture):
    """torchvision's alexnet up to the ReLU of classifier.4, of a picture [224, 224, 3]."""
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    x = ((picture / 255 - mean) / std).astype(np.float32)[None]
    for number in CONVOLUTIONS:
        stride, padding = {0: (4, 2), 3: (1, 2)}.get(number, (1, 1))
        x = np.pad(x, [(0, 0), (padding, padding), (padding, padding), (0, 0)])
        kernel = tensors[f"features.{number}.weight"].transpose(2, 3, 1, 0)
        x = tf.nn.conv2d(x, kernel, stride, "VALID") + tensors[f"features.{number}.bias"]
        x = tf.nn.relu(x)
        if number in (0, 3, 10):
            x = tf.nn.max_pool2d(x, 3, 2, "VALID")
    x = x.numpy()[0].transpose(2, 0, 1).ravel()  # [C, H, W]
    for number in (1, 4):
        x = tensors[f"classifier.{number}.weight"] @ x + tensors[f"classifier.{number}.bias"]
        x = np.maximum(x, 0)
    return x


@pytest.mark.slow
def test_fc7_is_that_of_torchvision(tmp_path):
    tensors = _state_dict()
    torch_writer.write(tmp_path / "alexnet.pth", tensors)
    backbone = Backbone("alexnet", weights=tmp_path / "alexnet.pth")
    assert (backbone.feature_dim, backbone.num_regions) == (4096, 1)
    np.testing.assert_array_equal(backbone.boxes, [[0, 0, 1, 1]])
    picture = np.random.default_rng(1).integers(0, 256, (224, 224, 3)).astype(np.float32)
    found = backbone.extract(tf.constant(picture[None])).numpy()
    wanted = _fc7(tensors, picture)
    assert found.shape == (1, 1, 4096) and wanted.min() == 0 and wanted.std() > 0
    np.testing.assert_allclose(found[0, 0], wanted, rtol=2e-3, atol=1e-4)
    path = tmp_path / "backbone.weights.h5"
    backbone.save_weights(path)
    made_by = backbone.made_by(path.name, digest(path))
    assert "scaling" not in made_by and "vector" not in made_by
    again = Backbone.from_fingerprint({"backbone": made_by}, tmp_path)
    np.testing.assert_array_equal(again.extract(picture[None]), found)
    kept = {"features.0.weight": tensors["features.0.weight"]}
    torch_writer.write(tmp_path / "alexnet.pth", kept)
    with pytest.raises(ValueError, match="do not fit alexnet .*features.0.bias"):
        Backbone("alexnet", weights=tmp_path / "alexnet.pth")
