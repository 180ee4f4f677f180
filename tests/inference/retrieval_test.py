"""Ranks, queries and sentences for images equal what all scores and literal formulas give."""

import numpy as np
import pytest

from tfcap import errors
from tfcap.inference import likelihood
from tfcap.inference.nearest import Candidates
from tfcap.inference.retrieval import Pairs, find, find_sentences, rank
from tfcap.metrics import retrieval

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def candidates(data):
    return Candidates(data, "val", None)


def scores_of(run, data, split, places, captions):
    """Scores [len(places), N] of captions, all in one block."""
    encoded = likelihood.encode_captions(run.vocab, captions, run.params.task.max_length)
    (block,) = likelihood.read_images(data, split, places, len(places))
    return likelihood.PairScorer(run.model, data.input_specs, encoded)(**block).astype(np.float64)


def test_a_split_is_ranked_in_both_directions(run, data):
    result, _ = rank(Pairs(run, data, "val", limit=0, block=12), 9, 5)
    each = list(data.references("val").values())
    captions, owners = sum(each, []), np.repeat(np.arange(12), [len(own) for own in each])
    scores = scores_of(run, data, "val", range(12), captions)
    positions = np.random.default_rng(5).permutation(64)[:9]
    marginal = np.log(np.exp(scores_of(run, data, "train", positions, captions)).sum(0))
    wanted = {
        "image to text": retrieval.image_to_text(scores, owners, marginal),
        "text to image": retrieval.text_to_image(scores, owners),
    }
    assert {name: one.as_dict() for name, one in result.items()} == {
        name: retrieval.summarize(list(queries)).as_dict() for name, queries in wanted.items()
    }
    plain, _ = rank(Pairs(run, data, "val", limit=0, block=12), 0, 5)
    assert plain["image to text"].as_dict() != result["image to text"].as_dict()


def test_only_the_candidates_of_a_query_are_scored(run, data, candidates):
    pairs = Pairs(run, data, "val", limit=0, block=5)
    queries = ["a big red circle", "two small blue squares"]
    whole, _ = find(pairs, queries, 12)
    scores = scores_of(run, data, "val", range(12), queries)
    for own, column in zip(whole, scores.T, strict=True):
        np.testing.assert_allclose([s for _, s in own], np.sort(column)[::-1], rtol=1e-5)
        np.testing.assert_allclose([column[place] for place, _ in own], [s for _, s in own], 1e-5)
    assert (
        find(pairs, queries, 12, candidates.nearest(candidates.sentences(queries), 99))[0] == whole
    )
    chosen = candidates.nearest(candidates.sentences(queries), 4)
    assert set(chosen[0].tolist()) != set(chosen[1].tolist())
    matches, _ = find(pairs, queries, 9, chosen)
    for own, positions, every in zip(matches, chosen, map(dict, whole), strict=True):
        assert {place for place, _ in own} == set(positions.tolist())
        assert [score for _, score in own] == sorted((s for _, s in own), reverse=True)
        assert all(score == pytest.approx(every[place], rel=1e-5) for place, score in own)


def test_queries_without_a_known_word_are_refused(run, data):
    pairs = Pairs(run, data, "val", limit=4, block=4)
    with pytest.raises(errors.UsageError, match="knows no word of the query 'zebras everywhere'"):
        find(pairs, ["a circle", "zebras everywhere"], 2)
    with pytest.raises(ValueError, match=r"'\?!' has no word"):
        find(pairs, ["?!"], 2)
    result, note = find(pairs, ["a circle " * 20], 9)
    assert len(result[0]) == 4 and "cut to 12 words" in note


def test_sentences_are_ranked_for_images(run, data, candidates):
    pairs = Pairs(run, data, "val", limit=4, block=4)
    (block,) = likelihood.read_images(data, "test", [0, 1], 2)
    inputs = {name: value.numpy() for name, value in block.items()}
    texts = list(dict.fromkeys(pairs.captions()[0]))
    scores = scores_of(run, data, "test", [0, 1], texts)
    positions = np.random.default_rng(5).permutation(64)[:9]
    mean = np.log(np.mean(np.exp(scores_of(run, data, "train", positions, texts)), 0))
    for images, wanted in ((0, scores), (9, scores - mean)):
        for own, row in zip(find_sentences(pairs, inputs, 3, images, 5), wanted, strict=True):
            assert [text for text, _ in own] == [texts[n] for n in np.argsort(-row)[:3]]
            np.testing.assert_allclose([s for _, s in own], np.sort(row)[::-1][:3], rtol=1e-3)
    chosen = candidates.among_sentences(candidates.space.vectors(inputs["features"]), texts, 4)
    some = find_sentences(pairs, inputs, 9, 9, 5, candidates, 4)
    for own, near, row in zip(some, chosen, scores - mean, strict=True):
        assert {text for text, _ in own} == {texts[n] for n in near} and len(own) == 4
        for text, score in own:
            assert score == pytest.approx(row[texts.index(text)], rel=1e-3, abs=1e-4)
