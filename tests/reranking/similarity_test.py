"""Similarities, word numbers and document frequencies equal literal versions."""

import numpy as np
import pytest
from helpers.reranking import CAPTIONS, literal_bleu, literal_cider, literal_frequencies, split

from tfcap.data.document_frequency import document_frequencies
from tfcap.objectives import ngrams
from tfcap.reranking import similarity


def words_of(captions):
    words = similarity.Words()
    return words, similarity.Corpus.read(dict(enumerate(captions)), words)


def test_unknown_words_get_different_numbers_outside_the_corpus():
    words, corpus = words_of([["a dog", "the dog"], ["cat"]])
    first, second = words.look_up([["a", "zebra", "quagga", "zebra"], ["quagga", "dog"]])
    assert first[1] == first[3] != first[2] == second[0]
    known = set(corpus.flat.tolist())
    assert {first[0], second[1]} <= known and not {first[1], first[2]} & known
    assert words.look_up([["okapi"]]) == [[first[1]]]  # another image
    assert len(words) > max(known)
    with pytest.raises(ValueError, match="at most 2048 words .* Received: 2049"):
        words.look_up([[str(i)] for i in range(2049)])


def test_a_corpus_keeps_captions_and_their_order():
    captions = [["A dog runs.", "!!"], [], ["The cat", "a dog", "dog dog dog"]]
    words, corpus = words_of(captions)
    assert corpus.first.tolist() == [0, 2, 2, 5] and corpus.starts.tolist() == [0, 3, 3, 5, 7, 10]
    assert corpus.sentences(np.array([2, 0])).tolist() == [2, 3, 4, 0, 1]
    assert corpus.sentences(np.array([1])).tolist() == []
    a, dog, runs = corpus.flat[:3].tolist()
    assert corpus.flat.tolist()[5:] == [a, dog, dog, dog, dog]
    assert words.look_up([["runs"]]) == [[runs]]


def test_document_frequencies_equal_those_of_prepare_without_end_marks():
    rng = np.random.default_rng(0)
    images = [
        [list(rng.integers(4, 9, rng.integers(0, 9))) for _ in range(rng.integers(1, 4))]
        for _ in range(30)
    ]
    table = similarity.Corpus(images).document_frequencies()
    whole = document_frequencies(images)
    rows = zip(whole.ngrams.tolist(), whole.counts.tolist(), strict=True)
    wanted = {tuple(g): c for g, c in rows if 2 not in g and c > 1}
    found = dict(zip(map(tuple, table.ngrams.tolist()), table.counts.tolist(), strict=True))
    assert found == wanted and table.images == 30 and len(wanted) > 50
    assert (table.ngrams.dtype, table.counts.dtype) == (np.int32, np.int32)
    with pytest.raises(ValueError, match="need at least one image"):
        similarity.Corpus([]).document_frequencies()


def compare(kind, captions, hypotheses, chosen):
    """Returns computed and literal similarities of each image."""
    words, corpus = words_of(captions)
    scorer = similarity.Similarity(kind, words, corpus.document_frequencies())
    numbers = [words.look_up([split(text) for text in own]) for own in hypotheses]
    found = scorer(numbers, corpus, [corpus.sentences(np.array(own, int)) for own in chosen])
    frequency = literal_frequencies(captions)
    wanted = []
    for own, places in zip(hypotheses, chosen, strict=True):
        others = [text for place in places for text in captions[place]]
        if kind == "cider":
            rows = [[literal_cider(a, b, frequency, len(captions)) for b in others] for a in own]
        else:
            rows = [[literal_bleu(a, b) for b in others] for a in own]
        wanted.append(np.array(rows).reshape(len(own), len(others)))
    return found, wanted


@pytest.mark.parametrize("kind", similarity.KINDS)
def test_similarities_equal_literal_ones_in_batches_of_every_shape(kind, monkeypatch):
    """Images have many, few or no references, of any length, and any number of hypotheses."""
    monkeypatch.setattr(similarity, "_CELLS", 1 << 17)  # many batches
    long = " ".join(f"{word} {number % 7}" for number in range(40) for word in ("a", "dog"))
    captions = [*CAPTIONS, ["dog", "", long, f"{long} and {long}"]]
    hypotheses = [["a dog runs in the snow", "", "dog", "a zebra zebra a zebra"], [], [long],
                  ["two dogs play"] * 3, ["a cat"]]  # fmt: skip
    chosen = [range(len(captions)), [0], [len(captions) - 1, 0], [3] * 50, []]
    found, wanted = compare(kind, captions, hypotheses, [list(own) for own in chosen])
    assert [x.shape for x in found] == [x.shape for x in wanted]
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)
    assert max(b.max() for b in wanted if b.size) > (1 if kind == "cider" else 0.3)


def test_no_images_and_no_hypotheses_give_empty_results():
    words, corpus = words_of([["a dog"]])
    scorer = similarity.Similarity("bleu", words)
    assert scorer([], corpus, []) == []
    (found,) = scorer([[]], corpus, [np.array([0])])
    assert found.shape == (0, 1)


def test_an_unknown_kind_and_too_many_words_are_refused(monkeypatch):
    words, corpus = words_of([["a dog"]])
    with pytest.raises(ValueError, match="must be one of cider, bleu. Received: 'rouge'"):
        similarity.Similarity("rouge", words)
    words.learn(str(i) for i in range(ngrams.LARGEST_VOCABULARY))
    with pytest.raises(ValueError, match="at most 53054 different words.* Received: 55108"):
        similarity.Similarity("bleu", words)


def test_images_without_captions_are_not_counted_as_documents():
    assert similarity.Corpus([[[3, 4]], [], [[3]]]).document_frequencies().images == 2
