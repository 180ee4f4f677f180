"""The trainer: signals, the average of the weights, the best checkpoint."""

import glob
import json
import os
import shutil
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import events
from official.core import train_utils

from tfcap import cli, configs, models, runs
from tfcap.data.prepared import PreparedData
from tfcap.models.captioner import named_variables
from tfcap.runs import checkpoints
from tfcap.training import keras3, trainer
from tfcap.training import train as train_module
from tfcap.training.task import CaptionTask
from tfcap.training.train import train

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
        "summary_interval": 1,
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
    found = events.tensors(checkpoint)
    return {n.removeprefix(f"{kind}/"): v for n, v in found.items() if n.startswith(f"{kind}/")}


class Signalled(trainer.Trainer):
    """Sends SIGTERM to this process in the places that `when` names."""

    when = ()
    unchanged = None  # whether the last validation left the weights as they were

    def evaluate(self, num_steps):
        before = [variable.numpy() for variable in self.model.trainable_variables]
        try:
            return super().evaluate(num_steps)
        finally:
            pairs = zip(before, self.model.trainable_variables, strict=True)
            Signalled.unchanged = all(np.array_equal(old, new) for old, new in pairs)

    def train_step(self, iterator):
        self._send(f"step {int(self.global_step.numpy())}")
        super().train_step(iterator)

    def eval_reduce(self, state=None, step_outputs=None):
        self._send(f"validation {int(self.global_step.numpy())}")
        return super().eval_reduce(state, step_outputs)

    def _send(self, place):
        if place in self.when:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_in_a_step_or_a_validation_changes_nothing(
    overrides, averaged, tmp_path, monkeypatch
):
    """A step without a graph is not divided; a validation is done again with the average.

    Each run after the first resumes, and the last has the weights, averages and curves of one that
    nothing ended.
    """
    for place, saved in (("step 0", 1), ("validation 2", 2)):
        with monkeypatch.context() as patch, pytest.raises(cli.Interrupted) as caught:
            patch.setattr(train_module, "Trainer", Signalled)
            patch.setattr(Signalled, "when", (place,))
            run(overrides, tmp_path)
        assert caught.value.code == 75 and f"goes on from step {saved}." in str(caught.value)
    assert Signalled.unchanged  # the validation that was ended had the average in their place
    run(overrides, tmp_path)
    wanted, got = (events.tensors(folder / "ckpt-4") for folder in (averaged, tmp_path))
    assert wanted.keys() == got.keys()
    for name in wanted:
        if not name.startswith(QUIET):
            np.testing.assert_array_equal(got[name], wanted[name], err_msg=name)
    for part in ("train", "validation"):
        assert events.curve(tmp_path / part) == events.curve(averaged / part)


def test_a_signal_before_the_first_step_saves_nothing(overrides, tmp_path, monkeypatch):
    strategy = train_module._strategy

    def early(params):
        os.kill(os.getpid(), signal.SIGTERM)
        return strategy(params)

    monkeypatch.setattr(train_module, "_strategy", early)
    with pytest.raises(cli.Interrupted, match="before its first step, so nothing was saved"):
        run(overrides, tmp_path)
    assert not glob.glob(str(tmp_path / "ckpt*"))


def literal(weights):
    """The average after a list of weights, one after the other in float64."""
    average = np.float64(weights[0])
    for value in weights[1:]:
        average = DECAY * average + (1 - DECAY) * np.float64(value)
    return average


def begin(folder, source, *steps):
    """A run as if it had been killed after the last of `steps`."""
    for name in ("params.yaml", "vocab.txt", "dataset.json"):
        shutil.copy(source / name, folder)
    for step in steps:
        for path in glob.glob(str(source / f"ckpt-{step}.*")):
            shutil.copy(path, folder)


@pytest.mark.parametrize("replicas", [1, 2])
def test_arithmetic(replicas):
    """From the weights after the first step on; training's weights come back untouched."""
    strategy = keras3.strategy(configs.Runtime(replicas=replicas))
    rng = np.random.default_rng(0)
    with strategy.scope():
        model = models.build("show_tell", 13, 6, 5, width=8)
        average = trainer.Average(model, DECAY)
    variables = list(model.checkpoint_items["weights"].values())
    step = tf.function(lambda: average.update(strategy), autograph=False)
    average.enter()  # nothing is there yet
    seen = [[] for _ in variables]
    for count in range(3):
        for variable, values in zip(variables, seen, strict=True):
            values.append(rng.normal(size=variable.shape).astype(np.float32))
            variable.assign(values[-1])
        step()
        average.enter()
        for variable, values in zip(variables, seen, strict=True):
            for copy in getattr(variable, "values", [variable]):
                np.testing.assert_allclose(copy, literal(values), atol=1e-6)
        average.leave()
        for variable, values in zip(variables, seen, strict=True):
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


def test_checkpoints_hold_the_average(averaged):
    steps = [group(averaged / f"ckpt-{step}", "weights") for step in (1, 2, 3, 4)]
    for count in (1, 2, 3, 4):
        found = group(averaged / f"ckpt-{count}", "average")
        assert found.keys() == steps[0].keys() and len(found) > 5
        for name, value in found.items():
            expected = literal([weights[name] for weights in steps[:count]])
            np.testing.assert_allclose(value, expected, atol=1e-6, err_msg=name)
    moved = [np.abs(found[name] - steps[3][name]).max() for name in found]
    assert max(moved) > 1e-4


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


