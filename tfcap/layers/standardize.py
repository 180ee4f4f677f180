"""Standardises the features that a captioner reads.

Letters: B images, R regions, F feature width.
"""

from collections.abc import Iterable, Mapping

import keras
import numpy as np

from tfcap.layers import common


@keras.saving.register_keras_serializable("tfcap")
class Standardize(common.Layer):
    """Gives each channel of the features mean 0 and standard deviation 1: (x - mean) / deviation.

    Mean and deviation are weights that are not trained. Every checkpoint and export holds them.
    They start as 0 and 1; `adapt` measures them on data. No released captioner has this layer.

    Args:
      width: number of channels, F.

    Example:
      >>> layer = Standardize(width=1)
      >>> batch = {"features": np.float32([[[2], [4]]]), "mask": np.array([[True, True]])}
      >>> layer.build((None, None, 1))
      >>> layer.adapt([batch])
      >>> print(layer(batch["features"]).numpy().ravel())
      [-1.  1.]
    """

    def __init__(self, width: int, **kwargs):
        super().__init__(**kwargs)
        self.width = width

    def build(self, shape):
        def weight(name, start):
            return self.add_weight(
                shape=(self.width,), initializer=start, trainable=False, name=name
            )

        self.mean = weight("mean", "zeros")
        self.deviation = weight("deviation", "ones")

    def call(self, x):
        """Returns (x - mean) / deviation for `x` [..., F], F channels, in the compute dtype."""
        return (x - self.mean) / self.deviation

    def adapt(self, batches: Iterable[Mapping[str, np.ndarray]]) -> None:
        """Measures mean and standard deviation of each channel, and keeps them as weights.

        Call `build` or the layer itself before this method. Padded regions are left out. The
        deviation is that of `np.std`. If the deviation of a channel is at most
        `1e-6 * max(1, |mean|)`, the channel counts as constant and gets the deviation 1.

        Args:
          batches: dictionaries with `features` [B, R, F], F channels of each of R regions of B
            images, and `mask` bool [B, R], False for padding.
        """
        count = 0
        total = np.zeros(self.width)
        squares = np.zeros(self.width)
        for batch in batches:
            rows = np.asarray(batch["features"], np.float64)[np.asarray(batch["mask"])]
            count += len(rows)
            total += rows.sum(axis=0)
            squares += np.square(rows).sum(axis=0)
        mean = total / count
        deviation = np.sqrt(np.maximum(squares / count - mean**2, 0.0))
        self.mean.assign(mean)
        self.deviation.assign(
            np.where(deviation > 1e-6 * np.maximum(1.0, np.abs(mean)), deviation, 1.0)
        )
