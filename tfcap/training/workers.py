"""Several processes that train one model, under TensorFlow's multi-worker strategy.

Every worker runs the same program. The first one is the chief: it prepares data, writes the run
directory and computes scores, and the others receive its results. Workers send each other JSON
text, by an all-reduce of its bytes. An all-reduce waits for all workers, so each call is a barrier,
too.

A cluster gives each worker a `TF_CONFIG`. `launch` starts workers on this machine.
"""

import contextlib
import hashlib
import io
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tfcap import errors, gpus

_log = logging.getLogger(__name__)

# What TensorFlow raises when another worker is gone, and words in other errors with this cause.
LOST = (tf.errors.AbortedError, tf.errors.DeadlineExceededError, tf.errors.UnavailableError)
WORDS = ("ollective", "oordination", "heartbeat", "onnection")
PIECE = 4096  # integers of an all-reduce; a single shape is traced once
GRACE = 60.0  # seconds for the others to end after the first one has ended

T = TypeVar("T")

_ADDRESS = re.compile(r"(?:\[[\da-f:.]+\]|[^\s:/\[\]]+):(\d{1,5})", re.IGNORECASE)


def cluster_position(several: bool = False) -> tuple[int, int]:
    """Reads from the environment variable `TF_CONFIG` which worker this process is.

    Args:
      several: true checks the addresses even if there is only one worker, because a strategy for
        several workers connects to that address, too. False checks them only for two or more
        workers.

    Returns:
      the number of workers, and the index of this one, from 0; (1, 0) without `TF_CONFIG`.

    Raises:
      UsageError: the content of `TF_CONFIG` cannot be used.
    """
    text = os.environ.get("TF_CONFIG") or "{}"
    try:
        content = json.loads(text)
        cluster = content.get("cluster") or {}
        if not cluster:
            return 1, 0
        chiefs = cluster.get("chief", [])
        addresses = chiefs + cluster.get("worker", [])
        kind = content["task"]["type"]
        index = int(content["task"]["index"])
        first = {"chief": 0, "worker": len(chiefs)}[kind]
        number = first + range(len(cluster[kind]))[index]
        fault = "its index is below 0" if index < 0 else ""
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        fault = (
            "it is not JSON, or its task is no chief or worker of its cluster (to validate beside "
            "training, use `mode=continuous_eval` without TF_CONFIG)"
        )
    if not fault and (several or len(addresses) > 1):
        fault = _fault(addresses, cluster)
    if fault:
        raise errors.UsageError(
            f"TF_CONFIG cannot be used, because {fault}: {text}. For example: "
            '{"cluster": {"worker": ["host0:1234", "host1:1234"]}, '
            '"task": {"type": "worker", "index": 0}}'
        )
    return len(addresses), number


def _fault(addresses: Sequence[Any], cluster: Mapping[str, Any]) -> str:
    """Says why TensorFlow cannot connect the workers of a cluster, or ""."""
    for address in addresses:
        match = _ADDRESS.fullmatch(str(address))
        if not match or not 1 <= int(match[1]) <= 65535:
            return f"the address {address!r} is not HOST:PORT"
    if twice := [one for one in addresses if addresses.count(one) > 1]:
        return f"two workers have the address {twice[0]!r}"
    if "ps" in cluster:  # TensorFlow would wait for them
        return "it has parameter servers (ps), which training does not use"
    return ""


