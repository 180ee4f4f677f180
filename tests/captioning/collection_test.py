"""Prepared images are searched by sentences and pictures from Python, in one stage or in two."""

import shutil

import numpy as np
import pytest

import tfcap
from tfcap.captioning.collection import Collection

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data_dir(shapes, tmp_path_factory):
    """A copy: an index is written beside it."""
    folder = tmp_path_factory.mktemp("collection") / "data"
    return shutil.copytree(shapes, folder, ignore=shutil.ignore_patterns("vectors"))


@pytest.fixture(scope="module")
def collection(captioner, data_dir) -> Collection:
    return captioner.collection(data_dir, "val")


def test_a_search_scores_all_images_or_only_the_candidates(captioner, collection, data_dir):
    texts = ["a big red circle", "two small blue squares"]
    every = collection.search(texts, top=99)
    assert len(collection) == 12 and [len(own) for own in every] == [12, 12]
    paths = [match.source for match in every[0]]
    scores = captioner.score(paths, texts[:1])[:, 0]
    np.testing.assert_allclose([match.score for match in every[0]], scores, rtol=1e-3)
    assert not (data_dir / "vectors").exists()
    assert collection.search(texts, top=99, candidates=12) == every
    assert len(list((data_dir / "vectors").iterdir())) == 2  # of val and of train
    few = collection.search(texts[0], top=3, candidates=5)
    assert len(few) == 3 and all(isinstance(match, tfcap.Match) for match in few)
    expected = {match.position: match.score for match in every[0]}
    for match in few:
        assert match.score == pytest.approx(expected[match.position], rel=1e-5)


def test_words_that_the_model_does_not_know_are_told(collection):
    with pytest.warns(UserWarning, match="outside the vocabulary: zebra"):
        collection.search("a red zebra", top=1)


def test_the_nearest_images_have_their_captions(captioner, data_dir):
    collection = captioner.collection(data_dir, "train")
    paths = collection.sources[5:7]
    for near, path, place in zip(collection.nearest(paths, top=3), paths, (5, 6), strict=True):
        # The features of the data are stored in float16.
        assert near[0].source == path and near[0].position == place
        assert near[0].similarity == pytest.approx(1, abs=1e-3)
        assert near[0].captions == tuple(collection.captions[place]) and len(near[0].captions) == 5
        similarities = [one.similarity for one in near]
        assert similarities == sorted(similarities, reverse=True) and len(set(similarities)) == 3
    assert len(collection.nearest(paths[0], top=999)[0]) == len(collection) == 64
