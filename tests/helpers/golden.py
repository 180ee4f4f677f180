"""Fixtures of `tests/fixtures/golden.py`: what released code computes, and ours for its weights."""

import numpy as np
import tensorflow as tf

from helpers import parity, searches
from tfcap import models
from tfcap.released import systems, weights

UNKNOWN = 3
TOLERANCE = 1e-5
RETIRE = dict(finished="retire", suppress=(UNKNOWN,))  # the search of all families but xmodaler


def check(name, family, **options):
    """Compares our model with the released one: teacher forcing, and two searches by steps.

    The weights come through `systems.recognize`, as in `tfcap.convert`.

    Args:
      name: of the fixture, and of our system.
      family: one of `released.FAMILIES`.
      **options: those that the released weights do not show.
    """
    arrays = parity.read(name)
    checkpoint = systems.recognize(family, parity.weights_of(arrays))
    vocabulary = parity.Vocabulary(checkpoint.rows)
    words, length = checkpoint.rows + 2, arrays["out/greedy"].shape[1]
    shown = checkpoint.options | options
    features = arrays["in/feats"].shape[-1]
    model = models.build(checkpoint.system, words, length, features, **shown)
    weights.assign(model, checkpoint.tensors, vocabulary.released)
    mask = tf.constant(arrays["in/mask"] > 0)
    context = model.encode({"features": tf.constant(arrays["in/feats"]), "mask": mask})
    tokens = tf.constant(vocabulary.inputs(arrays["in/seq"][:, :length]))
    logits = vocabulary.logits(model.decode(context, tokens).numpy())
    assert distance(logits, arrays["out/logits"]) < TOLERANCE
    found, steps = searches.sample(model, context, length)[:2]
    expected = vocabulary.sentences(arrays["out/greedy"])
    np.testing.assert_array_equal(found, expected)
    assert distance(steps[expected > 0], arrays["out/greedy_logp"][expected > 0]) < TOLERANCE
    search = {} if family == "xmodaler" else RETIRE
    found = searches.beam_search(model, context, 3, length, **search)
    np.testing.assert_array_equal(found[0][:, 0], vocabulary.sentences(arrays["out/beam3"]))


def distance(found, expected):
    return np.abs(np.asarray(found) - np.asarray(expected)).max()
