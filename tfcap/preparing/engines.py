"""Calls a function for each shard: in this process, in several processes, or on Apache Beam.

An engine is a context manager whose `map(work, tasks)` calls `work` with each task and yields the
names of finished tasks in any order. `work` writes its result into a file.
"""

import concurrent.futures
import contextlib
import importlib.util
import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any, Protocol

from tfcap import cli

ENGINES = ("local", "beam")


class Named(Protocol):
    """A task of any kind."""

    @property
    def name(self) -> str:
        """The name that `map` yields."""


Work = Callable[[Any], Any]  # takes a task; it can be pickled where an engine has processes


class Inline(contextlib.AbstractContextManager):
    """Runs tasks in this process, one after the other and in their order."""

    def __exit__(self, *error: object) -> None:
        pass

    def map(self, work: Work, tasks: Iterable[Named]) -> Iterator[str]:
        """Yields the name of each task after `work` was called with it."""
        for task in tasks:
            work(task)
            yield task.name


class Local(contextlib.AbstractContextManager):
    """Runs tasks in new processes of this machine.

    Args:
      workers: how many processes.
    """

    def __init__(self, workers: int):
        self.workers = workers
        # Not a fork: TensorFlow has threads, which a copied process lacks.
        context = multiprocessing.get_context("spawn")
        reader, self._alive = context.Pipe(duplex=False)
        self._pool = concurrent.futures.ProcessPoolExecutor(
            workers, context, _start_process, (reader, workers)
        )

    def __exit__(self, *error: object) -> None:
        self._alive.close()  # processes end at once, also in the midst of a task
        self._pool.shutdown(cancel_futures=True)

    def map(self, work: Work, tasks: Iterable[Named]) -> Iterator[str]:
        """Yields the names of tasks that are done; takes tasks only when a process is free."""
        source = iter(tasks)
        running: dict[concurrent.futures.Future[Any], Named] = {}
        try:
            while True:
                # One more than processes, so that none waits.
                for task in itertools.islice(source, self.workers + 1 - len(running)):
                    running[self._pool.submit(_work, work, task)] = task
                if not running:
                    return
                for future in concurrent.futures.wait(
                    running, return_when=concurrent.futures.FIRST_COMPLETED
                ).done:
                    future.result()
                    yield running.pop(future).name
        except BrokenProcessPool:
            raise ValueError(
                "A worker process was killed. If the memory was full, give fewer --workers; then "
                "give the same command again. A Python program that prepares with several workers "
                'needs `if __name__ == "__main__":`.'
            ) from None


_opened: list[Work] = []  # in a worker process: its first `work`, with what that has opened


def _work(work: Work, task: Named) -> None:
    if not _opened:
        _opened.append(work)
    _opened[0](task)


def _start_process(alive: Connection, workers: int) -> None:
    """Prepares a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process ends the others
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()
    # TensorFlow reads these when it first computes.
    threads = max(1, (os.cpu_count() or 1) // workers)
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(threads))


def _end_with(alive: Connection) -> None:
    """Ends this process when the main process closes its end or is gone."""
    alive.poll(None)
    os.kill(os.getpid(), signal.SIGTERM)


class Beam(contextlib.AbstractContextManager):
    """Runs tasks in a pipeline of Apache Beam.

    Args:
      options: options of Beam, such as `--runner=FlinkRunner`.
      folder: a directory that all workers see.
    """

    def __init__(self, options: Sequence[str], folder: str):
        if importlib.util.find_spec("apache_beam") is None:
            raise cli.UsageError(
                "--engine=beam needs Apache Beam: pip install 'tfcap[beam]' installs it."
            )
        from tfcap.preparing import beam

        self._pipeline = beam.Tasks(options, folder)

    def __exit__(self, *error: object) -> None:
        pass

    def map(self, work: Work, tasks: Iterable[Named]) -> Iterator[str]:
        """Yields the names of all tasks when the pipeline has ended."""
        yield from self._pipeline.run(work, tasks)


Engine = Inline | Local | Beam


def engine(name: str, workers: int, options: Sequence[str], folder: str) -> Engine:
    """Returns an engine.

    Args:
      name: one of `ENGINES`.
      workers: processes of "local"; with one, the work is done in this process.
      options: options of Beam.
      folder: a directory that all workers see.
    """
    if name == "beam":
        return Beam(options, folder)
    return Local(workers) if workers > 1 else Inline()
