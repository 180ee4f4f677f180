"""The training command: exact resume, replicas, modes, TensorBoard and cli."""

import glob
import json
import os
import pty
import re
import shutil
import signal
import threading

import numpy as np
import pytest
from helpers import commands, events

from tfcap import errors
from tfcap import train as command
from tfcap.training import distribution

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("module_without_java")]

INTRAOP, INTEROP = "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"
# An optimizer that is traced quickly, for what does not depend on it. With this epsilon, weights
# without a gradient stay where they are instead of following its rounding.
QUICK = {
    "trainer": {
        "optimizer_config": {"name": "adam", "epsilon": 1e-3},
        "steps_per_loop": 1,
        "shown_images": 0,
        "train_tf_while_loop": False,
    },
}
# No tracing at all: for a few steps on one replica.
EAGER = {"trainer": {"train_tf_function": False, "eval_tf_function": False}}
# Every step is a checkpoint. The loss falls, "higher" is called better, and so the learning rate is
# halved after the validation at step 6, the second one that is not the best.
EXACT = {
    "task": {"decoding": {"beam": 1}, "validation_data": {"limit": 6}},
    "trainer": {
        "train_steps": 8,
        "steps_per_loop": 1,
        "checkpoint_interval": 1,
        "validation_interval": 2,
        "shown_images": 0,
        "train_tf_while_loop": False,
        "eval_tf_function": False,
        "best_checkpoint_eval_metric": "loss",
        "optimizer_config": {
            "name": "adam",
            "schedule": {"plateau_patience": 1, "plateau_factor": 0.5},
        },
    },
}
QUIET = ("save_counter",)  # counts files, not training


@pytest.fixture(scope="module")
def quick(small):
    """Overrides that make `show_tell` tiny, which is traced quickly, on the data of `small`."""
    return small | {"task": small["task"] | {"model": {"show_tell": {"width": 16}}}}


def train(overrides, folder, mode="train_and_eval"):
    """Trains in this process and returns the task."""
    return events.run(overrides, folder, mode, "show_tell")


# The kernel kills the process in the midst of the validation at step 4, its second one.
KILLED = """
import os, signal
from tfcap import train
from tfcap.training import loop, summaries

summaries.INTERVAL = 0.01  # the bar shows every step
validate = loop.Loop.validate

def die(*state):
    os.kill(os.getpid(), signal.SIGKILL)

def validate_or_die(self):
    if int(self.step.numpy()) == 4:
        self.task.aggregate_logs = die
    validate(self)

loop.Loop.validate = validate_or_die
train.main()
"""


def listen(descriptor, chunks):
    """Reads a pseudo-terminal until its other end is closed."""
    while True:
        try:
            chunk = os.read(descriptor, 4096)
        except OSError:
            return
        if not chunk:
            return
        chunks.append(chunk)


@pytest.fixture(scope="module")
def straight(quick, tmp_path_factory):
    """A run of 8 steps that nothing interrupts."""
    folder = tmp_path_factory.mktemp("straight")
    with commands.optimized_graphs():
        train(events.merged(quick, EXACT), folder)
    return folder


@pytest.fixture(scope="module")
def killed(quick, tmp_path_factory):
    """The same run, killed in a validation, then finished.

    Returns its directory, what the first attempt showed on a terminal, and what the last one
    printed into files.
    """
    folder = tmp_path_factory.mktemp("killed")
    arguments = ["--experiment=show_tell", f"--model_dir={folder}"]
    arguments.append(f"--params_override={json.dumps(events.merged(quick, EXACT))}")
    ours, theirs = pty.openpty()
    shown = []
    reader = threading.Thread(target=listen, args=(ours, shown), daemon=True)
    reader.start()
    process = commands.start("-c", KILLED, *arguments, stdout=theirs, stderr=theirs)
    os.close(theirs)
    assert process.wait(200) == -signal.SIGKILL
    reader.join(30)
    os.close(ours)
    with commands.optimized_graphs():
        done = commands.run_command("tfcap.train", *arguments)
    assert done.returncode == 0, done.stderr
    return folder, b"".join(shown).decode(), done.stdout, done.stderr


