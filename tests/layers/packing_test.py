"""Packing leaves out padding, and its gradients are those of a gather."""

import numpy as np
import tensorflow as tf

from tfcap.layers.packing import Packing, on_words

COUNTS = [2, 3, 1]


def test_packed_rows_come_back_with_zeros_as_padding():
    x = tf.constant(np.random.default_rng(1).normal(size=(3, 4, 2)), tf.float32)
    word = tf.sequence_mask(COUNTS, 4)[..., None]
    packing = Packing(tf.constant(COUNTS), 4)
    packed = packing.pack(x)
    assert packed.shape == (1, 6, 2)
    np.testing.assert_array_equal(packed[0], tf.boolean_mask(x, word[..., 0]))
    np.testing.assert_array_equal(packing.unpack(packed), tf.where(word, x, 0))
    assert Packing(tf.constant(COUNTS)).unpack(packed).shape == (3, 3, 2)  # the longest row


def test_gradients_go_to_words_alone():
    x = tf.constant(np.random.default_rng(1).normal(size=(3, 3, 2)), tf.float32)
    packing = Packing(tf.constant(COUNTS))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(on_words(lambda x: x**3 + 1, x, packing))
    word = tf.sequence_mask(COUNTS, 3)[..., None]
    np.testing.assert_allclose(tape.gradient(y, x), tf.where(word, 3 * x**2, 0), rtol=1e-6)
    np.testing.assert_allclose(y, tf.reduce_sum(tf.where(word, x**3 + 1, 0)), rtol=1e-6)
