"""The tree holds each prefix of the captions once and gives the scores of teacher forcing."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import systems
from helpers.sizes import FEATURES, IMAGES, LENGTH, VOCABULARY

from tfcap import decoding
from tfcap.ids import BOS, EOS, PAD
from tfcap.scoring import likelihood, prefixes

SIZES = dict(embed_width=9, width=16, multimodal_width=12)
W = range(4, 9)
ROWS = [[W[0], W[1], EOS], [W[0], W[1], W[2], EOS], [W[0], EOS], [W[3], W[1], EOS],
        [W[0], W[1], W[2], W[4], EOS], [W[0], W[1], EOS], list(W) + [W[0]]]  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return systems.make("mrnn", **SIZES)


@pytest.fixture(scope="module")
def captions():
    """Captions with common prefixes; one occurs twice and one has no end mark."""
    tokens = np.zeros((len(ROWS), LENGTH), np.int32)
    for row, words in zip(tokens, ROWS, strict=True):
        row[: len(words)] = words
    words = np.count_nonzero(tokens, axis=1).astype(np.int32)
    return likelihood.EncodedCaptions(tokens, words, unknown=0, cut=1)


def test_a_tree_holds_each_prefix_once(captions):
    given = prefixes.tree(captions.tokens)
    for t in range(LENGTH):
        alive = [n for n, length in enumerate(captions.words) if length > t]
        assert given.counts[t] == len({tuple(ROWS[n][:t]) for n in alive})
        for n in alive:
            beginning, place = [], given.places[t, n]
            for back in range(t, -1, -1):
                beginning.insert(0, int(given.words[back, place]))
                place = given.parents[back, place]
            assert beginning == [BOS, *ROWS[n][:t]]
    assert given.counts.tolist() == [1, 2, 2, 1, 2, 1]


def test_captions_with_a_common_prefix_are_in_the_same_block(model, captions):
    limit = IMAGES * 3 * VOCABULARY
    seen, ordered, steps = [], [], 0
    for places, given in likelihood.PairScorer(model, FEATURES, captions, limit).blocks(IMAGES):
        rows = captions.tokens[places]
        np.testing.assert_array_equal(given.tokens, rows[:, : captions.words[places].max()])
        assert IMAGES * given.counts.max() * VOCABULARY <= limit
        seen += places.tolist()
        ordered += rows.tolist()
        steps += int(given.counts.sum())
    assert sorted(seen) == list(range(len(ROWS))) and steps < captions.words.sum()
    assert ordered == sorted(ordered)


def test_scores_equal_those_of_teacher_forcing(model, captions):
    batch = systems.padded_batch()
    context = model.encode({key: batch[key] for key in ("features", "mask")})
    given = prefixes.tree(captions.tokens)
    scores = prefixes.score(model, context, given).numpy()  # arrays: the loop is unrolled
    traced = tf.function(lambda: prefixes.score(model, context, _tensors(given)), autograph=False)()
    np.testing.assert_allclose(traced, scores, rtol=1e-6)
    tokens = tf.tile(captions.tokens, [IMAGES, 1])
    wanted = decoding.score(model, context, tokens).numpy()
    wanted = wanted.reshape(IMAGES, len(ROWS), LENGTH)
    wanted = (wanted * (captions.tokens != PAD)).sum(-1)
    np.testing.assert_allclose(scores, wanted, rtol=1e-5)


def _tensors(given):
    return prefixes.Prefixes(*(tf.constant(x) for x in given))
