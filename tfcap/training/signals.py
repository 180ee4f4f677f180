"""Handles SIGTERM and Ctrl-C while a call of TensorFlow runs for minutes."""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator

from tfcap import errors

_log = logging.getLogger(__name__)
CODES: dict[int, int] = {signal.SIGINT: 130, signal.SIGTERM: errors.AGAIN}  # exit codes
NAMES: dict[int, str] = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


@contextlib.contextmanager
def noted() -> Iterator[list[int]]:
    """Context that catches SIGTERM and Ctrl-C: it yields a list to which their numbers are added.

    Training reads the list after each loop of steps. Python's signal handlers wait until TensorFlow
    has finished the loop, which may take minutes. So a thread, which learns of a signal at once,
    prints that training ends after this loop. At a second Ctrl-C the thread kills the process.
    Outside the main thread signals are not handled, and the list stays empty.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    wakeup = signal.set_wakeup_fd(writer)
    before = {n: signal.signal(n, lambda number, _: received.append(number)) for n in CODES}
    thread = threading.Thread(target=_answer, args=(reader,), daemon=True)
    thread.start()
    try:
        yield received
    finally:
        signal.set_wakeup_fd(wakeup)
        os.close(writer)  # this ends the thread
        thread.join()
        for number, handler in before.items():
            signal.signal(number, handler)


def _answer(reader: int) -> None:
    """Reads the numbers of signals until the other end of the pipe is closed."""
    first = 0.0
    with open(reader, "rb", buffering=0) as numbers:
        while number := numbers.read(1):
            if number[0] not in CODES:
                continue
            if not first:
                first = time.monotonic()
                name = NAMES[number[0]]
                more = " Press Ctrl-C again to end at once." * (name == "Ctrl-C")
                _log.warning(f"\n{name}: training ends after this loop of steps.{more}")
            # `timeout` sends a signal twice, to the process and to its group.
            elif number[0] == signal.SIGINT and time.monotonic() - first > 0.5:
                os.kill(os.getpid(), signal.SIGKILL)
