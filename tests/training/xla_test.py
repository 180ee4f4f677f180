"""XLA compiles both training steps and the beam search of every system, and computes the same.

It takes minutes and runs on demand only: `python -m pytest -m xla -s tests/training/xla_test.py`.
It prints the table of docs/speed.md, a row for each system and work.
"""

import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.sizes import LENGTH, VOCABULARY
from helpers.small_models import SIZES, make

from tfcap import configs, decoding
from tfcap.data.document_frequency import document_frequencies
from tfcap.objectives import rewards
from tfcap.training.self_critical import SelfCriticalTask
from tfcap.training.task import CaptionTask

pytestmark = pytest.mark.xla


@pytest.fixture(scope="module", params=sorted(SIZES))
def model(request):
    model = make(request.param, seed=1)
    for layer in model._flatten_layers():
        if hasattr(layer, "rate"):  # XLA draws other masks
            layer.rate = 0.0
    return model


def compared(name, work, plain, compiled, close):
    """Calls both functions, compares what they return, and prints a row."""
    start = time.perf_counter()
    found = compiled()
    first, start = time.perf_counter() - start, time.perf_counter()
    again = compiled()
    later, start = time.perf_counter() - start, time.perf_counter()
    expected = plain()
    plain_first, start = time.perf_counter() - start, time.perf_counter()
    plain()
    seconds = first, later, plain_first, time.perf_counter() - start
    largest = max(
        np.abs(one - two).max() / max(np.abs(two).max(), 1e-6)
        for one, two in zip(found, expected, strict=True)
    )
    columns = " | ".join(f"{number:.3g}" for number in (largest, *seconds))
    print(f"\n| {name} | {work} | {columns} |", flush=True)
    assert largest < close
    assert all(np.array_equal(one, two) for one, two in zip(found, again, strict=True))


def step_of(task, model, batch):
    """A function that takes one step of plain gradient descent and takes it back.

    It returns the change of all weights, the loss and the metrics.
    """
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build(model.trainable_variables)
    metrics = task.build_metrics()
    weights = model.trainable_variables
    step = tf.function(
        lambda: task.train_step(batch, model, optimizer, metrics)[task.loss], autograph=False
    )
    before = [weight.numpy() for weight in weights]

    def call():
        for metric in metrics:
            metric.reset_state()
        optimizer.iterations.assign(0)
        loss = step().numpy()
        after = [weight.numpy() for weight in weights]
        for weight, value in zip(weights, before, strict=True):
            weight.assign(value)
        change = np.concatenate([np.ravel(a - b) for a, b in zip(after, before, strict=True)])
        return change, loss, *(metric.result().numpy() for metric in metrics)

    return call


def test_cross_entropy(model, batch):
    config = configs.Task(max_length=LENGTH - 1, label_smoothing=0.1)
    plain, compiled = (
        step_of(CaptionTask(config, None, configs.Optimizer(clip="none"), xla=xla), model, batch)
        for xla in (False, True)
    )
    compared(model.name, "cross-entropy", plain, compiled, 1e-4)


def test_self_critical(model, batch):
    """The reward looks n-grams up, between the parts that XLA compiles."""
    config = configs.Task(
        objective="scst",
        max_length=LENGTH,
        label_smoothing=0.0,
        self_critical=configs.SelfCritical(samples=3),
    )
    tokens = batch["tokens"].numpy()[..., 1:]
    words = [[[word for word in text if word > 2] for text in image] for image in tokens]
    reward = rewards.Reward(document_frequencies([*words, [[3], [4, 5]]]), VOCABULARY)
    inputs = {key: batch[key] for key in ("features", "mask")}
    inputs["references"] = reward.references(batch["tokens"][..., 1:])
    plain, compiled = (
        step_of(
            SelfCriticalTask(config, None, configs.Optimizer(clip="none"), reward=reward, xla=xla),
            model,
            inputs,
        )
        for xla in (False, True)
    )
    compared(model.name, "self-critical", plain, compiled, 1e-4)


def test_beam_search(model, batch):
    def search():
        tokens, scores = decoding.beam_search(model, model.encode(batch), LENGTH)[:2]
        return tokens, scores

    plain, compiled = (
        tf.function(search, autograph=False, jit_compile=jit) for jit in (None, True)
    )
    compared(
        model.name,
        "beam",
        lambda: [part.numpy() for part in plain()],
        lambda: [part.numpy() for part in compiled()],
        1e-4,
    )
