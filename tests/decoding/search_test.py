"""Groups of beams, length penalties, temperature and the search that options describe."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import searches, worlds
from helpers.sampling_counts import distance
from helpers.searches import options

from tfcap import decoding
from tfcap.data.document_frequency import document_frequencies
from tfcap.decoding import Options, Search
from tfcap.objectives import ngrams

LENGTH = 5


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "beam, groups, price", [(4, 2, 0.5), (6, 3, 2.0), (6, 2, 8.0), (4, 4, 1.0)]
)
def test_literal_diverse_beam_search(beam, groups, price, seed):
    """In order of the log-probability without penalties, which the scores are."""
    model, context, tables = worlds.random_world(seed, vocab=9, length=LENGTH, end=0.5)
    tokens, scores, cache = searches.beam_search(
        model, context, beam, LENGTH, groups=groups, diversity=price
    )
    for image, table in enumerate(tables):
        logps = worlds.word_logps(table, model.factor)
        sets = worlds.diverse(logps, beam, groups, price, LENGTH)
        found = sorted((item for beams in sets for item in beams), key=lambda item: -item[1])
        np.testing.assert_allclose(scores[image], [total for _, total, _ in found], atol=1e-4)
        # Two groups may hold the same sentence; among equals any order will do.
        expected = sorted(worlds.padded(words, LENGTH) for words, _, _ in found)
        np.testing.assert_array_equal(sorted(tokens[image].numpy().tolist()), expected)
    # The cache belongs to the sentences after they were put in order.
    read = cache["read"].numpy().reshape(len(tables), beam, LENGTH)
    for image, slot in np.ndindex(len(tables), beam):
        words = [word for word in tokens[image, slot].numpy() if word]
        np.testing.assert_array_equal(read[image, slot, : len(words)], [1, *words[:-1]])


@pytest.mark.parametrize("finished", ["hold", "retire"])
def test_groups_that_pay_nothing_are_copies(finished):
    model, context, _ = worlds.random_world(5, vocab=9, length=LENGTH, end=0.5)
    alone = searches.beam_search(model, context, 3, LENGTH, finished=finished)
    found = searches.beam_search(
        model, context, 6, LENGTH, finished=finished, groups=2, diversity=0.0
    )
    np.testing.assert_array_equal(found[0], tf.repeat(alone[0], 2, axis=1))
    np.testing.assert_allclose(found[1], tf.repeat(alone[1], 2, axis=1), atol=1e-5)


@pytest.mark.parametrize("finished", ["hold", "retire"])
def test_groups_differ_and_the_first_is_an_ordinary_search(finished):
    model, context, _ = worlds.random_world(6, vocab=12, length=LENGTH, end=0.5)
    alone = searches.beam_search(model, context, 2, LENGTH, finished=finished)[0].numpy()
    found = searches.beam_search(
        model, context, 6, LENGTH, finished=finished, groups=3, diversity=50.0
    )[0].numpy()
    for image in range(len(found)):
        sentences = found[image].tolist()
        assert all(sentence in sentences for sentence in alone[image].tolist())
        first = {sentence[0] for sentence in alone[image].tolist()}
        others = {sentence[0] for sentence in sentences} - first
        assert len(others) >= 2  # dear enough that each group begins with words of its own


def test_length_penalty_of_gnmt():
    model, context, tables = worlds.random_world(5, images=8, end=1.0)
    plain = searches.beam_search(model, context, 4, 6)
    sizes = (plain[0].numpy() != 0).sum(-1)
    expected = plain[1].numpy() / ((sizes + 5) / 6) ** 0.8
    order = np.argsort(-expected, axis=1, kind="stable")
    found = searches.beam_search(model, context, 4, 6, length_penalty="gnmt", length_power=0.8)
    np.testing.assert_array_equal(
        found[0], np.take_along_axis(plain[0].numpy(), order[..., None], 1)
    )
    np.testing.assert_allclose(found[1], np.take_along_axis(expected, order, 1), atol=1e-5)
    other = searches.beam_search(model, context, 4, 6, length_power=0.8)
    assert (order != np.arange(4)).any() and (other[1] != found[1]).numpy().all()
    with pytest.raises(ValueError, match="must be one of average, gnmt. Received: 'wu'"):
        searches.beam_search(model, context, 4, 6, length_penalty="wu")


def test_temperature_of_a_beam_search():
    """The best sentences of the tempered distribution, found by listing all."""
    model, _, tables = worlds.random_world(7, vocab=44, length=3)
    tables[..., 6:] = -1e4
    context = model.encode({"features": tables})
    tokens, scores, _ = searches.beam_search(model, context, 40, 3, temperature=2.5)
    changed = 0
    for image, table in enumerate(tables):
        logps = worlds.word_logps(table / 2.5, model.factor)
        every = worlds.sentences([3, 4, 5], 3)
        ranked = sorted(((worlds.logp_of(logps, s), s) for s in every), reverse=True)
        np.testing.assert_allclose(scores[image], [total for total, _ in ranked], atol=1e-3)
        np.testing.assert_array_equal(tokens[image], [worlds.padded(s, 3) for _, s in ranked])
        plain = worlds.word_logps(table, model.factor)
        changed += (
            max(worlds.sentences([3, 4, 5], 3), key=lambda s: worlds.logp_of(plain, s))
            != (ranked[0][1])
        )
    assert changed  # a world where it matters


def test_samples_of_an_image_follow_its_seed():
    """In any batch and order, in a graph too; best first by the model's probability."""
    model, context, _ = worlds.random_world(3, images=3, vocab=9)
    search = Search(options(search="sample", samples=4, temperature=1.2, top_k=5), 6)
    seeds = tf.constant([11, 12, 13], tf.int64)
    tokens, scores = tf.function(lambda s: search(model, context, s))(seeds)
    assert tokens.shape == (3, 4, 6) and (np.diff(scores) <= 0).all()
    totals = decoding.score(model, context, tf.reshape(tokens, [12, 6]))
    np.testing.assert_allclose(tf.reduce_sum(totals, -1), np.reshape(scores, -1), atol=1e-4)
    part = tf.nest.map_structure(lambda leaf: leaf[1:][::-1], context)
    again = search(model, part, seeds[1:][::-1])
    np.testing.assert_array_equal(again[0], tokens[1:][::-1])
    assert (search(model, context, seeds + 1)[0] != tokens).numpy().any()
    with pytest.raises(ValueError, match="search must be one of beam, sample. Received: 'greedy'"):
        Search(options(search="greedy"), 6)


