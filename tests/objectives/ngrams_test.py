"""CIDEr-D, BLEU-4 and F1 on ids against pycocoevalcap and their definitions, written out."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import reranking
from pycocoevalcap.bleu.bleu_scorer import BleuScorer
from pycocoevalcap.cider.cider_scorer import CiderScorer

from tfcap.data.document_frequency import document_frequencies
from tfcap.objectives import ngrams

PAD, EOS, UNK = 0, 2, 3
SIZE = 12  # few words, so that captions share many
SPEC = tf.TensorSpec([None, None, None], tf.int32)
SETTINGS = pytest.mark.parametrize("eos", [True, False])
UNKNOWNS = pytest.mark.parametrize("matches", [True, False])


def caption(rng, most, size=SIZE):
    """Draws words without EOS of a random length from 0; some captions repeat a word."""
    words = rng.integers(UNK, size, rng.integers(0, most + 1))
    return [words[0]] * len(words) if len(words) and rng.random() < 0.1 else list(words)


def array(captions, length, ends=True):
    """Lists [B][X] of words to int32 [B, X, length], EOS where there is room."""
    result = np.zeros([len(captions), max(map(len, captions)), length], np.int32)
    for i, image in enumerate(captions):
        for j, words in enumerate(image):
            row = [*words, *([EOS] if ends else [])][:length]
            result[i, j, : len(row)] = row
    return result


def draw(seed, images=None, size=SIZE):
    """Samples and 1 to 4 references per image: random, copied, empty, unknown, long, cut."""
    rng = np.random.default_rng(seed)
    images = images or int(rng.integers(1, 5))
    references, samples = [], []
    for _ in range(images):
        own = [caption(rng, 8, size) for _ in range(rng.integers(1, 5))]
        references.append(own)
        mixed = [w if rng.random() < 0.6 else int(rng.integers(UNK, size)) for w in own[0]]
        kinds = [own[0], [], [UNK] * 5, mixed, [size - 1] * 7, caption(rng, 13, size)]
        samples.append(kinds + [caption(rng, 13, size) for _ in range(rng.integers(3))])
    most = max(map(len, samples))  # as many of each image
    samples = [own + [[UNK, 4]] * (most - len(own)) for own in samples]
    return array(samples, int(rng.integers(9, 14))), references


def read(row, eos):
    """Returns the words of a row of ids."""
    words = []
    for word in row.tolist():
        if word == PAD or (word == EOS and not eos):
            break
        words.append(word)
        if word == EOS:
            break
    return words


def read_references(rows, eos, matches):
    """Words of each reference; unknown words are all different if they must not match."""
    result = [read(row, eos) for row in rows if row.any()]
    if not matches:
        fresh = iter(range(-1, -10_000, -1))
        result = [[next(fresh) if w == UNK else w for w in words] for words in result]
    return result


def frequencies(table, matches):
    """The table as a dictionary, without UNK if it must not match."""
    pairs = zip(table.ngrams.tolist(), table.counts.tolist(), strict=True)
    result = {tuple(w for w in g if w): c for g, c in pairs}
    return {g: c for g, c in result.items() if matches or UNK not in g}


def reward(scorer):
    """References and rewards in one traced function of any shapes."""
    return tf.function(
        lambda x, r: scorer(x, scorer.references(r)), input_signature=[SPEC, SPEC], autograph=False
    )


@SETTINGS
@UNKNOWNS
@pytest.mark.parametrize("size", [SIZE, ngrams.LARGEST_VOCABULARY])
def test_cider_is_its_definition(eos, matches, size):
    """With the largest vocabulary the packed n-grams use all 63 bits."""

    def raise_ids(x):  # the highest ids of a large vocabulary instead of the lowest
        return np.where(x > UNK, x + size - SIZE, x)

    corpus = [references for seed in range(8) for references in draw(100 + seed)[1]]
    table = document_frequencies(
        [[raise_ids(np.array(c, int)).tolist() for c in own] for own in corpus]
    )
    score = reward(ngrams.CiderD(table, size, eos, matches))
    frequency = frequencies(table, matches)
    for seed in range(10 if size == SIZE else 3):
        samples, references = draw(seed)
        samples = raise_ids(samples)
        rows = raise_ids(array(references, 5 + seed % 6))  # some references are cut
        result = score(samples, rows).numpy()
        assert result.dtype == np.float32 and result.shape == samples.shape[:2]
        wanted = [
            [
                reranking.cider(
                    read(row, eos), read_references(own, eos, matches), frequency, table.images
                )
                for row in image
            ]
            for image, own in zip(samples, rows, strict=True)
        ]
        np.testing.assert_allclose(result, wanted, atol=1e-5)
    assert score.experimental_get_tracing_count() == 1


@SETTINGS
@UNKNOWNS
@pytest.mark.parametrize("images", [1, 2, 7])
def test_cider_equals_pycocoevalcap(eos, matches, images):
    """The references are the corpus, as in its evaluation; it names CIDEr-D plain CIDEr."""
    samples, references = draw(images, images)
    rows = array(references, 12)
    scorer = ngrams.CiderD(document_frequencies(references), SIZE, eos, matches)
    result = scorer(samples, scorer.references(rows)).numpy()
    kept = [read_references(own, eos, matches) for own in rows]
    if not matches:  # read image by image, so unknown words of two images have one name
        kept = [[[w - 99 * i * (w < 0) for w in c] for c in own] for i, own in enumerate(kept)]
    for place in range(samples.shape[1]):
        official = CiderScorer(n=4, sigma=6.0)
        for row, own in zip(samples[:, place], kept, strict=True):
            official += (" ".join(map(str, read(row, eos))), [" ".join(map(str, c)) for c in own])
        _, wanted = official.compute_score()
        np.testing.assert_allclose(result[:, place], wanted, atol=1e-5)
    assert (images == 1) == (not result.any())  # the idf of a single image is 0


@SETTINGS
@UNKNOWNS
def test_bleu_equals_pycocoevalcap(eos, matches):
    score = reward(ngrams.Bleu4(SIZE, eos, matches))
    for seed in range(8):
        samples, references = draw(seed)
        rows = array(references, 5 + seed % 6)
        result = score(samples, rows).numpy()
        for image, own, values in zip(samples, rows, result, strict=True):
            kept = read_references(own, eos, matches)
            for row, value in zip(image, values, strict=True):
                official = BleuScorer(n=4)
                official += (
                    " ".join(map(str, read(row, eos))),
                    [" ".join(map(str, c)) for c in kept],
                )
                _, wanted = official.compute_score(option="closest")
                np.testing.assert_allclose(value, wanted[3][0], rtol=2e-5, atol=1e-5)
    assert np.isfinite(result).all()


@SETTINGS
@UNKNOWNS
def test_similarities_are_those_of_each_pair_alone(eos, matches):
    """CIDEr-D and F1 of a sample with each reference alone; it is 0 without a reference."""
    corpus = [references for seed in range(8) for references in draw(100 + seed)[1]]
    table = document_frequencies(corpus)
    both = ngrams.CiderD(table, SIZE, eos, matches), ngrams.NgramF1(SIZE, eos, matches)
    frequency, total = frequencies(table, matches), 0.0
    for seed in range(6):
        samples, references = draw(seed)
        rows = array(references, 5 + seed % 6)
        result = [s.similarities(samples, s.references(rows)).numpy() for s in both]
        assert {x.shape for x in result} == {(*samples.shape[:2], rows.shape[1])}
        for i, (image, own) in enumerate(zip(samples, rows, strict=True)):
            kept = iter(read_references(own, eos, matches))
            for c, reference in enumerate(own):
                words = next(kept) if reference.any() else None
                for s, row in enumerate(image):
                    pair = [result[0][i, s, c], result[1][i, s, c]]
                    values = read(row, eos)
                    wanted = [0.0, 0.0]
                    if words is not None:
                        cider = reranking.cider(values, [words], frequency, table.images)
                        wanted = [cider, reranking.f1(values, words)]
                    np.testing.assert_allclose(pair, wanted, atol=1e-5)
                    total += wanted[1]
    assert total > 10


def test_what_follows_the_end_is_ignored():
    samples, references = draw(3, 4)
    table, references = document_frequencies(references), array(references, 10)

    def pollute(x):
        ended = np.cumsum((x == EOS) | (x == PAD), -1) > 0
        return np.where(ended & (x == PAD) & x.any(-1, keepdims=True), 5, x).astype(np.int32)

    for scorer in (ngrams.CiderD(table, SIZE), ngrams.Bleu4(SIZE)):
        wanted = scorer(samples, scorer.references(references))
        result = scorer(pollute(samples), scorer.references(pollute(references)))
        np.testing.assert_array_equal(result, wanted)
        assert np.ptp(wanted) > 0


@pytest.mark.slow
def test_references_may_come_from_the_data_pipeline():
    """Equal there, every leaf has the images first, and shapes stay static."""
    samples, references = draw(3, 4)
    scorer = ngrams.CiderD(document_frequencies(references), SIZE)
    rows = tf.constant(array(references, 10))
    dataset = tf.data.Dataset.from_tensor_slices(rows).batch(4, drop_remainder=True)
    dataset = dataset.map(scorer.references)
    assert all(s.shape[0] == 4 and None not in s.shape for s in dataset.element_spec.values())
    mapped = next(iter(dataset))
    wanted = scorer(samples, scorer.references(rows))
    np.testing.assert_allclose(scorer(samples, mapped), wanted, rtol=1e-6)
    part = {name: leaf[1:3] for name, leaf in mapped.items()}
    np.testing.assert_allclose(scorer(samples[1:3], part), wanted[1:3], rtol=1e-6)
