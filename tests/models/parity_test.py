"""Released PyTorch code and ours give the same numbers for the same weights.

`fixtures/golden.py` made most of the fixtures. The weights come through `systems.recognize`, as in
`tfcap.convert`.
"""

import numpy as np
import pytest
import tensorflow as tf
from helpers import parity, searches, small_models

from tfcap import models
from tfcap.decoding.scores import word_log_probs
from tfcap.importers import systems, weights

UNKNOWN = 3
RETIRE = dict(finished="retire", suppress=(UNKNOWN,))
# The family of each fixture, and the options that its weights do not show.
CASES = {
    "aoanet": ("aoanet", dict(heads=2)),
    "att2all": ("self_critical", {}),
    "att2in": ("self_critical", {}),
    "gcn_lstm": ("xmodaler", dict(regions=5)),
    "lstm_a": ("xmodaler", {}),
    "show_tell": ("self_critical", {}),
    "updown": ("updown", {}),
    "updown_mean": ("self_critical", {}),
    "xlan": ("xlan", {}),
    "xlan_relu0": ("xlan", dict(activation="relu")),
    "xtransformer": ("xtransformer", {}),
}
FAMILIES_OF_XLAN = ("updown", "xlan", "xtransformer")  # the code of its authors


@pytest.mark.parametrize("name", small_models.params(CASES))
def test_the_released_code_gives_the_same_numbers(name):
    """Teacher forcing, greedy search, and the best caption of a beam search with its score."""
    family, hidden = CASES[name]
    arrays = parity.read(name)
    checkpoint = systems.recognize(family, parity.weights_of(arrays))
    vocabulary = parity.Vocabulary(checkpoint.rows)
    length, features = arrays["out/greedy"].shape[1], arrays["in/feats"].shape[-1]
    sizes = checkpoint.rows + 2, length, features
    model = models.build(checkpoint.system, *sizes, **checkpoint.options | hidden)
    weights.assign(model, checkpoint.tensors, vocabulary.released)
    mask = (arrays["in/mask"] > 0) | (name == "updown")  # the released code does not look at it
    context = model.encode({"features": tf.constant(arrays["in/feats"]), "mask": tf.constant(mask)})

    tokens = vocabulary.inputs(arrays["in/seq"][:, : arrays["out/logits"].shape[1]])
    logits = model.decode(context, tf.constant(tokens)).numpy()
    assert distance(vocabulary.logits(logits), arrays["out/logits"]) < 1e-5
    # PAD and BOS, which the released model does not have.
    assert distance(logits[..., :2], logits[..., 2:3] + weights.UNLIKELY) < 1e-4

    result, logps = searches.sample(model, context, length)[:2]
    expected = vocabulary.sentences(arrays["out/greedy"])
    np.testing.assert_array_equal(result, expected)
    assert distance(logps[expected > 0], arrays["out/greedy_logp"][expected > 0]) < 1e-4

    options = RETIRE if family in ("aoanet", "self_critical") else {}
    result, scores = searches.beam_search(model, context, 3, length, **options)[:2]
    np.testing.assert_array_equal(result[:, 0], vocabulary.sentences(arrays["out/beam3"]))
    if family in FAMILIES_OF_XLAN:
        expected = arrays["out/beam3_logp"]
        assert distance(scores[:, 0], expected.sum(1)) < 1e-4
        assert distance(word_log_probs(model, context, result[:, 0]), expected) < 1e-4
    if family == "xlan":  # the older search, behind the paper's numbers of X-LAN
        result, scores = searches.beam_search(model, context, 3, length, **RETIRE)[:2]
        np.testing.assert_array_equal(result[:, 0], vocabulary.sentences(arrays["out/oldbeam3"]))
        assert distance(scores[:, 0], arrays["out/oldbeam3_p"]) < 1e-4


def distance(result, expected):
    return np.abs(np.asarray(result) - np.asarray(expected)).max()
