"""Draws the captions of training images, as a pure function of seed, epoch and image.

Letters: B images, S captions per image.
"""

import numpy as np
import tensorflow as tf


def draw_captions(
    lengths: tf.Tensor, samples: int, ids: tf.Tensor, seed: int, epoch: tf.Tensor
) -> tf.Tensor:
    """Draws S captions of each image; captions repeat only if the image has fewer than S.

    A draw depends only on the seed, the epoch, the image id and its place among the S draws, not on
    the other images of the batch.

    Args:
      lengths: int64 [B], the number of captions of each image, at least 1.
      samples: S.
      ids: int64 [B], image ids.
      seed: random seed of the run.
      epoch: int64 scalar.

    Returns:
      int64 [B, S], positions among the captions of each image. An image with fewer than S captions
      keeps all of them, and the rest are drawn again.
    """
    key = tf.random.stateless_uniform(
        [], tf.stack([tf.constant(seed, tf.int64), epoch]), None, None, tf.uint64
    )
    image = tf.expand_dims(_mix(key ^ tf.bitcast(ids, tf.uint64)), 1)
    lengths = tf.expand_dims(lengths, 1)
    places = tf.range(tf.maximum(tf.reduce_max(lengths), samples))
    # Without replacement: the captions in random order, places without a caption last. `invert`
    # turns the order round, because `top_k` gives the largest first and has few operations.
    order = _positive(_mix(image + tf.cast(places + 1, tf.uint64)))
    order = tf.bitwise.invert(tf.where(places < lengths, order, tf.int64.max))
    order = tf.math.top_k(order, samples, index_type=tf.int64).indices
    draws = np.arange(samples)
    again = _positive(_mix(image - (draws + 1).astype(np.uint64))) % lengths
    return tf.where(draws < lengths, order, again)


def _mix(x: tf.Tensor) -> tf.Tensor:
    """Scrambles uint64 [...], the output function of SplitMix64 (Steele, Lea and Flood 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x ^= tf.bitwise.right_shift(x, tf.constant(shift, tf.uint64))
        x *= tf.constant(factor, tf.uint64)
    return x ^ tf.bitwise.right_shift(x, tf.constant(31, tf.uint64))


def _positive(x: tf.Tensor) -> tf.Tensor:
    """Returns uint64 as int64 >= 0, for operations that do not support uint64."""
    return tf.cast(tf.bitwise.right_shift(x, tf.constant(1, tf.uint64)), tf.int64)
