"""The scale of weights over a picture."""

import numpy as np
import pytest

from tfcap.shading import full_strength, spread_evenly


def test_the_largest_weight_of_any_word_is_full_strength():
    weights = np.full([3, 50], 0.01)
    weights[1, 7] = 0.51
    assert full_strength(weights) == pytest.approx(0.51)
    assert full_strength(weights[:1]) == pytest.approx(4 / 50)  # nearly uniform: no hot spot


def test_few_regions_zeros_and_nan_have_a_scale():
    assert full_strength(np.array([[0.6, 0.4]])) == 1.0
    assert full_strength(np.array([[np.nan, 2.0]])) == 2.0
    assert full_strength(np.zeros([0, 9])) == pytest.approx(4 / 9)
    assert full_strength(np.zeros([2, 0])) == 1.0


def test_a_word_whose_weights_are_nearly_uniform_is_spread_evenly():
    weights = np.full(50, 0.97 / 49)
    weights[3] = 0.03  # against 0.02 of a uniform distribution
    assert spread_evenly(weights) and spread_evenly(np.array([0.6, 0.4]))
    weights[3] = 0.05
    assert not spread_evenly(weights) and not spread_evenly(np.array([0.9, 0.1]))
    assert not spread_evenly(np.zeros(4)) and not spread_evenly(np.ones(1))