def test_switching_it_on_later(plain, overrides, tmp_path):
    """A run without an average goes on with one: it starts there, and nothing else changes."""
    begin(tmp_path, plain, 1, 2)
    run(overrides, tmp_path, "train")
    wanted, got = events.tensors(plain / "ckpt-4"), events.tensors(tmp_path / "ckpt-4")
    for name in wanted:
        if not name.startswith(QUIET):
            np.testing.assert_array_equal(got[name], wanted[name], err_msg=name)
    steps = [group(tmp_path / f"ckpt-{step}", "weights") for step in (3, 4)]
    for name, value in group(tmp_path / "ckpt-4", "average").items():
        expected = literal([weights[name] for weights in steps])
        np.testing.assert_allclose(value, expected, atol=1e-6, err_msg=name)


def test_an_average_that_never_started_is_not_used(plain, tmp_path):
    """A finished run is saved once more when it is started with an average: still its weights."""
    model = runs.load(str(plain), "latest").model
    expected = {n: v.numpy() for n, v in model.checkpoint_items["weights"].items()}
    average = trainer.Average(model, DECAY)
    path = tf.train.Checkpoint(
        average=average.values, average_started=average.started, **model.checkpoint_items
    ).write(str(tmp_path / "ckpt-4"))
    for variable in average.weights.values():
        variable.assign(tf.zeros_like(variable))
    checkpoints.restore_weights(model, path)
    for name, value in model.checkpoint_items["weights"].items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_float16(overrides, tmp_path, capsys):
    """Weights and average are float32; models that are made afterwards, too."""
    extra = {"trainer": {"train_steps": 2}, "runtime": {"mixed_precision_dtype": "float16"}}
    run(events.merged(overrides, extra), tmp_path, "train")
    assert " in mixed_float16, " in capsys.readouterr().out
    assert keras.config.dtype_policy().name == "float32"
    losses = events.curve(tmp_path / "train")
    assert list(losses) == [1, 2] and np.isfinite(list(losses.values())).all()
    saved = events.tensors(tmp_path / "ckpt-2")
    assert [float(v) for name, v in saved.items() if "dynamic_scale" in name] == [2.0**15]
    assert {v.dtype for v in group(tmp_path / "ckpt-2", "weights").values()} == {np.dtype("f4")}
    steps = [group(tmp_path / f"ckpt-{step}", "weights") for step in (1, 2)]
    for name, value in group(tmp_path / "ckpt-2", "average").items():
        assert value.dtype == np.float32
        expected = literal([weights[name] for weights in steps])
        np.testing.assert_allclose(value, expected, atol=1e-6, err_msg=name)


# ---- the best checkpoint ------------------------------------------------------------------------


def test_a_run_that_may_recover_saves_its_start(overrides, tmp_path):
    """A loss that diverges before the first checkpoint goes back to it, with its optimizer."""
    extra = {"trainer": {"recovery_max_trials": 1, "train_steps": 2}}
    run(events.merged(overrides, extra), tmp_path, "train")
    reader = tf.train.load_checkpoint(str(tmp_path / "ckpt-0"))
    assert reader.get_tensor("global_step/.ATTRIBUTES/VARIABLE_VALUE") == 0
    assert any("optimizer" in name for name in reader.get_variable_to_shape_map())


def test_best_checkpoint_killed_while_it_is_written(tmp_path, monkeypatch):
    """`info.json` must not claim a checkpoint that is not there: the next start exports it."""
    variable = tf.Variable(1.0)
    checkpoint = tf.train.Checkpoint(variable=variable)
    logs = {"CIDEr": tf.constant(40.0), "loss": 2.0}

    def export(score):
        exporter = trainer.BestExporter(str(tmp_path), "CIDEr", "higher")
        exporter.signature, exporter.measured = "XE", {"task.decoding.beam": 3}
        return exporter.maybe_export_checkpoint(checkpoint, {**logs, "CIDEr": score}, 3)

    assert export(40.0) and not export(40.0) and not export(39.0)
    variable.assign(2.0)
    with monkeypatch.context() as patch:
        patch.setattr(tf.train.CheckpointManager, "save", _die)
        with pytest.raises(KeyboardInterrupt):
            export(50.0)
    assert export(50.0) and not export(50.0)
    latest = tf.train.latest_checkpoint(str(tmp_path))
    assert tf.train.load_variable(latest, "variable/.ATTRIBUTES/VARIABLE_VALUE") == 2.0
    saved = json.loads((tmp_path / "info.json").read_text())
    about = {"signature": "XE", "measured": {"task.decoding.beam": 3}}
    assert saved == {"CIDEr": 50.0, "loss": 2.0, "best_ckpt_global_step": 3.0} | about
    assert not list(tmp_path.glob("*tmp*"))
    assert issubclass(trainer.BestExporter, train_utils.BestCheckpointExporter)


def _die(*args, **kwargs):
    raise KeyboardInterrupt


@pytest.mark.parametrize("replicas", [1, 2])
def test_one_replica_on_a_processor_reads_a_plain_dataset(replicas):
    """Freeing TensorFlow's iterator over devices can take a minute."""
    made = trainer.Trainer.__new__(trainer.Trainer)
    made._strategy = keras3._mirrored("CPU", replicas)
    dataset = made.distribute_dataset(lambda size, input_context: tf.data.Dataset.range(size), 4)
    assert isinstance(dataset, tf.data.Dataset) is (replicas == 1)
