"""Calls a function for each task: in this process, in several processes, or on Apache Beam.

An engine is a context manager with one method, `map(worker, tasks)`. It calls the function `worker`
with each task, and yields the names of finished tasks in any order; Beam yields all of them at its
end. The function writes its results into files, so nothing else is returned.
"""

import collections
import concurrent.futures
import importlib.util
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
TRIES = 3  # of a task whose process ends, before prepare gives up


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

    If a process is killed, for example because the memory is full, all processes end. New processes
    then start, and the unfinished tasks are done again.

    Args:
      workers: how many processes.
    """

    def __init__(self, workers: int):
        self.workers = workers
        # Not a fork: TensorFlow has threads, which a copied process lacks.
        self._context = multiprocessing.get_context("spawn")
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None
        self._alive: Connection | None = None
        self._maps = 0

    def __enter__(self) -> "Local":
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def map(self, worker: Work, tasks: Iterable[Named]) -> Iterator[str]:
        """Yields the names of tasks that are done.

        Tasks are taken from the iterable only when a process is free for them.

        Raises:
          ValueError: the processes ended `TRIES` times during a task. Errors of `worker` are raised
            unchanged.
        """
        self._maps += 1
        source, again = iter(tasks), collections.deque[Named]()
        tries: collections.Counter[str] = collections.Counter()
        running: dict[concurrent.futures.Future[Any], tuple[Named, object]] = {}
        while True:
            while len(running) <= self.workers:  # one more than processes, so that none waits
                task = again.popleft() if again else next(source, None)
                if task is None:
                    break
                running |= self._submit(worker, task)
            if not running:
                return
            for future in concurrent.futures.wait(
                running, return_when=concurrent.futures.FIRST_COMPLETED
            ).done:
                task, pool = running.pop(future)
                try:
                    future.result()
                except BrokenProcessPool:
                    if pool is self._pool:
                        self._close()
                    tries[task.name] += 1
                    _check_tries(tries)
                    again.append(task)
                else:
                    yield task.name

    def _submit(
        self, worker: Work, task: Named
    ) -> dict[concurrent.futures.Future[Any], tuple[Named, object]]:
        """Gives a task to the processes; starts them first where there are none."""
        for _ in range(TRIES):
            if self._pool is None:
                self._open()
            pool = self._pool
            assert pool is not None
            try:
                return {pool.submit(_work, self._maps, worker, task): (task, pool)}
            except BrokenProcessPool:  # a process was killed since the last result
                self._close()
        raise ValueError("No worker process can be started. See the lines above.")

    def _open(self) -> None:
        reader, self._alive = self._context.Pipe(duplex=False)
        self._pool = concurrent.futures.ProcessPoolExecutor(
            self.workers, self._context, _start_process, (reader, self.workers)
        )

    def _close(self) -> None:
        """Ends the processes at once, also those that are in the midst of a task."""
        pool, self._pool = self._pool, None
        if self._alive is not None:
            self._alive.close()
        if pool is not None:
            pool.shutdown(cancel_futures=True)


def _check_tries(tries: collections.Counter[str]) -> None:
    """Raises ValueError if a task was tried too often."""
    often = [name for name, number in tries.items() if number >= TRIES]
    if often:
        raise ValueError(
            f"Worker processes must not end before their work. Received: {TRIES} ends while "
            f"{' or '.join(often)} was in work. If the memory is full, give fewer --workers. A "
            'Python program that prepares with several workers needs `if __name__ == "__main__":`.'
        )


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
    os._exit(0)


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