class Workers:
    """The processes (workers) that train one model together, and how they exchange values.

    Worker 0 is the chief, which writes the run. All workers must call the same methods in the same
    order, because each call waits for all of them.

    Args:
      strategy: the distribution strategy; None for a single process.

    Attributes:
      count: the number of processes.
      index: the index of this process, from 0; that of the chief is 0.
    """

    def __init__(self, strategy: tf.distribute.Strategy | None = None):
        self.strategy: tf.distribute.Strategy = strategy
        self.count = 1
        self.index = 0
        self._all_reduce = tf.function(self._add, autograph=False)
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            self.count, self.index = cluster_position()

    @property
    def is_chief(self) -> bool:
        """True in worker 0, the only process that writes files and prints."""
        return self.index == 0

    # ---- values of all workers ------------------------------------------------------------------

    def gather(self, value: Any) -> list[Any]:
        """Sends a value to all workers; returns the values of all, in the order of their indices.

        Args:
          value: anything that JSON can hold.
        """
        if self.count == 1:
            return [value]
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        lengths = self._sum(np.eye(self.count, dtype=np.int32)[self.index] * len(text))
        rows = np.zeros([self.count, max(lengths)], np.int32)
        rows[self.index, : len(text)] = text
        rows = self._sum(rows).astype(np.uint8)
        return [json.loads(bytes(row[:n])) for row, n in zip(rows, lengths, strict=True)]

    def _sum(self, values: np.ndarray) -> np.ndarray:
        first = self.index * len(self.strategy.extended.worker_devices)
        flat = values.ravel()
        sums = []
        for start in range(0, len(flat), PIECE):
            piece = flat[start : start + PIECE]
            padded = np.zeros(PIECE, np.int32)
            padded[: len(piece)] = piece
            # Only the first replica of each worker has values.
            split = self.strategy.experimental_distribute_values_from_function(
                lambda context, padded=padded: tf.constant(
                    padded * (context.replica_id_in_sync_group == first)
                )
            )
            sums.append(self._all_reduce(split).numpy()[: len(piece)])
        return np.concatenate(sums).reshape(values.shape)

    def _add(self, values):
        def add(values):
            context = tf.distribute.get_replica_context()
            # Without a device TensorFlow would not know where to put the sum.
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(values))

        return self.strategy.experimental_local_results(self.strategy.run(add, args=(values,)))[0]

    def everywhere(self, function: Callable[[], T]) -> T:
        """Calls a function in each worker, and returns the result of this worker.

        Each worker waits until all workers have called the function.

        Args:
          function: a function without arguments.

        Raises:
          ValueError: the function raised ValueError in a worker. All workers raise this error.
        """
        result: Any = None
        failure = None
        try:
            result = function()
        except ValueError as error:
            if self.count == 1:
                raise
            failure = [isinstance(error, errors.UsageError), str(error)]
        for index, other in enumerate(self.gather(failure)):
            if other:
                is_usage, text = other
                where = "" if index == self.index else f"worker {index}: "
                raise (errors.UsageError if is_usage else ValueError)(where + text)
        return result

    def share(self, function: Callable[[], T]) -> T:
        """Calls a function in worker 0 only, and returns its result in all workers.

        The workers wait for the result.

        Args:
          function: a function without arguments, whose result JSON can hold.

        Raises:
          ValueError: the function raised ValueError. All workers raise this error.
        """
        return self.gather(self.everywhere(lambda: function() if self.is_chief else None))[0]

    def compare(self, **values: Any) -> None:
        """Checks that every worker has the same values as worker 0.

        Args:
          **values: the values that must be equal, by the names that the error shows.

        Raises:
          ValueError: a value differs in a worker. All workers raise this error.
        """
        texts = {k: json.dumps(v, sort_keys=True, default=os.fspath) for k, v in values.items()}
        digests = {k: hashlib.sha256(text.encode()).hexdigest() for k, text in texts.items()}
        chief, *others = self.gather(digests)
        for index, theirs in enumerate(others, 1):
            if different := [name for name in chief if theirs[name] != chief[name]]:
                raise ValueError(
                    f"The {', '.join(different)} of worker {index} and of worker 0 differ. Give "
                    "every worker the same command and files."
                )

    # ---- the end --------------------------------------------------------------------------------

    def wait(self) -> None:
        """Waits until all workers call it.

        TensorFlow treats a worker that has ended as lost, so no worker may end before the others.
        """
        self.gather(None)

    def leave(self) -> None:
        """Waits like `wait`, but raises nothing if another worker is lost. Call it last.

        Without it a worker could end while another still reads what `wait` has exchanged.
        """
        with contextlib.suppress(tf.errors.OpError):
            self.wait()

    def quiet(self) -> contextlib.AbstractContextManager:
        """Returns a context that hides the standard output of every worker but worker 0."""
        if self.is_chief:
            return contextlib.nullcontext()
        return contextlib.redirect_stdout(io.StringIO())

    @contextlib.contextmanager
    def readable_errors(self) -> Iterator[None]:
        """Context that turns TensorFlow's errors after the loss of a worker into one `Interrupted`.

        Its message says that the same command goes on from the last checkpoint.
        """
        try:
            yield
        except tf.errors.OpError as error:
            lines = [line for line in error.message.splitlines() if any(w in line for w in WORDS)]
            if self.count == 1 or not (lines or isinstance(error, LOST)):
                raise
            raise errors.Interrupted(
                f"Worker {self.index} lost another worker. Start all workers again with the same "
                "command: they go on from the last checkpoint. TensorFlow reports: "
                f"{lines[0] if lines else type(error).__name__}",
                errors.AGAIN,
            ) from error


