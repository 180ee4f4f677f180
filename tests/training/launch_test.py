"""Two workers train as two replicas of one process, also when one of them is killed.

The loss of a worker, SIGTERM and a worker that differs are real: processes, signals, and the
collectives of TensorFlow.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest
from helpers import commands, events

from tfcap import cli
from tfcap import train as train_command
from tfcap.training.launch import LAUNCHER as LAUNCHER_VARIABLE
from tfcap.training.launch import _free_ports, launch, without_own_flags

STEPS = 60  # seconds, in which a worker can be killed


@pytest.fixture(scope="module")
def overrides(shapes):
    return {
        "task": {
            "data_dir": shapes,
            "max_length": 8,
            "metrics": ["CIDEr"],
            "decoding": {"beam": 1},
            "init_checkpoint": "",
            "train_data": {"global_batch_size": 8, "captions_per_image": 2},
            "validation_data": {"global_batch_size": 8, "captions_per_image": 2},
            "model": {"show_tell": {"width": 8}},
        },
        "trainer": {
            "train_steps": STEPS,
            "validation_interval": STEPS // 2,
            "checkpoint_interval": 10,
            "steps_per_loop": 10,
            "summary_interval": 10,
            "shown_images": 0,
        },
    }


def train(folder, overrides, *flags, **environment):
    """Starts the command."""
    given = [f"--model_dir={folder}", f"--params_override={json.dumps(overrides)}", *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return commands.start("-m", "tfcap.train", *given, env={**os.environ, **environment}, **pipes)


def workers_of(process):
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(number) for number in children.read_text().split()]


def wait_for_checkpoint(folder, seconds=150):
    limit = time.monotonic() + seconds
    while not list(folder.glob("ckpt-*.index")):
        assert time.monotonic() < limit, f"{folder} gets no checkpoint"
        time.sleep(0.02)


def assert_same(one, two, step):
    wanted, got = (events.tensors(folder / f"ckpt-{step}") for folder in (one, two))
    names = set(wanted) - {name for name in wanted if "save_counter" in name}
    assert len(names) > 20
    for name in names:
        assert (wanted[name] == got[name]).all(), name
    for part in ("train", "validation"):
        curve = events.curve(one / part, "loss")
        assert len(curve) > 1 and events.curve(two / part, "loss") == curve


@pytest.mark.slow
@pytest.mark.usefixtures("module_without_java")
def test_two_workers_train_as_two_replicas(overrides, tmp_path):
    """Also after one of them was killed."""
    changed = events.merged(overrides, {"runtime": {"replicas": 2}})
    with commands.optimized_graphs():
        events.run(changed, tmp_path / "one", experiment="show_tell")
    flags = ["--experiment=show_tell", "--workers=2", "--restarts=1"]
    two = train(tmp_path / "two", overrides, *flags)
    wait_for_checkpoint(tmp_path / "two")
    os.kill(workers_of(two)[1], signal.SIGKILL)
    out, err = two.communicate(timeout=250)
    assert two.returncode == 0, out + err
    assert "all workers start again, 0 restarts are left" in err
    assert "lost another worker" in err
    assert re.search(rf"goes on from step \d+ to step {STEPS}", out + err)
    assert_same(tmp_path / "one", tmp_path / "two", STEPS)


LAUNCHER = """
import os, subprocess, sys, time
worker = "import time; from tfcap.training import launch as l; l.end_with_launcher(); "
worker += "print('ready', flush=True); time.sleep(60)"
environment = {**os.environ, "TFCAP_LAUNCHER": str(os.getpid())}
child = subprocess.Popen([sys.executable, "-c", worker], env=environment)
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs signals of Linux")
def test_a_worker_ends_with_its_launcher():
    """Also when it is killed, so that no worker trains on without a supervisor."""
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER], cwd=commands.ROOT, stdout=subprocess.PIPE, text=True
    )
    worker, ready = int(launcher.stdout.readline()), launcher.stdout.readline()
    assert ready == "ready\n"
    os.kill(worker, 0)  # it runs
    launcher.kill()
    # The pipe is at its end when the worker is gone, too.
    assert launcher.communicate(timeout=40)[0] == ""


def test_a_worker_starts_no_workers(tmp_path, monkeypatch):
    """`--flagfile` gives a worker the flags of its launcher, too."""
    (tmp_path / "flags").write_text("--workers=2\n--restarts=1\n")
    monkeypatch.setenv(LAUNCHER_VARIABLE, str(os.getpid()))
    monkeypatch.setattr(sys, "platform", "other")  # the process of the tests shall go on
    with pytest.raises(cli.UsageError, match="--experiment is required"):
        commands.run_here(train_command, f"--flagfile={tmp_path / 'flags'}")


def test_each_worker_needs_a_gpu_where_there_are_some(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(cli.UsageError, match=r"the GPUs of this machine \(2\).* Received: 3"):
        launch(["--experiment=show_tell"], 3)


def test_a_cluster_has_no_launcher(monkeypatch):
    place = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(place))
    with pytest.raises(cli.UsageError, match="a TF_CONFIG that names 2 workers"):
        commands.run_here(train_command, "--workers=2")


@pytest.mark.slow
def test_workers_that_differ_end_with_a_sentence(overrides, tmp_path):
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(2)]
    processes = []
    for index, seed in enumerate((1, 2)):
        place = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        runtime = {"distribution_strategy": "multi_worker_mirrored"}
        changed = events.merged(overrides, {"task": {"seed": seed}, "runtime": runtime})
        environment = {"TF_CONFIG": json.dumps(place)}
        given = tmp_path / "run", changed, "--experiment=show_tell"
        processes.append(train(*given, **environment))
    for process in processes:
        out = "".join(process.communicate(timeout=100))
        assert process.returncode == 3, out
        assert "configuration of worker 1:" in out and "Traceback" not in out
    assert not (tmp_path / "run").exists()


def test_own_flags_are_removed():
    given = ["--workers=2", "--mode", "train", "--restarts", "3", "-workers", "4", "--x=1"]
    assert without_own_flags(given) == ["--mode", "train", "--x=1"]
