"""The released PyTorch ExpansionNet and ours give the same numbers, alone and as members.

The released vocabulary has 60 ids, its PAD and SOS among them, and the released search may emit
these two like any word. Ours never predicts PAD and BOS. So that both distributions are over the
same 60 words, our vocabulary here has two ids more: 0 and 1, which cannot be predicted, and behind
them all 60 released ids, EOS first. BOS is embedded as SOS. Which id is PAD in the fixture matters
nowhere: padding is given by counts.
"""

import json

import numpy as np
import pytest
import tensorflow as tf
from helpers import parity, searches

from tfcap import models
from tfcap.decoding.scores import word_log_probs
from tfcap.importers import weights

pytestmark = pytest.mark.slow

SOS, EOS, WORDS = 3, 1, 60
# Our id -> released id: pad is any, bos is SOS, eos is EOS, then all the others.
RELEASED = np.array([0, SOS, EOS, *(word for word in range(WORDS) if word != EOS)])
OURS = np.array([2 + list(RELEASED[2:]).index(word) for word in range(WORDS)])
LENGTH = 11  # words of the released search for 12 tokens, SOS being one


@pytest.fixture(scope="module")
def arrays():
    return parity.read("expansion")


def member(arrays, prefix):
    """An ExpansionNet with the released weights under `prefix` of the fixture."""
    sizes = dict(width=64, inner_width=128, encoder_vectors=8, decoder_vectors=4)
    model = models.build("expansionnet", WORDS + 2, LENGTH, 2048, **sizes)
    state = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
    names = weights.NAMES["expansionnet"]
    tensors = dict(weights.translate(key, value, names) for key, value in state.items())
    weights.assign(model, tensors, RELEASED)
    return model


@pytest.fixture(scope="module")
def members(arrays):
    """Both members of the ensemble, of the same vocabulary."""
    return [member(arrays, prefix) for prefix in ("w/", "w2/")]


@pytest.fixture(scope="module")
def model(members):
    return members[0]


@pytest.fixture(scope="module")
def inputs(arrays):
    features = tf.constant(arrays["in/feats"])
    calls = features.shape[1] - arrays["in/npad"]
    assert calls.tolist() == arrays["in/mask"].sum(1).tolist()
    return {"features": features, "mask": tf.sequence_mask(calls, features.shape[1])}


@pytest.fixture(scope="module")
def context(model, inputs):
    return model.encode(inputs)


@pytest.fixture(scope="module")
def real(arrays):
    """Which of the words of `in/dec_x` are no padding."""
    words = arrays["in/dec_x"]
    return np.arange(words.shape[1]) < words.shape[1] - arrays["in/ypad"][:, None]


def distance(a, b):
    return np.abs(np.asarray(a) - np.asarray(b)).max()


def test_logits_of_teacher_forcing_equal_the_released_ones(arrays, model, context, real):
    logits = model.decode(context, tf.constant(OURS[arrays["in/dec_x"]], tf.int32)).numpy()
    assert distance(logits[..., OURS][real], arrays["out/logits"][real]) < 5e-6
    assert distance(logits[..., :2], logits[..., 2:3] + weights.UNLIKELY) < 1e-4
    assert np.isfinite(logits).all()


def test_beam_search_finds_the_released_captions(arrays, model, context):
    """All three hypotheses of each image, in the released order."""
    tokens, scores = searches.traced(
        searches.beam_search, model, context, 3, LENGTH, length_power=1.0
    )[:2]
    expected, logps = sentences(arrays, "beam")
    np.testing.assert_array_equal(tokens, expected)
    lengths = (expected > 0).sum(-1) + 1  # SOS counts
    assert lengths.max() == LENGTH + 1 and lengths.min() == 2
    assert distance(scores, logps.sum(-1) / lengths) < 1e-5
    assert (np.diff(scores, axis=1) < 0).all()  # so that the order says something
    rows = tf.reshape(tokens, (-1, LENGTH))
    words = searches.traced(word_log_probs, model, context, rows)
    assert distance(words, logps.reshape(-1, LENGTH)) < 1e-5


def sentences(arrays, name):
    """The released search `name`: tokens [B, K, T] as ours would be, and their log-probs."""
    logps = arrays[f"out/{name}_logp"]
    assert (logps[..., 0] == 0).all()  # of SOS, which we do not write
    tokens = np.zeros(logps.shape, np.int32)
    for b, image in enumerate(json.loads(str(arrays["cfg"]))[name]):
        for k, words in enumerate(image):
            assert words[0] == SOS
            tokens[b, k, : len(words)] = OURS[words]
    return tokens[..., 1:], logps[..., 1:]


def test_beam_search_of_the_ensemble(arrays, members, inputs):
    """All three hypotheses of the released ensemble of two, and the mean of its probabilities."""
    ensemble = models.Ensemble(members)
    expected, logps = sentences(arrays, "ens_beam")
    context = ensemble.encode(inputs)
    length = expected.shape[-1]
    tokens, scores = searches.traced(
        searches.beam_search, ensemble, context, 3, length, length_power=1.0
    )[:2]
    np.testing.assert_array_equal(tokens, expected)
    assert distance(scores, logps.sum(-1) / ((expected > 0).sum(-1) + 1)) < 1e-5
    rows = tf.reshape(tokens, (-1, tokens.shape[-1]))
    words = searches.traced(word_log_probs, ensemble, context, rows)
    assert distance(words, logps.reshape(words.shape)) < 1e-5
