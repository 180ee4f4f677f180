"""Learning-rate schedules, Plateau and Patience against their formulas."""

import numpy as np
import pytest
import tensorflow as tf

from tfcap import configs
from tfcap.training import optim


def rates(schedule, steps):
    return [float(schedule(step)) for step in steps]


@pytest.mark.parametrize("width, peak", [(1024, 3.125e-4), (768, 3.608e-4)])
def test_noam_equals_its_formula(width, peak):
    noam = optim.Noam(1.0, width, 10000)
    steps = np.array([0, 1, 99, 9998, 9999, 10000, 50000])  # n is one more
    n = steps + 1.0
    expected = width**-0.5 * np.minimum(n**-0.5, n * 10000**-1.5)
    np.testing.assert_allclose(rates(noam, steps), expected, rtol=1e-5)
    assert abs(rates(noam, [9999])[0] / peak - 1) < 1e-3
    np.testing.assert_allclose(
        rates(optim.Noam(2.5, width, 10000), steps), 2.5 * expected, rtol=1e-5
    )


def test_linear_warm_up_and_decay_have_the_expected_rates():
    """The rate grows until step `warmup_steps` and is then multiplied at regular steps."""
    schedule = optim.WarmupDecay(0.5, 10, "linear", decay_steps=20, decay_rate=0.8, minimum=0.26)
    steps = [0, 4, 9, 10, 19, 20, 39, 40, 60, 1000]
    expected = [0.05, 0.25, 0.5, 0.5, 0.5, 0.4, 0.4, 0.32, 0.26, 0.26]
    np.testing.assert_allclose(rates(schedule, steps), expected, rtol=1e-6)
    flat = optim.WarmupDecay(0.5, 10, "linear")
    np.testing.assert_allclose(rates(flat, [0, 9, 10**6]), [0.05, 0.5, 0.5], rtol=1e-6)


