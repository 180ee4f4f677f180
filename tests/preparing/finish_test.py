"""The statistics of features in dataset.json."""

import numpy as np
import pytest

from tfcap.preparing.finish import Sums


def test_sums_of_parts_give_the_statistics_of_the_whole():
    rng = np.random.default_rng(0)
    images = [rng.normal(2, 3, (regions, 5)).astype(np.float32) for regions in (4, 1, 7)]
    whole = Sums()
    for part in (images[:1], images[1:]):
        sums = Sums()
        for features in part:
            sums.add(features)
        whole.merge(sums)
    values = np.concatenate(images).astype(np.float64)
    expected = {"mean": values.mean(), "std": values.std()}
    expected["mean_norm"] = np.linalg.norm(values, axis=1).mean()
    assert whole.statistics(5) == pytest.approx(expected, rel=1e-6)
    assert whole.most_regions == 7 and whole.regions == 12
