"""Starts several workers of a training command on this machine; restarts all if one is lost.

Use it for tests, and for several GPUs of one machine. A cluster starts its workers itself and gives
each one a `TF_CONFIG`.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence

from tfcap import cli
from tfcap.training.cluster import VARIABLE

GRACE = 60.0  # seconds for the others to end after the first one has ended
LAUNCHER = "TFCAP_LAUNCHER"  # environment of a worker: number of the process that has started it
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl
OPTIONS = "runtime: {distribution_strategy: multi_worker_mirrored}\n"


def launch(arguments: Sequence[str], workers: int, restarts: int = 0) -> int:
    """Runs `python -m tfcap.train` with these arguments in several processes.

    Args:
      arguments: the command line without `--workers` and `--restarts`.
      workers: the number of processes.
      restarts: how often all workers are started again after one was lost.

    Returns:
      0 if all processes succeeded, otherwise the exit code of the first one that failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = os.path.join(folder, "workers.yaml")
        with open(options, "w", encoding="utf-8") as file:
            file.write(OPTIONS)
        command = [sys.executable, "-m", "tfcap.train", *arguments, f"--config_file={options}"]
        for left in range(restarts, -1, -1):
            group = _Group(command, workers)
            code = group.wait()
            if code == cli.AGAIN and group.asked == signal.SIGINT:
                return 130
            if code != cli.AGAIN or group.asked or not left:
                return code
            print(
                f"a worker was lost; all workers start again, {left - 1} restarts are left",
                file=sys.stderr,
                flush=True,
            )
    return code


class _Group:
    """The processes of one start.

    Attributes:
      asked: the number of the signal that has asked for the end; 0 for none.
    """

    def __init__(self, command: Sequence[str], workers: int):
        self.asked, self.threads = 0, []
        gpus = _gpus()
        if 0 < len(gpus) < workers:
            raise cli.UsageError(
                f"--workers must not be more than the GPUs of this machine ({len(gpus)}), because "
                f"each worker needs one. Received: {workers}. Without GPUs (CUDA_VISIBLE_DEVICES=) "
                "all workers train on the processor."
            )
        addresses = [f"127.0.0.1:{port}" for port in _free_ports(workers)]
        self.processes = []
        for index in range(workers):
            task = {"type": "worker", "index": index}
            place = json.dumps({"cluster": {"worker": addresses}, "task": task})
            environment = {**os.environ, VARIABLE: place, LAUNCHER: str(os.getpid())}
            if gpus:
                environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[index::workers])
            process = subprocess.Popen(
                command,
                env=environment,
                stdout=None if index == 0 else subprocess.PIPE,
                stderr=None if index == 0 else subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            self.processes.append(process)
            if index:
                thread = threading.Thread(target=_show, args=(process, f"worker {index}: "))
                thread.start()
                self.threads.append(thread)

    def wait(self) -> int:
        """Waits for all processes; after a failure the others have `GRACE` seconds.

        Returns:
          0, or the exit code of the first process that failed.
        """
        before = {n: signal.signal(n, self._pass_on) for n in (signal.SIGINT, signal.SIGTERM)}
        failed, since = 0, 0.0
        try:
            while running := [p for p in self.processes if p.poll() is None]:
                if not failed and (failed := self._failure()):
                    since = time.monotonic()
                if failed and time.monotonic() - since > GRACE:
                    for process in running:
                        process.kill()
                time.sleep(0.1)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        for thread in self.threads:  # the last lines of the workers
            thread.join()
        failed = failed or self._failure()
        return cli.AGAIN if failed < 0 else failed

    def _failure(self) -> int:
        """Returns the exit code of a process that failed, or 0; below 0 for a signal."""
        return next((p.returncode for p in self.processes if p.returncode), 0)

    def _pass_on(self, number, frame):
        """Asks all workers to end, with SIGTERM: Ctrl-C reaches them too, and twice it kills."""
        del frame
        self.asked = self.asked or number
        for process in self.processes:
            if process.poll() is None:
                process.terminate()


def end_with_launcher() -> bool:
    """Makes Linux send SIGTERM to this worker when its launcher ends in any way, also by SIGKILL.

    It does nothing in a process that is no worker of `launch`.

    Returns:
      Whether this process is a worker of `launch`.
    """
    launcher = os.environ.pop(LAUNCHER, None)  # not for the children of this process
    if launcher is None:
        return False
    if sys.platform != "linux":
        return True
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    try:
        os.kill(int(launcher), 0)
    except ProcessLookupError:  # it has ended already
        os.kill(os.getpid(), signal.SIGTERM)
    return True


def _gpus() -> list[str]:
    """Lists the GPUs that the workers divide among themselves; empty without any."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [each for each in given.split(",") if each]
    return [str(index) for index in range(len(cli.driver_gpus()))]


def _show(process: subprocess.Popen, label: str) -> None:
    """Prints the lines of a worker on standard error, with its number."""
    for line in process.stdout or ():
        print(label + line, end="", file=sys.stderr, flush=True)


def _free_ports(count: int) -> list[int]:
    """Returns ports of this machine that nobody uses now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def without_own_flags(arguments: Sequence[str]) -> list[str]:
    """Removes `--workers` and `--restarts` from a command line."""
    kept, skip = [], False
    for argument in arguments:
        name, given, _ = argument.lstrip("-").partition("=")
        if skip:
            skip = False
        elif argument.startswith("-") and name in ("workers", "restarts"):
            skip = not given
        else:
            kept.append(argument)
    return kept