def test_hyperbolic_warm_up_equals_its_formula():
    """docs/systems.md 7.3: max([it >= W] 5e-7, lr / max(W - it, 1) 0.8^floor(it / decay))."""
    warmup, decay = 20000, 47228
    schedule = optim.WarmupDecay(
        2e-4, warmup, "hyperbolic", decay_steps=decay, decay_rate=0.8, minimum=5e-7
    )
    steps = np.array([0, 10000, 19000, 19999, 20000, 47227, 47228, 94456, 47228 * 40])
    expected = [
        max((it >= warmup) * 5e-7, 2e-4 / max(warmup - it, 1) * 0.8 ** (it // decay))
        for it in steps
    ]
    np.testing.assert_allclose(rates(schedule, steps), expected, rtol=1e-5)
    np.testing.assert_allclose(rates(schedule, [0, 10000, 19000]), [1e-8, 2e-8, 2e-7], rtol=1e-5)
    assert rates(schedule, [47228 * 40])[0] == pytest.approx(5e-7)


def test_decay_runs_during_warm_up():
    schedule = optim.WarmupDecay(1.0, 10, "hyperbolic", decay_steps=5, decay_rate=0.5)
    np.testing.assert_allclose(rates(schedule, [4, 5]), [1 / 6, 0.5 / 5], rtol=1e-6)


def test_the_smallest_rate_holds_from_the_first_step_after_the_warm_up():
    options = dict(decay_steps=5, decay_rate=0.5, minimum=0.6)
    schedule = optim.WarmupDecay(1.0, 10, "hyperbolic", **options)
    np.testing.assert_allclose(rates(schedule, [9, 10]), [0.5, 0.6], rtol=1e-6)


def test_the_late_decay_of_tf_mrnn_has_the_expected_rates():
    """docs/systems.md 6.5: 1.0 for 300,000 steps, then 0.85 times as much every 10,000."""
    config = configs.Schedule(
        name="linear",
        learning_rate=1.0,
        warmup_steps=1,
        decay_start=300_000,
        decay_steps=10_000,
        decay_rate=0.85,
    )
    steps = [0, 10_000, 299_999, 309_999, 310_000, 319_999, 320_000, 400_000]
    expected = [1, 1, 1, 1, 0.85, 0.85, 0.85**2, 0.85**10]
    np.testing.assert_allclose(rates(optim.schedule(config, 256), steps), expected, rtol=1e-6)


def test_a_configuration_gives_its_schedule():
    make = lambda **values: optim.schedule(configs.Schedule(**values), 256)  # noqa: E731
    assert rates(make(name="constant", learning_rate=3e-4), [0, 10**6]) == pytest.approx([3e-4] * 2)
    noam = make(name="noam", learning_rate=2.0, warmup_steps=50)
    assert rates(noam, [49])[0] == pytest.approx(2 * (256 * 50) ** -0.5)
    wide = make(name="noam", learning_rate=2.0, warmup_steps=50, model_width=1024)
    assert rates(wide, [49])[0] == pytest.approx(2 * (1024 * 50) ** -0.5)
    shared = dict(learning_rate=1.0, warmup_steps=8, decay_steps=4, decay_rate=0.5, minimum=0.2)
    assert rates(make(name="linear", **shared), [3, 4, 100]) == pytest.approx([0.5, 0.3125, 0.2])
    assert rates(make(name="hyperbolic", **shared), [3, 4, 100]) == pytest.approx([0.2, 0.125, 0.2])


def test_a_plateau_lowers_the_rate():
    """With patience 2 the third validation in a row without a better score lowers the rate."""
    plateau = optim.Plateau(2, 0.8, "CIDEr", higher=True)
    schedule = optim.Scaled(optim.Constant(0.1), plateau.scale)
    scales = []
    for score in [50, 60, 59, 58, 60, 61, 61, 61, 61, 60, 60, 60, 70]:
        plateau({"CIDEr": score, "loss": 1.0})
        scales.append(round(float(schedule(0)) / 0.1, 4))
    down = [1.0] * 4 + [0.8] * 4 + [0.64] * 3 + [0.512] * 2
    assert scales == down
    assert float(plateau.best.numpy()) == 70


def test_a_plateau_of_a_loss_lowers_the_rate():
    plateau = optim.Plateau(1, 0.5, "loss", higher=False)
    found = []
    for loss in [3.0, 2.0, 2.5, 2.1, 1.0, 1.0, 1.2]:
        plateau({"loss": loss})
        found.append(float(plateau.scale.numpy()))
    assert found == [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25]


def test_a_gain_below_the_threshold_does_not_count():
    """The threshold is 1e-4 of the best score."""
    plateau = optim.Plateau(1, 0.5, "CIDEr", higher=True)
    for score, scale in [(100.0, 1.0), (100.005, 1.0), (100.009, 0.5), (100.02, 0.5), (100, 0.5)]:
        plateau({"CIDEr": score})
        assert float(plateau.scale.numpy()) == scale


def test_plateau_without_patience_or_score_never_lowers():
    for plateau, output in (
        (optim.Plateau(0, 0.5, "CIDEr", higher=True), {"CIDEr": 1.0}),
        (optim.Plateau(1, 0.5, "CIDEr", higher=True), {"loss": 1.0}),
    ):
        for _ in range(5):
            plateau(output)
        assert float(plateau.scale.numpy()) == 1.0


def test_plateau_survives_a_restart(tmp_path):
    plateau, other = (optim.Plateau(2, 0.8, "CIDEr", higher=True) for _ in range(2))
    for score in (50, 40, 40, 40, 40):
        plateau({"CIDEr": score})
    path = tf.train.Checkpoint(plateau=plateau).write(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(plateau=other).read(path).assert_consumed()
    for name in ("scale", "best", "waited"):
        assert getattr(other, name).numpy() == getattr(plateau, name).numpy()
    assert (round(float(other.scale), 6), int(other.waited)) == (0.8, 1)


def test_patience_ends_training_after_enough_validations():
    """A finished run with a larger patience goes on."""
    patience = optim.Patience(2, "CIDEr", higher=True)
    ends = []
    for score in (50, 60, 55, 61, 61, 60):
        patience({"CIDEr": score})
        ends.append(patience.over)
    assert ends == [False, False, False, False, False, True]
    more = optim.Patience(3, "CIDEr", higher=True)
    more.waited.assign(patience.waited)
    assert not more.over and not optim.Patience(0, "CIDEr", True).over
