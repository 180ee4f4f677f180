"""Dropout against its definition."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfcap.layers.common import FeedForward
from tfcap.layers.dropout import Dropout
from tfcap.layers.xlinear import XLinearAttention


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(200, 501), (3, 33333)])
def test_elements_are_zero_or_divided_by_their_probability(shape, dtype):
    x = tf.ones(shape, dtype)
    y = tf.cast(Dropout(0.3, seed=4, dtype=dtype)(x, training=True), tf.float32).numpy()
    kept = y[y != 0]
    np.testing.assert_allclose(kept, 1 / 0.7, rtol=1e-4 if dtype == "float32" else 2**-8)
    assert abs(kept.size / y.size - 0.7) < 0.005  # the deviation of 100,000 draws is 0.0015
    columns = (y != 0).mean(0) if shape[0] == 200 else (y[:, :33000] != 0).reshape(-1, 330).mean(0)
    assert np.ptp(columns) < 0.4  # 16 bits of one number are as random as the other 16


def test_the_gradient_has_the_same_mask():
    x, layer = tf.random.stateless_normal((7, 9), (1, 2)), Dropout(0.5, seed=4)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x, training=True)
    gradient = tape.gradient(y, x)
    np.testing.assert_allclose(gradient * x, y, rtol=1e-6)
    assert 0 < np.count_nonzero(gradient) < 63


def test_each_call_draws_and_a_seed_repeats_the_draws():
    x = tf.ones((50, 3))
    one, two = Dropout(0.5, seed=4), Dropout(0.5, seed=4)
    first, second = one(x, training=True), one(x, training=True)
    assert (first != second).numpy().any()
    np.testing.assert_array_equal(two(x, training=True), first)
    np.testing.assert_array_equal(two(x, training=True), second)


def test_nothing_is_dropped_outside_training_and_at_rate_0():
    x = tf.ones((50, 3))
    for layer, training in ((Dropout(0.5), False), (Dropout(0.0), True), (Dropout(1e-9), True)):
        np.testing.assert_array_equal(layer(x, training=training), x)
    np.testing.assert_array_equal(Dropout(1.0)(x, training=True), tf.zeros_like(x))


@pytest.mark.parametrize("shape", [(50, 3), (7, 9)])
def test_a_size_that_is_known_before_changes_nothing(shape):
    x = tf.ones(shape)
    expected = Dropout(0.5, seed=4)(x, training=True)
    given = Dropout(0.5, seed=4)(x, training=True, size=tf.constant(x.shape.num_elements()))
    np.testing.assert_array_equal(given, expected)


@pytest.mark.parametrize("name", ["feed_forward", "attention"])
def test_large_masks_do_not_wait_for_products(name):
    """Another thread can draw a mask while the tensor that it masks is computed."""
    if name == "feed_forward":
        layer, shapes = FeedForward(8, 16, dropout=0.5), [(None, None, 8)]
    else:
        keys = (None, 2, None, 4)
        layer, shapes = XLinearAttention(8, 2), [(None, None, 8), keys, keys]
    inputs = [tf.TensorSpec(shape) for shape in shapes]
    traced = tf.function(lambda *inputs: layer(*inputs, training=True))
    operations = traced.get_concrete_function(*inputs).graph.get_operations()
    draws = [o for o in operations if o.type.startswith("StatelessRandomUniform")]
    assert draws
    before = set()
    while draws:
        operation = draws.pop()
        before.add(operation.type)
        draws.extend(tensor.op for tensor in operation.inputs)
    assert not any("MatMul" in kind for kind in before), before


def test_its_state_is_that_of_the_layer_of_keras():
    """Checkpoints hold the state of the generator by the name of the layer."""
    ours, theirs = Dropout(0.5, seed=4, name="a"), keras.layers.Dropout(0.5, seed=4, name="a")
    names = [[(v.name, v.shape, v.dtype) for v in layer.variables] for layer in (ours, theirs)]
    assert names[0] == names[1] and len(names[0]) == 1
