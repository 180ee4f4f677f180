"""Sampled sentences have the probabilities that the model gives them."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import worlds
from worlds import BOS, EOS

from tfcap import decoding

SEED = tf.constant([5, 6])


def chi_square(tokens, table, factor, length, temperature):
    """Distance of the counts of all sentences from what is expected, in standard deviations."""
    logps = worlds.word_logps(table, factor)

    def tempered(words):
        scaled = logps(words) / temperature
        return scaled - np.log(np.exp(scaled).sum())

    every = list(worlds.sentences([3, 4, 5], length))
    counts = collections.Counter(tuple(int(w) for w in row if w) for row in tokens)
    assert set(counts) <= set(every)
    expected = {s: len(tokens) * np.exp(worlds.logp_of(tempered, s)) for s in every}
    assert abs(sum(expected.values()) / len(tokens) - 1) < 1e-6
    common = [s for s in every if expected[s] > 5]
    rest = [s for s in every if expected[s] <= 5]
    cells = [(counts[s], expected[s]) for s in common]
    if rest:
        cells.append((sum(counts[s] for s in rest), sum(expected[s] for s in rest)))
    statistic = sum((found - mean) ** 2 / mean for found, mean in cells)
    freedom = len(cells) - 1
    return (statistic - freedom) / np.sqrt(2 * freedom)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_frequencies(temperature):
    """All 40 sentences of two images, 20,000 samples each."""
    model, context, tables = worlds.random_world(3, images=2, vocab=6, length=3, scale=1.0)
    tokens, _ = decoding.sample(model, context, 3, SEED, temperature, samples=20000)
    tokens = tokens.numpy().reshape(2, 20000, 3)
    for image in range(2):
        found = chi_square(tokens[image], tables[image], model.factor, 3, temperature)
        assert abs(found) < 4
        # And the other image, or another temperature, is far away.
        assert chi_square(tokens[image], tables[1 - image], model.factor, 3, temperature) > 50
        assert chi_square(tokens[image], tables[image], model.factor, 3, 1.3 * temperature) > 20


def test_log_probabilities_are_the_models(tiny, batch):
    """Whatever the temperature: those of the model, as teacher forcing gives them."""
    context = tiny.encode(batch)
    tokens, logps = decoding.sample(tiny, context, 6, SEED, temperature=1.7, samples=4)
    assert tokens.shape == (12, 6) and tokens.dtype == tf.int32
    np.testing.assert_allclose(logps, decoding.score(tiny, context, tokens), atol=1e-5)


def test_seeds():
    """The same sentences for the same seed, in a graph too; others for others and between rows."""
    model, context, _ = worlds.random_world(3, images=2)
    a, b = (decoding.sample(model, context, 6, SEED, samples=8)[0].numpy() for _ in range(2))
    np.testing.assert_array_equal(a, b)
    graph = tf.function(lambda seed: decoding.sample(model, context, 6, seed, samples=8)[0])
    np.testing.assert_array_equal(graph(SEED), a)
    assert (graph(tf.constant([5, 7])).numpy() != a).any()
    assert (graph(tf.constant([6, 6])).numpy() != a).any()
    assert len(np.unique(a, axis=0)) > 8


def free_words(seed, length=12):
    """Sixty-two words with equal probability at every place, and no end."""
    model, _, tables = worlds.random_world(0, images=1, vocab=64, length=length, scale=0.0)
    tables[..., EOS] = -1e4
    context = model.encode({"features": tables})
    return decoding.sample(model, context, length, tf.constant(seed), samples=20)[0].numpy()


def test_neighbouring_seeds_are_independent():
    """A training step folds its number into the seed: its draws must not repeat the last one's."""
    first, second = free_words([7, 0]), free_words([7, 1])
    for shift in range(-2, 3):
        there = first[:, max(shift, 0) : 12 + min(shift, 0)]
        here = second[:, max(-shift, 0) : 12 + min(-shift, 0)]
        assert (there == here).mean() < 0.1, f"place t is place t + {shift} of the next seed"


def test_places_are_independent():
    tokens = free_words([1, 1])
    for shift in (1, 2, 3):
        assert (tokens[:, shift:] == tokens[:, :-shift]).mean() < 0.1


def test_never_pad_or_bos():
    """Even where the model prefers them."""
    model, _, tables = worlds.random_world(2, images=4, vocab=6, end=-1.0)
    tables[..., :2] += 50
    context = model.encode({"features": tables})
    found = [
        decoding.sample(model, context, 6)[0],
        decoding.sample(model, context, 6, SEED, samples=50)[0],
        decoding.sample(model, context, 6, SEED, temperature=100.0, samples=50)[0],
        tf.reshape(decoding.beam_search(model, context, 4, 6)[0], (-1, 6)),
        tf.reshape(decoding.beam_search(model, context, 4, 6, finished="retire")[0], (-1, 6)),
    ]
    for tokens in found:
        tokens = tokens.numpy()
        over = np.cumsum(tokens == EOS, -1) > (tokens == EOS)
        assert (tokens != BOS).all()
        np.testing.assert_array_equal(tokens == 0, over)
    assert (found[1] == EOS).numpy().any() and (found[1] == 0).numpy().any()
