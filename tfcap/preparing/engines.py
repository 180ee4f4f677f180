"""Calls a function for each task: in this process, in several processes, or on Apache Beam.

An engine is a context manager with one method, `map(worker, tasks)`. It calls the function `worker`
with each task, and yields the names of finished tasks in any order; Beam yields all of them at its
end. The function writes its results into files, so nothing else is returned.
"""

import concurrent.futures
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


class Inline:
    """Runs tasks in this process, one after the other and in their order."""

    def __enter__(self) -> "Inline":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def map(self, worker: Work, tasks: Iterable[Named]) -> Iterator[str]:
        """Yields the name of each task after `worker` was called with it."""
        for task in tasks:
            worker(task)
            yield task.name


class Local:
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
        self._maps = 0

    def __enter__(self) -> "Local":
        return self

    def __exit__(self, *error: object) -> None:
        self._alive.close()  # processes end at once, also in the midst of a task
        self._pool.shutdown(cancel_futures=True)

    def map(self, worker: Work, tasks: Iterable[Named]) -> Iterator[str]:
        """Yields the names of tasks that are done.

        Tasks are taken from the iterable only when a process is free for them.

        Raises:
          ValueError: a process was killed. Errors of `worker` are raised unchanged.
        """
        self._maps += 1
        source = iter(tasks)
        running: dict[concurrent.futures.Future[Any], Named] = {}
        try:
            while True:
                # One more than processes, so that none waits.
                for task in itertools.islice(source, self.workers + 1 - len(running)):
                    running[self._pool.submit(_work, self._maps, worker, task)] = task
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


_opened: dict[int, Work] = {}  # in a worker process: the worker of the current `map`


def _work(number: int, worker: Work, task: Named) -> None:
    """Runs in a worker process, which keeps the first worker that it gets and what it has opened.

    Args:
      number: of the `map`.
      worker: what does the work.
      task: the task.
    """
    if number not in _opened:
        _opened.clear()
        _opened[number] = worker
    _opened[number](task)


def _start_process(alive: Connection, workers: int) -> None:
    """Prepares a worker process.

    Args:
      alive: its other end is closed when the main process has ended in any way.
      workers: how many processes share this machine.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process ends the others
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()
    # TensorFlow reads these when it first computes.
    threads = max(1, (os.cpu_count() or 1) // workers)
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(threads))
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # one process would take all of it


def _end_with(alive: Connection) -> None:
    """Ends this process when the main process closes its end or is gone."""
    alive.poll(None)
    os.kill(os.getpid(), signal.SIGTERM)


class Beam:
    """Runs tasks in a pipeline of Apache Beam.

    Args:
      options: options of Beam, such as `--runner=FlinkRunner`.

    Raises:
      UsageError: Apache Beam is not installed, or does not know an option.
    """

    def __init__(self, options: Sequence[str]):
        if importlib.util.find_spec("apache_beam") is None:
            raise cli.UsageError(
                "--engine=beam needs Apache Beam. Received: a Python without it. Install it: "
                "pip install 'tfcap[beam]'"
            )
        self.options = list(options)
        if self.options:
            from tfcap.preparing import beam

            beam.check(self.options)

    def __enter__(self) -> "Beam":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def map(self, worker: Work, tasks: Iterable[Named]) -> Iterator[str]:
        """Yields the names of all tasks when the pipeline has ended.

        Raises:
          ValueError: a task has failed.
        """
        from tfcap.preparing import beam

        every = list(tasks)
        if every:
            beam.run(worker, every, self.options)
        yield from (task.name for task in every)


Engine = Inline | Local | Beam


def engine(name: str, workers: int, options: Sequence[str]) -> Engine:
    """Returns an engine.

    Args:
      name: one of `ENGINES`.
      workers: processes of "local"; with one, the work is done in this process.
      options: options of Beam.

    Raises:
      UsageError: Apache Beam is needed and not installed, or does not know an option.
    """
    if name == "beam":
        return Beam(options)
    return Local(workers) if workers > 1 else Inline()
