"""Consensus reranking equals a literal version of the paper's description."""

import numpy as np
import pytest
from helpers.reranking import (
    literal_bleu,
    literal_cider,
    literal_frequencies,
    literal_scores,
)

from tfcap.inference.rerank import ConsensusReranker, rank

NEIGHBOURS = 6


@pytest.fixture(scope="module")
def made(data):
    """A consensus for each similarity."""
    return {kind: ConsensusReranker(data, neighbours=NEIGHBOURS, similarity=kind)
            for kind in ("cider", "bleu")}  # fmt: skip


def draw(data, images, seed=0):
    """Draws vectors and hypotheses: shuffled, short, empty, unknown and equal captions."""
    rng = np.random.default_rng(seed)
    texts = [text for own in data.references("val").values() for text in own]
    vectors = rng.normal(size=(images, data.feature_dim)).astype(np.float32)
    hypotheses = []
    for _ in range(images):
        own = [texts[i] for i in rng.integers(0, len(texts), rng.integers(1, 6))]
        own += [" ".join(rng.permutation(own[0].split())), "a red", "", f"{own[0]} zebra quagga"]
        hypotheses.append([*own, own[0]])
    return vectors, hypotheses


def literal_similarity(kind, captions):
    if kind == "bleu":
        return literal_bleu
    frequency = literal_frequencies(captions)
    return lambda a, b: literal_cider(a.lower(), b.lower(), frequency, len(captions))


def check(ranked, hypotheses, wanted):
    """Compares scores, and the order where scores differ in float32."""
    order = [hypotheses.index(caption) for caption in ranked.captions]
    assert sorted(ranked.captions) == sorted(hypotheses)
    np.testing.assert_allclose(ranked.scores, wanted[order], atol=2e-5)
    assert (np.diff(ranked.scores) <= 0).all() and (np.diff(wanted[order]) < 4e-5).all()


def clean(text):
    """Splits a caption into words as the tokenizer does for the captions of shapes."""
    return " ".join(text.lower().replace(".", " ").replace(",", " ").replace("-", " ").split())


@pytest.mark.parametrize("best", [3, 125])  # 125: more than the number of references
@pytest.mark.parametrize("kind", ["cider", "bleu"])
def test_the_order_follows_the_paper(data, made, kind, best, monkeypatch):
    monkeypatch.setattr("tfcap.inference.rerank._GROUP", 7)  # several groups of references
    consensus = made[kind]
    consensus.best, before = best, consensus.best
    vectors, hypotheses = draw(data, 5)
    try:
        result = consensus.rerank(vectors, hypotheses)
    finally:
        consensus.best = before
    captions = [[clean(text) for text in own] for own in data.references("train").values()]
    similarity = literal_similarity(kind, captions)
    distances = np.linalg.norm(consensus.index.vectors[None].astype(float) - vectors[:, None], 2, 2)
    for own, ranked, distance in zip(hypotheses, result, distances, strict=True):
        near = np.argsort(distance, kind="stable")[:NEIGHBOURS]
        references = [text for place in near for text in captions[place]]
        assert 3 < len(references) < 125
        wanted = literal_scores([clean(h) for h in own], references, similarity, best)
        check(ranked, own, wanted)
        assert wanted.max() > 0.05


@pytest.mark.parametrize("kind", ["cider", "bleu"])
def test_the_oracle_ranks_by_the_references_of_the_image(data, made, kind):
    _, hypotheses = draw(data, 4, seed=1)
    references = list(data.references("val").values())[:4]
    # The references have words outside the corpus and another order.
    references[0] = [*references[0], " ".join(reversed(hypotheses[0][-2].split()))]
    result = made[kind].oracle(hypotheses, references)
    captions = [[clean(text) for text in own] for own in data.references("train").values()]
    similarity = literal_similarity(kind, captions)
    for own, values, ranked in zip(hypotheses, references, result, strict=True):
        cleaned = [clean(text) for text in values]
        check(ranked, own, literal_scores([clean(h) for h in own], cleaned, similarity, 125))


def test_a_training_image_is_not_its_own_neighbour(data, made):
    """Its own captions are its references and must not rank its hypotheses."""
    consensus = made["cider"]
    references = data.references("train")
    image = int(consensus.index.ids[5])
    hypotheses = [["a red dog", references[image][0]]]
    vector = consensus.index.vectors[5:6]
    (knowing,) = consensus.rerank(vector, hypotheses)
    (fair,) = consensus.rerank(vector, hypotheses, np.array([image]))
    assert knowing.scores[0] > fair.scores[0]


def test_ranks_are_stable_and_use_the_available_captions():
    similarities = [[0.1, 0.2, 0.3], [0.3, 0.3, 0.0], [0.3, 0.2, 0.1], [0, 0, 0.9]]
    ranked = rank("abcd", similarities, 2)
    assert ranked.captions == list("dbac")
    np.testing.assert_allclose(ranked.scores, [0.45, 0.3, 0.25, 0.25])
    ranked = rank("abcd", similarities, 10)
    assert ranked.captions == list("dabc")
    np.testing.assert_allclose(ranked.scores, [0.3, 0.2, 0.2, 0.2])
    ranked = rank("abc", np.zeros([3, 0]), 5)  # no neighbour has a caption
    assert ranked.captions == list("abc") and not ranked.scores.any()
