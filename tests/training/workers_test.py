"""Workers send each other values, and find out that one differs or is lost."""

import json
import os
import signal
import subprocess

import pytest
import tensorflow as tf
from helpers import commands

from tfcap import cli
from tfcap.training import workers
from tfcap.training.launch import _free_ports
from tfcap.training.workers import Workers


def test_one_process_needs_no_other():
    alone = Workers()
    assert (alone.count, alone.index, alone.is_chief) == (1, 0, True)
    assert alone.gather({"a": 1}) == [{"a": 1}]
    assert alone.share(lambda: 5) == 5
    alone.compare({"code": "1"})


def test_only_the_chief_prints(capsys):
    for index in (0, 1):
        worker = Workers()
        worker.index = index
        with worker.quiet():
            print("worker", index)
    assert capsys.readouterr().out == "worker 0\n"


@pytest.mark.parametrize(
    "count, error, lost",
    [
        (1, tf.errors.UnavailableError(None, None, "Connection reset by peer"), False),
        (2, tf.errors.UnavailableError(None, None, "Connection reset by peer"), True),
        (2, tf.errors.InternalError(None, None, "Collective ops is aborted"), True),
        (2, tf.errors.InternalError(None, None, "cuDNN launch failure"), False),
    ],
)
def test_the_loss_of_a_worker_is_one_line(count, error, lost):
    """One process has lost none, and a fault of a kernel is none: these keep their traceback."""
    worker = Workers()
    worker.count = count
    with pytest.raises(cli.Interrupted if lost else type(error)) as caught:
        with worker.readable_errors():
            raise error
    if lost:
        assert caught.value.code == 75 and "lost another worker" in str(caught.value)


def test_the_reason_of_a_loss_is_a_sentence_without_places_in_code():
    message = (
        "Graph execution error:\n\nDetected at node CollectiveReduceV2 defined at (most recent "
        'call last):\n  File "collective.py", line 1, in <module>\n\n'
        "Collective ops is aborted by: Connection reset by peer\n"
        "Restart your program to reset.\n\t [[{{node CollectiveReduceV2}}]] [Op:__inference_loop_7]"
    )
    reason = "Collective ops is aborted by: Connection reset by peer"
    assert workers._reason(message) == reason
    assert workers._reason(f"{reason} [Op:CollectiveReduceV2]") == reason
    lost = (
        "{{function_node wrapped}} Connection reset:\nThe error could be from a previous operation."
    )
    assert workers._reason(lost) == "Connection reset"
    assert workers._reason("Graph execution error:\n") == ""


@pytest.mark.slow
def test_a_worker_does_not_wait_for_the_others_without_end():
    program = (
        "from tfcap import configs\n"
        "from tfcap.training import keras3\n"
        "name = 'multi_worker_mirrored'\n"
        "keras3.strategy(configs.Runtime(distribution_strategy=name, start_timeout=2.0))\n"
    )
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(2)]
    place = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 0}}
    environment = {**os.environ, "TF_CONFIG": json.dumps(place)}
    process = commands.start("-c", program, env=environment, stderr=subprocess.PIPE)
    assert "waiting at most 2 s (runtime.start_timeout)" in process.communicate(timeout=100)[1]
    assert process.returncode == -signal.SIGALRM


def test_versions_and_digests(tmp_path):
    found = []
    for text in ("a = 1", "a = 1", "a = 2"):
        (tmp_path / "a.py").write_text(text, encoding="utf-8")
        found.append(workers.code_version(tmp_path))
    assert found[0] == found[1] != found[2]
    assert workers.digest({"a": 1, "b": 2}) == workers.digest({"b": 2, "a": 1})
    assert workers.digest({"a": 1}) != workers.digest({"a": 2})
