"""Ends training at the next step after SIGTERM or Ctrl-C, and saves the unfinished loop.

The steps of a loop run inside TensorFlow, and Python's signal handlers wait until the loop is over,
which may take many minutes. So the number of a signal goes through a socket, which Python fills at
once, to a thread; the thread sets a variable that the loop reads before each step.

A loop that ends early leaves sums of metrics that it would have written at its end. They are saved
beside the checkpoint, and the next start finishes that loop: its curves have the same points with
the same values as those of a run that nothing interrupted.

Letters: P replicas, M values of all metrics of training.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfcap import cli
from tfcap.files import read_json, write_json

CODES = {signal.SIGINT: 130, signal.SIGTERM: cli.AGAIN}  # exit codes
NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
LOOP = "interrupted.json"  # in the run directory
_TWICE = 0.5  # seconds: `timeout` and job managers send one signal to process and group


class Stop(KeyboardInterrupt):
    """Training was asked to end by the signal `number`."""

    def __init__(self, number: int):
        super().__init__(NAMES[signal.Signals(number)])
        self.number = signal.Signals(number)


class Signals:
    """Context that watches SIGINT and SIGTERM; it does nothing outside the main thread.

    In Python code a signal raises `Stop` at once, except inside `deferred`. A second Ctrl-C ends
    the process at once.

    Attributes:
      stop: boolean variable, whether a signal was received. None before `prepare`.
      agreed: boolean variable; the loop of training reads it before each step. With one worker
        it is `stop`; with several it says whether one of them has received a signal.
      received: the number of the first signal, or None.
    """

    def __init__(self):
        self.stop: Any = None
        self.agreed: Any = None
        self.received: int | None = None
        self._deferred, self._since = False, 0.0
        self._previous: dict = {}

    def prepare(self, alone: bool = True) -> None:
        """Makes the variables; call it when TensorFlow may start, outside of a strategy's scope.

        Args:
          alone: whether there is a single worker.
        """
        with tf.device("CPU:0"):
            self.stop = tf.Variable(self.received is not None, trainable=False, name="stop")
            self.agreed = self.stop
            if not alone:
                self.agreed = tf.Variable(False, trainable=False, name="agreed")

    def agree(self, total: Callable[[tf.Tensor], tf.Tensor]) -> None:
        """Sets `agreed` if any worker has received a signal; all workers call it in each step."""
        self.agreed.assign(total(tf.cast(self.stop, tf.int32)) > 0)

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            ours, self._theirs = socket.socketpair()
            self._theirs.setblocking(False)
            self._wakeup = signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
            self._previous = {number: signal.signal(number, self._handle) for number in CODES}
            threading.Thread(target=self._watch, args=(ours,), daemon=True).start()
        return self

    def __exit__(self, *error) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._previous:
            signal.set_wakeup_fd(self._wakeup)
            self._theirs.close()  # this ends the thread
        self._previous = {}

    def check(self, alone: bool = True) -> None:
        """Raises `Stop` after a signal; several workers raise it once they have agreed to end.

        Then a signal that only another worker received raises it here, too.
        """
        if not alone and self.agreed.numpy() and self.received is None:
            self.received = signal.SIGTERM  # of another worker
        if self.received is not None and (alone or self.agreed.numpy()):
            raise Stop(self.received)

    @contextlib.contextmanager
    def deferred(self, defer: bool = True) -> Iterator[None]:
        """Context in which signals do not raise `Stop`; with `defer` False they raise it again.

        Raises:
          Stop: with `defer` False, a signal was received before or in the context.
        """
        before, self._deferred = self._deferred, defer
        try:
            if not defer:
                self.check()
            yield
            if not defer:
                self.check()
        finally:
            self._deferred = before

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Runs in the main thread as soon as it runs Python code."""
        del frame
        if self.received is None:
            self.received = number
        if not self._deferred:
            raise Stop(number)

    def _watch(self, ours: socket.socket) -> None:
        """Reads the numbers of signals in a thread; each byte is one number."""
        with ours:
            while numbers := ours.recv(64):
                for number in numbers:
                    if number in CODES:
                        self._note(number)

    def _note(self, number: int) -> None:
        now = time.monotonic()
        if not self._since:
            self._since, self.received = now, number
            if self.stop is not None:
                self.stop.assign(True)
            more = " Press Ctrl-C again to end at once." if number == signal.SIGINT else ""
            name = NAMES[signal.Signals(number)]
            print(f"\n{name}: training ends after this step.{more}", file=sys.stderr, flush=True)
        elif number == signal.SIGINT and now - self._since > _TWICE:
            os._exit(CODES[signal.SIGINT])


