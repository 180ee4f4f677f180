"""Optimizers, clipping, schedules, Plateau and Patience against their formulas."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfcap import configs
from tfcap.training import distribution, optim


def literal_radam(gradients, lr, beta_1, beta_2, epsilon, early):
    """Yields the change of each step in float64, by docs/systems.md 7.1."""
    m = v = 0.0
    limit = 2 / (1 - beta_2) - 1
    for t, g in enumerate(gradients, start=1):
        m, v = beta_1 * m + (1 - beta_1) * g, beta_2 * v + (1 - beta_2) * g * g
        decay = beta_2**t
        rho = limit - 2 * t * decay / (1 - decay)
        if rho >= 5:
            scale = np.sqrt(
                (1 - decay) * (rho - 4) / (limit - 4) * (rho - 2) / rho * limit / (limit - 2)
            )
            yield lr * scale / (1 - beta_1**t) * m / (np.sqrt(v) + epsilon)
        else:
            yield lr * m / (1 - beta_1**t) * (early == "momentum")


@pytest.mark.parametrize("early", ["momentum", "none"])
@pytest.mark.parametrize("beta_2, epsilon", [(0.98, 1e-9), (0.999, 1e-8)])
def test_radam_equals_the_literal_algorithm(early, beta_2, epsilon):
    """Each of twelve steps starts from zero, where float32 is exact; the sixth is rectified."""
    gradients = np.random.default_rng(0).normal(size=(12, 3, 2))
    variable = keras.Variable(np.zeros((3, 2)), dtype="float32")
    optimizer = optim.RAdam(0.5, 0.9, beta_2, epsilon, early)
    optimizer.build([variable])
    taken = []
    for gradient in gradients:
        variable.assign(np.zeros((3, 2)))
        optimizer.apply([tf.constant(gradient, tf.float32)])
        taken.append(-variable.numpy())
    expected = list(literal_radam(gradients, 0.5, 0.9, beta_2, epsilon, early))
    np.testing.assert_allclose(taken, expected, rtol=5e-4)
    assert all((step == 0).all() == (early == "none") for step in taken[:5])


@pytest.mark.parametrize("early", ["momentum", "none"])
def test_radam_on_two_replicas_equals_one(early):
    """The early steps and two rectified ones are equal bit for bit."""
    gradients = np.random.default_rng(0).normal(size=(7, 3, 2)).astype(np.float32)
    results = []
    for replicas in (1, 2):
        strategy = distribution.strategy(configs.Runtime(replicas=replicas))
        with strategy.scope():
            variable = keras.Variable(np.ones((3, 2)), dtype="float32")
            optimizer = optim.RAdam(0.5, early_steps=early)
            optimizer.build([variable])
        share = tf.function(
            lambda g, apply=optimizer.apply, run=strategy.run, count=replicas: run(
                lambda: apply([g / count])
            ),
            autograph=False,
        )
        for gradient in gradients:
            share(gradient)
        copies = [np.asarray(copy) for copy in strategy.experimental_local_results(variable.value)]
        np.testing.assert_array_equal(copies, [copies[0]] * replicas)
        results.append(copies[0])
    np.testing.assert_array_equal(*results)


def literal_adam(gradients, lr, beta_1, beta_2, epsilon):
    """Yields the change of each step of torch.optim.Adam in float64."""
    m = v = 0.0
    for t, g in enumerate(gradients, start=1):
        m, v = beta_1 * m + (1 - beta_1) * g, beta_2 * v + (1 - beta_2) * g * g
        yield lr * (m / (1 - beta_1**t)) / (np.sqrt(v / (1 - beta_2**t)) + epsilon)


@pytest.mark.parametrize("size", [1.0, 1e-7])
@pytest.mark.parametrize("beta_2, epsilon", [(0.98, 1e-9), (0.999, 1e-8)])
def test_adam_equals_the_literal_algorithm(size, beta_2, epsilon):
    """Some gradients are about as small as epsilon.

    The tolerance allows twelve roundings of float32 (6e-8 each), and more where gradients of both
    signs nearly cancel.
    """
    gradients = size * np.random.default_rng(0).normal(size=(12, 3, 2))
    expected = list(literal_adam(gradients, 0.5, 0.9, beta_2, epsilon))

    def distance(optimizer):
        variable = keras.Variable(np.zeros((3, 2)), dtype="float32")
        optimizer.build([variable])
        taken = []
        for gradient in gradients:
            variable.assign(np.zeros((3, 2)))
            optimizer.apply([tf.constant(gradient, tf.float32)])
            taken.append(-variable.numpy())
        return np.abs(np.array(taken) / expected - 1).max()

    assert distance(optim.Adam(0.5, 0.9, beta_2, epsilon)) < 1e-5
    if size < 1:  # the reason for this class: epsilon of Keras is another one
        assert distance(keras.optimizers.Adam(0.5, 0.9, beta_2, epsilon)) > 0.1


def test_sgd_has_no_momentum():
    """The betas of the configuration have no effect."""
    halved = schedule("linear", 1.0, warmup_steps=1, decay_steps=1, decay_rate=0.5, decay_start=1)
    optimizer = optim.optimizer(configs.Optimizer(name="sgd", beta_1=0.9), halved)
    variable = keras.Variable([1.0, 2.0])
    optimizer.build([variable])
    for _ in range(3):
        optimizer.apply([tf.constant([0.5, -2.0])])
    np.testing.assert_allclose(variable, [1 - 0.5 * 2.5, 2 + 2 * 2.5], rtol=1e-6)


def test_clipping_by_value_limits_each_element():
    gradients = [tf.constant([[0.5, -0.05], [-3.0, 0.1]]), tf.constant([0.02])]
    result = optim.clip(gradients, "value", 0.1)
    np.testing.assert_allclose(result[0], [[0.1, -0.05], [-0.1, 0.1]])
    np.testing.assert_allclose(result[1], [0.02])


def test_clipping_by_norm_scales_all_gradients():
    """The factor of all gradients is min(1, threshold / (norm + 1e-6))."""
    gradients = [tf.constant([[3.0]]), tf.constant([0.0, 4.0])]
    result = optim.clip(gradients, "norm", 0.5)
    np.testing.assert_allclose(result[0], [[3 * 0.5 / (5 + 1e-6)]], rtol=1e-6)
    np.testing.assert_allclose(result[1], [0, 4 * 0.5 / (5 + 1e-6)], rtol=1e-6)
    np.testing.assert_array_equal(optim.clip(gradients, "norm", 7.0)[1], [0, 4])
    tiny = [tf.constant([1e-6])]  # here the 1e-6 shows
    np.testing.assert_allclose(optim.clip(tiny, "norm", 1e-6)[0], [0.5e-6], rtol=1e-5)


def test_the_sampling_probability_grows_as_in_the_released_xlan():
    """With ten steps an epoch the ramp starts at epoch 12 and reaches 0.5 at epoch 57."""
    config = configs.ScheduledSampling(increase=0.05, start=70, every=50, maximum=0.5)
    done = [0, 69, 119, 120, 169, 170, 569, 570, 10**9]
    result = [float(optim.sampling_probability(config, tf.constant(n, tf.int64))) for n in done]
    np.testing.assert_allclose(result, [0, 0, 0, 0.05, 0.05, 0.1, 0.45, 0.5, 0.5], rtol=1e-6)
    never = configs.ScheduledSampling()
    assert float(optim.sampling_probability(never, tf.constant(10**6, tf.int64))) == 0.0


def test_some_weights_have_a_rate_of_their_own():
    """A factor of 0.25 moves them a quarter as far, from the same gradients."""

    def moved(factor):
        weights = [keras.Variable([0.0, 0.0]), keras.Variable([0.0, 0.0])]
        optimizer = optim.optimizer(configs.Optimizer(name="radam"), 0.01)
        optimizer.build(weights)
        optim.scale_rate(optimizer, weights[1:], factor)
        for _ in range(8):  # RAdam's variance is tractable from the sixth step on
            optimizer.apply([tf.constant([0.3, 0.1])] * 2, weights)
        return [np.array(weight) for weight in weights]

    usual, own = moved(0.25)
    np.testing.assert_allclose(own, 0.25 * usual, rtol=1e-5)
    assert np.abs(usual).min() > 1e-4
    np.testing.assert_array_equal(*moved(1.0))
    assert not moved(0.0)[1].any()


# ---- schedules, and the watchers of a validation score ------------------------------------------


def schedule(name, rate, width=256, **options):
    config = configs.Schedule(name=name, learning_rate=rate, **options)
    return optim.LearningRate(config, width)


def rates(schedule, steps):
    return [float(schedule(step)) for step in steps]


@pytest.mark.parametrize("width, peak", [(1024, 3.125e-4), (768, 3.608e-4)])
def test_noam_equals_its_formula(width, peak):
    noam = schedule("noam", 1.0, width, warmup_steps=10000)
    steps = np.array([0, 1, 99, 9998, 9999, 10000, 50000])  # n is one more
    n = steps + 1.0
    expected = width**-0.5 * np.minimum(n**-0.5, n * 10000**-1.5)
    np.testing.assert_allclose(rates(noam, steps), expected, rtol=1e-5)
    assert abs(rates(noam, [9999])[0] / peak - 1) < 1e-3
    wide = schedule("noam", 2.5, warmup_steps=10000, width=width)
    np.testing.assert_allclose(rates(wide, steps), 2.5 * expected, rtol=1e-5)


def test_linear_warm_up_and_decay_have_the_expected_rates():
    """The rate grows until step `warmup_steps` and is then multiplied at regular steps."""
    decay = dict(warmup_steps=10, decay_steps=20, decay_rate=0.8, minimum=0.26)
    steps = [0, 4, 9, 10, 19, 20, 39, 40, 60, 1000]
    expected = [0.05, 0.25, 0.5, 0.5, 0.5, 0.4, 0.4, 0.32, 0.26, 0.26]
    np.testing.assert_allclose(rates(schedule("linear", 0.5, **decay), steps), expected, rtol=1e-6)
    flat = schedule("linear", 0.5, warmup_steps=10)
    np.testing.assert_allclose(rates(flat, [0, 9, 10**6]), [0.05, 0.5, 0.5], rtol=1e-6)


def test_hyperbolic_warm_up_equals_its_formula():
    """docs/systems.md 7.3: max([it >= W] 5e-7, lr / max(W - it, 1) 0.8^floor(it / decay))."""
    warmup, decay = 20000, 47228
    options = dict(warmup_steps=warmup, decay_steps=decay, decay_rate=0.8, minimum=5e-7)
    steps = np.array([0, 10000, 19000, 19999, 20000, 47227, 47228, 94456, 47228 * 40])
    expected = [
        max((it >= warmup) * 5e-7, 2e-4 / max(warmup - it, 1) * 0.8 ** (it // decay))
        for it in steps
    ]
    result = rates(schedule("hyperbolic", 2e-4, **options), steps)
    np.testing.assert_allclose(result, expected, rtol=1e-5)
    np.testing.assert_allclose(result[:3], [1e-8, 2e-8, 2e-7], rtol=1e-5)
    early = schedule("hyperbolic", 1.0, warmup_steps=10, decay_steps=5, decay_rate=0.5)
    np.testing.assert_allclose(rates(early, [4, 5]), [1 / 6, 0.5 / 5], rtol=1e-6)


def test_the_late_decay_of_tf_mrnn_has_the_expected_rates():
    """docs/systems.md 6.5: 1.0 for 300,000 steps, then 0.85 times as much every 10,000."""
    late = schedule(
        "linear", 1.0, warmup_steps=1, decay_start=300_000, decay_steps=10_000, decay_rate=0.85
    )
    steps = [0, 10_000, 299_999, 309_999, 310_000, 319_999, 320_000, 400_000]
    expected = [1, 1, 1, 1, 0.85, 0.85, 0.85**2, 0.85**10]
    np.testing.assert_allclose(rates(late, steps), expected, rtol=1e-6)
    assert rates(schedule("constant", 3e-4), [0, 10**6]) == pytest.approx([3e-4] * 2)


def test_a_plateau_lowers_the_rate():
    """With patience 2 the third validation in a row without a better score lowers the rate."""
    plateau = optim.Plateau(2, 0.8, "CIDEr", higher=True)
    config = configs.Schedule(name="constant", learning_rate=0.1)
    schedule, scales = optim.LearningRate(config, 1, plateau.scale), []
    for score in [50, 60, 59, 58, 60, 61, 61, 61, 61, 60, 60, 60, 70]:
        plateau({"CIDEr": score, "loss": 1.0})
        scales.append(round(float(schedule(0)) / 0.1, 4))
    down = [1.0] * 4 + [0.8] * 4 + [0.64] * 3 + [0.512] * 2
    assert scales == down
    assert float(plateau.best.numpy()) == 70


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


@pytest.mark.parametrize(
    "settles, ends", [(True, [False] * 4 + [True]), (False, [False] * 2 + [True] * 3)]
)
def test_patience_waits_until_the_loss_has_settled(settles, ends):
    """Only self-critical training, whose perplexity may do anything, counts from the beginning."""
    patience, over = optim.Patience(2, "CIDEr", True, settles), []
    for score, perplexity in ((8.0, 29.0), (7.0, 18.5), (6.0, 12.0), (6.5, 11.9), (6.6, 11.7)):
        patience({"CIDEr": score, "perplexity": perplexity})
        over.append(patience.over)
    assert over == ends


def test_patience_goes_on_from_a_checkpoint_also_from_one_without_perplexity(tmp_path):
    """The lowest perplexity is in the checkpoint, unless it had no such variable."""
    first = optim.Patience(2, "CIDEr", True, settles=True)
    for score, perplexity in ((8.0, 29.0), (7.0, 28.9)):
        first({"CIDEr": score, "perplexity": perplexity})
    new = tf.train.Checkpoint(patience=first).write(str(tmp_path / "new"))
    earlier = tf.train.Checkpoint(best=first.best, scale=first.scale, waited=first.waited)
    old = tf.train.Checkpoint(patience=earlier).write(str(tmp_path / "old"))
    for path, over in ((new, True), (old, False)):  # the first perplexity is a fall
        again = optim.Patience(2, "CIDEr", True, settles=True)
        tf.train.Checkpoint(patience=again).restore(path)
        assert int(again.waited) == 1 and float(again.best.numpy()) == 8.0
        again({"CIDEr": 6.0, "perplexity": 28.8})
        assert again.over == over
