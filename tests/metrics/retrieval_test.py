"""Ranks, recalls and curves equal literal versions and small cases calculated by hand."""

import numpy as np
import pytest

from tfcap.metrics import retrieval


def _literal(scores, right):
    """Computes ranks by sorting all items; among equal scores wrong items come first."""
    order = sorted(range(len(scores)), key=lambda item: (-scores[item], bool(right[item])))
    return [place + 1 for place, item in enumerate(order) if right[item]]


def test_ranks_equal_the_literal_ones():
    rng = np.random.default_rng(1)
    for _ in range(200):
        items = int(rng.integers(1, 30))
        scores = rng.integers(0, 8, items).astype(np.float32)  # many ties
        right = rng.random(items) < 0.3
        right[rng.integers(items)] = True
        np.testing.assert_array_equal(retrieval.ranks(scores, right), _literal(scores, right))


# Three images with two, one and two captions.
OWNERS = np.array([0, 0, 1, 2, 2])
SCORES = np.array(
    [
        [-5.0, -9.0, -4.0, -3.0, -8.0],
        [-6.0, -7.0, -4.0, -6.0, -8.0],
        [-6.0, -9.0, -5.0, -4.0, -9.0],
    ],
    np.float32,
)


def test_ranks_of_both_directions_equal_those_by_hand():
    to_text = list(retrieval.image_to_text(SCORES, OWNERS))
    assert [query.ranks.tolist() for query in to_text] == [[3, 5], [1], [1, 5]]
    assert {query.items for query in to_text} == {5}
    to_image = list(retrieval.text_to_image(SCORES, OWNERS))
    # Ties: caption 2 with image 3, caption 3 with image 1. Caption 4 is more probable for image 1.
    assert [query.ranks.tolist() for query in to_image] == [[1], [3], [2], [2], [3]]
    assert {query.items for query in to_image} == {3}


def test_the_marginal_lowers_the_rank_of_common_captions():
    marginal = retrieval.log_marginal(SCORES)
    np.testing.assert_allclose(np.exp(marginal), np.exp(SCORES.astype(np.float64)).sum(0))
    to_text = list(retrieval.image_to_text(SCORES, OWNERS, marginal))
    for image, query in enumerate(to_text):
        share = np.exp(SCORES[image].astype(np.float64)) / np.exp(SCORES.astype(float)).sum(0)
        share = share.round(12)  # two captions are equally good, but for the last bit of exp
        assert query.ranks.tolist() == _literal(share, OWNERS == image)
    assert to_text[0].ranks[0] == 2  # not 3: a caption before it is probable for every image


def test_the_marginal_of_improbable_captions_does_not_underflow():
    scores = np.array([[-2000.0, -3.0], [-2001.0, -1e4]], np.float32)
    expected = [-2000 + np.log1p(np.exp(-1.0)), -3.0]
    np.testing.assert_allclose(retrieval.log_marginal(scores), expected, rtol=1e-12)


def test_recall_median_and_curve_equal_those_by_hand():
    queries = [
        retrieval.Query(np.array([1, 10]), 10),
        retrieval.Query(np.array([6]), 10),
        retrieval.Query(np.array([2, 3]), 10),
        retrieval.Query(np.array([12]), 20),
    ]
    summary = retrieval.summarize(queries)
    assert summary.recall == {1: 25.0, 5: 50.0, 10: 75.0}
    assert summary.median == 4.0 and summary.queries == 4
    # A tenth of the items: the first of two; none; none; none.
    assert summary.curve[[0, 9, 10, 20, 30, 59, 60, 99, 100]].tolist() == [
        0, 0, 12.5, 25, 37.5, 37.5, 87.5, 87.5, 100
    ]  # fmt: skip
    assert (np.diff(summary.curve) >= 0).all() and len(summary.curve) == 101
    written = summary.as_dict()
    assert written["R@5"] == 50.0 and written["median_rank"] == 4.0
    assert len(written["curve"]) == 101
    with pytest.raises(ValueError, match="nothing to rank"):
        retrieval.summarize([])
