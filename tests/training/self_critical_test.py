"""Self-critical training: the estimator, its routes, replicas, micro-batches and measurements."""

import functools
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import searches, seeds

from tfcap import configs, models
from tfcap.data.document_frequency import document_frequencies
from tfcap.data.prepared import PreparedData
from tfcap.data.tokens import FUNCTION_WORDS
from tfcap.decoding.scores import word_log_probs
from tfcap.ids import EOS
from tfcap.objectives import rewards
from tfcap.training import distribution
from tfcap.training.self_critical import Samples, SelfCriticalTask

# A world small enough to enumerate: three words and the end, sentences of at most three.
WORDS, LENGTH, FEATURES = (3, 4, 5), 3, 4
VOCABULARY = 6
REFERENCES = [[[3, 4, 2], [4, 4, 2], [4, 5, 2]], [[5, 2, 0], [5, 3, 2], [3, 5, 2]]]
EVERY = [
    [*words, 2, 0, 0][:LENGTH] if len(words) < LENGTH else [*words]
    for size in range(LENGTH + 1)
    for words in itertools.product(WORDS, repeat=size)
]


@pytest.fixture(scope="module")
def table():
    images = [[[w for w in ref if w > 2] for ref in image] for image in REFERENCES]
    return document_frequencies([*images, [[3], [3, 3]], [[5, 4], [4, 5, 3]]])


@pytest.fixture(scope="module")
def model():
    seeds.set_seed(5)
    model = models.build(
        "mrnn", VOCABULARY, LENGTH, FEATURES, embed_width=6, width=6, multimodal_width=6,
        word_dropout=0.0, region_dropout=0.0,
    )  # fmt: skip
    for place, weight in enumerate(model.trainable_variables):  # far from uniform
        noise = tf.random.stateless_normal(weight.shape, (1, place))
        weight.assign(weight + 0.3 * noise)
    return model


def images(copies):
    """Two images, each so many times."""
    features = tf.random.stateless_normal((2, 1, FEATURES), (3, 4))
    return {
        "features": tf.repeat(features, copies, axis=0),
        "mask": tf.ones((2 * copies, 1), tf.bool),
        "id": tf.repeat(tf.constant([7, 9], tf.int64), copies),
    }


@pytest.fixture(scope="module")
def batch():
    return images(1)


def make(table, batch, **options):
    """The task and its batch with references."""
    reward = rewards.Reward(table, VOCABULARY, cider=1.0)
    config = configs.Task(
        objective="scst",
        max_length=LENGTH,
        seed=3,
        micro_batches=options.pop("micro_batches", 1),
        self_critical=configs.SelfCritical(**options),
    )
    task = SelfCriticalTask(config, None, configs.Optimizer(clip="none"), reward=reward)
    copies = batch["mask"].shape[0] // 2
    references = tf.repeat(tf.constant(REFERENCES), copies, axis=0)
    return task, batch | {"references": reward.references(references)}


def estimate(task, inputs, model, graph=False):
    """The gradient of one step as one vector, and its metrics; eagerly, which is soon done."""
    optimizer, metrics = keras.optimizers.SGD(1.0), task.build_metrics()
    weights = model.trainable_variables
    optimizer.build(weights)
    before = [weight.numpy() for weight in weights]
    if graph:
        tf.function(lambda: task.train_step(inputs, model, optimizer, metrics), autograph=False)()
    else:
        task.train_step(inputs, model, optimizer, metrics)
    result = np.concatenate([np.ravel(a - b.numpy()) for a, b in zip(before, weights, strict=True)])
    for weight, value in zip(weights, before, strict=True):
        weight.assign(value)
    return result, {metric.name: float(metric.result()) for metric in metrics}


