"""The configured search: samples by seed, their distribution, and all options at once."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import worlds
from helpers.sampling_counts import distance
from helpers.searches import options

from tfcap import decoding
from tfcap.decoding import Options, Search

LENGTH = 5


def test_samples_of_an_image_follow_its_seed():
    """This holds in any batch and order and in a graph; the most probable sample is first."""
    model, context, _ = worlds.random_world(3, images=3, vocab=9)
    search = Search(options(search="sample", samples=4, temperature=1.2, top_k=5), 6)
    seeds = tf.constant([11, 12, 13], tf.int64)
    tokens, scores = tf.function(lambda s: search(model, context, s), autograph=False)(seeds)
    assert tokens.shape == (3, 4, 6) and (np.diff(scores) <= 0).all()
    totals = decoding.score(model, context, tf.reshape(tokens, [12, 6]))
    np.testing.assert_allclose(tf.reduce_sum(totals, -1), np.reshape(scores, -1), atol=1e-4)
    part = tf.nest.map_structure(lambda leaf: leaf[1:][::-1], context)
    again = search(model, part, seeds[1:][::-1])
    np.testing.assert_array_equal(again[0], tokens[1:][::-1])
    assert (search(model, context, seeds + 1)[0] != tokens).numpy().any()
    with pytest.raises(ValueError, match="search must be one of beam, sample"):
        Search(options(search="greedy"), 6)


def test_samples_have_the_probabilities_of_the_model():
    """A seed gives independent draws: 4,000 images of one world with 5 samples each."""
    model, _, tables = worlds.random_world(3, images=1, vocab=6, length=3, scale=1.0)
    context = model.encode({"features": np.repeat(tables, 4000, 0)})
    search = Search(options(search="sample", samples=5), 3)
    tokens, _ = tf.function(lambda seeds: search(model, context, seeds), autograph=False)(
        tf.range(4000)
    )
    logps = worlds.word_logps(tables[0], model.factor)
    every = worlds.sentences([3, 4, 5], 3)
    expected = {s: np.exp(worlds.logp_of(logps, s)) for s in every}
    assert abs(distance(tokens.numpy().reshape(-1, 3), expected)) < 4


def test_groups_rules_temperature_and_penalty_work_together():
    """Groups, rules, temperature and a penalty in one search keep to their promises."""
    model, context, _ = worlds.random_world(9, images=4, vocab=12, length=6, end=0.5)
    chosen = Options(
        beam=6, groups=3, diversity=1.0, finished="retire", temperature=1.5, suppress=(3,),
        bad_endings=(5,), prefix=(4,), min_length=2, no_repeat_ngram=1, length_penalty="gnmt",
        length_power=0.7,
    )  # fmt: skip
    tokens, scores = tf.function(lambda: Search(chosen, 6)(model, context), autograph=False)()
    tokens, scores = tokens.numpy(), scores.numpy()
    assert tokens.shape == (4, 6, 6) and (np.diff(scores) <= 0).all() and (scores > -1e3).all()
    for row in tokens.reshape(-1, 6).tolist():
        words = [word for word in row if word > 2]
        assert words[0] == 4 and 3 not in words and words[-1] != 5
        assert len(words) >= 2 and len(set(words)) == len(words)
