"""The mean image is the mean of training images, and its score normalises where it is asked for."""

import numpy as np
import pytest
from helpers import prepared

from tfcap import runs
from tfcap.data.prepared import PreparedData
from tfcap.scoring import likelihood, marginal, score_files
from tfcap.scoring.retrieval import Pairs, rank

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(shapes):
    return PreparedData.load(shapes)


def test_the_mean_image_is_the_mean_of_each_cell(data):
    places = marginal.marginal_places(data, 9, 5)
    (block,) = likelihood.images(data, "train", places, 9)
    mean = marginal.mean_image(data, places)
    wanted = block["features"].numpy().astype(np.float64).mean(0)
    np.testing.assert_allclose(mean["features"][0], wanted, rtol=1e-5, atol=1e-7)
    assert mean["mask"].all() and set(mean) == {"features", "mask"}
    assert marginal.mean_image(data, places, 7)["features"].shape[1] == 7


def test_vectors_of_whole_images_have_a_mean_and_a_region_that_of_the_images_that_have_it(tmp_path):
    made = prepared.write_directory(str(tmp_path), image_dim=5)
    mean = marginal.mean_image(PreparedData.load(tmp_path), np.arange(7))
    vectors = [record.image.astype(np.float64) for record in made]
    np.testing.assert_allclose(mean["image"], np.mean(vectors, 0)[None], rtol=1e-5, atol=1e-7)
    for region in range(3):
        those = [r.features[region].astype(np.float64) for r in made if len(r.features) > region]
        wanted = np.mean(those, 0)
        np.testing.assert_allclose(mean["features"][0, region], wanted, rtol=1e-5, atol=1e-7)


def test_captions_are_normalised_by_the_mean_image(trained, data, tmp_path):
    pairs = Pairs(runs.load(trained), data, "val", limit=3, block=3)
    captions, owners = pairs.captions()
    scorer = pairs.scorer(likelihood.encode(pairs.run.vocab, captions, 12))
    files = score_files.ScoreFiles(None, {}, {})
    found, scored = marginal.log_marginals(pairs, scorer, files, 9, 5, "mean_image")
    mean = marginal.mean_image(data, marginal.marginal_places(data, 9, 5), pairs.run.max_regions)
    np.testing.assert_allclose(found, scorer(**mean)[0], rtol=1e-5)
    assert scored == 1
    first = rank(pairs, 9, 5, str(tmp_path), normalise="mean_image")[0]["image to text"]
    kept = np.load(tmp_path / "mean-of-9-seed5.npy")
    np.testing.assert_allclose(kept[0], found, rtol=1e-5)
    scores = np.load(tmp_path / "pairs.npy") - found
    ranks = [1 + (row[owners != n] >= row[owners == n].max()).sum() for n, row in enumerate(scores)]
    assert first.median == np.median(ranks)
    files = score_files.ScoreFiles(str(tmp_path), *_settings(tmp_path))
    again = marginal.log_marginals(pairs, scorer, files, 9, 5, "mean_image")
    assert again[1] == 0 and np.array_equal(again[0], kept[0])
    other, scored = marginal.log_marginals(pairs, scorer, files, 9, 6, "mean_image")
    assert scored == 1 and not np.allclose(other, found, rtol=1e-5)  # other images, another file
    np.testing.assert_array_equal(np.load(tmp_path / "mean-of-9-seed6.npy")[0], other)


def _settings(folder):
    from tfcap.files import read_json

    return read_json(folder / "pairs.json", ""), {}
