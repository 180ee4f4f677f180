"""Rows of a nest of tensors are repeated, gathered and written."""

import numpy as np
import pytest
import tensorflow as tf

from tfcap.models import rows

TREE = {"a": tf.reshape(tf.range(6.0), (3, 2)), "b": [tf.constant([True, False, True])]}


def test_repeat_puts_copies_side_by_side():
    found = rows.repeat(TREE, 2)
    np.testing.assert_array_equal(found["a"][:, 0], [0, 0, 2, 2, 4, 4])
    np.testing.assert_array_equal(found["b"][0], [True, True, False, False, True, True])
    assert rows.repeat(TREE, 1) is TREE


def test_take_gathers_rows():
    found = rows.take(TREE, tf.constant([2, 0, 0, 1]))
    np.testing.assert_array_equal(found["a"], [[4, 5], [0, 1], [0, 1], [2, 3]])
    np.testing.assert_array_equal(found["b"][0], [True, True, True, False])


@pytest.mark.parametrize("axis", [1, 2])
def test_put_writes_one_position(axis):
    """Into a buffer of its dtype, at an index known only when it runs, with a gradient."""
    buffer = tf.reshape(tf.range(24, dtype=tf.float32), (2, 3, 4))
    row = tf.reduce_sum(buffer, axis, keepdims=True) + 100
    write = tf.function(lambda index: rows.put(buffer, row, index, axis), autograph=False)
    for index in range(buffer.shape[axis]):
        expected = buffer.numpy()
        expected[(slice(None),) * axis + (slice(index, index + 1),)] = row
        np.testing.assert_array_equal(write(tf.constant(index)), expected)
    with tf.GradientTape() as tape:
        tape.watch([buffer, row])
        loss = tf.reduce_sum(rows.put(buffer, row, 1, axis))
    gradients = tape.gradient(loss, [buffer, row])
    assert gradients[0].numpy().sum() == 24 - 24 / buffer.shape[axis]
    assert gradients[1].numpy().sum() == 24 / buffer.shape[axis]


def test_put_keeps_the_dtype_of_the_buffer():
    buffer = tf.zeros((2, 3), tf.bfloat16)
    assert rows.put(buffer, tf.ones((2, 1)), 0, axis=1).dtype == tf.bfloat16
