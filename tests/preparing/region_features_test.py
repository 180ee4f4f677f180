"""Prepared directories from region features: boxes, vectors of whole images, skips."""

import numpy as np
import pytest
from helpers import features, seeds
from helpers.photos import make_photos, messages, run

from tfcap import models
from tfcap.data import pipeline

photos = pytest.fixture(make_photos)
IMAGES = {10 + number: features.image(number, regions=3) for number in range(12)}


def stored(data, split):
    """The fields of each record by image id."""
    result = {}
    for path in data.shard_paths(split):
        for example in messages(path):
            fields = example.features.feature
            result[fields["image/id"].int64_list.value[0]] = {
                name: np.frombuffer(fields[name].bytes_list.value[0], kind)
                for name, kind in (("features/data", "f2"), ("boxes", "f4"), ("image/vector", "f2"))
                if fields[name].bytes_list.value
            }
    return result


def test_the_records_have_the_features_and_boxes_of_the_files(photos):
    path = features.milvlg(photos[0] / "features", IMAGES)
    data = run(photos, images=None, features=str(path))
    assert data.feature_dim == features.WIDTH and data.image_dim is None
    for split, count in (("train", 9), ("val", 3)):
        result = stored(data, split)
        assert len(result) == count
        for image, fields in result.items():
            one = IMAGES[image]
            expected = one.features.astype(np.float16).reshape(-1)
            np.testing.assert_array_equal(fields["features/data"], expected)
            np.testing.assert_allclose(fields["boxes"].reshape(-1, 4), one.unit, atol=1e-6)


@pytest.mark.parametrize("has_boxes", [True, False])
def test_the_feature_sets_of_several_networks_are_joined(photos, has_boxes):
    """Three rows of 6 and two of 4 numbers; the files of the second network lack an image."""
    missing, second = 10, photos[0] / "second"
    first = features.milvlg(photos[0] / "first", IMAGES)
    second.mkdir()
    narrow = {image: one for image, one in IMAGES.items() if image != missing}
    for image, one in narrow.items():
        boxes = {"boxes": one.unit[:2]} if has_boxes else {}
        np.savez(second / f"{image}.npz", features=one.features[:2, :4], **boxes)
    paths = {"features": str(first), "further_features": [str(second)]}
    data = run(photos, images=None, **paths, max_skipped=1)
    assert data.feature_dim == 7 and data.fingerprint["features"]["set_widths"] == [6, 4]
    assert data.fingerprint["features"]["max_regions"] == 5
    result = stored(data, "train") | stored(data, "val")
    assert result.keys() == narrow.keys()
    for image, fields in result.items():
        rows = fields["features/data"].reshape(5, 7)
        halves = IMAGES[image].features.astype(np.float16)
        np.testing.assert_array_equal(rows[:3, :6], halves)
        np.testing.assert_array_equal(rows[3:, :4], halves[:2, :4])
        np.testing.assert_array_equal(rows[3:, 4:6], 0)
        np.testing.assert_array_equal(rows[:, 6], [0, 0, 0, 1, 1])
        if has_boxes:
            boxes = IMAGES[image].unit[[0, 1, 2, 0, 1]]
            np.testing.assert_allclose(fields["boxes"].reshape(5, 4), boxes, atol=1e-6)
        else:
            assert len(fields["boxes"]) == 0


@pytest.mark.slow
def test_vectors_of_whole_images_are_in_the_batches(photos):
    root = features.ruotianluo(photos[0] / "data", IMAGES)
    data = run(photos, images=None, features=str(root))
    assert data.image_dim == 5 and data.fingerprint["features"]["dim"] == features.WIDTH
    options = pipeline.BatchOptions(batch_size=4, captions_per_image=1, max_length=6)
    for batches in (
        pipeline.decoding_batches(data, options),
        pipeline.training_batches(data, options, seed=1).take(2),
    ):
        for batch in batches:
            expected = [IMAGES[image].vector.astype(np.float16) for image in batch["id"].numpy()]
            np.testing.assert_array_equal(batch["image"], np.float32(expected))
    assert data.read("val", [20])["image"].shape == (1, 5)
    assert data.input_specs.keys() == {"features", "mask", "image", "boxes"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mrnn", "mrnn_shared"])
def test_mrnn_reads_the_vector_and_other_models_the_regions(name):
    """With a vector the regions have no effect, and the mean of the regions has the same effect."""
    rng = np.random.default_rng(0)
    regions = rng.normal(size=(2, 3, 7)).astype(np.float32)
    inputs = {"features": regions, "mask": np.ones((2, 3), bool)}
    tokens = np.array([[1, 5, 6], [1, 7, 8]], np.int32)
    sizes = dict(embed_width=6, width=8, multimodal_width=9)

    def logits(model, **more):
        return model.decode(model.encode({**inputs, **more}), tokens).numpy()

    seeds.set_seed(1)
    model = models.build(name, 12, 6, 7, **sizes)
    mean = regions.mean(1)
    np.testing.assert_allclose(logits(model, image=mean), logits(model), atol=1e-5)
    other = logits(model, image=mean + 100)
    assert np.abs(other - logits(model)).max() > 1e-4
    np.testing.assert_array_equal(logits(model, image=mean + 100, features=regions * 2), other)
    xlan = models.build("updown", 12, 6, 7, width=8, attention_width=4)
    np.testing.assert_array_equal(logits(xlan, image=mean + 1), logits(xlan))
