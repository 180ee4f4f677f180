"""Only one process at a time writes into a directory."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from tfcap.locks import exclusive

HOLD = """
import sys, time
from tfcap.locks import exclusive
with exclusive(sys.argv[1], "train", "training", "choose another --model_dir"):
    print("held", flush=True)
    time.sleep(60)
"""


def lock(folder):
    return exclusive(folder, "train", "training", "choose another --model_dir")


def test_a_second_process_is_refused_until_the_first_has_ended_in_any_way(tmp_path):
    first = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE)
    assert first.stdout.readline() == b"held\n"
    holder = f"process {first.pid} on {socket.gethostname()} is running"
    message = f"Only one training may write to .*{holder}.*choose another --model_dir"
    with pytest.raises(ValueError, match=message), lock(tmp_path):
        pass
    first.send_signal(signal.SIGKILL)
    first.wait()
    first.stdout.close()
    with lock(tmp_path):
        assert str(os.getpid()) in (tmp_path / ".train.lock").read_text()


def test_the_lock_ends_with_the_block_and_another_name_is_another_lock(tmp_path):
    for _ in range(2):
        with lock(tmp_path):
            with pytest.raises(ValueError, match="Received: a second one"), lock(tmp_path):
                pass
            with exclusive(tmp_path, "prepare", "prepare", "wait"):
                pass
