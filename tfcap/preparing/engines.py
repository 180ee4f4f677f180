"""Calls a function for each shard: in this process, in several processes, or on Apache Beam.

An engine is a function: it calls `work` with each task and yields the names (`task.name`) of
finished tasks in any order. `work` writes its result into a file. For an engine that uses other
processes, `work` must be picklable.
"""

import concurrent.futures
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any, Protocol

from tfcap import progress

ENGINES = ("local", "beam")


class NamedTask(Protocol):
    """Protocol of a unit of work, such as a shard to write. A task needs only a name.

    An engine calls a function `work` with each task, and yields the names of finished tasks.
    """

    @property
    def name(self) -> str:
        """The name of the task; no other task has it."""


Work = Callable[[Any], None]
Engine = Callable[[Work, Iterable[NamedTask]], Iterator[str]]


def inline(work: Work, tasks: Iterable[NamedTask]) -> Iterator[str]:
    """Calls `work` with each task in this process, one after the other.

    It is the engine of `engine=local` with one worker.

    Args:
      work: a function that handles one task and writes its result into a file.
      tasks: the tasks.

    Yields:
      The name of each task when it is finished.
    """
    for task in tasks:
        work(task)
        yield task.name


def in_processes(
    workers: int, work: Work, tasks: Iterable[NamedTask], fork: bool = False
) -> Iterator[str]:
    """Calls `work` with each task in new processes of this machine.

    Args:
      workers: number of processes.
      work: a picklable function that handles one task and writes its result into a file.
      tasks: picklable tasks.
      fork: True copies this process with what `work` has loaded, which then is in memory only once.
        Nothing in this process may have threads, so TensorFlow must not be imported.

    Yields:
      The name of each task when it is finished, in any order.

    Raises:
      ValueError: a process was killed.
    """
    # TensorFlow has threads, which a copied process lacks.
    context = multiprocessing.get_context("fork" if fork else "spawn")
    reader, alive = context.Pipe(duplex=False)
    pool = concurrent.futures.ProcessPoolExecutor(
        workers,
        context,
        _start_process,
        (reader, workers, progress.shown_level(), alive if fork else None),
    )
    if fork:
        _opened[:] = [work]
    try:
        names = {pool.submit(_work, work, task): task.name for task in tasks}
        for future in concurrent.futures.as_completed(names):
            future.result()
            yield names[future]
    except BrokenProcessPool:
        raise ValueError(
            "A worker process was killed. If the memory was full, lower `workers`; then give the "
            "same command again. A Python program that prepares with several workers needs "
            '`if __name__ == "__main__":`.'
        ) from None
    finally:
        _opened.clear()
        alive.close()  # processes end at once, also in the midst of a task
        pool.shutdown(cancel_futures=True)


_opened: list[Work] = []  # in a worker process: its first `work`, with what that has opened


def _work(work: Work, task: NamedTask) -> None:
    if not _opened:
        _opened.append(work)
    _opened[0](task)


def _start_process(
    alive: Connection, workers: int, level: int | None, inherited: Connection | None
) -> None:
    """Sets up a worker process.

    Args:
      alive: the end of a pipe; the main process is gone when it can be read.
      workers: number of worker processes.
      level: the level from which the main process prints messages of tfcap, which this process
        then prints, too; None if the main process has another way to show them.
      inherited: the main process's end of the pipe, of which a copied process has a copy.
    """
    if inherited is not None:
        inherited.close()

    def end_with_main_process() -> None:
        alive.poll(None)  # until the main process closes its end or is gone
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process ends the others
    threading.Thread(target=end_with_main_process, daemon=True).start()
    if level is not None:
        progress.show_messages(level=level)
    # TensorFlow reads these when it first computes.
    threads = max(1, (os.cpu_count() or 1) // workers)
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(threads))