def test_samples_are_of_the_distribution():
    """A seed gives independent draws: 4,000 images of one world with 5 samples each."""
    model, _, tables = worlds.random_world(3, images=1, vocab=6, length=3, scale=1.0)
    context = model.encode({"features": np.repeat(tables, 4000, 0)})
    search = Search(options(search="sample", samples=5), 3)
    tokens, _ = search(model, context, tf.range(4000, dtype=tf.int64))
    logps = worlds.word_logps(tables[0], model.factor)
    every = worlds.sentences([3, 4, 5], 3)
    expected = {s: np.exp(worlds.logp_of(logps, s)) for s in every}
    assert abs(distance(tokens.numpy().reshape(-1, 3), expected)) < 4


@pytest.fixture(scope="module")
def cider():
    """CIDEr-D over the words 3 to 8, with document frequencies of some sentences."""
    rng = np.random.default_rng(0)
    images = [[list(rng.integers(3, 9, rng.integers(2, 6)))] for _ in range(50)]
    return ngrams.CiderD(document_frequencies(images), 9)


def test_consensus_is_the_mean_similarity_to_the_others(cider):
    """Against CIDEr-D of every pair alone."""
    tokens = np.array([[[3, 4, 2, 0], [3, 4, 5, 2], [6, 7, 2, 0], [3, 4, 2, 0]]], np.int32)
    found = decoding.Consensus(cider)(tf.constant(tokens)).numpy()[0]

    def pair(one, other):
        references = cider.references(tf.constant(tokens[:, other : other + 1]))
        return float(cider(tf.constant(tokens[:, one : one + 1]), references)[0, 0])

    for one in range(4):
        expected = np.mean([pair(one, other) for other in range(4) if other != one])
        assert abs(found[one] - expected) < 1e-5
    assert found.argmax() in (0, 3) and found[2] == found.min()


def test_minimum_bayes_risk(cider):
    """Of many samples the one is chosen that has the highest expected CIDEr-D of a listed world.

    The truth is drawn from the model: sum over all sentences of P(truth) CIDEr-D(choice, truth).
    """
    model, _, tables = worlds.random_world(5, images=4, vocab=6, length=3, scale=1.0)
    context = model.encode({"features": tables})
    every = [worlds.padded(s, 3) for s in worlds.sentences([3, 4, 5], 3)]
    listed = tf.constant([every])
    gains = cider.similarities(listed, cider.references(listed)).numpy()[0]  # [choice, truth]
    chosen = options(search="sample", samples=400, order="consensus")
    search = Search(chosen, 3, decoding.Consensus(cider))
    tokens, scores = search(model, context, tf.range(4, dtype=tf.int64))
    assert (np.diff(scores) <= 0).all()
    other = 0
    for image, table in enumerate(tables):
        logps = worlds.word_logps(table, model.factor)
        probabilities = np.exp([worlds.logp_of(logps, [w for w in s if w]) for s in every])
        expected = gains @ probabilities
        drawn = [every.index(sentence) for sentence in tokens[image].numpy().tolist()]
        chosen = drawn[0]
        assert expected[chosen] > 0.9 * expected[drawn].max() > 1.1 * np.median(expected)
        assert abs(float(scores[image, 0]) - expected[chosen]) < 0.1 * expected.max()
        other += chosen != probabilities.argmax()
    assert other  # the most probable sentence is another one somewhere


def test_everything_at_once():
    """Groups, rules, temperature and a penalty in one search keep to their promises."""
    model, context, _ = worlds.random_world(9, images=4, vocab=12, length=6, end=0.5)
    chosen = Options(
        beam=6, groups=3, diversity=1.0, finished="retire", temperature=1.5, suppress=(3,),
        bad_endings=(5,), prefix=(4,), min_length=2, no_repeat_ngram=1, length_penalty="gnmt",
        length_power=0.7,
    )  # fmt: skip
    tokens, scores = tf.function(lambda: Search(chosen, 6)(model, context))()
    tokens, scores = tokens.numpy(), scores.numpy()
    assert tokens.shape == (4, 6, 6) and (np.diff(scores) <= 0).all() and (scores > -1e3).all()
    for row in tokens.reshape(-1, 6).tolist():
        words = [word for word in row if word > 2]
        assert words[0] == 4 and 3 not in words and words[-1] != 5
        assert len(words) >= 2 and len(set(words)) == len(words)
