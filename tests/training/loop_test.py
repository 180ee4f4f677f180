"""The loop: order of validations and checkpoints, signals, averages, the best checkpoint."""

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import commands, events

from tfcap import configs, errors, models, runs
from tfcap.data.prepared import PreparedData
from tfcap.models.captioner import named_variables
from tfcap.training import distribution, loop, optim, stages
from tfcap.training.stages import train
from tfcap.training.task import CaptionTask
from tfcap.training.workers import Workers

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("module_without_java")]

DECAY = 0.6
# A quick model with dropout; every step a checkpoint, and the loss decides: it may rise or fall.
FAST = {
    "task": {
        "model": {"show_tell": {"width": 8}},
        "validation_data": {"global_batch_size": 4, "limit": 4},
        "decoding": {"beam": 1},
        "metrics": ["BLEU"],
    },
    "trainer": {
        "train_steps": 4,
        "steps_per_loop": 1,
        "checkpoint_interval": 1,
        "max_to_keep": 9,
        "validation_interval": 2,
        "shown_images": 0,
        "train_tf_while_loop": False,
        "train_tf_function": False,
        "eval_tf_function": False,
        "best_checkpoint_eval_metric": "loss",
        "best_checkpoint_metric_comp": "lower",
        "optimizer_config": {"ema_decay": DECAY},
    },
}
QUIET = ("save_counter", "validated")  # count files and validations, not training
WITHOUT = {"trainer": {"optimizer_config": {"ema_decay": 0.0}}}


@pytest.fixture(autouse=True)
def float32():
    yield
    keras.mixed_precision.set_global_policy("float32")


@pytest.fixture(scope="module")
def overrides(small):
    overrides = events.merged(small, FAST)
    del overrides["task"]["model"]["attention_lstm"]
    return overrides


def run(overrides, folder, mode="train_and_eval"):
    """Trains in this process."""
    params = configs.resolve("show_tell", override=json.dumps(overrides))
    return train(params, "show_tell", str(folder), mode)


@pytest.fixture(scope="module")
def averaged(overrides, tmp_path_factory):
    """The directory of a run of four steps with an average."""
    folder = tmp_path_factory.mktemp("averaged")
    run(overrides, folder)
    return folder


@pytest.fixture(scope="module")
def plain(overrides, tmp_path_factory):
    """The same steps without."""
    folder = tmp_path_factory.mktemp("plain")
    run(events.merged(overrides, WITHOUT), folder, "train")
    return folder


def group(checkpoint, kind):
    """The arrays of `weights/` or `average/` of a checkpoint by name."""
    result = events.tensors(checkpoint)
    return {n.removeprefix(f"{kind}/"): v for n, v in result.items() if n.startswith(f"{kind}/")}


# ---- the order of steps, validations and checkpoints --------------------------------------------


class Counter(loop.Loop):
    """A loop whose steps only count, and that remembers at which ones it validated and saved."""

    def __init__(self, folder, step=0, validated=0, patience=0, start=False):
        trainer = dict(train_steps=10, steps_per_loop=3, patience=patience)
        trainer |= dict(checkpoint_interval=5, validation_interval=4)
        params = configs.resolve("show_tell", override=json.dumps({"trainer": trainer}))
        self.params, self.mode, self.model_dir = params, "train_and_eval", str(folder)
        self.strategy, self.workers = tf.distribute.get_strategy(), Workers()
        self.task = types.SimpleNamespace(validates_start=start)
        self.average, self.best = None, None
        self.patience = optim.Patience(patience, "CIDEr", True)
        self.step = tf.Variable(step, dtype=tf.int64)
        self.validated = tf.Variable(validated, dtype=tf.int64)
        self.train_batches, self.train_metrics = [], [keras.metrics.Mean(name="loss")]
        self.optimizer = keras.optimizers.SGD(0.1)
        self.train_summaries = types.SimpleNamespace(write=lambda values: None)
        self.losses, self.validations, self.saves = [], [], []
        self._saved = (step, validated) if step else (-1, -1)
        self.manager = types.SimpleNamespace(
            save=lambda checkpoint_number: self.saves.append(checkpoint_number)
        )

    def _train_steps(self, batches, number):
        self.step.assign_add(tf.cast(number, tf.int64))
        self.train_metrics[0].update_state(self.losses.pop(0) if self.losses else 1.0)

    def validate(self):
        self.validations.append(int(self.step))
        self.patience({"CIDEr": 1.0})
        self.validated.assign(self.step)


