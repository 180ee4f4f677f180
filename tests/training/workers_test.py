"""Two workers train as two replicas of one process, also when one of them is killed.

The loss of a worker is real: processes, signals, and the collectives of TensorFlow.
"""

import json
import os
import pathlib
import re
import signal
import threading
import time

import pytest
import tensorflow as tf
from helpers import commands, events

from tfcap import configs, errors
from tfcap import train as train_command
from tfcap.training import distribution, stages, workers

STEPS = 60  # seconds, in which a worker can be killed
TWO = {"worker": ["a:1", "b:1"]}


def config(cluster, kind="worker", index=0):
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


@pytest.mark.parametrize(
    "given, place",
    [
        (config({"worker": ["a:1", "b:1", "c:1"]}, "worker", 2), (3, 2)),
        (config({"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "worker", "1"), (3, 2)),
        ("", (1, 0)),
        (config({"worker": ["[::1]:1", "h_0.x-y:65535"]}, "worker", 1), (2, 1)),
        (config({**TWO, "evaluator": ["c:1"]}), (2, 0)),
        (config({"worker": ["a"]}), (1, 0)),  # nobody connects to it
    ],
)
def test_the_place_among_all_workers(given, place, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", given)
    assert workers.cluster_position() == place


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("{", "no chief or worker"),
        ("[]", "no chief or worker"),
        (config(TWO, "worker", 2), "no chief or worker"),
        (config(TWO, "chief"), "no chief or worker"),
        (config({**TWO, "evaluator": ["c:1"]}, "evaluator"), "`mode=continuous_eval` without"),
        (config({"worker": "a:1,b:1"}), "no chief or worker"),
        (config(TWO, "worker", -1), "below 0"),
        *(
            (config({"worker": [address, "b:1"]}), f"the address {address!r} is not HOST:PORT")
            for address in ("a", "a:", ":1", "a:http", "a:0", "a:65536", "a:-1", "a:1:2", "::1:1")
        ),
        *(
            (config({"worker": ["b:1", address]}), "is not HOST:PORT")
            for address in (
                "grpc://a:1",
                "http://a:1",
                "a:1/",
                "a b:1",
                1234,
                None,
                "[::1]",
                "a:1 ",
            )
        ),
        (config({"worker": ["a:1", "a:1"]}), "two workers have the address 'a:1'"),
        (config({"chief": ["a:1"], "worker": ["b:1", "a:1"]}), "two workers have the address"),
        (config({**TWO, "ps": ["c:1"]}), "parameter servers"),
    ],
)
def test_a_tf_config_that_cannot_be_used_is_shown_with_its_fault(given, fault, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", given)
    with pytest.raises(errors.UsageError) as caught:
        workers.cluster_position()
    assert fault in str(caught.value) and 'For example: {"cluster"' in str(caught.value)


def test_the_addresses_of_worker_hosts_are_checked(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "")
    monkeypatch.delenv("TF_CONFIG")
    runtime = configs.Runtime(
        distribution_strategy="multi_worker_mirrored", worker_hosts="a,b:1", task_index=0
    )
    with pytest.raises(errors.UsageError, match="the address 'a' is not HOST:PORT"):
        distribution.strategy(runtime)


@pytest.mark.parametrize(
    "count, error, lost",
    [
        (1, tf.errors.UnavailableError(None, None, "Connection reset by peer"), False),
        (2, tf.errors.UnavailableError(None, None, "Connection reset by peer"), True),
        (2, tf.errors.InternalError(None, None, "A\n Collective ops is aborted\nB"), True),
        (2, tf.errors.InternalError(None, None, "cuDNN launch failure"), False),
    ],
)
def test_the_loss_of_a_worker_is_one_line(count, error, lost):
    """One process has lost none, and a fault of a kernel is none: these keep their traceback."""
    worker = workers.Workers()
    worker.count = count
    with pytest.raises(errors.Interrupted if lost else type(error)) as caught:
        with worker.readable_errors():
            raise error
    if lost:
        assert caught.value.code == 75 and "lost another worker" in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("environment", "flags", "word"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, ["--workers=3"], "needs a GPU"),
        ({"TF_CONFIG": config(TWO)}, ["--workers=2"], "TF_CONFIG"),
        ({}, ["--restarts=2"], "--restarts"),
    ],
)
def test_usage_errors(environment, flags, word, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(errors.UsageError, match=word):
        commands.run_here(train_command, "--experiment=show_tell", *flags)


# ---- training -----------------------------------------------------------------------------------


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
            "shown_images": 0,
            "eval_tf_function": False,
        },
    }


def test_workers_that_differ_are_told_before_anything_is_read(overrides):
    """The values of all workers are gathered here as they come; the test below has real sums."""
    gathered = []

    class Worker(workers.Workers):
        def gather(self, value):
            gathered.append(value)
            if len(gathered) == 1:
                raise TimeoutError("the chief waits")
            return gathered

    def start(seed):
        changed = json.dumps(events.merged(overrides, {"task": {"seed": seed}}))
        params = configs.resolve("show_tell", override=changed)
        stages._common_data(Worker(), params, "show_tell", "train")

    with pytest.raises(TimeoutError):
        start(1)
    with pytest.raises(ValueError, match="^The configuration of worker 1 and of worker 0 differ"):
        start(2)


def kill_the_second_worker(folder):
    """Waits for a checkpoint before that."""
    limit = time.monotonic() + 150
    while not list(folder.glob("ckpt-*.index")):
        assert time.monotonic() < limit, f"{folder} gets no checkpoint"
        time.sleep(0.02)
    main = f"/proc/self/task/{threading.main_thread().native_id}/children"
    children = pathlib.Path(main).read_text().split()
    workers = [
        pid for pid in children if str(folder) in pathlib.Path(f"/proc/{pid}/cmdline").read_text()
    ]
    os.kill(int(workers[1]), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.usefixtures("module_without_java")
def test_two_workers_train_as_two_replicas(overrides, tmp_path, capfd):
    """Also after one of them was killed."""
    one, two = tmp_path / "one", tmp_path / "two"
    with commands.optimized_graphs():
        events.run(
            events.merged(overrides, {"runtime": {"replicas": 2}}), one, experiment="show_tell"
        )
    changed = events.merged(overrides, {"runtime": {"worker_timeout": 10.0}})
    flags = [
        f"--model_dir={two}",
        f"--params_override={json.dumps(changed)}",
        "--experiment=show_tell",
    ]
    threading.Thread(target=kill_the_second_worker, args=(two,), daemon=True).start()
    assert workers.launch(flags, 2, restarts=1) == 0
    out, err = capfd.readouterr()
    assert "all workers start again, 0 restarts are left" in err
    assert "lost another worker" in err
    assert re.search(rf"goes on from step \d+ to step {STEPS}", out + err)
    wanted, got = (events.tensors(folder / f"ckpt-{STEPS}") for folder in (one, two))
    names = set(wanted) - {name for name in wanted if "save_counter" in name}
    assert len(names) > 20
    for name in names:
        assert (wanted[name] == got[name]).all(), name
    for part in ("train", "validation"):
        curve = events.curve(one / part, "loss")
        assert len(curve) > 1 and events.curve(two / part, "loss") == curve