@pytest.fixture(scope="module")
def exact(table, model, batch):
    """Minus the gradient of the expected reward, over all sentences of both images."""
    task, inputs = make(table, batch)
    tokens = tf.constant([EVERY, EVERY])
    reward = task.reward(tokens, inputs["references"])
    with tf.GradientTape() as tape:
        rows = tf.reshape(tokens, (-1, LENGTH))
        logps = word_log_probs(model, model.encode(batch), rows)
        probabilities = tf.reshape(tf.exp(tf.reduce_sum(logps, 1)), (2, -1))
        loss = -tf.reduce_mean(tf.reduce_sum(probabilities * reward, 1))
    np.testing.assert_allclose(tf.reduce_sum(probabilities, 1), 1.0, atol=1e-5)
    assert np.std(reward.numpy()) > 0.5
    result = tape.gradient(loss, model.trainable_variables)
    return np.concatenate([np.ravel(tf.convert_to_tensor(g)) for g in result])


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.slow
@pytest.mark.parametrize("baseline", ["greedy", "others"])
def test_estimator_is_the_policy_gradient(baseline, table, model, exact):
    """By rescoring; the other route has the same gradient."""
    options = dict(baseline=baseline, gradient="rescoring", reduction="sequences", samples=20)
    result, _ = estimate(*make(table, images(2000), **options), model)
    assert cosine(result, exact) > 0.999
    assert np.linalg.norm(result) / np.linalg.norm(exact) == pytest.approx(1, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("baseline, reduction", [("greedy", "sequences"), ("others", "words")])
def test_routes_are_equal_without_dropout(baseline, reduction, table, model, batch):
    options = dict(baseline=baseline, reduction=reduction, samples=6)
    a, sums = estimate(*make(table, batch, gradient="rescoring", **options), model)
    if baseline == "others":
        same, _ = estimate(*make(table, batch, gradient="rescoring", **options), model, graph=True)
        np.testing.assert_allclose(a, same, atol=1e-5 * np.abs(a).max())
    b, others = estimate(*make(table, batch, gradient="sampling", **options), model)
    np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(a).max())
    assert sums == pytest.approx(others, rel=1e-4, abs=1e-5)
    assert np.abs(a).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("gradient, reduction", [("rescoring", "sequences"), ("sampling", "words")])
def test_micro_batches_have_the_same_gradient(gradient, reduction, table, model, batch):
    options = dict(reduction=reduction, samples=6, gradient=gradient)
    whole, sums = estimate(*make(table, batch, **options), model)
    parts, others = estimate(*make(table, batch, micro_batches=2, **options), model)
    np.testing.assert_allclose(whole, parts, atol=1e-5 * np.abs(whole).max())
    assert others == pytest.approx(sums, rel=1e-4, abs=1e-5)


@pytest.mark.slow
def test_xla_gives_the_same_gradient(table, model, batch):
    """With the greedy baseline: the other one is plain arithmetic beside the network."""
    task, inputs = make(table, batch, samples=3, baseline="greedy")
    result, sums = estimate(task, inputs, model)
    task.xla = True
    compiled, others = estimate(task, inputs, model)
    np.testing.assert_allclose(compiled, result, atol=1e-5 * np.abs(result).max())
    assert others == pytest.approx(sums, rel=1e-4, abs=1e-5)


def test_reductions_weigh_long_sentences_differently(table, model, batch):
    words, _ = estimate(*make(table, batch, reduction="words", samples=50), model)
    sequences, _ = estimate(*make(table, batch, reduction="sequences", samples=50), model)
    ratio = words @ sequences / (sequences @ sequences)
    assert cosine(words, sequences) > 0.9999 and 1 / LENGTH < ratio < 1


@pytest.mark.slow
def test_samples_depend_on_seed_step_and_replica(table, batch):
    """The same seed and step draw the same; another step, seed or replica draws others."""
    task, inputs = make(table, batch, samples=8)

    def draws(task, done):
        return task.random_numbers(inputs, tf.constant(done, tf.int64)).numpy()

    first = draws(task, 4)
    np.testing.assert_array_equal(draws(task, 4), first)
    assert (draws(task, 5) != first).any()
    other = task.task_config.replace(seed=4)
    other = SelfCriticalTask(other, None, configs.Optimizer(), reward=task.reward)
    assert (draws(other, 4) != first).any()

    strategy = distribution.strategy(configs.Runtime(replicas=2))
    run = functools.partial(task.random_numbers, inputs, tf.constant(4, tf.int64))
    both = strategy.experimental_local_results(strategy.run(run))
    np.testing.assert_array_equal(both[0], first)
    assert (both[1].numpy() != first).any()


