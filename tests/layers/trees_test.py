"""Rows of a nest of tensors are repeated, gathered and written; variables are named."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfcap.layers import trees

TREE = {"a": tf.reshape(tf.range(6.0), (3, 2)), "b": [tf.constant([True, False, True])]}


def test_repeat_puts_copies_side_by_side_and_take_gathers():
    result = trees.repeat(TREE, 2)
    np.testing.assert_array_equal(result["a"][:, 0], [0, 0, 2, 2, 4, 4])
    np.testing.assert_array_equal(result["b"][0], [True, True, False, False, True, True])
    result = trees.take(TREE, tf.constant([2, 0, 0, 1]))
    np.testing.assert_array_equal(result["a"], [[4, 5], [0, 1], [0, 1], [2, 3]])
    np.testing.assert_array_equal(result["b"][0], [True, True, True, False])


@pytest.mark.parametrize("axis", [1, 2])
def test_put_writes_one_position(axis):
    """At an index known only when it runs, with a gradient."""
    buffer = tf.reshape(tf.range(24, dtype=tf.float32), (2, 3, 4))
    row = tf.reduce_sum(buffer, axis, keepdims=True) + 100
    write = tf.function(lambda index: trees.put(buffer, row, index, axis), autograph=False)
    for index in range(buffer.shape[axis]):
        expected = buffer.numpy()
        expected[(slice(None),) * axis + (slice(index, index + 1),)] = row
        np.testing.assert_array_equal(write(tf.constant(index)), expected)
    with tf.GradientTape() as tape:
        tape.watch([buffer, row])
        loss = tf.reduce_sum(trees.put(buffer, row, 1, axis))
    gradients = tape.gradient(loss, [buffer, row])
    assert gradients[0].numpy().sum() == 24 - 24 / buffer.shape[axis]
    assert gradients[1].numpy().sum() == 24 / buffer.shape[axis]


class Nested(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = self.again = layers.Dense(2)
        self.listed = [layers.Dense(2), [layers.Dense(2)]]
        self.named = {"x": layers.Dense(2), "y": layers.Dropout(0.5)}

    def call(self, x, training=False):
        x = self.listed[0](self.listed[1][0](self.named["x"](self.first(x))))
        return self.named["y"](x, training=training)


def test_names_are_chains_of_attributes_and_a_shared_layer_has_one():
    model = Nested()
    model(tf.zeros((1, 2)))
    names = trees.named_variables(model)
    dense = [
        f"{path}/{part}"
        for path in ("first", "listed/0", "listed/1/0", "named/x")
        for part in ("kernel", "bias")
    ]
    assert set(names) == {*dense, "named/y/seed_generator_state"}
    assert names["listed/1/0/kernel"] is model.listed[1][0].kernel
    assert [name for name, v in names.items() if trees.is_seed(v)] == [
        "named/y/seed_generator_state"
    ]


def test_weights_of_one_name_are_refused():
    layer = layers.Layer()
    layer.a, layer.b = (layer.add_weight(shape=(), name="same") for _ in range(2))
    with pytest.raises(ValueError, match="2 variables, but only 1 different"):
        trees.named_variables(layer)