@pytest.mark.timeout(600)
def test_resume_after_kill_is_exact(straight, killed):
    folder = killed[0]
    expected = events.curve(straight / "train")
    assert list(expected) == list(range(1, 9))
    attempts = [
        {step: float(value) for step, tag, value in rows if tag == "loss/loss"}
        for rows in events.files(folder / "train")
    ]
    first, second = [steps for steps in attempts if steps]
    assert list(first) == [1, 2, 3, 4] and list(second) == [5, 6, 7, 8]
    assert first | second == expected  # bit for bit
    rate = events.curve(straight / "train", "learning_rate")
    assert rate[6] == 2 * rate[8]  # what the plateau knew of the validation at step 2 was needed
    assert events.curve(folder / "train", "learning_rate") == rate
    for tag in ("loss", "CIDEr"):
        wanted = events.curve(straight / "validation", tag)
        assert list(wanted) == [2, 4, 6, 8]
        assert events.curve(folder / "validation", tag) == wanted

    wanted, got = events.tensors(straight / "ckpt-8"), events.tensors(folder / "ckpt-8")
    assert wanted.keys() == got.keys()
    for name in wanted:
        if not name.startswith(QUIET):
            np.testing.assert_array_equal(got[name], wanted[name], err_msg=name)
    kinds = [
        sum(part in name for name in got) for part in ("weights/", "seeds/", "optimizer/_variables")
    ]
    assert min(kinds) >= 3  # weights, states of dropout and slots of the optimizer were compared
    seeds = [got[name] for name in got if name.startswith("seeds/")]
    assert all(state[1] > 0 for state in seeds)  # and the dropout was in use


@pytest.mark.timeout(600)
def test_console_on_a_terminal(killed):
    assert re.search(r"\rtraining: +\d+%.* \d/8 \[\d\d:\d\d<.*step.*, loss \d+\.\d{3}\]", killed[1])
    assert re.search(r"\rvalidation: +\d+%.*image", killed[1])


@pytest.mark.timeout(600)
def test_console_without_a_terminal(killed):
    folder, _, out, err = killed
    assert "\r" not in out + err and len(out.splitlines()) < 36
    warning, cut, few, *others = err.splitlines()
    assert warning.startswith("warning: a lower loss is better: set")
    assert "so task.max_length=12 cuts them" in cut
    assert few.startswith("warning: 6 validation images are too few to choose the best checkpoint")
    # A line of progress every 30 seconds, and nothing else.
    assert all(re.match(r"(training|validation): \d+/", line) for line in others)
    start = "^show_tell: training on 1 CPU in float32, .* goes on from step 4 to step 8, in "
    assert re.search(f"{start}.*\n^tracing the training step", out, re.M)
    assert re.search(r"^time: \d+ s for the other 2 steps, without validations", out, re.M)
    assert re.search(r"^step 8: loss \d+\.\d\d, perplexity .*CIDEr \d+\.\d\d, ", out, re.M)
    assert re.search(r"^  CIDEr +\d+\.\d\d \(\d+\.\d to \d+\.\d\)$", out, re.M)
    assert re.search(
        r"references against each other: CIDEr [1-9]\d+\.\d\d, the model reaches \d+ %", out
    )
    assert len(re.findall(r"^  val_\d+\.png: .*\(a reference: \w+", out, re.M)) == 3
    best = re.search(r"^best checkpoint: (.*) \(step \d\)$", out, re.M)[1]
    assert best.startswith(str(folder / "best_ckpt")) and os.path.exists(best + ".index")
    for line in ("tensorboard --logdir", "tfcap.evaluate", "tfcap.caption", "tfcap.export"):
        assert line in out


def test_usage_errors_are_one_line(quick, tmp_path):
    odd = {"task": {"train_data": {"global_batch_size": 7}}, "runtime": {"replicas": 2}}
    with pytest.raises(errors.UsageError, match="global_batch_size=7 is not a multiple of 2"):
        train(events.merged(quick, odd), tmp_path / "odd")
    assert not os.path.exists(tmp_path / "odd")
    clip = {"task": {"metrics": ["CIDEr", "CLIPScore"]}}
    with pytest.raises(errors.UsageError, match="CLIPScore"):
        train(events.merged(quick, clip), tmp_path / "clip")
    assert not os.path.exists(tmp_path / "clip")
    done = commands.run_command("tfcap.train", "--experiment=xtransfomer")
    assert done.returncode == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1
    assert "Did you mean 'xtransformer'" in done.stderr


@pytest.mark.parametrize(
    "cores, override, given, expected",
    [
        (2, "", {}, "1"),
        (2, "", {INTRAOP: "3"}, "3"),
        (2, "", {INTEROP: "1"}, None),
        (8, "", {}, None),
        (2, "task.model.xlan.width=256", {}, None),
        (2, "task.backbone.trainable=true", {}, None),
    ],
)
def test_on_two_cores_each_small_operation_has_one(
    cores, override, given, expected, tmp_path, monkeypatch
):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    for name in (INTRAOP, INTEROP):
        monkeypatch.setenv(name, given.get(name, ""))
        if name not in given:
            monkeypatch.delenv(name)
    # The run ends when it finds no data; threads are set before.
    changes = ",".join(filter(None, [f"task.data_dir={tmp_path}", override]))
    arguments = ["--experiment=xlan", f"--model_dir={tmp_path / 'run'}"]
    done = commands.run_command("tfcap.train", *arguments, f"--params_override={changes}")
    assert done.returncode and os.environ.get(INTRAOP) == expected, done.stderr


