"""The operations on context and cache, and the names of variables."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfcap.models import captioner

TREE = {"a": tf.reshape(tf.range(6.0), (3, 2)), "b": [tf.constant([True, False, True])]}


def test_repeat_puts_copies_side_by_side():
    found = captioner.repeat(TREE, 2)
    np.testing.assert_array_equal(found["a"][:, 0], [0, 0, 2, 2, 4, 4])
    np.testing.assert_array_equal(found["b"][0], [True, True, False, False, True, True])
    assert captioner.repeat(TREE, 1) is TREE


def test_take_gathers_rows():
    found = captioner.take(TREE, tf.constant([2, 0, 0, 1]))
    np.testing.assert_array_equal(found["a"], [[4, 5], [0, 1], [0, 1], [2, 3]])
    np.testing.assert_array_equal(found["b"][0], [True, True, True, False])


@pytest.mark.parametrize("axis", [1, 2])
def test_put_writes_one_position(axis):
    """Into a buffer of its dtype, at an index known only when it runs, with a gradient."""
    buffer = tf.reshape(tf.range(24, dtype=tf.float32), (2, 3, 4))
    row = tf.reduce_sum(buffer, axis, keepdims=True) + 100
    write = tf.function(lambda index: captioner.put(buffer, row, index, axis), autograph=False)
    for index in range(buffer.shape[axis]):
        expected = buffer.numpy()
        expected[(slice(None),) * axis + (slice(index, index + 1),)] = row
        np.testing.assert_array_equal(write(tf.constant(index)), expected)
    with tf.GradientTape() as tape:
        tape.watch([buffer, row])
        loss = tf.reduce_sum(captioner.put(buffer, row, 1, axis))
    gradients = tape.gradient(loss, [buffer, row])
    assert gradients[0].numpy().sum() == 24 - 24 / buffer.shape[axis]
    assert gradients[1].numpy().sum() == 24 / buffer.shape[axis]


def test_put_keeps_the_dtype_of_the_buffer():
    buffer = tf.zeros((2, 3), tf.bfloat16)
    assert captioner.put(buffer, tf.ones((2, 1)), 0, axis=1).dtype == tf.bfloat16


class Nested(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = layers.Dense(2)
        self.listed = [layers.Dense(2), [layers.Dense(2)]]
        self.named = {"x": layers.Dense(2), "y": layers.Dropout(0.5)}

    def call(self, x, training=False):
        x = self.listed[0](self.listed[1][0](self.named["x"](self.first(x))))
        return self.named["y"](x, training=training)


def test_names_are_chains_of_attributes():
    model = Nested()
    model(tf.zeros((1, 2)))
    names = captioner.named_variables(model)
    dense = [
        f"{path}/{part}"
        for path in ("first", "listed/0", "listed/1/0", "named/x")
        for part in ("kernel", "bias")
    ]
    assert set(names) == {*dense, "named/y/seed_generator_state"}
    assert names["listed/1/0/kernel"] is model.listed[1][0].kernel
    assert [
        captioner.is_seed(names[n]) for n in ("first/bias", "named/y/seed_generator_state")
    ] == [
        False,
        True,
    ]


def test_a_shared_layer_has_one_name():
    model = Nested()
    model.again = model.first
    model(tf.zeros((1, 2)))
    assert len(captioner.named_variables(model)) == len(model.variables) == 9


def test_variables_without_a_name_of_their_own_are_refused():
    class Twins(layers.Layer):
        def build(self, shape):
            self.a = self.add_weight(shape=(), name="same")
            self.b = self.add_weight(shape=(), name="same")

        def call(self, x):
            return x

    layer = Twins()
    layer(tf.zeros((1, 2)))
    with pytest.raises(ValueError, match="2 variables of .* must have as many names. Received: 1"):
        captioner.named_variables(layer)
