"""The first stage of retrieval chooses the images that are nearest by their vectors."""

import numpy as np
import pytest

from tfcap.data.prepared import PreparedData
from tfcap.nearest.neighbours import Neighbours
from tfcap.nearest.sentences import SentenceVectors
from tfcap.nearest.space import Space
from tfcap.scoring.candidates import Candidates, neighbourhoods, of_split


@pytest.fixture(scope="module")
def data(shapes):
    return PreparedData.load(shapes)


@pytest.fixture(scope="module")
def first(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("indices")
    return Candidates(data, "val", Space("original"), str(folder)), folder


def _order(queries, vectors):
    distances = np.linalg.norm(vectors.astype(float) - queries[:, None].astype(float), axis=-1)
    return np.argsort(distances, axis=1, kind="stable")


def test_candidates_are_the_nearest_by_centred_cosine(data, first):
    candidates, folder = first
    texts = ["a big red circle", "two small blue squares", "a green triangle"]
    raw, train = (of_split(data, split, Space("original"), None) for split in ("val", "train"))
    centre = train.vectors.astype(float).mean(0)
    images = raw.vectors - centre
    images /= np.linalg.norm(images, axis=1, keepdims=True)
    np.testing.assert_allclose(candidates.index.vectors, images, atol=1e-5)
    references = data.references("train")
    found = SentenceVectors([references[int(image)] for image in train.ids], train.vectors)(texts)
    sentences = found - centre
    sentences /= np.linalg.norm(sentences, axis=1, keepdims=True)
    np.testing.assert_allclose(candidates.sentences(texts), sentences, atol=1e-5)
    cosines = candidates.sentences(texts) @ candidates.index.vectors.T
    order = np.argsort(-cosines, axis=1)
    np.testing.assert_array_equal(candidates.of_sentences(texts, 5), order[:, :5])
    order = np.argsort(-cosines.T, axis=1)
    np.testing.assert_array_equal(candidates.among_sentences(texts, 3), order[:, :3])
    assert candidates.nearest(images[:2].astype(np.float32), 99).shape == (2, 12)
    names = ["train-original", "val-original-centred"]
    assert sorted(path.name for path in folder.iterdir()) == names


def test_an_image_is_the_first_in_its_neighbourhood():
    points = np.array([[0.0, 0], [1, 0], [5, 0], [1, 0], [0, 2]], np.float32)
    index = Neighbours(points, np.arange(5) * 2)
    assert neighbourhoods(index, 1).tolist() == [[0], [1], [2], [3], [4]]
    wanted = [[0, 1, 3], [1, 3, 0], [2, 1, 3], [3, 1, 0], [4, 0, 1]]
    assert neighbourhoods(index, 3).tolist() == wanted
    assert neighbourhoods(index, 9).shape == (5, 5)


def test_a_limit_leaves_out_the_other_images(data, first):
    limited = Candidates(data, "val", Space("original"), str(first[1]), limit=5)
    np.testing.assert_array_equal(limited.index.vectors, first[0].index.vectors[:5])
    assert limited.nearest(first[0].index.vectors, 99).shape == (12, 5)
    with pytest.raises(ValueError, match="Received: limit=5. Search exactly, or without a limit"):
        Candidates(data, "val", Space("original"), None, limit=5, approximate=True)
