"""Runs commands in processes of low priority, several at once, each on one thread."""

import dataclasses
import os
import signal
import subprocess
import threading
import time
import types
from collections.abc import Hashable
from typing import Any

from tfcap import cli

_NICE = 19  # the lowest priority
_POLL = 0.2  # seconds between two looks at the processes
_PATIENCE = 120.0  # seconds that a process has to save its work
_ONE_THREAD = dict.fromkeys(
    ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"), "1"
)


@dataclasses.dataclass
class Ended:
    """A process that has ended.

    Attributes:
      key: what it was started for.
      code: its exit code; the negative number of a signal if one ended it.
      cpu_seconds: the seconds of processor time that it took.
      reason: the error that it printed last.
    """

    key: Any
    code: int
    cpu_seconds: float
    reason: str


class Processes:
    """Processes that run at the same time. Use it as a context manager.

    SIGTERM raises `cli.Interrupted` inside the context. When the context ends, also with an
    error, SIGTERM goes to the processes that are left, which save their work.
    """

    def __init__(self) -> None:
        # The process of each key, its log, and where in the log its own output begins.
        self.running: dict[Hashable, tuple[subprocess.Popen, str, int]] = {}
        self._before: Any = None

    def __enter__(self) -> "Processes":
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, _interrupt)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
        self.stop()

    def stop(self) -> list[Ended]:
        """Ends the processes that are left; returns how they ended."""
        for process, _, _ in self.running.values():
            process.terminate()
        stopped, end = [], time.monotonic() + _PATIENCE
        while self.running:
            if ended := self._ended():
                stopped.append(ended)
            elif time.monotonic() > end:
                for process, _, _ in self.running.values():
                    process.kill()
            else:
                time.sleep(_POLL)
        return stopped

    def start(self, key: Hashable, command: list[str], log: str) -> None:
        """Starts a command for `key`; its output is added to the file `log`."""
        with open(log, "ab") as file:
            begin = file.tell()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=os.environ | _ONE_THREAD,
            )
        os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
        self.running[key] = process, log, begin

    def wait(self) -> Ended:
        """Waits until one of the processes has ended."""
        while not (ended := self._ended()):
            time.sleep(_POLL)
        return ended

    def _ended(self) -> Ended | None:
        """Returns a process that has ended, and forgets it; None while all run."""
        for key, (process, log, begin) in self.running.items():
            number, status, usage = os.wait4(process.pid, os.WNOHANG)
            if number:
                code = process.returncode = os.waitstatus_to_exitcode(status)
                del self.running[key]
                seconds = usage.ru_utime + usage.ru_stime
                return Ended(key, code, seconds, _reason(log, begin) if code else "")
        return None


def _interrupt(number: int, frame: types.FrameType | None) -> None:
    raise cli.Interrupted("Ended by SIGTERM. Give the same command again to continue.", cli.AGAIN)


def _reason(log: str, begin: int) -> str:
    """Returns the last error in a log from the byte `begin` on, or the end of the log."""
    with open(log, "rb") as file:
        file.seek(begin)
        text = file.read().decode(errors="replace")
    # The log of TensorFlow may follow the line with the error.
    _, marker, reason = text.rpartition("error: ")
    return reason.splitlines()[0] if marker else text[-2000:].strip()
