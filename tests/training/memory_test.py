"""The forecast of the memory of a training step, the measured peak, and exhausted memory."""

import json

import numpy as np
import pytest
import tensorflow as tf
from helpers import commands, events

from tfcap import configs
from tfcap.data.prepared import PreparedData
from tfcap.layers import precision
from tfcap.measure import graphs
from tfcap.training import keras3, memory, schedules, self_critical
from tfcap.training.task import CaptionTask

pytestmark = pytest.mark.slow

NARROW = {"mrnn": {"width": 8, "embed_width": 8, "multimodal_width": 8}}
SIDE = 100
SIZE = SIDE * SIDE * 4  # bytes of a float32 matrix


@pytest.fixture(autouse=True)
def float32():
    yield
    precision.set_global("float32")


def prepare(small, objective="xe", replicas=1, **task):
    """The arguments of `of_training` for m-RNN."""
    overrides = events.merged(
        small, {"task": {"objective": objective, "label_smoothing": 0.0, "model": NARROW, **task}}
    )
    params = configs.resolve("mrnn", override=json.dumps(overrides))
    strategy = keras3.strategy(configs.Runtime(replicas=replicas))
    with strategy.scope():
        task = self_critical.build_task(
            params, PreparedData.load(small["task"]["data_dir"]), replicas
        )
        model = task.build_model()
        optimizer = task.build_optimizer(model, schedules.Plateau(0, 1.0, "CIDEr", True))
    return task, model, optimizer, strategy


def forecast(small, *args, **kwargs):
    return memory.of_training(*prepare(small, *args, **kwargs))


def activations(function):
    """The bound of a function of two matrices."""
    specs = [tf.TensorSpec((SIDE, SIDE))] * 2
    concrete = tf.function(function, autograph=False).get_concrete_function(*specs)
    return memory.activation_bytes(graphs.flatten(concrete))


def test_the_bound_of_activations_equals_a_count_by_hand():
    """Both inputs count; the backward pass reads tanh(x w) and the last product, but not x w."""

    def gradient(x, w):
        with tf.GradientTape() as tape:
            tape.watch(w)
            y = tf.matmul(tf.tanh(tf.matmul(x, w)), w)
            loss = tf.reduce_sum(tf.reshape(y, [-1]) ** 2)
        return tape.gradient(loss, w)

    expected = (2 + memory.SLACK * 2 + 4) * SIZE
    assert activations(gradient) == pytest.approx(expected, rel=1e-3)


def test_a_loop_keeps_an_element_of_each_turn():
    def gradient(turns):
        def function(x, w):
            with tf.GradientTape() as tape:
                tape.watch(w)
                _, y = tf.while_loop(
                    lambda index, y: index < turns,
                    lambda index, y: (index + 1, tf.tanh(tf.matmul(y, w))),
                    (tf.constant(0), x),
                    maximum_iterations=turns,
                )
            return tape.gradient(y, w)

        return activations(function)

    # The input of the product and the result of tanh, of each further turn.
    more = gradient(20) - gradient(10)
    assert 10 * SIZE <= more / memory.SLACK <= 2 * 10 * SIZE + 1e4


def test_an_open_shape_is_an_error():
    function = tf.function(lambda x: tf.matmul(x, x), autograph=False)
    concrete = function.get_concrete_function(tf.TensorSpec((None, None)))
    with pytest.raises(ValueError, match="must have a static shape"):
        memory.activation_bytes(graphs.flatten(concrete))


@pytest.fixture(scope="module")
def half(small):
    """The forecast for a batch of 4 images; `small` has 8."""
    return forecast(small, train_data={"global_batch_size": 4, "captions_per_image": 2})


def test_weights_gradients_and_slots_are_exact(small, half):
    task, model, optimizer, strategy = prepare(small)
    found = memory.of_training(task, model, optimizer, strategy)
    size = 4 * sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    assert found.gradients == size and size <= found.weights < 1.1 * size
    assert 2 * size <= found.slots < 2 * size + 100
    assert found.total == sum(found[:4])
    assert 1.6 < found.activations / half.activations < 2.1


def test_samples_need_memory_and_micro_batches_save_it(small):
    few = forecast(small, "scst", self_critical={"samples": 2})
    many = forecast(small, "scst", self_critical={"samples": 8})
    parts = forecast(small, "scst", self_critical={"samples": 8}, micro_batches=4)
    assert parts.gradients == 2 * many.gradients  # of a part, and their sum
    assert parts.activations < 0.85 * many.activations and few.activations < many.activations


def test_samples_with_gradients_through_the_loop_have_a_forecast(small):
    """The loop writes each word at its place, and the gradient reads it there again."""
    parts = [
        forecast(small, "scst", self_critical={"samples": n, "gradient": "sampling"})
        for n in (2, 4)
    ]
    assert 1.3 < parts[1].activations / parts[0].activations < 2.1


def test_each_of_two_replicas_needs_the_memory_of_one(small, half):
    two = forecast(small, replicas=2, train_data={"global_batch_size": 8, "captions_per_image": 2})
    assert two[:3] == half[:3]
    assert two.activations == pytest.approx(half.activations, rel=0.2)


def test_the_largest_batch_has_the_configured_sizes(small):
    params = configs.resolve("mrnn", override=json.dumps(small))
    data = PreparedData.load(small["task"]["data_dir"])
    task = CaptionTask(params.task, data, params.trainer.optimizer_config, 2)
    shapes = {name: spec.shape.as_list() for name, spec in memory.largest_batch(task).items()}
    regions, dim = data.max_regions, data.feature_dim
    assert shapes == {
        "features": [4, regions, dim], "mask": [4, regions], "tokens": [4, 2, 13], "id": [4]
    }  # fmt: skip


def test_the_report_prints_forecast_and_peak_once(small, capsys):
    report = memory.Report(*prepare(small))
    report({})
    report({})
    first, second = capsys.readouterr().out.splitlines()
    assert "a training step needs at most" in first and "task.micro_batches" in first
    assert "the measured peak of the process" in second
    report.expected = memory.Memory(0, 0, 0, 0, 2**31)
    assert "of the GPU is 1.50 GiB" in report.line(2**32, 3 * 2**29)
    assert "the forecast was 2.00 GiB" in report.line(2**32, 3 * 2**29)
    assert "the forecast was 3.25 GiB" in report.line(2**32, None)
    report.replicas = 2  # both in this process
    assert "the forecast was 5.25 GiB" in report.line(2**32, None)


def test_the_forecast_is_not_below_the_peak_of_a_process():
    """The forecast without the allowance for TensorFlow is not far above what the step adds."""
    arguments = "--what=xe --experiment=mrnn --paper_size --length=17 --images=24 --regions=10"
    done = commands.run(
        "tfcap.benchmark", *arguments.split(), "--repeats=1", "--nostages", "--peak_size=64"
    )
    assert done.returncode == 0, done.stderr
    (line,) = [json.loads(row) for row in done.stdout.splitlines() if row.startswith("{")]
    total, peak = line["expected_bytes"]["total"] / 2**30, line["peak_memory_gib"]
    assert peak <= memory.PROCESS / 2**30 + total < 1.7 * peak
