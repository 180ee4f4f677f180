"""Position codes of words, and of regions that have an order, such as the frames of a clip.

Letters: P positions in the table, T' positions to look up, D model width, B images, R regions,
F feature width, C channels of a code.
"""

import keras
import numpy as np
from keras import layers, ops

from tfcap.layers import common
from tfcap.layers.dropout import Dropout

_CODE_WIDTH = 64  # C: the slowest sine then turns once in 47,000 frames


def sinusoids(positions: int, width: int) -> np.ndarray:
    """Computes sine and cosine codes of the positions 0, 1, ... (Vaswani et al. 2017, 3.5).

    Channel 2 i of position p is sin(a), and channel 2 i + 1 is cos(a), with a = p / 10000^(2 i / D)
    and i = 0, 1, ...

    Args:
      positions: number of positions, P.
      width: number of channels, D.

    Returns:
      float32 [P, D].

    Example:
      >>> print(sinusoids(positions=3, width=2).round(2))
      [[ 0.    1.  ]
       [ 0.84  0.54]
       [ 0.91 -0.42]]
    """
    rates = np.exp(-np.arange(0, width, 2) * np.log(10000.0) / width)
    angles = np.arange(positions)[:, None] * rates
    codes = np.zeros((positions, width))
    codes[:, 0::2] = np.sin(angles)
    codes[:, 1::2] = np.cos(angles)[:, : width // 2]
    return codes.astype("float32")


@keras.saving.register_keras_serializable("tfcap")
class PositionCodes(common.Layer):
    """Looks up a fixed code for each position of a caption.

    By default the codes are `sinusoids` and the layer has no weights. If `stored` is True, the
    codes are the weight `table` [P, D]. This weight starts as the sinusoids, is not trained, and is
    saved in every checkpoint and export. `tfcap.convert` sets `stored` if a released file has other
    codes.

    Args:
      positions: number of positions in the table, P: the length of the longest caption.
      width: model width, D.
      stored: whether the codes are a weight. False computes the sinusoids.

    Example:
      >>> codes = PositionCodes(positions=20, width=8)
      >>> codes(np.arange(5)).shape
      TensorShape([5, 8])
    """

    def __init__(self, positions: int, width: int, stored: bool = False, **kwargs):
        super().__init__(**kwargs)
        self.positions = positions
        self.width = width
        self.stored = stored

    def build(self, shape):
        if self.stored:
            self.table = self.add_weight(
                shape=(self.positions, self.width),
                initializer=lambda shape, dtype: ops.cast(sinusoids(*shape), dtype),
                trainable=False,
                name="table",
            )

    def call(self, positions):
        """Looks up the codes of positions.

        Args:
          positions: int [T], T positions, counted from 0.

        Returns:
          The codes [T, width] in the compute dtype.
        """
        table = self.table if self.stored else sinusoids(self.positions, self.width)
        return ops.take(ops.cast(table, self.compute_dtype), positions, axis=0)


def add_words(model: layers.Layer, width: int, word_dropout: float, stored: bool) -> None:
    """Gives a captioner the layers that embed words and their positions.

    The function sets the attributes `embed_tokens`, `position_codes`, `word_norm` and
    `word_dropout` of the captioner. Keep these names and this order: checkpoints store the weights
    by name, and the variables of the optimizer by order.

    Args:
      model: captioner with the attributes `vocab_size` and `max_length`.
      width: model width, D.
      word_dropout: dropout rate on the embedded words.
      stored: whether the position codes are a saved weight instead of sinusoids, see
        `PositionCodes`.
    """
    model.embed_tokens = common.embedding(model.vocab_size, width, "embed_tokens")
    model.position_codes = PositionCodes(model.max_length, width, stored, name="position_codes")
    model.word_norm = common.layer_norm("word_norm")
    model.word_dropout = Dropout(word_dropout, name="word_dropout")


@keras.saving.register_keras_serializable("tfcap")
class RegionPositions(common.Layer):
    """Adds to each region a code of its number: x_r + Lin(code(r)), r = 0, 1, ...

    x_r are the features of region r. code(r) is row r of `sinusoids` of width 64, reordered: all
    sines stand before all cosines. Lin is a learned affine map to the width of the features; it can
    also give the codes the scale of the features. The layer reads the features of the data, before
    any other layer of a captioner, so that it serves all systems. The number of regions has no
    limit.

    Args:
      feature_dim: width of the feature vector of a region, F.

    Example:
      >>> layer = RegionPositions(feature_dim=6)
      >>> layer(ops.ones((2, 5, 6))).shape
      TensorShape([2, 5, 6])
    """

    def __init__(self, feature_dim: int, **kwargs):
        super().__init__(**kwargs)
        self.project = common.linear(_CODE_WIDTH, feature_dim, "project", dtype=self.dtype_policy)

    def call(self, features):
        """Adds the codes to the features of R regions of B images.

        Args:
          features: [B, R, F], F features of each region.

        Returns:
          [B, R, F] in the compute dtype.
        """
        x = ops.cast(features, self.compute_dtype)
        rates = np.exp(-np.arange(0, _CODE_WIDTH, 2) * np.log(10000.0) / _CODE_WIDTH)
        positions = ops.cast(ops.arange(ops.shape(x)[1]), "float32")
        angles = positions[:, None] * rates.astype("float32")  # [R, C / 2]
        codes = ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)
        return x + ops.cast(self.project(codes), x.dtype)[None]
