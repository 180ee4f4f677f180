"""The multimodal layer and the tied head of m-RNN, against NumPy in float64."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfcap.layers.multimodal import PATHS, Multimodal, TiedHead, scaled_tanh
from tfcap.models.captioner import named_variables

N, T, W, D, F, M, V = 4, 3, 5, 6, 7, 8, 9
RNG = np.random.default_rng(2)
WORD, RECURRENT, IMAGE = (
    RNG.normal(size=shape).astype("float32") for shape in ((N, T, W), (N, T, D), (N, 1, F))
)


def weights(layer):
    """Assigns random values to all weights and returns them by name in float64."""
    found = named_variables(layer)
    for variable in found.values():
        variable.assign(RNG.normal(size=variable.shape) * 0.5)
    return {name: np.float64(variable) for name, variable in found.items()}


def test_scaled_tanh_equals_its_formula():
    """1 and -1 are fixed points; the limit is 1.7159."""
    points = tf.constant([-100.0, -1, 0, 0.5, 1, 100])
    expected = [-1.7159, -1, 0, 1.7159 * np.tanh(1 / 3), 1, 1.7159]
    np.testing.assert_allclose(scaled_tanh(points), expected, atol=1e-5)


@pytest.mark.parametrize(
    "paths", [p for n in (1, 2, 3) for p in itertools.combinations(PATHS, n)], ids="-".join
)
def test_the_multimodal_layer_adds_exactly_its_paths(paths):
    """Other inputs are not read, and no weights are created for them."""
    layer = Multimodal(M, paths)
    image = layer.image(IMAGE) if "image" in paths else None
    layer(WORD, RECURRENT, image)
    w = weights(layer)
    assert set(w) == {"bias", *(f"{path}/kernel" for path in paths)}
    image = layer.image(IMAGE) if "image" in paths else tf.constant(np.nan)
    word, recurrent = (
        x if path in paths else x * np.nan for path, x in (("word", WORD), ("recurrent", RECURRENT))
    )
    inputs = {"word": WORD, "recurrent": RECURRENT, "image": IMAGE}
    total = sum(np.float64(inputs[path]) @ w[f"{path}/kernel"] for path in paths) + w["bias"]
    expected = np.broadcast_to(1.7159 * np.tanh(2 * total / 3), (N, total.shape[1], M))
    found = layer(word, recurrent, image)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def tied(policy):
    words = keras.layers.Embedding(V, W, dtype=policy)
    words(np.zeros((1, 1), "int32"))
    head = TiedHead(words, keras.initializers.RandomUniform(-1, 1), dtype="float32")
    head(WORD)
    return words, head


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_tied_head_multiplies_with_the_word_table(policy):
    """The product is float32, even if words are embedded in lower precision."""
    words, head = tied(policy)
    assert head.bias.shape == (V,) and np.abs(head.bias).max() > 0.1
    words.embeddings.assign(RNG.normal(size=(V, W)))
    expected = np.float64(WORD) @ np.float64(words.embeddings).T + np.float64(head.bias)
    found = head(WORD)
    assert found.dtype == tf.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_tied_head_keeps_float32_inside_a_mixed_layer():
    """The precision of the outer layer does not change the table."""

    class Outer(keras.layers.Layer):
        def __init__(self, head):
            super().__init__(dtype="mixed_bfloat16")
            self.head = head

        def call(self, z):
            return self.head(z)

    _, head = tied("mixed_bfloat16")
    z = tf.cast(WORD, tf.bfloat16)
    np.testing.assert_array_equal(Outer(head)(z), head(z))


def test_both_uses_of_the_table_give_it_a_gradient():
    words, head = tied("float32")
    ids = tf.constant([[1, 2]])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(head(words(ids))[..., 5] ** 2)
    gradient = tf.convert_to_tensor(tape.gradient(loss, words.embeddings.value)).numpy()
    assert (np.abs(gradient).max(1) > 0).tolist() == [i in (1, 2, 5) for i in range(V)]
