"""Prepared data whose features a backbone computes from the kept pictures."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tfcap.backbones.backbone import Backbone
from tfcap.data import pipeline
from tfcap.data.prepared import PreparedData
from tfcap.preparing import build
from tfcap.preparing.settings import Settings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Five pictures of noise with one caption each."""
    folder = tmp_path_factory.mktemp("pictures")
    entries = []
    for number in range(5):
        pixels = np.random.default_rng(number).integers(0, 256, [40, 60, 3], np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        caption = {"raw": "a dog and a cat"}
        entries.append({"filename": f"{number}.png", "split": "train", "sentences": [caption]})
    (folder / "captions.json").write_text(json.dumps({"images": entries}))
    values = dict(images=str(folder), backbone="small_cnn", weights=None, min_count=1)
    settings = Settings(str(folder / "out"), str(folder / "captions.json"), **values)
    return build.prepare(dataclasses.replace(settings, keep_pictures=True))


@pytest.fixture(scope="module")
def backbone():
    """The network of the data after training: all its weights are others."""
    backbone = Backbone("small_cnn")
    backbone.rounds = False
    for variable in backbone.model.variables:
        variable.assign(variable * 1.1)
    return backbone


@pytest.fixture(scope="module")
def data(folder, backbone):
    return PreparedData.load(folder).with_backbone(backbone, "digest")


@pytest.fixture(scope="module")
def expected(folder, backbone):
    """The features of the files themselves, by the id of the image."""
    data = PreparedData.load(folder)
    return {
        image: backbone.extract(backbone.decode(tf.io.read_file(path))[None])[0].numpy()
        for image, path in data.picture_paths("train").items()
    }


def test_features_are_those_of_the_other_weights(data, expected, folder):
    ids = data.index("train").id.tolist()
    batch = data.read("train", ids)
    assert "pictures" not in batch and batch["boxes"].shape == [5, 36, 4]
    for image, features in zip(ids, batch["features"].numpy(), strict=True):
        np.testing.assert_allclose(features, expected[image], atol=1e-5)
    before = PreparedData.load(folder).read("train", ids)
    assert np.abs(before["features"] - batch["features"]).max() > 0.1
    np.testing.assert_array_equal(before["boxes"], batch["boxes"])


def test_batches_have_pictures_until_the_features_are_computed(data, expected):
    options = pipeline.BatchOptions(batch_size=2, captions_per_image=1, max_length=6)
    batches = list(pipeline.decoding_batches(data, options))
    assert len(batches) == 3
    for batch in batches:
        assert batch.keys() == {"pictures", "mask", "tokens", "id", "real"}
        assert batch["pictures"].shape == [2, 96, 96, 3] and batch["mask"].shape == [2, 36]
        for image, features in zip(
            batch["id"].numpy(), data.with_features(batch)["features"], strict=True
        ):
            np.testing.assert_allclose(features, expected[int(image)], atol=1e-5)
