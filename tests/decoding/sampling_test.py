"""Draws become words. `constraints_test` compares counts of captions with their probabilities."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import searches, worlds
from helpers.worlds import BOS, EOS

from tfcap.decoding import sampling

SEED = tf.constant([5, 6])


def uniform(rows, length, seed=SEED):
    """Draws [N, T]."""
    return tf.random.stateless_uniform([rows, length], seed)


def test_each_row_depends_on_its_own_draws_alone():
    """The same draws give the same captions, in a graph and in another batch too."""
    model, context, _ = worlds.random_world(3, images=2)
    draws = uniform(16, 6)
    tokens = searches.sample(model, context, 6, draws)[0].numpy()
    graph = tf.function(lambda draws: searches.sample(model, context, 6, draws)[0], autograph=False)
    np.testing.assert_array_equal(graph(draws), tokens)
    assert (graph(uniform(16, 6, tf.constant([5, 7]))).numpy() != tokens).any()
    assert len(np.unique(tokens, axis=0)) > 8
    second = tf.nest.map_structure(lambda leaf: leaf[1:], context)
    part = searches.sample(model, second, 6, draws[8:])[0]
    np.testing.assert_array_equal(part, tokens[8:])


def test_negative_draws_are_greedy():
    """Greedy rows and sampled rows run in the same loop."""
    model, context, _ = worlds.random_world(4, images=3)
    draws = tf.reshape(
        tf.concat([-tf.ones([3, 1, 6]), tf.reshape(uniform(6, 6), [3, 2, 6])], 1), [9, 6]
    )
    tokens, logps = searches.sample(model, context, 6, draws)
    greedy, expected = searches.sample(model, context, 6)
    np.testing.assert_array_equal(tokens[::3], greedy)
    np.testing.assert_allclose(logps[::3], expected, atol=1e-6)
    assert (tokens[1::3].numpy() != greedy.numpy()).any()


@pytest.mark.parametrize("in_graph", [False, True])
def test_ended_captions_leave_the_loop(in_graph, monkeypatch):
    """The others keep their image, cache, random numbers and words; steps have fewer rows."""
    model, context, _ = worlds.random_world(4, images=3, length=8, end=-0.5)
    draws = tf.where(tf.range(24)[:, None] % 8 == 0, -1.0, uniform(24, 8))  # some are greedy
    options = searches.options(no_repeat_ngram=2, min_length=1)
    rows = []
    step = model.step

    def counted(context, cache, tokens, index, training=False):
        rows.append(len(tokens) if tf.executing_eagerly() else tokens.shape[0])
        return step(context, cache, tokens, index, training)

    monkeypatch.setattr(model, "step", counted)

    def sample(drops_ended):
        return sampling.sample(model, context, 8, draws, options, drops_ended=drops_ended)

    run = tf.function(sample, autograph=False) if in_graph else sample
    tokens, logps = run(False)
    if in_graph:
        assert rows == [24]
    else:
        assert rows == [24] * 8
    rows.clear()
    fewer, their_logps = run(True)
    np.testing.assert_array_equal(fewer, tokens)
    np.testing.assert_allclose(their_logps, logps, rtol=0, atol=1e-6)
    running = 24 - np.cumsum(np.sum(tokens.numpy() == EOS, 0))
    expected = [24]
    for now in running[:-1]:
        expected.append(int(now) if 4 * now <= 3 * expected[-1] else expected[-1])
    assert len(set(expected)) > 2
    assert rows == ([None] if in_graph else expected)


@pytest.mark.parametrize("size", [5, 6, 9, 10, 63, 64, 65])
def test_extreme_draws_give_possible_words(size):
    """0 is the first possible word, the last number below 1 the last: never an impossible one."""
    rng = np.random.default_rng(size)
    logits = np.full((1, size), -1e9, np.float32)
    possible = np.sort(rng.choice(size, 3, replace=False))
    logits[0, possible] = rng.normal(size=3)
    draws = tf.constant([0.0, 0.5, np.nextafter(np.float32(1), np.float32(0))])
    words = sampling._draw(tf.repeat(tf.constant(logits), 3, axis=0), draws).numpy()
    assert words[0] == possible[0] and words[1] in possible and words[2] == possible[2]


def test_pad_and_bos_are_never_sampled():
    """This holds even if the model prefers them."""
    model, _, tables = worlds.random_world(2, images=4, vocab=6, end=-1.0)
    tables[..., :2] += 50
    context = model.encode({"features": tables})
    result = [
        searches.sample(model, context, 6)[0],
        searches.sample(model, context, 6, uniform(200, 6))[0],
        searches.sample(model, context, 6, uniform(200, 6), temperature=100.0)[0],
        tf.reshape(searches.beam_search(model, context, 4, 6)[0], (-1, 6)),
        tf.reshape(searches.beam_search(model, context, 4, 6, finished="retire")[0], (-1, 6)),
    ]
    for tokens in result:
        tokens = tokens.numpy()
        over = np.cumsum(tokens == EOS, -1) > (tokens == EOS)
        assert (tokens != BOS).all()
        np.testing.assert_array_equal(tokens == 0, over)
    assert (result[1] == EOS).numpy().any() and (result[1] == 0).numpy().any()
