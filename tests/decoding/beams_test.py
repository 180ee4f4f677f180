"""Sampling, beam search and scoring against enumeration and literal searches."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import searches, worlds
from helpers.worlds import BOS, EOS, UNK

from tfcap.decoding.scores import word_log_probs

POLICIES = ["hold", "retire"]


def lengths_of(tokens):
    """Counts the words of each caption, EOS included."""
    return (np.asarray(tokens) != 0).sum(-1)


def assert_well_formed(tokens):
    """No BOS; PAD after the first EOS and nowhere else."""
    tokens = np.asarray(tokens)
    over = (np.cumsum(tokens == EOS, -1) - (tokens == EOS)) > 0
    assert (tokens != BOS).all()
    np.testing.assert_array_equal(tokens == 0, over)


def search_all(model, context, tables, search, beam, length, suppress=()):
    """The literal search for every image: tokens [B, K, T] and scores [B, K]."""
    result = [
        search(worlds.word_logps(table, model.factor, suppress), beam, length) for table in tables
    ]
    tokens = [[worlds.padded(words, length) for words, _ in image] for image in result]
    return np.array(tokens), np.array([[total for _, total in image] for image in result])


# A known world: greedy takes a (0.6) and ends at 0.1995; the best sentence starts with b.
A, B, C = 3, 4, 5
KNOWN = {
    BOS: {A: 0.6, B: 0.4},
    A: {B: 0.35, C: 0.33, EOS: 0.32},
    B: {EOS: 0.95, C: 0.05},
    C: {EOS: 1.0},
}


def test_beam_search_finds_the_known_captions():
    model, context = worlds.chain(8, KNOWN)
    tokens, logps = searches.sample(model, context, 8)
    np.testing.assert_array_equal(tokens, [[A, B, EOS, 0, 0, 0, 0, 0]])
    np.testing.assert_allclose(np.exp(logps)[0], [0.6, 0.35, 0.95, 1, 1, 1, 1, 1], rtol=1e-5)
    for policy in POLICIES:
        tokens, scores, *_ = searches.beam_search(model, context, 2, 8, finished=policy)
        np.testing.assert_array_equal(tokens[0, :, :4], [[B, EOS, 0, 0], [A, B, EOS, 0]])
        np.testing.assert_allclose(np.exp(scores), [[0.38, 0.1995]], rtol=1e-5)
    words = word_log_probs(model, context, tf.constant([[A, C, EOS, 0], [C, EOS, 0, 0]]))
    np.testing.assert_allclose(np.exp(words[0]), [0.6, 0.33, 1, 1], rtol=1e-5)
    assert words[1, 0] < -9000


@pytest.mark.parametrize("policy, steps", [("hold", 3), ("retire", 3), ("greedy", 3)])
def test_the_loop_ends_when_every_caption_has_ended(policy, steps):
    """The loop has 50 possible steps; an image with a longer caption keeps it running."""
    longer = {BOS: {C: 0.9, B: 0.1}, C: {A: 1.0}, A: {B: 1.0}, B: {EOS: 1.0}}
    for images, expected in (((KNOWN,), steps), ((KNOWN, longer), steps + 1)):
        model, context = worlds.chain(50, *images)
        if policy == "greedy":
            searches.sample(model, context, 50)
        else:
            searches.beam_search(model, context, 2, 50, finished=policy)
        assert model.steps.numpy() == expected


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("beam, end", [(2, 0.0), (3, 1.0), (6, -1.0)])
def test_beams_equal_the_literal_search(policy, beam, end, seed):
    """Tokens exact for all beams of all images, in worlds where the whole history counts."""
    model, context, tables = worlds.random_world(seed, end=end)
    literal = getattr(worlds, policy)
    expected, totals = search_all(model, context, tables, literal, beam, 6)
    tokens, scores, *_ = searches.beam_search(model, context, beam, 6, finished=policy)
    np.testing.assert_array_equal(tokens, expected)
    np.testing.assert_allclose(scores, totals, atol=1e-4)
    assert_well_formed(tokens)


@pytest.mark.parametrize("seed", range(4))
def test_beams_without_the_unknown_word_equal_the_literal_search(seed):
    """8.3 as released: 1000 off the unknown word, and the others keep their probabilities."""
    model, context, tables = worlds.random_world(seed, images=6, end=0.5)
    tables[..., UNK] += 2  # a frequent word, whose place matters
    context = model.encode({"features": tables})
    expected, totals = search_all(model, context, tables, worlds.retire, 3, 6, (UNK,))
    result = searches.beam_search(model, context, 3, 6, finished="retire", suppress_unk=True)
    np.testing.assert_array_equal(result[0], expected)
    np.testing.assert_allclose(result[1], totals, atol=1e-4)


@pytest.mark.slow
def test_beam_of_one_is_greedy(tiny, batch):
    model, context, _ = worlds.random_world(3, images=16, end=1.0)
    real = (tiny, tiny.encode(batch), POLICIES[:1])
    for captioner, inputs, policies in ((model, context, POLICIES), real):
        greedy, logps = searches.sample(captioner, inputs, 6)
        assert_well_formed(greedy)
        for policy in policies:
            tokens, scores, *_ = searches.beam_search(captioner, inputs, 1, 6, finished=policy)
            np.testing.assert_array_equal(tokens[:, 0], greedy)
            np.testing.assert_allclose(scores[:, 0], tf.reduce_sum(logps, 1), atol=1e-5)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("power", [0.0, 1.0])
def test_the_cache_belongs_to_the_captions(policy, power):
    model, context, _ = worlds.random_world(6, images=8, end=1.0)
    tokens, _, cache, _ = searches.beam_search(
        model, context, 4, 6, finished=policy, length_power=power
    )
    read = cache["read"].numpy().reshape(8, 4, 6)
    for image, slot in np.ndindex(8, 4):
        words = tokens[image, slot].numpy()
        length = lengths_of(words)
        np.testing.assert_array_equal(read[image, slot, :length], [BOS, *words[: length - 1]])


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("beam, groups, price", [(4, 2, 0.5), (6, 3, 2.0), (4, 4, 1.0)])
def test_groups_are_those_of_the_literal_diverse_search(beam, groups, price, seed):
    """Captions are ordered by log-probability without penalties, which is also their score."""
    model, context, tables = worlds.random_world(seed, vocab=9, length=5, end=0.5)
    tokens, scores, cache, _ = searches.beam_search(
        model, context, beam, 5, groups=groups, diversity=price
    )
    for image, table in enumerate(tables):
        logps = worlds.word_logps(table, model.factor)
        sets = worlds.diverse(logps, beam, groups, price, 5)
        result = sorted((item for beams in sets for item in beams), key=lambda item: -item[1])
        np.testing.assert_allclose(scores[image], [total for _, total, _ in result], atol=1e-4)
        # Two groups may hold the same sentence; among equals any order will do.
        expected = sorted(worlds.padded(words, 5) for words, _, _ in result)
        np.testing.assert_array_equal(sorted(tokens[image].numpy().tolist()), expected)
    # The cache belongs to the sentences after they were put in order.
    read = cache["read"].numpy().reshape(len(tables), beam, 5)
    for image, slot in np.ndindex(len(tables), beam):
        words = [word for word in tokens[image, slot].numpy() if word]
        np.testing.assert_array_equal(read[image, slot, : len(words)], [1, *words[:-1]])
