"""Self-critical training: the estimator, its routes, replicas, micro-batches and measurements."""

import functools
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import searches, seeds

from tfcap import configs, decoding, models
from tfcap.data.document_frequency import document_frequencies
from tfcap.data.prepared import PreparedData
from tfcap.data.tokens import FUNCTION_WORDS
from tfcap.objectives import rewards
from tfcap.training import keras3, self_critical
from tfcap.training.self_critical import SelfCriticalTask
from tfcap.training.task import mean_gradient

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
    step = tf.constant(0, tf.int64)
    optimizer = keras.optimizers.SGD(1.0)

    def run():
        return mean_gradient(
            lambda part: task.objective(part, model, step),
            task.prepared(inputs, model, step),
            model.trainable_variables,
            optimizer,
            self_critical.METRICS,
            task.task_config.micro_batches,
            task.compiled if task.xla else None,
        )

    found, _, sums = tf.function(run, autograph=False)() if graph else run()
    found = np.concatenate([np.ravel(tf.convert_to_tensor(g)) for g in found])
    return found, {name: float(total / count) for name, (total, count) in sums.items()}


@pytest.fixture(scope="module")
def exact(table, model, batch):
    """Minus the gradient of the expected reward, over all sentences of both images."""
    task, inputs = make(table, batch)
    tokens = tf.constant([EVERY, EVERY])
    reward = task.reward(tokens, inputs["references"])
    with tf.GradientTape() as tape:
        rows = tf.reshape(tokens, (-1, LENGTH))
        logps = decoding.score(model, model.encode(batch), rows)
        probabilities = tf.reshape(tf.exp(tf.reduce_sum(logps, 1)), (2, -1))
        loss = -tf.reduce_mean(tf.reduce_sum(probabilities * reward, 1))
    np.testing.assert_allclose(tf.reduce_sum(probabilities, 1), 1.0, atol=1e-5)
    assert np.std(reward.numpy()) > 0.5
    found = tape.gradient(loss, model.trainable_variables)
    return np.concatenate([np.ravel(tf.convert_to_tensor(g)) for g in found])


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.slow
@pytest.mark.parametrize("baseline", ["greedy", "others"])
def test_estimator_is_the_policy_gradient(baseline, table, model, exact):
    """By rescoring; the other route has the same gradient."""
    options = dict(baseline=baseline, gradient="rescoring", reduction="sequences", samples=20)
    found, _ = estimate(*make(table, images(2000), **options), model)
    assert cosine(found, exact) > 0.999
    assert np.linalg.norm(found) / np.linalg.norm(exact) == pytest.approx(1, abs=0.03)


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
    found, sums = estimate(task, inputs, model)
    task.xla = True
    compiled, others = estimate(task, inputs, model)
    np.testing.assert_allclose(compiled, found, atol=1e-5 * np.abs(found).max())
    assert others == pytest.approx(sums, rel=1e-4, abs=1e-5)


def test_reductions_weigh_long_sentences_differently(table, model, batch):
    words, _ = estimate(*make(table, batch, reduction="words", samples=50), model)
    sequences, _ = estimate(*make(table, batch, reduction="sequences", samples=50), model)
    ratio = words @ sequences / (sequences @ sequences)
    assert cosine(words, sequences) > 0.9999 and 1 / LENGTH < ratio < 1


@pytest.mark.slow
def test_samples_depend_on_seed_step_and_replica(table, model, batch):
    """The same seed and step draw the same; another step, seed or replica draws others."""
    task, inputs = make(table, batch, samples=8)

    def samples(task, done):
        return task.prepared(inputs, model, tf.constant(done, tf.int64))["samples"].numpy()

    first = samples(task, 4)
    np.testing.assert_array_equal(samples(task, 4), first)
    assert (samples(task, 5) != first).any()
    other = SelfCriticalTask(
        task.task_config.replace(seed=4), None, configs.Optimizer(), reward=task.reward
    )
    assert (samples(other, 4) != first).any()

    strategy = keras3.strategy(configs.Runtime(replicas=2))
    run = tf.function(
        functools.partial(task.prepared, inputs, model, tf.constant(4, tf.int64)), autograph=False
    )
    both = strategy.experimental_local_results(strategy.run(lambda: run()["samples"]))
    np.testing.assert_array_equal(both[0], first)
    assert (both[1].numpy() != first).any()