@pytest.mark.parametrize(
    "step, validated, validations, saves",
    [
        (0, 0, [4, 8, 10], [7, 10, 10]),
        (3, 0, [4, 8, 10], [7, 10, 10]),
        (4, 0, [4, 8, 10], [7, 10, 10]),  # killed in the validation at step 4
        (4, 4, [8, 10], [7, 10, 10]),
        (6, 4, [8, 10], [10, 10]),
        (9, 8, [10], [10, 10]),
        (10, 8, [10], [10]),  # killed in the last one
        (10, 10, [], []),
    ],
)
def test_validations_and_checkpoints_after_a_resume(step, validated, validations, saves, tmp_path):
    counter = Counter(tmp_path, step, validated)
    counter.run()
    assert counter.validations == validations and int(counter.step) == 10
    assert counter.saves == saves


def test_the_start_is_validated_and_patience_ends_training(tmp_path):
    counter = Counter(tmp_path, patience=1, start=True)
    counter.run()
    assert counter.validations == [0, 4] and counter.over and counter.saves == [4]
    again = Counter(tmp_path, 4, 4, patience=1)
    again.patience.waited.assign(1)
    again.run()
    assert again.validations == [] and again.saves == []


def test_meteor_loads_while_the_validation_captions(tmp_path):
    counter, order = Counter(tmp_path), []
    counter.validation_metrics = []
    counter.task.scorer = types.SimpleNamespace(start=lambda: order.append("scorer"))
    counter._caption = lambda: order.append("captions")  # and ends as after a signal
    loop.Loop.validate(counter)
    assert order == ["scorer", "captions"]


@pytest.mark.parametrize("wrong", [float("nan"), 1e7])
def test_a_loss_that_diverges_ends_training(wrong, tmp_path):
    counter = Counter(tmp_path)
    counter.losses = [1.0, wrong]
    with pytest.raises(ValueError, match="Training diverged: the loss of step 4 is"):
        counter.run()
    assert counter.saves == []
    counter = Counter(tmp_path)
    counter.params = counter.params.replace(trainer={"recovery_max_trials": -1})
    counter.losses = [1.0, wrong]
    counter.run()
    assert counter.saves == [7, 10, 10]


def test_tensorboard_gets_a_point_every_summary_interval_and_at_the_end(tmp_path):
    """Loops end at 3, 4, 7, 8 and 10; a point has the values of the loop that passes a multiple."""
    counter, points = Counter(tmp_path), []
    counter.params = counter.params.replace(trainer={"summary_interval": 6})
    counter.train_summaries.write = lambda values: points.append((int(counter.step), values))
    counter.losses = [1.0, 2.0, 3.0, 4.0, 5.0]
    counter.run()
    assert [(step, values["loss"]) for step, values in points] == [(7, 3.0), (10, 5.0)]


# ---- signals ------------------------------------------------------------------------------------


class Signalled(loop.Loop):
    """Sends a signal to this process in the place that `when` names."""

    when, number = "", signal.SIGTERM
    unchanged = None  # whether the last validation left the weights as they were

    def _train(self):
        self._send("start")
        super()._train()

    def _train_loop(self, batches):
        self._send(f"step {int(self.step.numpy())}")
        return super()._train_loop(batches)

    def validate(self):
        aggregate = self.task.aggregate_logs
        place = f"validation {int(self.step.numpy())}"
        self.task.aggregate_logs = lambda *logs: (self._send(place), aggregate(*logs))[1]
        before = [variable.numpy() for variable in self.model.trainable_variables]
        super().validate()
        self.task.aggregate_logs = aggregate
        pairs = zip(before, self.model.trainable_variables, strict=True)
        Signalled.unchanged = all(np.array_equal(old, new) for old, new in pairs)

    def _send(self, place):
        if place == self.when:
            os.kill(os.getpid(), self.number)


