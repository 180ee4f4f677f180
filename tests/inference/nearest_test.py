"""Vectors of images and sentences, and the nearest of them, equal literal computations."""

import collections
import math
import shutil

import numpy as np
import pytest
from helpers import seeds

from tfcap import models
from tfcap.data.prepared import PreparedData
from tfcap.inference import nearest
from tfcap.inference.nearest import SentenceVectors

CAPTIONS = [
    ["A dog runs on the beach.", "the dog runs"],
    ["Two dogs play in the snow"],
    [],
    ["a red car", "A red car on the beach", "a dog in a red car"],
    ["a man plays a red guitar"],
]
VECTORS = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


def _terms(text):
    words = text.lower().replace(".", "").split()
    return collections.Counter([*words, *zip(words, words[1:], strict=False)])


def _literal(text, best):
    """The weighted mean of vectors, by dictionaries."""
    frequency = collections.Counter()
    for own in CAPTIONS:
        frequency.update({term for caption in own for term in _terms(caption)})

    def weighed(text):
        return {
            t: n * math.log(4 / frequency[t]) for t, n in _terms(text).items() if t in frequency
        }

    query, result = weighed(text), []
    for image, own in enumerate(CAPTIONS):
        for caption in own:
            other = weighed(caption)
            product = sum(weight * other.get(term, 0) for term, weight in query.items())
            result.append((product / math.sqrt(sum(w * w for w in other.values())), image))
    result = sorted(result, reverse=True)[:best]
    return sum(w * VECTORS[i].astype(float) for w, i in result) / sum(w for w, _ in result)


@pytest.mark.parametrize("best", [1, 2, 4, 99])
def test_a_vector_is_the_mean_of_images_with_similar_captions(best):
    vectors = SentenceVectors(CAPTIONS, VECTORS, best)
    texts = ["A dog runs!", "red car on the zebra", "two red guitar man plays in the snow"]
    result = vectors(texts)
    assert result.shape == (3, 3) and result.dtype == np.float32
    np.testing.assert_allclose(
        result, [_literal(t.replace("!", ""), best) for t in texts], rtol=1e-5
    )


def test_a_sentence_of_unknown_words_gets_the_mean_of_all_images():
    vectors = SentenceVectors(CAPTIONS, VECTORS)
    np.testing.assert_allclose(vectors(["zebras everywhere", ""]), [VECTORS.mean(0)] * 2, rtol=1e-6)
    assert vectors([]).shape == (0, 3)


def draw(images, queries, width, seed=0, scale=1.0, place=0.0):
    rng = np.random.default_rng(seed)
    numbers = (rng.normal(place, scale, (n, width)) for n in (images, queries))
    return (values.astype(np.float32) for values in numbers)


def literal(vectors, queries, k):
    """Sorts all distances in float64."""
    distances = np.linalg.norm(vectors.astype(float) - queries[:, None].astype(float), axis=-1)
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(distances, order, 1)


@pytest.mark.parametrize("block", [7, 64, 9999])
@pytest.mark.parametrize("images, queries, k", [(500, 20, 10), (64, 7, 64), (3, 2, 9)])
def test_the_nearest_images_equal_those_of_a_full_sort(images, queries, k, block, monkeypatch):
    monkeypatch.setattr(nearest, "_BLOCK", block)
    monkeypatch.setattr(nearest, "_QUERIES", 3)
    vectors, wanted = draw(images, queries, 12)
    result = nearest.Index(vectors, np.arange(images) + 100).search(wanted, k)
    order, distances = literal(vectors, wanted, k)
    np.testing.assert_array_equal(result[0], order)
    np.testing.assert_allclose(result[1], distances, rtol=1e-12)


def test_images_that_differ_little_are_told_apart():
    vectors, wanted = draw(500, 20, 64, scale=1e-4, place=3)
    result, _ = nearest.Index(vectors, np.arange(500)).search(wanted, 3)
    np.testing.assert_array_equal(result, literal(vectors, wanted, 3)[0])


