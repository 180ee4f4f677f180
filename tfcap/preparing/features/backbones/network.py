"""The interface of the network of a backbone, and functions that several networks use.

Letters: B images, H and W pixels of an image, n cells along a side of the network's own grid, F
feature width.
"""

import collections
import contextlib
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

STRIDE = 32  # pixels per cell of the usual networks
TORCH_MEAN = np.array([0.485, 0.456, 0.406], np.float32)  # of RGB in 0..1, as torchvision has them
TORCH_STD = np.array([0.229, 0.224, 0.225], np.float32)


class Network:
    """A network from pictures to a grid of features, or to one vector.

    Attributes:
      model: the Keras network, from scaled pictures [B, H, W, 3] to its output; None if the
        network has no weights.
      width: F.
      cells: n; 1 if the network gives one vector.
      image_size: H = W.
      is_vector: whether the output is a vector that is not the mean of a grid.
      name: its name in dataset.json, if it differs from the requested name; else "".
      more: further entries of the entry `backbone` of dataset.json.
      is_preset: whether the weights are saved as a directory and not as one file.
    """

    is_preset = False

    def __init__(
        self, model: Any, width: int, cells: int, image_size: int, is_vector: bool = False
    ):
        self.model = model
        self.width = width
        self.cells = cells
        self.image_size = image_size
        self.is_vector = is_vector
        self.name = ""
        self.more: dict[str, Any] = {}

    def scale(self, images: tf.Tensor) -> tf.Tensor:
        """Scales pictures float32 [B, H, W, 3] of 0 to 255 as the network expects them."""
        raise NotImplementedError

    def grid(self, images: tf.Tensor, call: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
        """Computes the network's own grid.

        Args:
          images: float32 [B, H, W, 3] in 0..255.
          call: runs `model` on scaled pictures.

        Returns:
          float32 [B, n, n, F], or [B, F] if `is_vector`.
        """
        return call(self.scale(images))

    def resize(self, image: tf.Tensor) -> tf.Tensor:
        """Resizes an upright picture uint8 [H', W', 3] to float32 [H, W, 3] in 0..255."""
        size = [self.image_size, self.image_size]
        return tf.cast(tf.image.resize(image, size, method="bilinear", antialias=True), tf.float32)

    def shown(self, height: int, width: int) -> tuple[float, float, float, float]:
        """Returns the part of a picture that the network sees: x1, y1, x2, y2 in 0..1."""
        return 0.0, 0.0, 1.0, 1.0

    def save(self, path: str | os.PathLike) -> None:
        """Writes the weights, always as the same bytes; `path` ends in .weights.h5."""
        with steady_names(self.model):
            self.model.save_weights(path)


def torch_scaled(images: tf.Tensor) -> tf.Tensor:
    """Scales RGB pictures [B, H, W, 3] of 0 to 255 as torchvision's networks expect them."""
    return (images / 255.0 - TORCH_MEAN) / TORCH_STD


def cells_of(name: str, image_size: int, stride: int = STRIDE) -> int:
    """Returns the cells along a side; raises ValueError unless the stride divides the size."""
    if image_size < stride or image_size % stride:
        raise ValueError(
            f"image_size of {name} must be a multiple of {stride}. Received: {image_size}."
        )
    return image_size // stride


def check_weights(
    name: str,
    weights: str | os.PathLike | None,
    allowed: str = "an existing .h5 file, or 'imagenet' to download them",
) -> str:
    """Returns `weights` as text; raises ValueError unless it is "imagenet" or a file."""
    if weights is None:
        raise ValueError(f"--weights of {name!r} must be 'imagenet' or a file. Received: None.")
    weights = os.fspath(weights)
    if weights != "imagenet" and not os.path.isfile(weights):
        raise ValueError(f"--weights of {name!r} must be {allowed}. Received: {weights}.")
    return weights


def one_line(message: str) -> str:
    """Shortens a message of Keras, which may list every layer that does not fit."""
    text = " ".join(message.split())
    match = re.match(r"A total of (\d+) objects could not .*? object <\w+ name=([^,>]+)", text)
    if match:
        return f"{match[1]} layers have other weights, for example {match[2]}"
    return text[:300].rstrip(".")


@contextlib.contextmanager
def float32() -> Iterator[None]:
    """Sets Keras to float32, whatever precision the captioner trains in."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)


@contextlib.contextmanager
def steady_names(model: Any) -> Iterator[None]:
    """Gives layers without a name of their own the names that a new process gives them.

    Keras counts such layers over all models of a process (`input_layer`, `input_layer_1`), and a
    file of weights holds the names. So the file of a second model would have other bytes.

    Args:
      model: a Keras model; its layers get their old names back when the block ends.
    """
    before, numbers = {}, collections.Counter[str]()
    for layer in model._flatten_layers():
        kind = re.sub(r"_\d+$", "", layer.name)
        if kind.replace("_", "") == type(layer).__name__.lower():
            before[layer] = layer.name
            layer.name = f"{kind}_{numbers[kind]}" if numbers[kind] else kind
            numbers[kind] += 1
    try:
        yield
    finally:
        for layer, name in before.items():
            layer.name = name