def test_greedy_baseline_is_the_greedy_reward(table, model, batch):
    task, inputs = make(table, batch, baseline="greedy", samples=3)
    scored = task.prepared(inputs, model, tf.constant(0, tf.int64))
    greedy, _ = searches.sample(model, model.encode(batch), LENGTH)
    expected = task.reward(greedy[:, None], inputs["references"])
    np.testing.assert_allclose(scored["baseline"], np.repeat(expected, 3, 1), rtol=1e-6)
    reward = task.reward(scored["samples"], inputs["references"])
    np.testing.assert_allclose(scored["advantages"], reward - scored["baseline"], atol=1e-6)


def test_metrics_equal_values_by_hand(table, batch):
    task, _ = make(table, batch, samples=3)
    task.function_words = [4]
    tokens = [[[3, 2, 0], [3, 2, 0], [3, 4, 2]], [[2, 0, 0], [5, 5, 4], [4, 2, 0]]]
    scored = {
        "samples": tf.constant(tokens),
        "logps": -0.5 * tf.cast(tf.constant(tokens) != 0, tf.float32),
        "advantages": tf.constant([[1.0, -1.0, 0.0], [2.0, -2.0, 0.0]]),
        "baseline": tf.constant([[1.0] * 3, [3.0] * 3]),
    }
    found = {name: float(a / b) for name, (a, b) in task._metric_sums(scored).items()}
    assert found == pytest.approx(
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


def test_dropout_is_in_the_gradient_and_not_in_the_draws(table, batch):
    """Unless the gradient goes through the loop."""
    seeds.set_seed(5)
    sizes = dict(embed_width=6, width=6, multimodal_width=32, word_dropout=0.5)
    noisy = models.build("mrnn", VOCABULARY, LENGTH, FEATURES, **sizes)
    task, inputs = make(table, batch, samples=16)
    step = tf.constant(0, tf.int64)
    first, second = (task.prepared(inputs, noisy, step) for _ in range(2))
    np.testing.assert_array_equal(first["samples"], second["samples"])
    losses = [float(task.objective(first, noisy, step)[0]) for _ in range(2)]
    assert losses[0] != losses[1]
    task, inputs = make(table, batch, samples=16, gradient="sampling")
    drawn = task.prepared(inputs, noisy, step)
    losses = [float(task.objective(drawn, noisy, step)[0]) for _ in range(2)]
    assert losses[0] != losses[1]


@pytest.mark.parametrize("gradient", ["rescoring", "sampling"])
def test_greedy_baseline_has_no_dropout(gradient, table):
    """Not even that of the image, which the samples have if the gradient goes through the loop."""
    seeds.set_seed(5)
    sizes = dict(embed_width=6, width=6, multimodal_width=6, word_dropout=0.0, region_dropout=0.9)
    noisy = models.build("mrnn", VOCABULARY, LENGTH, FEATURES, **sizes)
    for place, weight in enumerate(noisy.trainable_variables):  # the image decides the words
        weight.assign(weight + tf.random.stateless_normal(weight.shape, (1, place)))
    many = images(20)
    task, inputs = make(table, many, baseline="greedy", samples=1, gradient=gradient)
    step = tf.constant(0, tf.int64)
    _, _, sums = task.objective(task.prepared(inputs, noisy, step), noisy, step)
    greedy, _ = searches.sample(noisy, noisy.encode(many), LENGTH)
    expected = task.reward(greedy[:, None], inputs["references"])
    np.testing.assert_allclose(sums["baseline"][0], tf.reduce_sum(expected), rtol=1e-5)


def test_the_unknown_word_is_not_a_bad_ending(small):
    """UNK is none: the drawings' captions know no "upon"."""
    data = PreparedData.load(small["task"]["data_dir"])
    task = SelfCriticalTask(configs.Task(objective="scst"), data, configs.Optimizer())
    known = {data.vocab.words[word] for word in task.function_words}
    assert known <= set(FUNCTION_WORDS) and {"a", "of"} <= known < set(FUNCTION_WORDS)
