"""Captions of 150 words, such as reports, train and decode with every system."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import seeds, small_models
from helpers.sizes import FEATURES, VOCABULARY
from helpers.small_models import SIZES

from tfcap import models
from tfcap.decoding.beams import beam_search
from tfcap.decoding.options import Options
from tfcap.decoding.sampling import sample
from tfcap.decoding.scores import word_log_probs
from tfcap.ids import EOS, PAD

LENGTH = 150


@pytest.fixture(scope="module", params=small_models.params(SIZES))
def model(request):
    seeds.set_seed(1)
    return models.build(request.param, VOCABULARY, LENGTH, FEATURES, **SIZES[request.param])


@pytest.fixture(scope="module")
def found(model, batch):
    """Tokens [B, 2, T] of beam search, their scores [B, 2], and those of their words [B, 2, T].

    The last are of teacher forcing. Then tokens [B, T] of samples and scores of their words. In one
    graph: else Python computes each of 150 words.
    """

    @tf.function(autograph=False)
    def search(features, mask):
        context = model.encode({"features": features, "mask": mask})
        options = Options(beam=2, min_length=LENGTH - 2)
        tokens, scores = beam_search(model, context, LENGTH, options)[:2]
        logps = word_log_probs(model, context, tf.reshape(tokens, (-1, LENGTH)))
        numbers = tf.fill((features.shape[0], LENGTH), 0.5)
        drawn = sample(model, context, LENGTH, numbers, Options(min_length=LENGTH))
        return tokens, scores, tf.reshape(logps, tf.shape(tokens)), *drawn

    return [value.numpy() for value in search(batch["features"], batch["mask"])]


def test_beam_search_scores_150_words_as_teacher_forcing_does(found):
    """The words of the search come from the cache of `step`, those of teacher forcing do not."""
    tokens, scores, logps = found[:3]
    assert (np.count_nonzero(tokens != PAD, axis=-1) >= LENGTH - 1).all()
    np.testing.assert_allclose(logps.sum(-1), scores, rtol=1e-4)
    assert np.abs(logps[..., 100:]).max() > 0.1


def test_a_gradient_and_samples_reach_word_150(model, batch, found):
    tokens = found[0][:, :1]

    @tf.function(autograph=False)
    def step(features, mask, tokens):
        inputs = {"features": features, "mask": mask}
        with tf.GradientTape() as tape:
            context = model.encode(inputs, training=True)
            words = tf.reshape(tokens, (-1, LENGTH))
            last = word_log_probs(model, context, words, training=True)[:, LENGTH - 3]
            loss = -tf.reduce_mean(last)
        return tape.gradient(loss, model.trainable_variables)

    gradients = step(batch["features"], batch["mask"], tokens)
    norms = [float(tf.norm(tf.convert_to_tensor(g))) for g in gradients if g is not None]
    assert np.isfinite(norms).all() and max(norms) > 0
    drawn, logps = found[3:]
    assert (drawn != PAD).all() and (drawn != EOS).all()
    assert np.isfinite(logps).all()
