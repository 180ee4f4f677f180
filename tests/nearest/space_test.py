"""Image vectors are means of regions or the refined features of m-RNN models."""

import numpy as np
import pytest
from helpers import seeds

from tfcap import models
from tfcap.data import pipeline
from tfcap.data.prepared import PreparedData
from tfcap.nearest.index import load
from tfcap.nearest.space import Space

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(shapes):
    return PreparedData.load(shapes)


@pytest.fixture(scope="module")
def mrnn(data):
    seeds.set_seed(1)
    return models.build(
        "mrnn", len(data.vocab), 12, data.feature_dim, embed_width=6, width=8, multimodal_width=10
    )


def images(data, split, regions=None):
    options = {"batch_size": 4, "captions_per_image": 1, "max_length": 12, "max_regions": regions}
    return pipeline.decoding_batches(data, split=split, **options)


@pytest.fixture(scope="module")
def original():
    return Space("original")


@pytest.mark.parametrize("regions", [None, 7])
def test_original_vectors_are_means_of_regions(data, original, regions):
    index = load(data, original, max_regions=regions)
    batches = list(images(data, "train", regions))
    assert index.ids.tolist() == [int(i) for batch in batches for i in batch["id"]]
    wanted = np.concatenate([batch["features"].numpy().mean(1) for batch in batches])
    np.testing.assert_allclose(index.vectors, wanted, rtol=1e-4, atol=1e-6)


def test_padding_does_not_count_as_a_region(data, original):
    features = np.random.default_rng(0).normal(size=(2, 5, data.feature_dim)).astype(np.float32)
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
    found = original.vectors(features, mask)
    np.testing.assert_allclose(found[0], features[0, :3].mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(original.vectors(features)[1], found[1], rtol=1e-6)


def test_refined_vectors_follow_the_paper(data, original, mrnn):
    space = Space("refined", mrnn)
    index = load(data, space)
    mean = load(data, original).vectors
    kernel = mrnn.checkpoint_items["weights"]["multimodal/image/kernel"].numpy()
    wanted = 1.7159 * np.tanh(2 / 3 * (mean @ kernel))
    assert index.vectors.shape == (64, 10) and index.vectors.std() > 0.01
    np.testing.assert_allclose(index.vectors, wanted, rtol=1e-3, atol=1e-5)
    batch = next(iter(images(data, "train")))
    found = space.vectors(batch["features"], batch["mask"])
    np.testing.assert_allclose(found, index.vectors[:4], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("variant, width", [("multimodal", 9), ("init", 8), ("child", 9)])
def test_refined_vectors_of_mrnn_shared(data, variant, width):
    sizes = {"embed_width": 6, "width": 8, "multimodal_width": 9, "variant": variant}
    model = models.build("mrnn_shared", len(data.vocab), 12, data.feature_dim, **sizes)
    batch = next(iter(images(data, "train")))
    found = Space("refined", model).vectors(batch["features"], batch["mask"])
    weights = model.checkpoint_items["weights"]
    mean = batch["features"].numpy().mean(1)
    if variant == "child":
        wanted = 1.7159 * np.tanh(2 / 3 * mean @ weights["multimodal/image/kernel"].numpy())
    else:
        wanted = mean @ weights["image/kernel"].numpy() + weights["image/bias"].numpy()
        wanted = np.maximum(wanted, 0)
    assert found.shape == (4, width) and found.std() > 0
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)


def test_a_model_without_refined_features_is_refused(data, tiny):
    with pytest.raises(ValueError, match="needs an m-RNN .* Received: 'xtransformer'. Choose"):
        Space("refined", tiny)
    with pytest.raises(ValueError, match="space must be one of original, refined. Received: 'x'"):
        Space("x")
    model = models.build("mrnn", 20, 12, data.feature_dim, variant="rnn_base", width=8)
    with pytest.raises(ValueError, match="m-RNN whose multimodal layer reads the image"):
        load(data, Space("refined", model))
