"""Leaves out the padding of captions: their words in one list, without gaps.

Letters: N rows (captions, or images with the words of all their captions), T positions of a row,
P words of all rows.
"""

from collections.abc import Callable

import tensorflow as tf


class Packing:
    """Moves words between rows [N, T, ...], which end with padding, and a list [1, P, ...].

    The list has the words of the first row, then those of the second row, and so on. No padding is
    in the list, so layers that treat each position alone take less time on it. The list has an axis
    of length 1 in front, because layers expect rows. Gradients are exact: padding has none.

    Args:
      counts: number of words of each row, int32 [N]. A row has its words first, then its padding.
      length: number of positions of a row, T; None means the largest of `counts`.

    Attributes:
      shape: N and T, a tuple of numbers or scalar tensors.

    Example:
      >>> packing = Packing(tf.constant([1, 2]))
      >>> words = packing.pack(tf.constant([[[5], [0]], [[6], [7]]]))
      >>> print(words[0, :, 0].numpy(), packing.unpack(words)[..., 0].numpy().tolist())
      [5 6 7] [[5, 0], [6, 7]]
    """

    def __init__(self, counts: tf.Tensor, length: int | tf.Tensor | None = None):
        length = tf.reduce_max(counts) if length is None else length
        self.shape = (tf.shape(counts)[0], length)
        place = tf.range(length)
        is_word = place < counts[:, None]  # [N, T]
        self._positions = tf.where(tf.reshape(is_word, [-1]))[:, 0]  # of each word, in N T
        # Padding reads what stands behind the last word.
        words = tf.cumsum(counts, exclusive=True)[:, None] + place
        self._words = tf.where(is_word, words, tf.reduce_sum(counts))

    def pack(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the words of the rows `x` [N, T, ...] as a list [1, P, ...]."""
        return _with_gradient(self._pack, self._unpack)(x)

    def unpack(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the words of the list `x` [1, P, ...] in rows [N, T, ...]; padding is zeros."""
        return _with_gradient(self._unpack, self._pack)(x)

    def _pack(self, x):
        flat = tf.reshape(x, [-1, *x.shape[2:]])
        return tf.gather(flat, self._positions)[None]

    def _unpack(self, x):
        padding = [[0, 1]] + [[0, 0]] * (len(x.shape) - 2)
        return tf.gather(tf.pad(x[0], padding), self._words)


def on_words(layer: Callable, x: tf.Tensor, packing: Packing | None) -> tf.Tensor:
    """Applies a layer that treats each position alone to `x` [N, T, ...], but not to padding.

    Args:
      layer: the layer, a function of one tensor.
      x: rows [N, T, ...].
      packing: the packing of the rows; None also applies the layer to padding.

    Returns:
      The results [N, T, ...], with zeros as padding.
    """
    return layer(x) if packing is None else packing.unpack(layer(packing.pack(x)))


def _with_gradient(function, gradient):
    """Returns `function`, a linear map, with `gradient` as the map of its gradient."""
    return tf.custom_gradient(lambda x: (function(x), gradient))
