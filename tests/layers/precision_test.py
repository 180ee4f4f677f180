"""Products in bfloat16 among float32 layers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfcap.layers import common, precision
from tfcap.layers.attention import MultiHeadAttention
from tfcap.layers.loops import Affine
from tfcap.layers.recording import recording

POLICY = precision.policy("bfloat16", accelerated=False)
RNG = np.random.default_rng(3)


def rounded(x):
    """The nearest bfloat16 numbers of an array, as float64."""
    return tf.cast(tf.cast(x, tf.bfloat16), tf.float64).numpy()


@pytest.mark.parametrize(
    "dtype, accelerated, name, compute, products",
    [
        (None, False, "float32", "float32", "float32"),
        ("float32", True, "float32", "float32", "float32"),
        ("float16", False, "mixed_float16", "float16", "float16"),
        ("bfloat16", True, "mixed_bfloat16", "bfloat16", "bfloat16"),
        ("bfloat16", False, "bfloat16_products", "float32", "bfloat16"),
    ],
)
def test_a_processor_computes_only_products_in_bfloat16(
    dtype, accelerated, name, compute, products
):
    policy = precision.policy(dtype, accelerated)
    layer = keras.layers.Dense(2, dtype=policy)
    assert (policy.name, policy.variable_dtype) == (name, "float32")
    assert (layer.compute_dtype, precision.of_products(layer)) == (compute, products)


def test_the_policy_is_saved_and_read():
    config = keras.dtype_policies.serialize(POLICY)
    read = keras.dtype_policies.get(config)
    assert isinstance(read, precision.Products) and read.products == "bfloat16"
    assert read.name == POLICY.name


def test_a_frozen_network_stores_rounded_weights():
    """The policy changes no result: only layers that round their weights store them so."""
    x = RNG.standard_normal((3, 4)).astype("f4")
    exact, stored = (Affine(2, dtype=p) for p in (POLICY, precision.of_frozen(POLICY)))
    exact.build(x.shape)
    stored.build(x.shape)
    stored.set_weights(exact.get_weights())
    assert (exact.kernel.dtype, stored.kernel.dtype) == ("float32", "bfloat16")
    np.testing.assert_array_equal(exact(x), stored(x))
    norm = common.layer_norm("norm", dtype=precision.of_frozen(POLICY))
    assert norm.variable_dtype == "float32"
    assert precision.of_frozen(keras.dtype_policies.get("mixed_float16")).name == "float32"


@pytest.mark.parametrize("by_tensorflow", [True, False])
def test_a_softmax_rounds_only_its_result(monkeypatch, by_tensorflow):
    scores = tf.cast(4 * RNG.standard_normal((5, 144)), tf.bfloat16)
    if not by_tensorflow:  # as without oneDNN
        monkeypatch.setattr(precision, "_rounds_once", lambda: False)
    softmax = tf.function(precision.softmax).get_concrete_function(scores)
    weights = softmax(scores)
    assert weights.dtype == tf.bfloat16
    [op] = [op for op in softmax.graph.get_operations() if op.type == "Softmax"]
    assert by_tensorflow or op.inputs[0].dtype == tf.float32
    np.testing.assert_array_equal(weights, rounded(tf.nn.softmax(tf.cast(scores, tf.float32))))


@pytest.mark.parametrize("transpose_b", [True, False])
def test_a_product_of_a_step_is_in_float32(transpose_b):
    layer = keras.layers.Layer(dtype=POLICY)
    a, b = (RNG.standard_normal(shape).astype("f4") for shape in ((2, 3, 1, 5), (2, 1, 5, 4)))
    given = b.swapaxes(-1, -2) if transpose_b else b
    result = precision.matmul_of_step(layer, a, given, transpose_b)
    np.testing.assert_allclose(result, a @ b, atol=1e-6)


@pytest.mark.parametrize("of_rows", [False, True])
@pytest.mark.parametrize("axes", [2, 3])
def test_a_word_attends_to_regions_as_several_do(axes, of_rows):
    attention = MultiHeadAttention(width=16, heads=2, dtype=POLICY)
    words, regions = (RNG.standard_normal((n, 3, 16)).astype("f4") for n in (4, 2))
    visible = np.array([[True, True, False], [False, True, True]])
    if of_rows:  # each of the two rows of an image reads others
        visible = np.stack([visible, visible[:, ::-1]], 1)
    several = attention(words, regions, visible=visible.repeat(3, 1) if of_rows else visible)
    keys = attention.project(regions)
    for t in range(3):
        word = words[:, t] if axes == 2 else words[:, t : t + 1]
        with recording() as records:
            one = attention(word, *keys, visible=visible)
        np.testing.assert_allclose(one, several[:, t].numpy().reshape(one.shape), atol=0.02)
        weights = records[0].weights
        assert weights.shape == (4, 2, 1, 3)
        assert not weights[0, ..., 2].any() and not weights[1, ..., 0 if of_rows else 2].any()


def test_the_number_of_words_may_be_open():
    attention = MultiHeadAttention(width=16, heads=2, dtype=POLICY)
    words = RNG.standard_normal((2, 1, 16)).astype("f4")
    spec = tf.TensorSpec([None, None, 16])
    several = tf.function(attention, autograph=False, input_signature=[spec, spec])
    np.testing.assert_allclose(several(words, words), attention(words, words), atol=0.02)


def test_inputs_of_a_product_are_rounded_and_the_result_is_float32():
    a, b = (RNG.normal(size=(4, 4)).astype("float32") for _ in range(2))
    result = precision.matmul(keras.layers.Layer(dtype=POLICY), a, b)
    exact = rounded(a) @ rounded(b)
    assert result.dtype == tf.float32
    np.testing.assert_array_equal(rounded(exact), result)
    assert np.abs(result - a @ b).max() > 1e-3


@pytest.mark.parametrize("policy, rounds", [(POLICY, True), ("float32", False)])
def test_logits_are_float32_products_with_the_gradient_of_the_policy(policy, rounds):
    x = tf.constant(RNG.normal(size=(5, 8)), tf.float32)
    upstream = tf.constant(RNG.normal(size=(5, 3)), tf.float32)
    with precision.using(policy):
        head = common.linear(8, 3, "head", dtype="float32")
        with tf.GradientTape() as tape:
            tape.watch(x)
            logits = head(x)
        kernel = head.kernel.value
        gradients = tape.gradient(logits, [x, kernel], upstream)
    np.testing.assert_allclose(logits, x.numpy() @ kernel.numpy() + head.bias.numpy(), atol=1e-6)
    seen = rounded if rounds else (lambda value: value.numpy().astype("float64"))
    for gradient, (a, b) in zip(
        gradients,
        [(seen(upstream), seen(kernel).T), (seen(x).T, seen(upstream))],
        strict=True,
    ):
        exact = rounded(a @ b) if rounds else a @ b
        np.testing.assert_allclose(gradient, exact, rtol=2**-7 if rounds else 1e-5, atol=1e-6)
        assert (gradient.numpy() == rounded(gradient)).all() == rounds


def test_an_affine_map_multiplies_in_bfloat16():
    layer, x = common.linear(8, 3, "a", dtype=POLICY), RNG.normal(size=(2, 5, 8)).astype("float32")
    result = layer(x)
    assert result.dtype == tf.float32 and layer.kernel.dtype == "float32"
    exact = rounded(x) @ rounded(layer.kernel) + rounded(layer.bias)
    np.testing.assert_allclose(result, exact, rtol=2**-7, atol=2**-8)
    assert (result.numpy() == rounded(result)).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_gradient_of_a_bias_counts_every_row(dtype):
    """TensorFlow's own gradient in bfloat16 ends at 128."""
    rows, bias = tf.cast(tf.fill((9000, 2), 0.5), dtype), tf.zeros(2, dtype)
    with tf.GradientTape() as tape:
        tape.watch([rows, bias])
        out = precision.add_bias(rows, bias)
        loss = tf.reduce_sum(tf.cast(out, tf.float32))
    by_rows, by_bias = tape.gradient(loss, [rows, bias])
    assert by_bias.dtype == dtype
    np.testing.assert_allclose(tf.cast(by_bias, tf.float32), 9000, rtol=2**-8)
    np.testing.assert_array_equal(by_rows, tf.ones_like(rows))
