"""The base class of the networks of `Backbone`, and what helps to build and save them.

Letters: B images, H and W pixels of an image, n cells along a side of the grid of the network, F
feature width.
"""

import collections
import contextlib
import re
from collections.abc import Callable, Iterator, Mapping

import keras
import tensorflow as tf

from tfcap import private_api

Call = Callable[[tf.Tensor], tf.Tensor]  # computes a Keras model


class Network:
    """A network from pictures to a grid of features, or to one vector.

    Args:
      model: the Keras model, from scaled pictures [B, H, W, 3] to features; None if the network has
        no weights.
      width: width of the features, F.
      cells: cells along a side of the grid, n; 1 if the network gives one vector.
      image_size: pixels along a side of a picture, H = W.
      is_vector: whether the output is a vector that is not the mean of a grid.
      scale: scales pictures float32 [B, H, W, 3] of 0 to 255 as the network expects them.
      keys: further keys for the entry `backbone` of dataset.json.

    Attributes:
      name: the name for dataset.json, if it differs from the requested name; else "".
      is_preset: whether the weights are saved as a directory and not as one file.
      stochastic: whether training draws random numbers in the network.
      batch: pictures that prepare gives it at once; more are not faster on a CPU.
    """

    is_preset = False
    stochastic = False
    batch = 32

    def __init__(
        self,
        model: keras.Model | None,
        width: int,
        cells: int,
        image_size: int,
        is_vector: bool = False,
        scale: Call = tf.identity,
        keys: Mapping[str, str] | None = None,
    ):
        self.model = model
        self.width = width
        self.cells = cells
        self.image_size = image_size
        self.is_vector = is_vector
        self.scale = scale
        self.keys = dict(keys or {})
        self.name = ""
        if model is not None:
            model.trainable = False

    def grid(self, images: tf.Tensor, call: Call) -> tf.Tensor:
        """Computes the features of pictures.

        Args:
          images: float32 [B, H, W, 3] in 0..255.
          call: the function that computes `model`.

        Returns:
          The grid [B, n, n, F], or the vector [B, F] if `is_vector`.
        """
        return call(self.scale(images))

    def resize(self, image: tf.Tensor) -> tf.Tensor:
        """Resizes an upright picture uint8 [H', W', 3] to float32 [H, W, 3] in 0..255."""
        size = [self.image_size, self.image_size]
        return tf.cast(tf.image.resize(image, size, method="bilinear", antialias=True), tf.float32)

    def shown(self, height: int, width: int) -> tuple[float, float, float, float]:
        """Returns the part of a picture that the network sees: x1, y1, x2, y2 in 0..1."""
        return 0.0, 0.0, 1.0, 1.0

    def save(self, path: str) -> None:
        """Writes the weights to a file .weights.h5, always as the same bytes."""
        assert self.model is not None  # a network without weights is not saved
        with steady_names(self.model):
            self.model.save_weights(path)


def one_line(message: str) -> str:
    """Shortens a message of Keras, which may list every layer that does not fit."""
    text = " ".join(message.split())
    match = re.match(r"A total of (\d+) objects could not .*? object <\w+ name=([^,>]+)", text)
    if match:
        return f"{match[1]} layers have other weights, for example {match[2]}"
    return text[:300].rstrip(".")


@contextlib.contextmanager
def steady_names(model: keras.Model) -> Iterator[None]:
    """Renames automatically named layers as in a new process.

    Keras numbers such layers over all models of a process (`input_layer`, `input_layer_1`), and a
    file of weights contains the names. So the file of a second model would have other bytes.
    """
    names = {}
    numbers = collections.Counter[str]()
    for layer in private_api.all_layers(model):
        kind = re.sub(r"_\d+$", "", layer.name)
        if kind.replace("_", "") == type(layer).__name__.lower():
            names[layer] = layer.name
            layer.name = f"{kind}_{numbers[kind]}" if numbers[kind] else kind
            numbers[kind] += 1
    try:
        yield
    finally:
        for layer, name in names.items():
            layer.name = name