@pytest.mark.parametrize("xla", [False, True])
def test_ended_samples_leave_the_loop(xla, table, model, batch, monkeypatch):
    """XLA has one shape only."""
    task, _ = make(table, batch, samples=50, baseline="greedy")
    task.xla = xla
    rows = []
    step = model.step
    monkeypatch.setattr(model, "step", lambda *args: rows.append(len(args[2])) or step(*args))
    numbers = tf.random.stateless_uniform([2, 50, LENGTH], (1, 2))
    draws = task.draw(model, model.encode(batch), numbers)
    first = tf.concat([draws.greedy, draws.tokens], 1)[..., 0]
    going_on = int(tf.reduce_sum(tf.cast(first != EOS, tf.int32)))
    assert going_on < 75
    assert rows[:2] == [102, 102 if xla else going_on]


def test_metrics_equal_values_by_hand(table, batch):
    task, _ = make(table, batch, samples=3)
    task.function_words = [4]
    tokens = [[[3, 2, 0], [3, 2, 0], [3, 4, 2]], [[2, 0, 0], [5, 5, 4], [4, 2, 0]]]
    samples = Samples(
        tokens=tf.constant(tokens),
        logps=-0.5 * tf.cast(tf.constant(tokens) != 0, tf.float32),
        advantages=tf.constant([[1.0, -1.0, 0.0], [2.0, -2.0, 0.0]]),
        baseline=tf.constant([[1.0] * 3, [3.0] * 3]),
    )
    metrics = {name: float(a / b) for name, (a, b) in task._metric_sums(samples).items()}
    assert metrics == pytest.approx(
        {
            "reward": 2.0,
            "baseline": 2.0,
            "advantage_spread": 10 / 6,  # a mean of squares
            "entropy": 0.5,
            "length": (1 + 1 + 2 + 0 + 3 + 1) / 6,
            "distinct_samples": 100 * 5 / 6,
            "function_word_endings": 100 * 3 / 6,
        },
        rel=1e-6,
    )


@pytest.mark.parametrize("gradient", ["rescoring", "sampling"])
def test_dropout_is_in_the_gradient_and_not_in_the_greedy_captions(gradient, table):
    """Not even that of the image, which the samples have if the gradient goes through the loop."""
    seeds.set_seed(5)
    sizes = dict(embed_width=6, width=6, multimodal_width=32, word_dropout=0.5, region_dropout=0.9)
    noisy = models.build("mrnn", VOCABULARY, LENGTH, FEATURES, **sizes)
    for place, weight in enumerate(noisy.trainable_variables):
        weight.assign(weight + 0.3 * tf.random.stateless_normal(weight.shape, (1, place)))
    many = images(20)
    task, inputs = make(table, many, baseline="greedy", samples=4, gradient=gradient)
    (first, result), (second, other) = (estimate(task, inputs, noisy) for _ in range(2))
    assert np.abs(first - second).max() > 1e-4
    greedy, _ = searches.sample(noisy, noisy.encode(many), LENGTH)
    expected = tf.reduce_mean(task.reward(greedy[:, None], inputs["references"]))
    assert result["baseline"] == pytest.approx(float(expected), rel=1e-5)
    same = [sums[name] for sums in (result, other) for name in ("reward", "entropy")]
    assert (same[:2] == same[2:]) is (gradient == "rescoring")  # samples have no dropout


def test_the_unknown_word_is_not_a_bad_ending(small):
    """UNK is none: the drawings' captions know no "upon"."""
    data = PreparedData.load(small["task"]["data_dir"])
    task = SelfCriticalTask(configs.Task(objective="scst"), data, configs.Optimizer())
    expected = {data.vocab.words[word] for word in task.function_words}
    assert expected <= set(FUNCTION_WORDS) and {"a", "of"} <= expected < set(FUNCTION_WORDS)