def test_an_image_is_not_its_own_neighbour():
    """A row that has one image fewer ends with -1; the row of another query keeps all."""
    vectors, _ = draw(200, 1, 5)
    index = nearest.Index(vectors, np.arange(200) * 3)
    rows, own = vectors[[0, 10, 20]], np.array([0, 30, -1])
    whole, _ = literal(vectors, rows, 7)
    wanted = [whole[0][1:], whole[1][1:], whole[2][:-1]]
    np.testing.assert_array_equal(index.search(rows, 6, own)[0], wanted)
    positions, distances = index.search(rows, 300, own)
    assert positions.shape == (3, 200) and (positions[2] >= 0).all()
    assert positions[:2, -1].tolist() == [-1, -1] and np.isinf(distances[:2, -1]).all()


def test_an_index_is_made_once_for_what_it_depends_on(shapes, tmp_path, monkeypatch):
    folder = shutil.copytree(shapes, tmp_path / "data", ignore=shutil.ignore_patterns("vectors"))
    data, space = PreparedData.load(folder), nearest.Space()
    in_memory = nearest.open_index(data, space)
    assert not (folder / "vectors").exists()
    first = nearest.open_index(data, space, "")
    np.testing.assert_array_equal(first.vectors, in_memory.vectors)
    (path,) = (folder / "vectors").iterdir()
    assert path.name.startswith("train-original-") and isinstance(first.vectors, np.memmap)
    nearest.open_index(data, space, tmp_path / "other", max_regions=5)
    assert next((tmp_path / "other").iterdir()).name != path.name
    both = nearest.open_index(data, space, splits=("val", "train"))
    np.testing.assert_array_equal(both.ids, [*data.index("val").id, *data.index("train").id])
    np.testing.assert_array_equal(both.vectors[12:], first.vectors)
    with monkeypatch.context() as patch:
        patch.setattr(PreparedData, "examples", None)  # fails if features are read again
        nearest.open_index(data, space, "")


def test_vectors_are_the_mean_of_real_regions(data):
    features = np.random.default_rng(0).normal(size=(2, 5, data.feature_dim)).astype(np.float32)
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
    result = nearest.Space().vectors(features, mask)
    np.testing.assert_allclose(result[0], features[0, :3].mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(result[1], features[1].mean(0), rtol=1e-4, atol=1e-6)
    batch = data.read("train", data.index("train").id[:4], 7)
    wanted = np.asarray(batch["features"]).mean(1)
    index = nearest.open_index(data, nearest.Space(), max_regions=7)
    np.testing.assert_allclose(index.vectors[:4], wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_refined_vectors_follow_the_paper(data, tiny):
    seeds.set_seed(1)
    sizes = dict(embed_width=6, width=8, multimodal_width=10)
    mrnn = models.build("mrnn", len(data.vocab), 12, data.feature_dim, **sizes)
    index = nearest.open_index(data, nearest.Space(mrnn))
    mean = nearest.open_index(data, nearest.Space()).vectors
    kernel = mrnn.checkpoint_items["weights"]["multimodal/image/kernel"].numpy()
    wanted = 1.7159 * np.tanh(2 / 3 * (mean @ kernel))
    assert index.vectors.shape == (64, 10) and index.vectors.std() > 0.01
    np.testing.assert_allclose(index.vectors, wanted, rtol=1e-3, atol=1e-5)
    with pytest.raises(ValueError, match="Only an m-RNN"):
        nearest.Space(tiny)


def test_candidates_are_the_nearest_by_centred_cosine(data):
    candidates = nearest.Candidates(data, "val", None)
    texts = ["a big red circle", "two small blue squares", "a green triangle"]
    raw, train = (
        nearest.open_index(data, nearest.Space(), splits=(split,)) for split in ("val", "train")
    )
    references = data.references("train")
    result = SentenceVectors([references[int(image)] for image in train.ids], train.vectors)(texts)
    centre = train.vectors.astype(float).mean(0)
    images, sentences = (vectors - centre for vectors in (raw.vectors, result))
    images, sentences = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (images, sentences))
    np.testing.assert_allclose(candidates.index.vectors, images, atol=1e-5)
    cosines = sentences @ images.T
    order = np.argsort(-cosines, axis=1)
    np.testing.assert_array_equal(candidates.nearest(candidates.sentences(texts), 5), order[:, :5])
    order = np.argsort(-cosines.T, axis=1)
    among = candidates.among_sentences(candidates.index.vectors, texts, 3)
    np.testing.assert_array_equal(among, order[:, :3])
