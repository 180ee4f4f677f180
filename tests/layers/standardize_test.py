"""Standardised features: measured over real regions, kept in checkpoints, set before training."""

import keras
import numpy as np

from tfcap.layers.standardize import Standardize


def test_channels_have_mean_zero_and_deviation_one_over_real_regions():
    rng = np.random.default_rng(0)
    features = rng.normal([3.0, -2.0, 7.0], [0.5, 4.0, 0.0], (6, 5, 3)).astype("float32")
    mask = np.arange(5) < rng.integers(1, 6, (6, 1))
    features[~mask] = 1e6  # padding
    layer = Standardize(3)
    layer.build(None)
    layer.adapt(
        [{"features": features[:4], "mask": mask[:4]}, {"features": features[4:], "mask": mask[4:]}]
    )
    rows = layer(features).numpy()[mask]
    np.testing.assert_allclose(rows.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(rows[:, :2].std(0), 1, rtol=1e-5)
    assert not rows[:, 2].any() and not layer.trainable_variables


def test_a_saved_layer_keeps_what_it_measured(tmp_path):
    inputs = keras.Input((5, 3))
    layer = Standardize(3)
    model = keras.Model(inputs, layer(inputs))
    layer.adapt([{"features": np.random.rand(2, 5, 3), "mask": np.ones((2, 5), bool)}])
    model.save(tmp_path / "m.keras")
    x = np.random.rand(4, 5, 3).astype("float32")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded(x), model(x))