def test_a_signal_ends_the_loop_of_steps_or_the_validation(
    overrides, averaged, tmp_path, monkeypatch
):
    """Each run after the first resumes, and the last has the numbers of an undisturbed one."""
    before = signal.getsignal(signal.SIGTERM)
    for place, saved, number, code in (
        ("start", 0, signal.SIGTERM, 75),
        ("step 0", 1, signal.SIGINT, 130),
        ("validation 2", 2, signal.SIGTERM, 75),
    ):
        with monkeypatch.context() as patch, pytest.raises(errors.Interrupted) as caught:
            patch.setattr(stages, "Loop", Signalled)
            patch.setattr(Signalled, "when", place)
            patch.setattr(Signalled, "number", number)
            run(overrides, tmp_path)
        said = f"goes on from step {saved}." if saved else "before its first step, so nothing was"
        assert caught.value.code == code and said in str(caught.value)
        assert runs.checkpoints.newest_checkpoint(str(tmp_path)) is None or saved
        assert signal.getsignal(signal.SIGTERM) is before and signal.set_wakeup_fd(-1) == -1
    assert Signalled.unchanged  # the validation that was ended had the average in their place
    run(overrides, tmp_path)
    wanted, got = (events.tensors(folder / "ckpt-4") for folder in (averaged, tmp_path))
    assert wanted.keys() == got.keys()
    for name in wanted:
        if not name.startswith(QUIET):
            np.testing.assert_array_equal(got[name], wanted[name], err_msg=name)
    for part in ("train", "validation"):
        assert events.curve(tmp_path / part) == events.curve(averaged / part)


def in_graph(overrides, steps):
    """Overrides for loops of `steps` steps that are one graph."""
    trainer = dict(train_steps=10**6, steps_per_loop=steps, checkpoint_interval=10**6)
    trainer |= dict(train_tf_while_loop=True, train_tf_function=True)
    return events.merged(events.merged(overrides, WITHOUT), {"trainer": trainer})


class SignalledInside(loop.Loop):
    """Gets SIGTERM twice inside its second loop of steps, as `timeout` sends it."""

    def _train_loop(self, batches):
        timer = threading.Timer(0.02, self._terminate)
        if self.done:
            timer.start()
        rate = super()._train_loop(batches)
        if timer.is_alive():  # the loop was quick
            timer.join()
        return rate

    def _terminate(self):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)