# ---- several workers on this machine ------------------------------------------------------------


def launch(arguments: Sequence[str], workers: int, restarts: int = 0) -> int:
    """Runs `python -m tfcap.train` in several processes of this machine, and waits for them.

    Args:
      arguments: the command line without the program.
      workers: the number of processes.
      restarts: how many times all workers are started again after a worker was lost.

    Returns:
      the exit code: 0 if all workers succeed, 130 after Ctrl-C, else that of the first worker that
      failed.

    Raises:
      UsageError: this machine has GPUs, but fewer than `workers`.
    """
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = (
        [str(i) for i in range(len(gpus.driver_gpus()))] if shown is None else shown.split(",")
    )
    devices = [device for device in devices if device]
    if 0 < len(devices) < workers:
        raise errors.UsageError(
            f"`workers={workers}`: each worker needs a GPU, but this machine has {len(devices)}. "
            "Start fewer workers, or hide the GPUs (CUDA_VISIBLE_DEVICES=) to train on the "
            "processor."
        )
    command = [sys.executable, "-m", "tfcap.train", *arguments, "--workers=1", "--restarts=0"]
    for left in range(restarts, -1, -1):
        code, asked = _run(command, workers, devices)
        if code == errors.AGAIN and asked == signal.SIGINT:
            return 130
        if code != errors.AGAIN or asked or not left:
            break
        _log.warning(f"a worker was lost; all workers start again, {left - 1} restarts are left")
    return code


def _run(command: Sequence[str], workers: int, gpus: Sequence[str]) -> tuple[int, int]:
    """Runs all workers once; returns the exit code, and the signal that ended a worker, or 0."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(workers)]
    processes: list[subprocess.Popen] = []
    threads: list[threading.Thread] = []
    asked = code = 0
    deadline = float("inf")

    def pass_on(number, frame):
        """Sends SIGTERM to all workers: they get Ctrl-C, too, and a second one would kill them."""
        nonlocal asked
        asked = asked or number
        for process in processes:
            process.terminate()

    before = {n: signal.signal(n, pass_on) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        for index in range(workers):
            task = {"type": "worker", "index": index}
            config = json.dumps({"cluster": {"worker": addresses}, "task": task})
            environment = {**os.environ, "TF_CONFIG": config}
            if gpus:
                environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[index::workers])
            pipe = subprocess.PIPE if index else None  # the chief prints itself
            processes.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    stdout=pipe,
                    stderr=subprocess.STDOUT if index else None,
                    text=True,
                    errors="replace",
                )
            )
            if index:
                threads.append(threading.Thread(target=_show, args=(processes[-1], index)))
                threads[-1].start()
        while None in (codes := [process.poll() for process in processes]):
            if not code and (code := next(filter(None, codes), 0)):  # below 0 for a signal
                deadline = time.monotonic() + GRACE
            if time.monotonic() > deadline:
                for process in processes:
                    process.kill()
            time.sleep(0.1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for thread in threads:  # the last lines of the workers
        thread.join()
    code = code or next(filter(None, codes), 0)
    return (errors.AGAIN if code < 0 else code), asked


def _show(process: subprocess.Popen, index: int) -> None:
    """Logs the output of a worker, which it prints itself, with the number of the worker."""
    for line in process.stdout or ():
        _log.warning(f"worker {index}: {line.removesuffix(chr(10))}")


def free_ports(count: int) -> list[int]:
    """Returns the numbers of TCP ports of this machine that no program uses now.

    Args:
      count: how many ports to find.
    """
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [item.getsockname()[1] for item in sockets]
