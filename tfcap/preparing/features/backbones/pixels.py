"""The backbone without weights: it shrinks each cell of 16 x 16 pixels, or the whole picture.

Letters: B images, H and W pixels of an image, n cells along a side, F = 194.
"""

import os
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfcap.preparing.features.backbones.network import Network, cells_of

_PIXELS_PER_CELL = 16
_IMAGE_SIZE = 96
_POINTS = 16  # along a side of a small picture


class Pixels(Network):
    """Averages a cell to 8 x 8 x 3 numbers in [-1, 1]; appends x and y of its middle in [-1, 1]."""

    def __init__(self, weights: str | os.PathLike | None, image_size: int | None):
        image_size = image_size or _IMAGE_SIZE
        cells = cells_of("pixels", image_size, _PIXELS_PER_CELL)
        _check_weights(weights)
        super().__init__(None, 8 * 8 * 3 + 2, cells, image_size)

    def grid(self, images: tf.Tensor, call: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
        """Computes the cells float32 [B, n, n, F] of pictures [B, H, W, 3] in 0..255."""
        small = tf.nn.avg_pool2d(images, 2, 2, "VALID")
        # Only the last operation rounds, so the numbers do not depend on the compiler.
        small = (small - 127.5) * (1 / 127.5)
        blocks = tf.nn.space_to_depth(small, _PIXELS_PER_CELL // 2)
        edges = (np.arange(self.cells + 1) / self.cells).astype(np.float32)
        places = np.stack(np.meshgrid(*[edges[:-1] + edges[1:] - np.float32(1)] * 2), axis=2)
        position = tf.tile(tf.constant(places)[None], [tf.shape(blocks)[0], 1, 1, 1])
        return tf.concat([blocks, position], axis=-1)


class SmallPicture(Network):
    """Averages the whole picture to 16 x 16 x 3 numbers in [-1, 1], as one vector; F = 768."""

    def __init__(self, weights: str | os.PathLike | None, image_size: int | None):
        image_size = image_size or _IMAGE_SIZE
        cells_of("pixels", image_size, _POINTS)
        _check_weights(weights)
        super().__init__(None, _POINTS * _POINTS * 3, 1, image_size, is_vector=True)

    def grid(self, images: tf.Tensor, call: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
        """Computes the vectors float32 [B, F] of pictures [B, H, W, 3] in 0..255."""
        window = self.image_size // _POINTS
        small = tf.nn.avg_pool2d(images, window, window, "VALID")
        return tf.reshape((small - 127.5) * (1 / 127.5), [-1, self.width])


def _check_weights(weights: str | os.PathLike | None) -> None:
    if weights is not None:
        raise ValueError(
            f"The backbone 'pixels' has no weights. Received: {weights}. Leave them out."
        )