def test_sigterm_saves_the_end_of_the_loop(overrides, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(stages, "Loop", SignalledInside)
    with pytest.raises(errors.Interrupted, match="Step 600 is saved in .* goes on from step 600."):
        run(in_graph(overrides, 300), tmp_path, "train")
    assert "SIGTERM: training ends after this loop of steps." in capsys.readouterr().err
    assert os.path.exists(tmp_path / "ckpt-600.index")


def wait_for(process, text):
    shown = []
    for line in process.stderr:
        shown.append(line)
        if re.search(text, line):
            return
    raise AssertionError("".join(shown))


def test_a_second_ctrl_c_ends_the_process_at_once(overrides, tmp_path):
    """Also inside a loop that would take hours."""
    program = "from tfcap import progress, train; progress.LOG_INTERVAL = 0.2; train.main()"
    values = json.dumps(in_graph(overrides, 10**6))
    flags = ["--experiment=show_tell", "--mode=train", f"--params_override={values}"]
    process = commands.start(
        *("-c", program, *flags, f"--model_dir={tmp_path}"), stderr=subprocess.PIPE
    )
    wait_for(process, r"training: \d+/")
    process.send_signal(signal.SIGINT)
    wait_for(process, "Press Ctrl-C again")
    time.sleep(0.8)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGKILL


# ---- the average --------------------------------------------------------------------------------


def literal(weights):
    """The average after a list of weights, one after the other in float64."""
    average = np.float64(weights[0])
    for value in weights[1:]:
        average = DECAY * average + (1 - DECAY) * np.float64(value)
    return average


@pytest.mark.parametrize("replicas", [1, 2])
def test_arithmetic(replicas):
    """From the weights after the first step on; training's weights come back untouched."""
    strategy = distribution.strategy(configs.Runtime(replicas=replicas))
    rng = np.random.default_rng(0)
    with strategy.scope():
        model = models.build("show_tell", 13, 6, 5, width=8)
        average = optim.Average(model, DECAY)
    variables = list(model.checkpoint_items["weights"].values())
    step = tf.function(lambda: average.update(strategy), autograph=False)
    with average.used():  # nothing is there yet
        pass
    calls = [[] for _ in variables]
    for count in range(3):
        for variable, values in zip(variables, calls, strict=True):
            values.append(rng.normal(size=variable.shape).astype(np.float32))
            variable.assign(values[-1])
        step()
        with average.used():
            for variable, values in zip(variables, calls, strict=True):
                for copy in getattr(variable, "values", [variable]):
                    np.testing.assert_allclose(copy, literal(values), atol=1e-6)
        for variable, values in zip(variables, calls, strict=True):
            np.testing.assert_array_equal(variable, values[count])
    assert len(variables) == len(named_variables(model)) - len(model.checkpoint_items["seeds"])


def test_training_goes_on_untouched(averaged, plain):
    """The same weights, losses and dropout as without an average."""
    losses = events.curve(plain / "train")
    assert len(losses) == 4 and events.curve(averaged / "train") == losses
    wanted, got = events.tensors(plain / "ckpt-4"), events.tensors(averaged / "ckpt-4")
    extra = {name.split("/")[0] for name in got.keys() - wanted.keys()}
    assert extra == {"average", "average_started"} and wanted.keys() < got.keys()
    for name in wanted:
        if not name.startswith(QUIET):
            np.testing.assert_array_equal(got[name], wanted[name], err_msg=name)


def test_the_average_is_what_is_validated_saved_and_served(averaged, overrides, tmp_path):
    """Best and latest checkpoint, evaluation, and the start of another run: all the same."""
    curve = events.curve(averaged / "validation")
    assert list(curve) == [2, 4]
    best = min(curve, key=curve.get)
    expected = group(averaged / f"ckpt-{best}", "average")
    [path] = glob.glob(str(averaged / "best_ckpt" / "*.index"))
    for kind in ("weights", "average"):
        for name, value in group(path.removesuffix(".index"), kind).items():
            np.testing.assert_array_equal(value, expected[name], err_msg=name)

    def check(model, step):
        expected = group(averaged / f"ckpt-{step}", "average")
        for name, weight in model.checkpoint_items["weights"].items():
            key = f"{name.replace('/', '.S')}/.ATTRIBUTES/VARIABLE_VALUE"
            np.testing.assert_array_equal(weight, expected[key], err_msg=name)

    check(runs.load(str(averaged)).model, best)
    check(runs.load(str(averaged), "latest").model, 4)
    check(runs.load(str(averaged), str(averaged / "ckpt-3")).model, 3)
    other = events.merged(overrides, {"task": {"init_checkpoint": str(averaged / "best_ckpt")}})
    params = configs.resolve("show_tell", override=json.dumps(other))
    data = PreparedData.load(params.task.data_dir)
    task = CaptionTask(params.task, data, params.trainer.optimizer_config)
    model = runs.load(str(averaged), "latest").model
    task.initialize(model)
    check(model, best)
    again = tmp_path / "run"
    shutil.copytree(averaged, again)
    shutil.rmtree(again / "validation")
    run(overrides, again, "eval")
    assert events.curve(again / "validation") == {4: pytest.approx(curve[4], rel=1e-6)}


def test_float16(overrides, tmp_path, capsys):
    """Weights and average are float32; models that are made afterwards, too."""
    extra = {"trainer": {"train_steps": 2}, "runtime": {"mixed_precision_dtype": "float16"}}
    run(events.merged(overrides, extra), tmp_path, "train")
    said = capsys.readouterr().out
    assert " in mixed_float16, " in said
    (line,) = [line for line in said.splitlines() if "memory:" in line]
    assert 0.3 < float(line.removesuffix(" GiB so far").rpartition(" ")[2]) < 64
    assert keras.config.dtype_policy().name == "float32"
    losses = events.curve(tmp_path / "train")
    assert list(losses) == [1, 2] and np.isfinite(list(losses.values())).all()
    saved = events.tensors(tmp_path / "ckpt-2")
    assert [float(v) for name, v in saved.items() if "dynamic_scale" in name] == [2.0**15]
    assert {v.dtype for v in group(tmp_path / "ckpt-2", "weights").values()} == {np.dtype("f4")}