def renew() -> None:
    """Installs Python's handlers again: a multi-worker strategy of TensorFlow replaces them."""
    if threading.current_thread() is threading.main_thread():
        for number in CODES:
            if (handler := signal.getsignal(number)) is not None:  # None: it is not Python's
                signal.signal(number, handler)


class Loop(NamedTuple):
    """A loop of training that a signal ended early.

    Attributes:
      step: the step of the checkpoint.
      left: number of steps that the loop still has to do.
      regular: step of the last checkpoint that no signal caused; -1 if there was none.
      sums: [P, M], the values of the metrics.
    """

    step: int
    left: int
    regular: int
    sums: list[list[float]]


def write_loop(directory: str, loop: Loop) -> None:
    """Writes the loop beside the checkpoint of its step."""
    exact = [[value.hex() for value in row] for row in loop.sums]  # infinity and nan too
    write_json(os.path.join(directory, LOOP), {**loop._asdict(), "sums": exact})


def read_loop(directory: str, step: int) -> Loop | None:
    """Reads the loop that was interrupted at `step`; None if there is none.

    Raises:
      ValueError: the file is damaged.
    """
    path = os.path.join(directory, LOOP)
    if not os.path.exists(path):
        return None
    remedy = "Remove it: then only the curve of the begun loop differs."
    content = read_json(path, remedy)
    try:
        sums = [[float.fromhex(value) for value in row] for row in content["sums"]]
        loop = Loop(int(content["step"]), int(content["left"]), int(content["regular"]), sums)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}. {remedy}") from error
    return loop if loop.step == step else None


def remove_loop(directory: str) -> None:
    """Removes the file of `write_loop`, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(os.path.join(directory, LOOP))


def read_sums(metrics: Sequence) -> list[list[float]]:
    """Reads the variables of metrics of training: [P, M]."""
    columns = [[float(part.numpy()) for part in parts] for parts in _variables(metrics)]
    return [list(row) for row in zip(*columns, strict=True)]


def assign_sums(
    metrics: Sequence, sums: list[list[float]], worker: int = 0, workers: int = 1
) -> None:
    """Assigns the values of `read_sums`; keeps the zeros if metrics or replicas have changed.

    Args:
      metrics: of one worker.
      sums: [P, M], the values of all replicas of all workers.
      worker: the number of this worker; all workers have the same number of replicas.
      workers: the number of workers.
    """
    columns = _variables(metrics)
    here = max(map(len, columns), default=0)
    of_all = len(sums) == workers * here
    sums = sums[worker * here : (worker + 1) * here]
    if of_all and all(len(row) == len(columns) for row in sums):
        for parts, values in zip(columns, zip(*sums, strict=True), strict=True):
            if len(parts) == len(values):
                for part, value in zip(parts, values, strict=True):
                    part.assign(value)


def _variables(metrics: Sequence) -> list[list[tf.Variable]]:
    """Lists the variables of metrics, of Keras 3 and of tf_keras, each as one per replica."""
    groups = []
    for variable in (variable for metric in metrics for variable in metric.variables):
        inner = variable.value if isinstance(variable, keras.Variable) else variable
        groups.append(list(getattr(inner, "values", None) or [inner]))
    return groups
