"""Progress bars, and the lines above them."""

import logging
import shutil
import sys
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any, TextIO, TypeVar

LOG_INTERVAL = 30.0  # seconds between two lines of progress in a log file
T = TypeVar("T")


class Bar:
    """A progress bar: tqdm on a terminal, one line every 30 seconds in a log file.

    Use it as a context manager, and call `update` for the items that are done.

    Args:
      total: number of items; None if it is not known.
      label: text before the bar.
      unit: what an item is, as in "3.5 batch/s".
      done: number of items that an earlier run did.
      stream: where the bar is shown; None for standard error.
    """

    def __init__(
        self,
        total: int | None,
        label: str,
        unit: str = "it",
        done: int = 0,
        stream: TextIO | None = None,
    ):
        from tqdm import tqdm  # a tenth of a second, which --version does not need

        self._stream = stream or sys.stderr
        self._note = ""
        self._texts: dict[str, Any] = {"unit": unit, "initial": done}
        columns, rows = shutil.get_terminal_size()  # tqdm shows nothing if a terminal has no size
        self._tqdm = tqdm(
            **self._texts,
            desc=label,
            total=total,
            file=self._stream,
            leave=False,
            disable=None,  # not a terminal
            ncols=columns - 1,
            nrows=rows,
        )
        self._texts["prefix"] = label
        self._start = self._shown = time.monotonic()

    def update(self, items: int = 1, note: str = "") -> None:
        """Adds items that are done to the bar.

        Args:
          items: number of these items.
          note: text at the end of the bar, such as `loss 1.234`; "" keeps the last text.
        """
        bar = self._tqdm
        now = time.monotonic()
        self._note = note or self._note
        if not bar.disable:
            bar.set_postfix_str(self._note, refresh=False)
            bar.update(items)
            return
        bar.n += items
        if now - self._shown >= LOG_INTERVAL:
            self._shown = now
            form = "{desc}: {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"
            texts = {**self._texts, "postfix": self._note, "bar_format": form}
            line = bar.format_meter(bar.n, bar.total, now - self._start, **texts)
            print(line, file=self._stream, flush=True)

    @property
    def done(self) -> int:
        """The number of items that are done, those of an earlier run included."""
        return self._tqdm.n

    @property
    def seconds(self) -> float:
        """The seconds since the bar was made."""
        return time.monotonic() - self._start

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *error: object) -> None:
        self._tqdm.close()


def progress(
    items: Iterable[T], total: int | None, label: str, unit: str = "batch"
) -> Generator[T]:
    """Yields the items, and shows a bar: how many are done, their rate and the time left.

    Args:
      items: what is yielded.
      total: number of items; None if it is not known.
      label: text before the bar.
      unit: what an item is, as in "3.5 batch/s".
    """
    with Bar(total, label, unit) as bar:
        for item in items:
            yield item
            bar.update()


class _Messages(logging.Handler):
    """Prints messages above a progress bar: warnings on standard error, others on standard output.

    Args:
      text_of: returns what is printed for a message.
    """

    def __init__(self, text_of: Callable[[str], str]):
        super().__init__(logging.INFO)
        self._text_of = text_of

    def emit(self, record: logging.LogRecord) -> None:
        # An error is not caught: a closed pipe ends a command.
        stream = sys.stderr if record.levelno >= logging.WARNING else sys.stdout
        say(self._text_of(record.getMessage()), stream)


def shown_level() -> int | None:
    """Returns the lowest level of messages that `show_messages` prints.

    Returns None if `show_messages` was not called.
    """
    logger = logging.getLogger("tfcap")
    is_shown = any(isinstance(handler, _Messages) for handler in logger.handlers)
    return logger.level if is_shown else None


def show_messages(text_of: Callable[[str], str] = str, level: int = logging.INFO) -> None:
    """Prints the messages that tfcap logs: warnings on standard error, others on standard output.

    The commands call this function. A program that uses tfcap may instead configure the logger
    "tfcap" itself.

    Args:
      text_of: maps a message to the text that is printed.
      level: the lowest level of the messages that are printed, as `logging` numbers them.
    """
    logger = logging.getLogger("tfcap")
    logger.handlers = [_Messages(text_of)]
    logger.setLevel(level)
    logger.propagate = False


def say(text: str, stream: TextIO | None = None) -> None:
    """Prints a line above a progress bar.

    Args:
      text: the line.
      stream: where it is printed; None for standard output.
    """
    from tqdm import tqdm

    tqdm.write(text, file=stream or sys.stdout)
    (stream or sys.stdout).flush()
