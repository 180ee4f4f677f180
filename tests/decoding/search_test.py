"""The configured search: samples by seed, their distribution, and all options at once."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import worlds
from helpers.searches import options

from tfcap.data.document_frequency import document_frequencies
from tfcap.decoding import Options
from tfcap.decoding.scores import word_log_probs
from tfcap.decoding.search import Consensus, Search
from tfcap.objectives import ngrams

LENGTH = 5


def test_samples_of_an_image_follow_its_seed():
    """This holds in any batch and order and in a graph; the most probable sample is first."""
    model, context, _ = worlds.random_world(3, images=3, vocab=9)
    search = Search(options(search="sample", samples=4, temperature=1.2, top_k=5), 6)
    seeds = tf.constant([11, 12, 13], tf.int64)
    tokens, scores, *_ = tf.function(lambda s: search(model, context, s), autograph=False)(seeds)
    assert tokens.shape == (3, 4, 6) and (np.diff(scores) <= 0).all()
    totals = word_log_probs(model, context, tf.reshape(tokens, [12, 6]))
    np.testing.assert_allclose(tf.reduce_sum(totals, -1), np.reshape(scores, -1), atol=1e-4)
    part = tf.nest.map_structure(lambda leaf: leaf[1:][::-1], context)
    again = search(model, part, seeds[1:][::-1])
    np.testing.assert_array_equal(again[0], tokens[1:][::-1])
    assert (search(model, context, seeds + 1)[0] != tokens).numpy().any()


@pytest.mark.parametrize(
    "chosen",
    [
        {"beam": 3, "length_power": 1.5},
        {"beam": 3, "length_power": 1.5, "length_penalty": "gnmt"},
        {"search": "sample", "samples": 4, "length_power": 1.0},
        {"search": "sample", "samples": 4, "order": "consensus"},
        {"beam": 4, "groups": 2, "diversity": 1.0, "length_power": 1.0, "suppress": (3,)},
        {"beam": 3, "finished": "retire", "length_power": 1.0, "prefix": (4,)},
        {},
    ],
)
def test_log_probs_are_sums_whatever_the_captions_are_ordered_by(chosen):
    model, context, _ = worlds.random_world(3, images=3, vocab=9, end=0.5)
    consensus = None
    if "order" in chosen:
        consensus = lambda tokens: tf.cast(tf.reduce_sum(tokens, -1), tf.float32)  # noqa: E731
    found = Search(options(**chosen), 6, consensus)(model, context, tf.range(3, dtype=tf.int64))
    words = word_log_probs(model, context, tf.reshape(found.tokens, [-1, 6]))
    sums = tf.reshape(tf.reduce_sum(words, -1), found.log_probs.shape)
    np.testing.assert_allclose(found.log_probs, sums, atol=1e-4)
    np.testing.assert_allclose(
        found.word_log_probs, tf.reshape(words, found.tokens.shape), atol=1e-4
    )
    assert (np.allclose(found.scores, sums, atol=1e-3)) == (not chosen)


def test_groups_rules_temperature_and_penalty_work_together():
    """Groups, rules, temperature and a penalty in one search keep to their promises."""
    model, context, _ = worlds.random_world(9, images=4, vocab=12, length=6, end=0.5)
    chosen = Options(
        beam=6, groups=3, diversity=1.0, finished="retire", temperature=1.5, suppress=(3,),
        bad_endings=(5,), prefix=(4,), min_length=2, no_repeat_ngram=1, length_penalty="gnmt",
        length_power=0.7,
    )  # fmt: skip
    tokens, scores, *_ = tf.function(lambda: Search(chosen, 6)(model, context), autograph=False)()
    tokens, scores = tokens.numpy(), scores.numpy()
    assert tokens.shape == (4, 6, 6) and (np.diff(scores) <= 0).all() and (scores > -1e3).all()
    for row in tokens.reshape(-1, 6).tolist():
        words = [word for word in row if word > 2]
        assert words[0] == 4 and 3 not in words and words[-1] != 5
        assert len(words) >= 2 and len(set(words)) == len(words)


def test_log_probs_of_words_are_those_of_the_model_at_any_temperature():
    model, context, _ = worlds.random_world(3, images=3, vocab=9, end=0.5)
    found = Search(options(beam=3, temperature=0.5), 6)(model, context)
    words = word_log_probs(model, context, tf.reshape(found.tokens, [-1, 6]))
    np.testing.assert_allclose(
        found.word_log_probs, tf.reshape(words, found.tokens.shape), atol=1e-4
    )
    assert not np.allclose(found.log_probs, tf.reduce_sum(found.word_log_probs, -1), atol=0.1)


@pytest.fixture(scope="module")
def cider():
    """CIDEr-D over the words 3 to 8, with document frequencies of some captions."""
    rng = np.random.default_rng(0)
    images = [[list(rng.integers(3, 9, rng.integers(2, 6)))] for _ in range(50)]
    return ngrams.CiderD(document_frequencies(images), 9)


def test_consensus_is_the_mean_similarity_to_the_others(cider):
    """Against CIDEr-D of every pair alone."""
    tokens = np.array([[[3, 4, 2, 0], [3, 4, 5, 2], [6, 7, 2, 0], [3, 4, 2, 0]]], np.int32)
    result = Consensus(cider)(tf.constant(tokens)).numpy()[0]

    def pair(one, other):
        references = cider.references(tf.constant(tokens[:, other : other + 1]))
        return float(cider(tf.constant(tokens[:, one : one + 1]), references)[0, 0])

    for one in range(4):
        expected = np.mean([pair(one, other) for other in range(4) if other != one])
        assert abs(result[one] - expected) < 1e-5
    assert result.argmax() in (0, 3) and result[2] == result.min()


def test_consensus_chooses_the_sample_of_highest_expected_cider(cider):
    """Of many samples the one is chosen that has the highest expected CIDEr-D of a listed world.

    The truth is drawn from the model: sum over all sentences of P(truth) CIDEr-D(choice, truth).
    """
    model, _, tables = worlds.random_world(5, images=4, vocab=6, length=3, scale=1.0)
    context = model.encode({"features": tables})
    every = [worlds.padded(s, 3) for s in worlds.sentences([3, 4, 5], 3)]
    listed = tf.constant([every])
    gains = cider.similarities(listed, cider.references(listed)).numpy()[0]  # [choice, truth]
    chosen = options(search="sample", samples=400, order="consensus")
    search = Search(chosen, 3, Consensus(cider))
    tokens, scores, *_ = search(model, context, tf.range(4, dtype=tf.int64))
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
