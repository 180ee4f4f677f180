"""The captioning task: normalisation over replicas, optimizer, starting weights, aggregation."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import events
from helpers.steps import batch, update

from tfcap import configs
from tfcap.layers import precision
from tfcap.training import optim
from tfcap.training.task import CaptionTask

SIZES = {f"{name}_dropout": 0.0 for name in ("word", "region", "head")}


@pytest.fixture(autouse=True)
def float32():
    yield
    keras.mixed_precision.set_global_policy("float32")


@pytest.fixture(scope="module")
def params(small):
    overrides = events.merged(small, {"task": {"model": {"attention_lstm": SIZES}}})
    return configs.resolve("attention_lstm", override=json.dumps(overrides))


@pytest.fixture(scope="module")
def task(params, data):
    return CaptionTask(params.task, data, params.trainer.optimizer_config)


def test_features_to_standardise_are_measured_before_the_first_step(params, data):
    on = {"task": {"model": {"attention_lstm": {"standardize": True}}}}
    task = CaptionTask(params.replace(**on).task, data, params.trainer.optimizer_config)
    model = task.build_model()
    task.initialize(model)
    features = data.read("train", data.index("train").id.tolist())["features"].numpy()
    mean, deviation = features.mean((0, 1)), features.std((0, 1))
    np.testing.assert_allclose(model.standardize.mean, mean, atol=1e-5)
    np.testing.assert_allclose(model.standardize.deviation, deviation, rtol=1e-4)
    assert {"standardize/mean", "standardize/deviation"} <= set(model.checkpoint_items["weights"])
    inputs = {"features": features[:2], "mask": np.ones(features.shape[:2], bool)[:2]}
    np.testing.assert_allclose(
        model.regions(inputs), (features[:2] - mean) / deviation, rtol=1e-3, atol=1e-4
    )


# ---- normalisation ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def together(params, data):
    """Batches of short and of long captions, one of both, and a step with the latter."""
    short, long = batch(data, [1, 1, 1, 1], 0), batch(data, [10, 10, 10, 10], 1)
    both = {key: tf.concat([short[key], long[key]], 0) for key in short}
    return short, long, both, update(params, data, [both])


@pytest.mark.slow
def test_loss_is_a_mean_over_the_words_of_all_replicas(params, data, together):
    """Eight words on one replica, 44 on the other: the gradient is that of all 52 together."""
    short, long, _, (_, one, one_metrics, [one_loss]) = together
    _, two, two_metrics, losses = update(params, data, [short, long])
    two_loss = np.mean(losses)
    size = np.abs(one).max()
    assert np.abs(two - one).max() < 1e-5 * size
    np.testing.assert_allclose(two_metrics, one_metrics, rtol=1e-5)
    assert two_loss == pytest.approx(one_loss, rel=1e-5)
    assert one_metrics[0] == pytest.approx(one_loss, rel=1e-5)
    assert one_metrics[1] > np.exp(1.2 * one_metrics[0])  # perplexity is without label smoothing

    # What a mean of the replicas' own means would be: far from it.
    parts = [update(params, data, [part]) for part in (short, long)]
    wrong = np.mean([gradient for _, gradient, *_ in parts], 0)
    assert np.abs(wrong - one).max() > 0.05 * size
    right = np.average([gradient for _, gradient, *_ in parts], axis=0, weights=[8, 44])
    assert np.abs(right - one).max() < 1e-5 * size


@pytest.fixture(scope="module")
def parted(data, small):
    """Parameters for two micro-batches, a batch, and a step with all of it at once."""
    extra = {"task": {"model": {"attention_lstm": SIZES}, "micro_batches": 2, "l2": 0.01}}
    params = configs.resolve("attention_lstm", override=json.dumps(events.merged(small, extra)))
    inputs = batch(data, [1, 1, 10, 10], 0)
    return params, inputs, update(params.replace(task={"micro_batches": 1}), data, [inputs])


@pytest.mark.slow
@pytest.mark.parametrize("scaled", [False, True])
def test_micro_batches_have_the_same_gradient(scaled, data, parted):
    """Parts with 2 and 20 words: not the mean of their means; with a scaled loss too."""
    parted, inputs, (_, one, metrics, [loss]) = parted
    _, two, parts_metrics, [parts_loss] = update(parted, data, [inputs], scaled=scaled)
    assert np.abs(two - one).max() < 1e-5 * np.abs(one).max()
    assert parts_metrics == pytest.approx(metrics, rel=1e-5)
    assert parts_loss == pytest.approx(loss, rel=1e-5)


@pytest.mark.slow
def test_xla_takes_the_same_step(params, data, together, parted):
    """With replicas, whose sums XLA does not compile, and with a scaled loss in parts."""
    short, long, _, whole = together
    in_parts, inputs, at_once = parted
    for expected, result in (
        (whole, update(params, data, [short, long], xla=True)),
        (at_once, update(in_parts, data, [inputs], xla=True, scaled=True)),
    ):
        _, one, metrics, losses = expected
        _, two, compiled_metrics, compiled_losses = result
        assert np.abs(two - one).max() < 1e-5 * np.abs(one).max()
        assert compiled_metrics == pytest.approx(metrics, rel=1e-5)
        assert np.mean(compiled_losses) == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.slow
def test_penalty_counts_once(data, small, together):
    """l2 |weights|^2: its gradient beside that of the words, over all replicas, and not in loss."""
    extra = {"task": {"model": {"attention_lstm": SIZES}, "l2": 0.05}}
    params_l2 = configs.resolve("attention_lstm", override=json.dumps(events.merged(small, extra)))
    short, long, both, (_, plain, metrics, losses) = together
    before, one, one_metrics, one_losses = update(params_l2, data, [both])
    _, two, two_metrics, _ = update(params_l2, data, [short, long])
    assert one_metrics == metrics and one_losses == losses
    np.testing.assert_allclose(two_metrics, metrics, rtol=1e-5)
    size = np.abs(before).max()
    assert size > 0.5
    for change in (one, two):
        np.testing.assert_allclose(change - plain, -2 * 0.05 * before, atol=1e-5 * size)


@pytest.mark.slow
def test_images_that_fill_a_batch_do_not_count(task, params, data):
    """Neither in loss nor perplexity; their captions are reported under their id. Also with XLA."""
    model = task.build_model()
    part, rest = batch(data, [3, 5, 2, 9], 0), batch(data, [10, 10, 10, 10], 1)
    filled = {key: tf.concat([part[key], rest[key]], 0) for key in part}
    results = []
    for inputs, real in ((part, [True] * 2), (filled, [True] * 2 + [False] * 2)):
        metrics = task.build_metrics()
        inputs |= {"real": tf.constant(real), "id": tf.range(len(real), dtype=tf.int64)}
        inputs["references"] = task.cider.references(inputs["tokens"][..., 1:])
        logs = task.validation_step(inputs, model, metrics)
        results.append([float(metric.result()) for metric in metrics])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5)
    assert logs["id"].shape == logs["greedy"].shape == (4,) and logs["tokens"].shape == (4, 12)

    compiled = CaptionTask(params.task, data, params.trainer.optimizer_config, xla=True)
    metrics = task.build_metrics()
    same = compiled.validation_step(inputs, model, metrics)
    np.testing.assert_array_equal(same["tokens"], logs["tokens"])
    np.testing.assert_allclose(same["greedy"], logs["greedy"], rtol=1e-5)
    np.testing.assert_allclose([float(m.result()) for m in metrics], results[1], rtol=1e-5)


# ---- optimizer and weights ----------------------------------------------------------------------


def test_optimizer_is_complete_before_the_first_step(task):
    model = task.build_model()
    plateau = optim.Plateau(1, 0.5, "CIDEr", True)
    optimizer = task.build_optimizer(model, plateau)
    assert len(optimizer.variables) >= 2 * len(model.trainable_variables) + 1
    assert float(optimizer.learning_rate) == pytest.approx(0.003)
    plateau.scale.assign(0.5)
    assert float(optimizer.learning_rate) == pytest.approx(0.0015)
    precision.set_global("float16")
    scaled = task.build_optimizer(model, plateau)
    assert isinstance(scaled, keras.optimizers.LossScaleOptimizer) and scaled.built
    precision.set_global("bfloat16")
    assert not isinstance(task.build_optimizer(model, plateau), keras.optimizers.LossScaleOptimizer)


def test_init_checkpoint_gives_weights_and_no_dropout_state(trained, small, data):
    """From a directory; the new run has other dropout rates, hence other random generators."""
    extra = {
        "task": {
            "init_checkpoint": trained,
            "model": {"attention_lstm": {"word_dropout": 0.0, "head_dropout": 0.4}},
        }
    }
    params = configs.resolve("attention_lstm", override=json.dumps(events.merged(small, extra)))
    task = CaptionTask(params.task, data, params.trainer.optimizer_config)
    model = task.build_model()
    seeds = {name: value.numpy() for name, value in model.checkpoint_items["seeds"].items()}
    before = {name: value.numpy() for name, value in model.checkpoint_items["weights"].items()}
    task.initialize(model)
    saved = events.tensors(f"{trained}/ckpt-6")
    changed = 0
    for name, value in model.checkpoint_items["weights"].items():
        key = f"weights/{name.replace('/', '.S')}/.ATTRIBUTES/VARIABLE_VALUE"
        np.testing.assert_array_equal(value, saved[key], err_msg=name)
        changed += not np.array_equal(value, before[name])
    assert changed == len(before) > 10
    for name, value in model.checkpoint_items["seeds"].items():
        np.testing.assert_array_equal(value, seeds[name], err_msg=name)


# ---- validation ---------------------------------------------------------------------------------


def test_captions_are_collected_by_image(params, data):
    task = CaptionTask(params.task, data, params.trainer.optimizer_config)
    words = data.vocab.words
    ids = [tf.constant([7, 3], tf.int64), tf.constant([3, 5], tf.int64)]  # of two replicas
    tokens = [tf.constant([[4, 5, 2], [6, 2, 0]]), tf.constant([[6, 2, 0], [2, 0, 0]])]
    greedy = [tf.constant([0.5, 1.0]), tf.constant([1.0, 0.0])]
    state = task.aggregate_logs(None, {"id": ids, "tokens": tokens, "greedy": greedy})
    last = {"id": [tf.constant([9], tf.int64)], "tokens": [tf.constant([[4, 4, 4]])]}
    state = task.aggregate_logs(state, last | {"greedy": [tf.constant([2.0])]})
    three = " ".join([words[4]] * 3)
    both = f"{words[4]} {words[5]}"
    assert state == {7: (both, 0.5), 3: (words[6], 1.0), 5: ("", 0.0), 9: (three, 2.0)}


def test_scores_are_of_the_images_that_were_decoded(params, data):
    task = CaptionTask(params.task, data, params.trainer.optimizer_config)
    references = data.references("val")
    perfect = {image: references[image][0] for image in list(references)[:4]}
    scores = task.reduce_aggregated_logs({i: (text, 0.25) for i, text in perfect.items()})
    assert scores["greedy_CIDEr-D"] == pytest.approx(25.0)
    assert task.captions == perfect and task.notes == []
    assert scores["BLEU-4"] == pytest.approx(100.0) and scores["CIDEr"] > 100
    assert {f"BLEU-{n}" for n in (1, 2, 3)} < set(scores) and "METEOR" not in scores
    same = dict.fromkeys(perfect, ("a square", float("nan")))
    assert scores["distinct_captions"] == 100.0
    scores = task.reduce_aggregated_logs(same)
    assert scores["distinct_captions"] == 25.0 and "greedy_CIDEr-D" not in scores
