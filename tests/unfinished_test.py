"""Directories that killed processes have left are removed, and those in work are kept."""

import os
import signal
import subprocess
import threading

import pytest
from helpers import commands

from tfcap import unfinished

# Begins to write a directory, and waits to be killed.
WRITER = """
import sys, time
from tfcap import unfinished
with unfinished.directory(sys.argv[1]) as path:
    open(path + "/saved_model.pb", "w").close()
    print(path, flush=True)
    time.sleep(600)
"""


def test_what_a_killed_process_left_is_removed_and_what_a_running_one_writes_is_kept(tmp_path):
    writer = commands.start("-c", WRITER, tmp_path, stdout=subprocess.PIPE)
    try:
        path = writer.stdout.readline().strip()
        (tmp_path / f".tmp-{'0' * 32}").mkdir()  # of an earlier version, which locked nothing
        (tmp_path / ".tmp-7-client").mkdir()
        with unfinished.directory(tmp_path) as own:
            names = [os.path.basename(path), os.path.basename(own), ".tmp-7-client"]
            assert sorted(os.listdir(tmp_path)) == sorted(names)
    finally:
        writer.send_signal(signal.SIGKILL)
        assert writer.wait(60) == -signal.SIGKILL
        writer.stdout.close()
    assert os.listdir(path) == ["saved_model.pb"]
    with unfinished.directory(tmp_path) as own:
        assert unfinished.rename(own, tmp_path / "whole")
    assert sorted(os.listdir(tmp_path)) == [".tmp-7-client", "whole"]


def test_no_process_finds_a_directory_that_is_not_locked_yet(tmp_path, monkeypatch):
    """Another thread removes what is left in the moment after a directory was made."""
    make, other = os.mkdir, unfinished.directory(tmp_path)
    thread = threading.Thread(target=lambda: other.__enter__(), daemon=True)

    def mkdir(path):
        make(path)
        if thread.ident is None:
            thread.start()
            thread.join(0.1)

    monkeypatch.setattr(os, "mkdir", mkdir)
    with unfinished.directory(tmp_path) as path:
        thread.join()
        assert os.path.isdir(path)
    other.__exit__(None, None, None)
    assert os.listdir(tmp_path) == []


def test_a_name_that_is_taken_and_a_failed_block_leave_no_files(tmp_path):
    (tmp_path / "taken" / "inside").mkdir(parents=True)
    with unfinished.directory(tmp_path) as path:
        assert not unfinished.rename(path, tmp_path / "taken")
    with pytest.raises(KeyError), unfinished.directory(tmp_path):
        raise KeyError
    assert os.listdir(tmp_path) == ["taken"]


def test_where_nothing_can_be_locked_nothing_is_removed(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("No locks available")

    monkeypatch.setattr(unfinished.fcntl, "flock", refuse)
    left = tmp_path / f".tmp-{'0' * 32}"
    left.mkdir()
    with unfinished.directory(tmp_path) as path:
        assert os.path.isdir(path) and left.exists()
