"""Several processes that train one model, under TensorFlow's multi-worker strategy.

Every worker runs the same program. The first one is the chief: it prepares data, writes the run
directory and computes scores, and the others receive its results. Workers send each other JSON
text, by an all-reduce of its bytes. An all-reduce waits for all workers, so that each call
is a barrier, too.

Letters: W workers.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfcap import __version__, cli
from tfcap.training import cluster

# What TensorFlow raises in a worker when another one is gone, and words in the text of its other
# errors that have the same cause.
LOST = (tf.errors.AbortedError, tf.errors.DeadlineExceededError, tf.errors.UnavailableError)
WORDS = ("ollective", "oordination", "heartbeat", "onnection")
# Lines of these errors that say nothing about the cause.
NO_REASON = ("Graph execution error", "most recent call last", "could be from a previous operation")
PIECE = 4096  # integers of an all-reduce; a single shape is traced once


class Workers:
    """The processes that share a strategy; one process if the strategy has a single worker.

    Attributes:
      count: W.
      index: the number of this worker; 0 is the chief.
    """

    def __init__(self, strategy: tf.distribute.Strategy | None = None):
        self.strategy, self.count, self.index = strategy, 1, 0
        self._all_reduce = tf.function(self._of_replicas, autograph=False)
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            self.count, self.index = cluster.place()

    @property
    def is_chief(self) -> bool:
        """Whether this process writes files and prints."""
        return self.index == 0

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all workers, in the order of workers; `value` must fit JSON."""
        if self.count == 1:
            return [value]
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        lengths = self._sum(np.eye(self.count, dtype=np.int32)[self.index] * len(text))
        rows = np.zeros([self.count, max(lengths)], np.int32)
        rows[self.index, : len(text)] = text
        rows = self._sum(rows).astype(np.uint8)
        return [json.loads(bytes(row[:n])) for row, n in zip(rows, lengths, strict=True)]

    def everywhere(self, find: Callable[[], Any]) -> Any:
        """Calls `find` in each worker, and returns the result of this worker.

        Raises:
          ValueError: in all workers, if `find` raises it in one.
        """
        found, failure = _tried(find)
        failures = [(i, other) for i, other in enumerate(self.gather(failure)) if other]
        if failures:
            index, (is_usage, text) = failures[0]
            where = "" if index == self.index else f"Worker {index}: "
            raise (cli.UsageError if is_usage else ValueError)(where + text)
        return found

    def share(self, find: Callable[[], Any]) -> Any:
        """Calls `find` in the chief, and returns its result in all workers.

        Raises:
          ValueError: in all workers, if `find` raises it in the chief.
        """
        if self.count == 1:
            return find()
        found, failure = _tried(find) if self.is_chief else (None, None)
        found, failure = self.gather([found, failure])[0]
        if failure:
            is_usage, text = failure
            raise (cli.UsageError if is_usage else ValueError)(text)
        return found

    def wait(self) -> None:
        """Waits for all workers, because TensorFlow treats a worker that has ended as lost."""
        self.gather(None)

    def leave(self) -> None:
        """Waits until no other worker needs this one; call it before the process ends.

        All workers must have called `wait` before. A worker that has its sum may end while another
        one still reads from it, so errors are ignored here.
        """
        with contextlib.suppress(tf.errors.OpError):
            self.wait()

    def compare(self, values: Mapping[str, str]) -> None:
        """Checks that all workers have the same values.

        Args:
          values: what is compared, by its name in the error.

        Raises:
          ValueError: in all workers, if one differs from the chief.
        """
        chief, *others = self.gather(dict(values))
        different = [
            f"{name} of worker {index}: {theirs.get(name)} instead of {value}"
            for index, theirs in enumerate(others, 1)
            for name, value in chief.items()
            if theirs.get(name) != value
        ]
        if different:
            raise ValueError(
                "All workers must have the same code, configuration and data. Received: "
                f"{'; '.join(different)}. Give every worker the same command and files."
            )

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Hides what the workers other than the chief print on standard output."""
        if self.is_chief:
            yield
            return
        with (
            open(os.devnull, "w", encoding="utf-8") as nowhere,
            contextlib.redirect_stdout(nowhere),
        ):
            yield

    @contextlib.contextmanager
    def readable_errors(self) -> Iterator[None]:
        """Turns the errors of TensorFlow after the loss of a worker into one readable error.

        Raises:
          cli.Interrupted: a worker does not answer any more.
        """
        try:
            yield
        except tf.errors.OpError as error:
            is_loss = isinstance(error, LOST) or _is_loss(error.message)
            if self.count == 1 or not is_loss:
                raise
            raise cli.Interrupted(
                f"Worker {self.index} lost another worker. Start all workers again with the same "
                "command: they go on from the last checkpoint. TensorFlow reports: "
                f"{_reason(error.message) or type(error).__name__}",
                cli.AGAIN,
            ) from error

    def total(self, values: tf.Tensor) -> tf.Tensor:
        """Adds up a tensor, or the tensors of all replicas, over all replicas of all workers."""
        return self._all_reduce(values)

    def _of_replicas(self, values):
        assert self.strategy is not None

        def add(values):
            context = tf.distribute.get_replica_context()
            # Without a device TensorFlow would not know where to put the sum.
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(values))

        return self.strategy.experimental_local_results(self.strategy.run(add, args=(values,)))[0]

    def _sum(self, values: np.ndarray) -> np.ndarray:
        """Adds up an int32 array of the same shape over all workers."""
        flat = values.ravel()
        pieces = [flat[i : i + PIECE] for i in range(0, len(flat), PIECE)]
        sums = [self._sum_piece(np.resize(p, PIECE))[: len(p)] for p in pieces]
        return np.concatenate(sums).reshape(values.shape)

    def _sum_piece(self, values):
        assert self.strategy is not None
        here = self.strategy.extended.worker_devices
        first = self.index * len(here)  # only the first replica of each worker has values

        def own(context):
            mine = context.replica_id_in_sync_group == first
            return tf.constant(values if mine else np.zeros_like(values))

        total = self.total(self.strategy.experimental_distribute_values_from_function(own))
        return total.numpy()


def _is_loss(text):
    return any(word in text for word in WORDS)


def _reason(message: str) -> str:
    """Returns the sentence of TensorFlow about the loss, without places in code and graph."""
    lines = [line for line in message.splitlines() if line[:1].strip()]  # no indented frames
    lines = [line for line in lines if not any(words in line for words in NO_REASON)]
    found = next(filter(_is_loss, lines), lines[0] if lines else "")
    return re.sub(r"\{\{.*?\}\}\s*|\s*\[(\[|Op:).*|[\s:]+$", "", found)


def _tried(find):
    """Returns the result of `find`, and its ValueError as [whether it is of usage, text]."""
    try:
        return find(), None
    except ValueError as error:
        return None, [isinstance(error, cli.UsageError), str(error)]


def code_version(folder: pathlib.Path = pathlib.Path(__file__).parents[1]) -> str:
    """Returns the version of the package with a digest of the source files in its folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return f"{__version__}, {digest.hexdigest()[:12]}"


def digest(value: Any) -> str:
    """Returns a short digest of a value that JSON can hold."""
    text = json.dumps(value, sort_keys=True, default=os.fspath)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
