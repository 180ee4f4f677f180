"""The base class of the networks of `Backbone`, and what helps to build and save them.

Letters: B images, H and W pixels of an image, n cells along a side of the grid of the network, F
feature width.
"""

import collections
import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from tfcap import private_api

Call = Callable[[tf.Tensor], tf.Tensor]  # computes a Keras model


class Network:
    """Base class of the networks of `Backbone`: from pictures to a grid of features, or one vector.

    A subclass may override `grid`, `resize`, `shown` and `save`. `Backbone` adds the decoding of
    files, crops, and the pooling to a smaller grid.

    Args:
      model: the Keras model, from B scaled pictures [B, H, W, 3] to features; None if the network
        has no weights. The attribute `trainable` of the model is set to False.
      width: width of a feature vector, F.
      cells: number of cells along a side of the grid, n; 1 if the network gives one vector.
      image_size: pixels along a side of the pictures that the network reads, H = W.
      is_vector: whether the network gives one vector that is not the mean of a grid.
      scale: a function that scales pictures, float32 [B, H, W, 3] with values in 0..255, as the
        model expects them.
      keys: further keys of the entry `backbone` of dataset.json, with their values.

    Attributes:
      name: the name of the network in dataset.json; "" if it is the name that the user gave.
      is_preset: whether the weights are saved as a directory and not as one file.
      stochastic: whether the network draws random numbers in training.
      batch: number of pictures that tfcap.prepare gives the network at once; a larger number is not
        faster on a CPU.
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
        """Computes the features of B pictures.

        Args:
          images: B pictures as `resize` returns them, of H x W pixels, float32 [B, H, W, 3] in
            0..255.
          call: the function that runs the Keras model on scaled pictures: `model` itself, or a copy
            of it whose weights are constants.

        Returns:
          The grids, float32 [B, n, n, F]: n x n vectors of F numbers for each picture. If
          `is_vector` is True, one vector for each picture, float32 [B, F].
        """
        return call(self.scale(images))

    def resize(self, image: tf.Tensor) -> tf.Tensor:
        """Resizes a picture to the square that the network reads, without keeping the aspect ratio.

        Args:
          image: an upright picture, uint8 [height, width, 3] of any size, RGB.

        Returns:
          float32 [H, W, 3] in 0..255, where H = W = `image_size`.
        """
        size = [self.image_size, self.image_size]
        return tf.cast(tf.image.resize(image, size, method="bilinear", antialias=True), tf.float32)

    @property
    def resizing(self) -> dict[str, Any]:
        """Describes `resize`, as the card of a portable export does.

        The keys are those that `serving.standalone.caption.resized` reads, without `image_size`.
        """
        return {"resize": "bilinear"}

    def shown(self, height: int, width: int) -> tuple[float, float, float, float]:
        """Returns the part of a picture that the network sees.

        It is the whole picture here; a network that crops overrides the method.

        Args:
          height: height of the picture in pixels.
          width: width of the picture in pixels.

        Returns:
          The corners x1, y1, x2, y2 of the part, as fractions (0..1) of the picture.
        """
        return 0.0, 0.0, 1.0, 1.0

    def save(self, path: str) -> None:
        """Writes the weights to a file, whose name must end in `.weights.h5`.

        The same weights always give the same bytes.
        """
        assert self.model is not None  # a network without weights is not saved
        with steady_names(self.model):
            self.model.save_weights(path)


def one_line(message: str) -> str:
    """Shortens the text of a Keras error to one line.

    Keras lists every layer whose weights do not fit. Of this list only the number of layers and the
    name of one of them remain.
    """
    text = " ".join(message.split())
    match = re.match(r"A total of (\d+) objects could not .*? object <\w+ name=([^,>]+)", text)
    if match:
        return f"{match[1]} layers have other weights, for example {match[2]}"
    return text[:300].rstrip(".")


@contextlib.contextmanager
def steady_names(model: keras.Model) -> Iterator[None]:
    """Gives the layers of a model the names that they would have in a new process.

    The names hold within the `with` block. Keras numbers layers without a name over all models of a
    process (`input_layer`, `input_layer_1`), and a file of weights contains the names. Without this
    context, a model that is built twice in a process would be saved as two different files.
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
