"""Position codes of words.

Letters: P positions in the table, T' positions to look up, D model width.
"""

import numpy as np
from keras import layers, ops


def sinusoids(positions: int, width: int) -> np.ndarray:
    """Computes sine and cosine position codes (Vaswani et al. 2017, section 3.5).

    Even channels are sines and odd channels are cosines of the same frequency.

    Args:
      positions: P.
      width: D.

    Returns:
      float32 [P, D].
    """
    rates = np.exp(-np.arange(0, width, 2) * np.log(10000.0) / width)
    angles = np.arange(positions)[:, None] * rates
    codes = np.zeros((positions, width))
    codes[:, 0::2] = np.sin(angles)
    codes[:, 1::2] = np.cos(angles)[:, : width // 2]
    return codes.astype("float32")


class PositionCodes(layers.Layer):
    """Looks up a fixed code for each position of a caption.

    By default the codes are `sinusoids` and the layer has no weights. With `stored` the codes are
    the weight `table` [P, D]. It starts as the sinusoids, is not trained, and is saved in every
    checkpoint and export. `tfcap.convert` sets `stored` if a released table is not the sinusoids.

    Args:
      positions: P, the longest caption.
      width: D.
      stored: whether the codes are a weight.
    """

    def __init__(self, positions: int, width: int, stored: bool = False, **kwargs):
        super().__init__(**kwargs)
        self.positions, self.width, self.stored = positions, width, stored

    def build(self, shape):
        if self.stored:
            self.table = self.add_weight(
                shape=(self.positions, self.width),
                initializer=lambda shape, dtype: ops.cast(sinusoids(*shape), dtype),
                trainable=False,
                name="table",
            )

    def call(self, places):
        """Returns the codes [T', D] of `places` int [T'], in the compute dtype."""
        table = self.table if self.stored else sinusoids(self.positions, self.width)
        return ops.take(ops.cast(table, self.compute_dtype), places, axis=0)
