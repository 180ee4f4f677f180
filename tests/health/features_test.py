"""Dead features, empty and equal images, and statistics of other records are found."""

import numpy as np
import pytest

from tfcap.health import features
from tfcap.health.features import FeatureStatistics

IMAGES, REGIONS, WIDTH = 30, 4, 20


def values(seed=0):
    return np.random.default_rng(seed).normal(1.0, 2.0, [IMAGES, REGIONS, WIDTH]).astype("f4")


def statistics(content, counts=None, split="train", batch=7):
    """The statistics of features [n, R, F], given in batches as a reader does."""
    counts = np.full(len(content), REGIONS) if counts is None else np.asarray(counts)
    mask = np.arange(REGIONS) < counts[:, None]
    content = np.where(mask[..., None], content, np.float32(0))
    result = FeatureStatistics(content.shape[-1])
    for start in range(0, len(content), batch):
        part = slice(start, start + batch)
        ids = np.arange(len(content))[part] + 100
        result.add(split, ids, content[part], mask[part])
    return result


def recorded(content):
    """What prepare records of features without padding."""
    norms = np.linalg.norm(content, axis=-1)
    return {"mean": content.mean(), "std": content.std(), "mean_norm": norms.mean()}


def test_good_features_are_ok():
    content = values()
    found = statistics(content)
    assert features.numbers(found, recorded(content)).status == "ok"
    assert features.columns(found).text == "all 20 features vary"
    assert features.images(found).text.startswith("no two of 30 images are equal")


def test_the_numbers_are_those_of_numpy():
    content, counts = values(), 1 + np.arange(IMAGES) % REGIONS
    real = content[np.arange(REGIONS) < counts[:, None]]
    found = statistics(content, counts)
    norms = np.linalg.norm(real, axis=1)
    assert found.norms == pytest.approx((norms.min(), norms.max()))
    np.testing.assert_allclose(found.low, real.min(axis=0))
    np.testing.assert_allclose(found.high, real.max(axis=0))
    means = [image[:n].astype(float).mean(axis=0) for image, n in zip(content, counts, strict=True)]
    size = np.square(means).sum(axis=1).mean()
    assert found.spread() == pytest.approx(np.sqrt(np.var(means, axis=0).sum() / size))
    assert features.numbers(found, recorded(real)).status == "ok"


@pytest.mark.parametrize("key", ["mean", "std", "mean_norm"])
def test_statistics_of_other_records_are_a_problem(key):
    content = values()
    found = features.numbers(statistics(content), recorded(content) | {key: 1.5})
    assert found.status == "problem" and f"records a {key} of 1.5" in found.text


def test_without_training_images_all_images_are_compared():
    content = values()
    found = statistics(content, split="test")
    assert features.numbers(found, recorded(content)).status == "ok"
    assert features.numbers(found, {}).status == "ok"  # older directories record nothing


@pytest.mark.parametrize(("count", "status"), [(1, "warning"), (2, "warning"), (3, "problem")])
def test_dead_features_are_found(count, status):
    content = values()
    content[..., 5 : 5 + count] = 0
    found = features.columns(statistics(content))
    assert found.status == status and found.remedy
    assert f"Of 20 features, {count} are always 0 (column 5" in found.text


def test_constant_features_are_found():
    content = values()
    content[..., 3], content[..., 4] = 0.5, 0
    text = features.columns(statistics(content)).text
    assert "1 are always 0 (column 4) and 1 have one other value (column 3)" in text


def test_an_image_of_zeros_is_a_problem():
    content = values()
    content[11] = 0
    found = features.images(statistics(content))
    assert found.status == "problem"
    assert found.text == "1 of 30 images have only zeros (images 111)."


@pytest.mark.parametrize(("copies", "status"), [(1, "warning"), (20, "problem")])
def test_images_of_equal_features_are_found(copies, status):
    content = values()
    content[2 : 2 + copies] = content[1]
    found = features.images(statistics(content))
    assert found.status == status
    assert f"{copies} of 30 images have the features of another one (102 as 101" in found.text


def test_padding_does_not_make_images_equal():
    content = values()
    content[1] = content[0]
    counts = np.full(IMAGES, REGIONS)
    counts[1] = REGIONS - 1
    assert features.images(statistics(content, counts)).status == "ok"


def test_images_that_hardly_differ_are_warned_of():
    content = np.full([IMAGES, REGIONS, WIDTH], 5, np.float32)
    content += 1e-3 * values()
    found = features.images(statistics(content))
    assert found.status == "warning" and "hardly tell the images apart" in found.text


def test_records_with_more_regions_than_recorded_are_a_problem():
    found = statistics(values())
    assert features.numbers(found, {"max_regions": REGIONS}).status == "ok"
    wrong = features.numbers(found, {"max_regions": REGIONS - 1})
    assert wrong.status == "problem" and "at most 3 regions, the records have up to 4" in wrong.text


def test_without_a_record_nothing_is_known():
    found = features.numbers(FeatureStatistics(WIDTH), {})
    assert found.status == "problem" and found.text.startswith("No record could be read")
