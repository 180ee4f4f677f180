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
    "ort": ("ort", {}),
    "show_tell": ("self_critical", {}),
    "updown": ("updown", {}),
    "updown_mean": ("self_critical", {}),
    "xlan": ("xlan", {}),
    "xlan_relu0": ("xlan", dict(activation="relu")),
    "xtransformer": ("xtransformer", {}),
}
# Released names of weights with stored gradients, and what they are of ours.
GRADIENTS = {
    "ort": {
        "model.encoder.layers.0.self_attn.WGs.3.weight": (
            "encoder/0/geometry/weigh/kernel",
            lambda gradient: gradient[:, 3],
        ),
        "model.decoder.layers.1.src_attn.linears.1.weight": (
            "decoder/1/cross_att/key/kernel",
            lambda gradient: gradient.T,
        ),
    },
}
FAMILIES_OF_XLAN = ("updown", "xlan", "xtransformer")  # the code of its authors


def released(name, arrays):
    """Our model with the weights of a fixture, and its vocabulary."""
    family, hidden = CASES[name]
    checkpoint = systems.recognize(family, parity.weights_of(arrays))
    vocabulary = parity.Vocabulary(checkpoint.rows)
    sizes = checkpoint.rows + 2, arrays["out/greedy"].shape[1], arrays["in/feats"].shape[-1]
    model = models.build(checkpoint.system, *sizes, **checkpoint.options | hidden)
    weights.assign(model, checkpoint.tensors, vocabulary.released)
    return model, vocabulary


def inputs(name, arrays):
    """What `encode` reads."""
    mask = (arrays["in/mask"] > 0) | (name == "updown")  # the released code does not look at it
    others = {"boxes": tf.constant(arrays["in/boxes"])} if "in/boxes" in arrays else {}
    return {"features": tf.constant(arrays["in/feats"]), "mask": tf.constant(mask)} | others


@pytest.mark.parametrize("name", small_models.params(CASES))
def test_the_released_code_gives_the_same_numbers(name):
    """Teacher forcing, greedy search, and the best caption of a beam search with its score."""
    family, _ = CASES[name]
    arrays = parity.read(name)
    model, vocabulary = released(name, arrays)
    length = arrays["out/greedy"].shape[1]
    context = model.encode(inputs(name, arrays))

    tokens = vocabulary.inputs(arrays["in/seq"][:, : arrays["out/logits"].shape[1]])
    logits = searches.traced(model.decode, context, tf.constant(tokens)).numpy()
    # The code of the Transformers hides padded words, after which nothing is predicted.
    read = (tokens > 0) | (name not in GRADIENTS)
    assert distance(vocabulary.logits(logits)[read], arrays["out/logits"][read]) < 1e-5
    # PAD and BOS, which the released model does not have.
    assert distance(logits[..., :2], logits[..., 2:3] + weights.UNLIKELY) < 1e-4

    result, logps = searches.traced(searches.sample, model, context, length)[:2]
    expected = vocabulary.sentences(arrays["out/greedy"])
    np.testing.assert_array_equal(result, expected)
    assert distance(logps[expected > 0], arrays["out/greedy_logp"][expected > 0]) < 1e-4

    options = RETIRE if family in ("aoanet", "ort", "self_critical") else {}
    result, scores = searches.traced(searches.beam_search, model, context, 3, length, **options)[:2]
    np.testing.assert_array_equal(result[:, 0], vocabulary.sentences(arrays["out/beam3"]))
    if family in FAMILIES_OF_XLAN:
        expected = arrays["out/beam3_logp"]
        assert distance(scores[:, 0], expected.sum(1)) < 1e-4
        logps = searches.traced(word_log_probs, model, context, result[:, 0])
        assert distance(logps, expected) < 1e-4
    if family == "xlan":  # the older search, behind the paper's numbers of X-LAN
        found = searches.traced(searches.beam_search, model, context, 3, length, **RETIRE)
        result, scores = found[:2]
        np.testing.assert_array_equal(result[:, 0], vocabulary.sentences(arrays["out/oldbeam3"]))
        assert distance(scores[:, 0], arrays["out/oldbeam3_p"]) < 1e-4


@pytest.mark.parametrize("name", small_models.params(GRADIENTS))
def test_the_released_code_gives_the_same_gradients(name):
    """Of the mean -log P of the words and of the end."""
    arrays = parity.read(name)
    model, vocabulary = released(name, arrays)
    words = arrays["in/seq"]
    tokens = tf.constant(vocabulary.inputs(words[:, :-1]))
    with tf.GradientTape() as tape:
        logits = model.decode(model.encode(inputs(name, arrays)), tokens)
        logits = tf.gather(logits, vocabulary.ours, axis=-1)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(words[:, 1:], logits)
        loss = tf.reduce_mean(losses[tokens > 0])
    ours = model.checkpoint_items["weights"]
    results = tape.gradient(loss, {weight: ours[weight] for weight, _ in GRADIENTS[name].values()})
    for key, (weight, part) in GRADIENTS[name].items():
        expected = arrays[f"grad/{key}"]
        assert distance(part(results[weight].numpy()), expected) < 1e-4 * np.abs(expected).max()


def distance(result, expected):
    return np.abs(np.asarray(result) - np.asarray(expected)).max()
