"""The remedies for official.core on Keras 3: replicas, clipping, dropout."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import seeds

from tfcap import configs, models
from tfcap.models.captioner import is_seed, named_variables
from tfcap.training import distribution


@pytest.fixture(scope="module")
def two():
    return distribution.strategy(configs.Runtime(replicas=2))


def on_replicas(strategy, function, values):
    """Runs `function(value)` on each replica with its own of `values`; the results in order."""
    split = strategy.experimental_distribute_values_from_function(
        lambda context: values[context.replica_id_in_sync_group]
    )
    results = tf.function(lambda: strategy.run(function, args=(split,)), autograph=False)()
    return strategy.experimental_local_results(results)


def test_a_strategy_has_the_configured_replicas(two):
    assert two.num_replicas_in_sync == 2
    assert (
        distribution.strategy(configs.Runtime(replicas=2)) is two
    )  # all-reduces of two would collide
    assert distribution.strategy(configs.Runtime()).num_replicas_in_sync == 1
    one = configs.Runtime(distribution_strategy="one_device", num_gpus=0)
    assert distribution.strategy(one).num_replicas_in_sync == 1
    for wrong, word in (
        (dict(num_gpus=99), "runtime.num_gpus"),
        (dict(distribution_strategy="one_device", replicas=2), "not one_device"),
        (dict(replicas=3), "runtime.replicas=3"),
    ):
        with pytest.raises(ValueError, match=word):
            distribution.strategy(configs.Runtime(**wrong))


# ---- clipping -----------------------------------------------------------------------------------


def step(strategy, gradients, clip, threshold, scale=None, **options):
    """One step of plain gradient descent on two zeros; its update, and the optimizer."""
    with strategy.scope():
        variable = keras.Variable(np.zeros(2, "float32"))
        optimizer = keras.optimizers.SGD(1.0, **options)
        if scale:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=scale)
        optimizer.build([variable])

    def apply(gradient):
        distribution.apply_gradients(optimizer, [gradient], [variable], clip, threshold)

    on_replicas(strategy, apply, [tf.constant(g) * (scale or 1.0) for g in gradients])
    copies = getattr(variable.value, "values", [variable.value])
    for copy in copies:
        np.testing.assert_array_equal(copy, copies[0])
    return -np.asarray(copies[0]), optimizer


# By value, clipping each replica and then adding gives [0, .5]; by norm it gives [1, 1].
CLIPPED = [
    ("value", 0.4, [[3.0, 0.2], [-2.5, 0.3]], [0.4, 0.4]),
    ("norm", 1.0, [[3.0, 0.0], [0.0, 4.0]], [0.6, 0.8]),
    ("none", 1e-9, [[3.0, 0.0], [0.0, 4.0]], [3.0, 4.0]),
]


@pytest.mark.parametrize("clip, threshold, gradients, expected", CLIPPED)
@pytest.mark.parametrize("scale", [None, 1024.0])
def test_clipping_sees_the_sum_of_the_replicas(two, clip, threshold, gradients, expected, scale):
    update, _ = step(two, gradients, clip, threshold, scale)
    np.testing.assert_allclose(update, expected, rtol=1e-5)
    together = [np.sum(gradients, axis=0, dtype="float32")]
    update, _ = step(distribution.strategy(configs.Runtime()), together, clip, threshold, scale)
    np.testing.assert_allclose(update, expected, rtol=1e-5)


@pytest.mark.parametrize("clip, bad", [("value", np.inf), ("norm", -np.inf), ("none", np.nan)])
def test_float16_overflow_skips_the_step(two, clip, bad):
    update, optimizer = step(two, [[1.0, 1.0], [bad, 1.0]], clip, 0.1, scale=8.0)
    assert update.tolist() == [0.0, 0.0]
    for variable, expected in ((optimizer.dynamic_scale, 4.0), (optimizer.iterations, 0)):
        assert [copy.numpy() for copy in variable.value.values] == [expected, expected]


# ---- dropout ------------------------------------------------------------------------------------


def captioner(seed=3):
    seeds.set_seed(seed)
    sizes = dict(width=8, heads=2, encoder_layers=0, decoder_layers=1, inner_width=8)
    return models.build("xtransformer", 13, 6, 5, **sizes)


def states(model):
    """The states of all random generators: name -> one row per replica."""
    seeds = {n: v.value for n, v in named_variables(model).items() if is_seed(v)}
    return {n: [np.asarray(c) for c in getattr(v, "values", [v])] for n, v in seeds.items()}


@pytest.fixture(scope="module")
def mirrored(two):
    """A captioner on two replicas, and a function that runs both on the same batch."""
    with two.scope():
        model = captioner()
    batch = {
        "features": tf.random.stateless_normal((2, 3, 5), (1, 2)),
        "mask": tf.ones((2, 3), tf.bool),
        "tokens": tf.constant([[[1, 4, 5, 6]], [[1, 7, 8, 0]]]),
    }
    run = tf.function(lambda: two.run(lambda: model(batch, training=True)), autograph=False)
    return model, lambda: [np.asarray(x) for x in two.experimental_local_results(run())]


@pytest.mark.slow
def test_replicas_have_their_own_dropout(mirrored):
    model, draw = mirrored
    first, second = draw()
    np.testing.assert_array_equal(first, second)  # without the remedy
    distribution.spread_seeds(model)
    for name, (one, other) in states(model).items():
        assert one[1] == other[1] and one[0] != other[0], name
    first, second = draw()
    assert np.abs(first - second).max() > 0.1
