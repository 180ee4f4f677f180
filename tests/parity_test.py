"""The released PyTorch X-Transformer and ours give the same numbers."""

import numpy as np
import parity
import pytest
import tensorflow as tf

from tfcap import decoding, models
from tfcap.layers import common

T = 17


@pytest.fixture(scope="module")
def arrays():
    return parity.read("xtransformer")


@pytest.fixture(scope="module")
def vocabulary(arrays):
    return parity.Vocabulary(arrays["out/logits"].shape[-1])


@pytest.fixture(scope="module")
def model(arrays, vocabulary):
    sizes = dict(width=64, encoder_layers=2, decoder_layers=3, middle_width=6)
    model = models.build("xtransformer", 62, T, 32, **sizes)
    parity.assign(model, "xtransformer", arrays, vocabulary)
    return model


@pytest.fixture(scope="module")
def inputs(arrays):
    return {
        "features": tf.constant(arrays["in/feats"]),
        "mask": tf.constant(arrays["in/mask"] > 0),
    }


@pytest.fixture(scope="module")
def context(model, inputs):
    return model.encode(inputs)


def distance(a, b):
    return np.abs(np.asarray(a) - np.asarray(b)).max()


def test_positions(arrays):
    """The released buffer is float32 arithmetic on CPU: 1e-6."""
    codes = arrays["w/decoder.embed_positions.pe"]
    assert distance(common.sinusoids(*codes.shape), codes) < 1e-6


def test_encoder(arrays, context):
    assert distance(context["global"], arrays["out/gx"]) < 5e-6
    assert distance(context["encoded"], arrays["out/enc"]) < 5e-6  # padded regions too


def test_teacher_forcing(arrays, vocabulary, model, context):
    tokens = tf.constant(vocabulary.inputs(arrays["in/seq"]))
    logits = model.decode(context, tokens).numpy()
    assert distance(vocabulary.logits(logits), arrays["out/logits"]) < 5e-6
    assert (logits[..., :2] < -1e8).all()  # PAD and BOS, which the released model does not have


def test_teacher_forcing_in_a_graph(arrays, vocabulary, model, inputs):
    """Through `call`, with nothing but the ranks known when the graph is made."""
    features = tf.TensorSpec([None, None, 32])
    specs = {
        "features": features,
        "mask": tf.TensorSpec([None, None], tf.bool),
        "tokens": tf.TensorSpec([None, None, None], tf.int32),
    }
    tokens = vocabulary.inputs(arrays["in/seq"]).reshape(3, 5, -1)
    logits = tf.function(model, input_signature=[specs])(inputs | {"tokens": tf.constant(tokens)})
    logits = vocabulary.logits(logits.numpy()).reshape(15, tokens.shape[-1], -1)
    assert distance(logits, arrays["out/logits"]) < 5e-6


def test_greedy(arrays, vocabulary, model, context):
    tokens, logps = decoding.sample(model, context, T)
    np.testing.assert_array_equal(tokens, vocabulary.sentences(arrays["out/greedy"]))
    assert distance(logps, arrays["out/greedy_logp"]) < 1e-4


@pytest.mark.parametrize("beam", [2, 3, 5])
def test_beam_search(beam, arrays, vocabulary, model, context):
    tokens, scores, _ = decoding.beam_search(model, context, beam, T)
    expected = arrays[f"out/beam{beam}_logp"]
    np.testing.assert_array_equal(tokens[:, 0], vocabulary.sentences(arrays[f"out/beam{beam}"]))
    assert distance(scores[:, 0], expected.sum(1)) < 1e-4
    assert (np.diff(scores, axis=1) <= 0).all()  # best first
    words = decoding.score(model, context, tokens[:, 0])
    assert distance(words, expected) < 1e-4
    assert distance(np.cumsum(words, 1), np.cumsum(expected, 1)) < 1e-4


def test_beam_search_in_a_graph(arrays, vocabulary, model, inputs):
    @tf.function
    def search(features, mask):
        context = model.encode({"features": features, "mask": mask})
        return decoding.beam_search(model, context, 3, T)[:2]

    tokens, scores = search(**inputs)
    np.testing.assert_array_equal(tokens[:, 0], vocabulary.sentences(arrays["out/beam3"]))
    assert distance(scores[:, 0], arrays["out/beam3_logp"].sum(1)) < 1e-4


def test_the_comparison_is_sharp(arrays, vocabulary, model, inputs):
    """One weight matrix the other way round, or the mask ignored, is far outside of tolerance."""
    blind = model.encode(inputs | {"mask": tf.ones_like(inputs["mask"])})
    assert distance(blind["global"], arrays["out/gx"]) > 1e-3
    kernel = model.encoder[0].encoder_attn.in_proj_k.linear.kernel
    right = kernel.numpy()
    kernel.assign(right.T)
    wrong = model.encode(inputs)
    kernel.assign(right)
    assert distance(wrong["global"], arrays["out/gx"]) > 1e-3