def test_a_function_leaves_the_threads_of_its_process_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    for name in (INTRAOP, INTEROP):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=str(tmp_path)):
        command.train("xlan", tmp_path / "run", params_override={"task.data_dir": str(tmp_path)})
    assert INTRAOP not in os.environ


@pytest.fixture(scope="module")
def two(quick, tmp_path_factory):
    """Four steps on two replicas with dropout, every one a checkpoint, and a validation."""
    folder = tmp_path_factory.mktemp("two")
    extra = {
        "trainer": {
            "train_steps": 4,
            "checkpoint_interval": 1,
            "max_to_keep": 9,
            "validation_interval": 4,
        },
        "runtime": {"replicas": 2},
    }
    overrides = events.merged(events.merged(quick, QUICK), extra)
    models, spread = [], distribution.spread_seeds
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distribution, "spread_seeds", lambda m, w=0: (models.append(m), spread(m, w)))
        task = train(overrides, folder)
    return folder, overrides, task, models


def test_resume_with_two_replicas_is_exact(two, tmp_path):
    """From the second checkpoint on, as if the run had been killed there."""
    folder, overrides, *_ = two
    for name in ("params.yaml", "vocab.txt", "dataset.json"):
        shutil.copy(folder / name, tmp_path)
    for path in glob.glob(str(folder / "ckpt-[12].*")):
        shutil.copy(path, tmp_path)
    train(overrides, tmp_path, "train")
    expected = events.curve(folder / "train")
    assert events.curve(tmp_path / "train") == {step: expected[step] for step in (3, 4)}
    wanted, got = events.tensors(folder / "ckpt-4"), events.tensors(tmp_path / "ckpt-4")
    assert wanted.keys() == got.keys()
    for name in wanted:
        if not name.startswith((*QUIET, "validated")):
            np.testing.assert_array_equal(got[name], wanted[name], err_msg=name)


def test_evaluation_mode_counts_images_once(two, tmp_path):
    """Twelve images in batches of 8 on two replicas, and in batches of 5 on one."""
    folder, overrides, task, _ = two
    assert sorted(task.captions) == sorted(task.data.references("val"))
    assert len(task.captions) == 12
    extra = {
        "runtime": {"replicas": 1},
        "task": {
            "validation_data": {"global_batch_size": 5},
        },
    }
    run = tmp_path / "run"
    shutil.copytree(folder, run)
    shutil.rmtree(run / "validation")
    best = run / "best_ckpt" / "info.json"  # a score that this evaluation exceeds
    best.write_text(json.dumps(json.loads(best.read_text()) | {"CIDEr": -1.0}))
    kept = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    once = train(events.merged(events.merged(overrides, EAGER), extra), run, "eval")
    assert once.captions == task.captions
    for path, content in kept.items():
        assert path.read_bytes() == content, f"evaluation changed {path}"
    for tag in ("loss", "perplexity", "CIDEr", "distinct_captions"):
        [wanted] = events.curve(folder / "validation", tag).values()
        assert events.curve(run / "validation", tag) == {4: pytest.approx(wanted, rel=1e-5)}


def test_tensorboard_has_the_expected_curves(trained):
    rows = {
        name: [row for file in events.files(os.path.join(trained, name)) for row in file]
        for name in ("train", "validation")
    }
    tags = {name: {tag for _, tag, _ in rows[name]} for name in rows}
    both = {"loss/loss", "loss/perplexity"}
    assert tags["train"] == {*both, "train/learning_rate", "train/steps_per_second"}
    scores = {f"scores/{name}" for name in ("BLEU-4", "CIDEr", "distinct_captions")}
    assert tags["validation"] >= both | scores
    assert {step for step, tag, _ in rows["train"] if tag == "loss/loss"} == {2, 4, 6}
    assert {step for step, tag, _ in rows["validation"] if tag == "loss/loss"} == {6}
    for name, every in rows.items():
        for _, tag, value in every:
            if value.dtype.kind == "f":
                assert np.isfinite(value).all(), (name, tag)
    assert {"captions", "samples/0"} <= tags["validation"]
