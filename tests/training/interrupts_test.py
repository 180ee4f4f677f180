"""SIGTERM and Ctrl-C end training at the next step, and the next start goes on bit for bit."""

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

import keras
import numpy as np
import pytest
from helpers import commands, events

from tfcap import cli, configs
from tfcap.training import interrupts, keras3, train
from tfcap.training.trainer import Trainer

QUIET = ("save_counter",)  # counts files, not training
# One loop from start to end: only a signal can end it before the last step.
LONG = {
    "task": {"max_length": 6, "micro_batches": 2, "model": {"show_tell": {"width": 8}}},
    "trainer": {
        "train_steps": 120,
        "steps_per_loop": 120,
        "summary_interval": 120,
        "checkpoint_interval": 120,
    },
}


@pytest.fixture(scope="module")
def overrides(small, module_without_java):
    changed = events.merged(small, LONG)
    del changed["task"]["model"]["attention_lstm"]
    return changed


def start(overrides, folder):
    """Starts the training command; its progress comes every 0.2 s."""
    program = "from tfcap import cli, train; cli.LOG_INTERVAL = 0.2; train.main()"
    given = ["--experiment=show_tell", "--mode=train", f"--params_override={json.dumps(overrides)}"]
    return commands.start(
        *("-c", program, *given, f"--model_dir={folder}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def stop(process, numbers):
    """Sends signals as soon as a step is shown.

    Returns the exit code, standard output and error, and the seconds from the signal to the end.
    """
    shown = []
    for line in process.stderr:
        shown.append(line)
        if re.match(r"training: \d+/120", line):
            break
    sent = time.monotonic()
    for number in numbers:
        process.send_signal(number)
    out, err = process.communicate(timeout=100)
    return process.returncode, out, "".join(shown) + err, time.monotonic() - sent


def assert_same(straight, folder, step):
    """The same curves, each point once, and the same checkpoint at `step`, bit for bit."""
    for name in filter(os.path.isdir, (straight / "train", straight / "validation")):
        name = name.name
        rows = [row for file in events.files(folder / name) for row in file]
        tags = {tag.rpartition("/")[2] for _, tag, value in rows if value.dtype.kind == "f"}
        losses = [step for step, tag, _ in rows if tag.rpartition("/")[2] == "loss"]
        assert len(losses) == len(set(losses)) and ("loss" in tags) == (name == "train")
        for tag in tags - {"steps_per_second"}:
            expected = events.curve(straight / name, tag)
            assert events.curve(folder / name, tag) == expected, tag
    wanted, got = (events.tensors(run / f"ckpt-{step}") for run in (straight, folder))
    assert wanted.keys() == got.keys()
    for name in wanted:
        if not name.startswith(QUIET):
            np.testing.assert_array_equal(got[name], wanted[name], err_msg=name)


@pytest.mark.slow
def test_signals_save_the_next_step(overrides, tmp_path):
    """SIGTERM, twice as `timeout` sends it, then Ctrl-C. Below, a run goes on bit for bit."""
    folder, first = tmp_path / "run", 0
    for numbers, code, name in (
        ([signal.SIGTERM, signal.SIGTERM], 75, "SIGTERM"),
        ([signal.SIGINT], 130, "Ctrl-C"),
    ):
        returned, out, err, seconds = stop(start(overrides, folder), numbers)
        assert returned == code, err
        assert f"{name}: training ends after this step." in err and "Traceback" not in err
        step = int(re.search(rf"error: {name} ended training. Step (\d+) is saved", err)[1])
        assert first < step < 120 and f"The same command goes on from step {step}." in err
        assert os.path.exists(folder / f"ckpt-{step}.index") and seconds < 30
        assert interrupts.read_loop(str(folder), step).left == 120 - step
        assert (f"goes on from step {first} " if first else "from the beginning") in out
        first = step


class Signalled(Trainer):
    """Sends a signal to this process when two steps of a loop are over."""

    def train(self, num_steps):
        goal = int(self.global_step.numpy()) + 2

        def send():
            while int(self.global_step.numpy()) < goal:
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=send, daemon=True).start()
        return super().train(num_steps)


@pytest.mark.slow
def test_a_run_goes_on_bit_for_bit_from_the_midst_of_a_loop(
    overrides, tmp_path, monkeypatch, capsys
):
    """The second stage in bfloat16: the sums of its eight metrics and the loss are kept too."""
    steps = dict.fromkeys(
        ("train_steps", "steps_per_loop", "summary_interval", "checkpoint_interval"), 20
    )
    more = {"runtime": {"mixed_precision_dtype": "bfloat16"}, "trainer": steps}
    more["task"] = {"self_critical": {"samples": 2}, "init_checkpoint": "", "micro_batches": 1}
    more["trainer"]["optimizer_config"] = {"name": "adam", "clip": "none"}  # traced quickly
    given = (events.merged(overrides, more), tmp_path / "run", "train", "show_tell_scst")
    events.run(given[0], tmp_path / "straight", *given[2:])
    with monkeypatch.context() as patch, pytest.raises(cli.Interrupted) as caught:
        patch.setattr(train, "Trainer", Signalled)
        events.run(*given)
    step = int(re.search(r"goes on from step (\d+)", str(caught.value))[1])
    assert caught.value.code == 75 and 2 <= step < 20
    loop = interrupts.read_loop(str(given[1]), step)
    assert loop.left == 20 - step and loop.regular == -1
    assert np.shape(loop.sums) == (1, 18)
    events.run(*given)
    assert f"goes on from step {step} to step 20" in capsys.readouterr().out
    assert_same(tmp_path / "straight", given[1], 20)
    assert not os.path.exists(given[1] / interrupts.LOOP)


def test_a_damaged_file_of_a_begun_loop_is_refused_with_the_remedy(tmp_path):
    loop = interrupts.Loop(7, 3, 5, [[0.1, float("inf")], [1e-9, -2.0]])
    interrupts.write_loop(str(tmp_path), loop)
    assert interrupts.read_loop(str(tmp_path), 7) == loop
    assert interrupts.read_loop(str(tmp_path), 8) is None  # of another checkpoint
    content = json.loads((tmp_path / interrupts.LOOP).read_text())
    for damage in ({"left": "x"}, {"sums": [["0x1p0", "z"]]}, {"sums": 3}):
        (tmp_path / interrupts.LOOP).write_text(json.dumps(content | damage))
        with pytest.raises(ValueError, match="is damaged.*Remove it"):
            interrupts.read_loop(str(tmp_path), 7)
    interrupts.remove_loop(str(tmp_path))
    interrupts.remove_loop(str(tmp_path))
    assert interrupts.read_loop(str(tmp_path), 7) is None


def test_the_sums_of_each_replica_are_kept_and_others_are_not_assigned():
    strategy = keras3.strategy(configs.Runtime(replicas=2))
    with strategy.scope():
        metric = keras.metrics.Mean()
    assert interrupts.read_sums([metric]) == [[0.0, 0.0]] * 2
    sums = [[3.0, 2.0], [5.0, 1.0]]
    interrupts.assign_sums([metric], sums)
    assert interrupts.read_sums([metric]) == sums
    for other in ([[1.0], [1.0]], [[1.0, 1.0]], [[1.0, 1.0]] * 3, []):
        interrupts.assign_sums([metric], other)
        assert interrupts.read_sums([metric]) == sums


def test_each_worker_gets_the_sums_of_its_own_replicas():
    metric = keras.metrics.Mean()
    sums = [[3.0, 2.0], [5.0, 1.0]]
    for worker in (1, 0):
        interrupts.assign_sums([metric], sums, worker, workers=2)
        assert interrupts.read_sums([metric]) == [sums[worker]]


def test_a_program_that_watches_signals_watches_them_again():
    """As asyncio does, with a socket of its own."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        before = signal.set_wakeup_fd(theirs.fileno())
        try:
            with interrupts.Signals():
                pass
        finally:
            after = signal.set_wakeup_fd(before)
        assert after == theirs.fileno()


def test_a_signal_waits_while_it_is_deferred_and_raises_elsewhere():
    with interrupts.Signals() as signals:
        signals.prepare()
        with pytest.raises(interrupts.Stop, match="SIGTERM"):
            signal.raise_signal(signal.SIGTERM)
    before = signal.getsignal(signal.SIGINT)
    with interrupts.Signals() as signals:
        signals.prepare()
        with signals.deferred():
            signal.raise_signal(signal.SIGINT)
            deadline = time.monotonic() + 10
            while not signals.stop.numpy() and time.monotonic() < deadline:
                time.sleep(0.001)  # the thread sets the variable
            assert signals.received == signal.SIGINT and signals.stop.numpy()
            with pytest.raises(interrupts.Stop, match="Ctrl-C"), signals.deferred(False):
                raise AssertionError("the signal should have raised before")
        with pytest.raises(interrupts.Stop):
            signals.check()
    assert signal.getsignal(signal.SIGINT) is before and signal.set_wakeup_fd(-1) == -1


SECOND = """
import os, signal, time
from tfcap.training import interrupts
with interrupts.Signals() as signals, signals.deferred():
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)  # at once: of the same press of the key
    time.sleep(0.7)
    print("alive", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
"""


@pytest.mark.slow
def test_a_second_ctrl_c_ends_the_process_at_once():
    began = time.monotonic()
    done = commands.python("-c", SECOND)
    assert done.returncode == 130 and done.stdout == "alive\n"
    assert "Press Ctrl-C again" in done.stderr and time.monotonic() - began < 50
