"""The measurements of a confidence, against numbers by hand and against a known truth."""

import json

import numpy as np
import pytest

from tfcap.metrics import calibration

# Five captions. In the order of the confidence they are usable, not, usable, not, not.
CONFIDENCE = np.array([0.9, 0.2, 0.6, 0.8, 0.4])
SCORES = np.array([80.0, 10.0, 60.0, 20.0, 30.0])


def measured(**values):
    others = {"other": np.array([1.0, 5.0, 3.0, 2.0, 4.0])}
    return calibration.calibration(CONFIDENCE, SCORES, 50.0, others, **values)


def test_areas_by_hand():
    """The risks of the first 1 to 5 captions are 0, 1/2, 1/3, 1/2 and 3/5."""
    result = measured(samples=5)
    assert result.areas["confidence"].value == pytest.approx(
        (0 + 1 / 2 + 1 / 3 + 1 / 2 + 3 / 5) / 5
    )
    # The other order takes captions 2, 5, 3, 4, 1.
    other = (1 + 1 + 2 / 3 + 3 / 4 + 3 / 5) / 5
    assert result.areas["other"].value == pytest.approx(other)
    assert result.best == pytest.approx((0 + 0 + 1 / 3 + 2 / 4 + 3 / 5) / 5)
    assert result.chance == pytest.approx(3 / 5) and result.usable == pytest.approx(2 / 5)
    assert result.gain.value == pytest.approx(1 - result.areas["confidence"].value / other)
    assert result.curves["confidence"][19::20] == [0.0, 0.5, 0.3333, 0.5, 0.6]


def test_error_and_ratio_by_hand():
    """Two bins: 0.2, 0.4 and 0.6 with one usable caption of three; 0.8 and 0.9 with one of two."""
    bins = calibration.bins_of(CONFIDENCE, SCORES >= 50, 2)
    assert [one.images for one in bins] == [3, 2]
    assert calibration.error_of(bins) == pytest.approx(
        3 / 5 * (0.4 - 1 / 3) + 2 / 5 * (0.85 - 1 / 2)
    )
    # With as many bins as captions, each has the distance from 0 or 1.
    assert measured(samples=2).error.value == pytest.approx((0.1 + 0.2 + 0.4 + 0.8 + 0.4) / 5)
    # The first two captions have CIDEr 80 and 20; the mean of all is 40.
    assert calibration.kept_ratio(CONFIDENCE, SCORES) == pytest.approx(50 / 40)


def test_a_true_probability_is_calibrated_and_the_intervals_hold_the_value():
    rng = np.random.default_rng(0)
    truth = rng.random(2000)
    scores = np.where(rng.random(2000) < truth, 100.0, 0.0)
    result = calibration.calibration(truth, scores, 50.0, {"noise": rng.random(2000)}, samples=200)
    assert result.error.value < 0.05 and result.gain.low > 0.2
    for one in (*result.areas.values(), result.gain, result.ratio):
        assert one.low < one.value < one.high
    again = calibration.calibration(truth, scores, 50.0, {"noise": truth}, samples=200, seed=2)
    assert again.areas["confidence"].low != result.areas["confidence"].low
    assert again.gain.value == 0.0
    wrong = calibration.calibration(truth**4, scores, 50.0, {"noise": truth}, samples=2)
    assert wrong.error.value > 0.2  # in the same order, which is all that the area depends on
    assert wrong.areas["confidence"].value == result.areas["confidence"].value


def test_the_table_and_the_json_have_the_values():
    result = measured(samples=5)
    text = result.format()
    assert "5 captions; usable: CIDEr of at least 50, 0.400 of them" in text
    assert f"\nconfidence     {result.areas['confidence'].value:.3f} (" in text
    assert "\nchance         0.600\n" in text
    values = json.loads(json.dumps(result.as_dict()))
    assert values["areas"]["other"]["value"] == result.areas["other"].value
    assert values["bins"][0] == {"images": 1, "confidence": 0.2, "usable": 0.0}
