"""Ensembles average probabilities; `contract_test` and others search with them."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import systems

from tfcap import models


def test_probabilities_are_averaged(batch):
    members = [
        systems.make("attention_lstm", width=8, attention_width=6),
        systems.make("show_tell", 3, width=8),
    ]
    each = [tf.nn.softmax(tf.cast(model(batch), tf.float64)) for model in members]
    expected = np.mean(each, axis=0)
    np.testing.assert_allclose(tf.exp(models.Ensemble(members)(batch)), expected, atol=1e-6)
    assert np.abs(expected - each[0]).max() > 1e-3
    # The mean of logits must differ here, or the test could not tell the two apart.
    logits = tf.nn.softmax(sum(model(batch) for model in members) / len(members))
    assert np.abs(expected - logits).max() > 1e-3


def test_members_of_another_length_are_refused():
    members = [models.build("show_tell", 13, length, 6, width=8) for length in (6, 9)]
    with pytest.raises(ValueError, match="same max_length"):
        models.Ensemble(members)
