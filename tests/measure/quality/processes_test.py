"""Processes of low priority: their time, their errors, and how they end with their parent."""

import os
import signal
import sys
import time

import pytest

from tfcap import cli
from tfcap.measure.quality import processes

# It waits until its priority is the lowest, which it gets right after its start.
LOW = """
import os, time
end = time.monotonic() + 20
while os.getpriority(os.PRIO_PROCESS, 0) < 19 and time.monotonic() < end: pass
print(os.getpriority(os.PRIO_PROCESS, 0), os.environ["TF_NUM_INTRAOP_THREADS"])
end = time.process_time() + 0.1
while time.process_time() < end: pass
"""
SAVING = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *a: (print("saved"), sys.exit(75)))
print("ready", flush=True)
time.sleep(60)
"""


def python(code):
    return [sys.executable, "-IS", "-c", code]


def test_a_process_has_the_lowest_priority_and_one_thread(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "2")
    with processes.Processes() as running:
        running.start("a", python(LOW), str(tmp_path / "log"))
        ended = running.wait()
    assert (tmp_path / "log").read_text() == "19 1\n"
    assert (ended.key, ended.code, ended.reason, running.running) == ("a", 0, "", {})
    assert 0.1 < ended.cpu_seconds < 20


def test_a_failed_process_gives_its_last_error(tmp_path):
    log = tmp_path / "log"
    log.write_text("error: of an earlier start\n")
    with processes.Processes() as running:
        code = "import sys; print('error: no data\\nmore'); sys.exit(3)"
        running.start("a", python(code), str(log))
        ended = running.wait()
        running.start("b", python("1 / 0"), str(log))
        traceback = running.wait()
    assert (ended.code, ended.reason) == (3, "no data")
    assert traceback.code == 1 and traceback.reason.startswith("Traceback")
    assert traceback.reason.rpartition("\n")[2].startswith("ZeroDivisionError")


def test_sigterm_ends_the_processes_after_they_have_saved(tmp_path):
    log, before = tmp_path / "log", signal.getsignal(signal.SIGTERM)
    with pytest.raises(cli.Interrupted, match="Ended by SIGTERM") as caught:
        with processes.Processes() as running:
            running.start("a", python(SAVING), str(log))
            while "ready" not in log.read_text():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)
            running.wait()
    assert caught.value.code == cli.AGAIN
    assert log.read_text() == "ready\nsaved\n" and not running.running
    assert signal.getsignal(signal.SIGTERM) == before


def test_stopped_processes_tell_how_they_ended(tmp_path):
    with processes.Processes() as running:
        running.start("a", python("import time; time.sleep(60)"), str(tmp_path / "log"))
        (ended,) = running.stop()
    assert (ended.key, ended.code) == ("a", -signal.SIGTERM)
