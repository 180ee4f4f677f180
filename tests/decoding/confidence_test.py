"""The confidence in captions, against a literal computation."""

import numpy as np
import pytest
import tensorflow as tf

from tfcap.decoding.confidence import Confidence
from tfcap.decoding.search import Found

F, H, V = 4, 3, 8


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(0)
    shapes = {"mean": [F], "hidden": [F, H], "hidden_bias": [H], "words": [V, H]}
    shapes |= {"words_bias": [V], "idf": [V]}
    values = {name: rng.random(shape).astype(np.float32) for name, shape in shapes.items()}
    values["idf"][:4] = 0
    return values


def literal_support(arrays, vector, tokens):
    """The product of the weights of a caption and the expected ones; a word counts once in it."""
    x = vector - arrays["mean"]
    unit = x / np.sqrt((x**2).mean())
    code = np.maximum(unit @ arrays["hidden"] + arrays["hidden_bias"], 0)
    expected = arrays["words"] @ code + arrays["words_bias"]
    words = [word for word in tokens if word > 3]
    norm = np.sqrt(sum((words.count(word) * arrays["idf"][word]) ** 2 for word in set(words)))
    return sum(arrays["idf"][word] * expected[word] for word in set(words)) / norm


def test_signals_and_confidence_are_those_of_the_definition(arrays):
    calibration = {"signals": {"log_prob": 0.5, "support": 0.25}, "bias": -0.125}
    confidence = Confidence(arrays, calibration)
    rng = np.random.default_rng(1)
    features = rng.normal(size=(2, 3, F)).astype(np.float32)
    mask = np.array([[True, True, True], [True, True, False]])
    tokens = np.array([[[4, 5, 4, 2], [6, 2, 0, 0]], [[7, 5, 6, 4], [5, 7, 2, 0]]], np.int32)
    sums = -rng.random((2, 2)).astype(np.float32) * 9
    found = Found(tf.constant(tokens), tf.constant(sums), tf.constant(sums), tf.constant(0.0))
    signals = tf.function(confidence.signals, autograph=False)(features, mask, found).numpy()
    result = confidence(features, mask, found).numpy()
    for image, vector in enumerate((features[0].mean(0), features[1, :2].mean(0))):
        for index, row in enumerate(tokens[image].tolist()):
            support = literal_support(arrays, vector, row)
            length = sum(word != 0 for word in row)
            wanted = [sums[image, index] / length, np.log(max(support, 0.01))]
            np.testing.assert_allclose(signals[image, index], wanted, rtol=1e-4)
            logit = 0.5 * wanted[0] + 0.25 * wanted[1] - 0.125
            assert result[image, index] == pytest.approx(1 / (1 + np.exp(-logit)), rel=1e-4)


def test_captions_without_words_have_a_finite_confidence(arrays):
    """An image in the mean, an empty caption, and a slot of the beam that no caption fills."""
    calibration = {"signals": {"log_prob": 1.0, "support": 1.0}, "bias": 0.0}
    features = np.tile(arrays["mean"], (1, 2, 1))
    tokens = tf.constant([[[2, 0], [0, 0]]])
    found = Found(
        tokens, tf.constant([[-1.0, -1e9]]), tf.constant([[-1.0, -1e9]]), tf.constant(0.0)
    )
    result = Confidence(arrays, calibration)(features, np.ones([1, 2], bool), found).numpy()
    assert np.isfinite(result).all() and result[0, 1] < 1e-9 < result[0, 0] < 0.01
    # One caption that the constraints forbid must not decide how a signal is scaled in the fit.
    signals = Confidence(arrays, {}).signals(features, np.ones([1, 2], bool), found).numpy()
    np.testing.assert_allclose(signals[0, :, 0], [-1, -20])
