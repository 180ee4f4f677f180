"""Ensembles average probabilities and are used like one captioner."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import searches, seeds
from helpers.sizes import FEATURES, LENGTH, VOCABULARY

from tfcap import decoding, models


def member(system, seed, length=LENGTH, **options):
    seeds.set_seed(seed)
    return models.build(system, VOCABULARY, length, FEATURES, width=16, **options)


@pytest.fixture(scope="module")
def members():
    return [
        member("updown", 1, attention_width=6),
        member("xlan", 2, heads=2, encoder_layers=0),
        member("show_tell", 3),
    ]


@pytest.fixture(scope="module")
def ensemble(members):
    return models.Ensemble(members)


@pytest.mark.slow
def test_probabilities_are_averaged(members, ensemble, batch):
    each = [tf.nn.softmax(tf.cast(model(batch), tf.float64)) for model in members]
    expected = np.mean(each, axis=0)
    np.testing.assert_allclose(tf.exp(ensemble(batch)), expected, atol=1e-6)
    assert np.abs(expected - each[0]).max() > 1e-3
    # The mean of logits must differ here, or the test could not tell the two apart.
    logits = tf.nn.softmax(sum(model(batch) for model in members) / len(members))
    assert np.abs(expected - logits).max() > 1e-3


def test_an_ensemble_of_one_model_twice_equals_the_model(members, batch):
    context = members[0].encode(batch)
    twice = models.Ensemble([members[0], members[0]])
    alone = searches.beam_search(members[0], context, 3, LENGTH)
    found = searches.beam_search(twice, [context, context], 3, LENGTH)
    np.testing.assert_array_equal(found[0], alone[0])
    np.testing.assert_allclose(found[1], alone[1], atol=1e-5)


def test_beam_scores_are_the_log_probabilities_of_the_captions(ensemble, batch):
    context = ensemble.encode(batch)
    tokens, scores, _ = searches.beam_search(ensemble, context, 3, LENGTH)
    words = decoding.score(ensemble, context, tf.reshape(tokens, (-1, LENGTH)))
    np.testing.assert_allclose(tf.reduce_sum(words, 1), tf.reshape(scores, [-1]), atol=1e-4)


def test_members_of_another_length_are_refused(members):
    with pytest.raises(ValueError, match="same task.max_length"):
        models.Ensemble([members[0], member("show_tell", 3, length=9)])
