"""Console output of all commands: help, errors in one line, exit codes, and a progress line.

Exit codes:
* 0: done.
* 2: wrong usage or configuration.
* 3: bad data.
* 130: interrupted from the keyboard.
* 141: the reader of standard output has gone, as in `command | head`.
"""

import inspect
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn

from absl import app, flags, logging

from tfcap import usage


class UsageError(ValueError):
    """An impossible flag or configuration value; the command ends with exit code 2."""


def fail(message: object, code: int) -> NoReturn:
    """Prints `error: message` in one line on standard error, and ends the process."""
    print("error: " + " ".join(str(message).split()), file=sys.stderr, flush=True)
    sys.exit(code)


def run(main: Callable[..., None]) -> None:
    """Runs `main` after absl has parsed the flags, and prints expected errors in one line.

    A `UsageError` ends with code 2; `ValueError` and `OSError` (bad data, missing files) end with
    code 3. Other exceptions are faults of the program and keep their traceback.

    Args:
      main: the command. If it has a parameter, it gets the command line without the flags; if not,
        arguments that are not flags are errors. The docstring of its module begins `--help`.
    """
    takes_arguments = bool(inspect.signature(main).parameters)

    def parse(argv):
        if usage.asked(argv):
            usage.show(sys.modules[main.__module__].__doc__ or "")
            sys.exit(0)
        return _parse(argv)

    def guarded(argv):
        if not flags.FLAGS["verbosity"].present:  # official.core and orbit log every step
            logging.set_verbosity(logging.WARNING)
        try:
            if takes_arguments:
                main(argv)
            elif argv[1:]:
                raise UsageError(
                    f"Arguments must be flags, which begin with --. Received: {argv[1]!r}."
                )
            else:
                main()
        except UsageError as error:
            fail(error, 2)
        except BrokenPipeError as error:
            if not usage.output_is_closed():
                fail(error, 3)
            sys.exit(141)
        except KeyboardInterrupt:
            fail("Interrupted. Give the same command again to continue.", 130)
        except (ValueError, OSError) as error:
            if flags.FLAGS.debug:
                raise
            fail(error, 3)

    app.run(guarded, flags_parser=parse)


flags.DEFINE_bool("debug", False, "Show the traceback of errors that otherwise have one line.")


def _parse(argv: list[str]) -> list[str]:
    """Parses the flags; a wrong flag gives one line, where absl would print the whole help."""
    try:
        rest = flags.FLAGS(argv)
    except flags.Error as error:
        fail(f"{error} (--help lists the flags)", 2)
    return rest


def duration(seconds: float) -> str:
    """Returns seconds in words: `1 h 02 min` for 3725, `1 min 05 s` for 65, `5 s` for 5."""
    seconds = max(0, int(seconds))
    if seconds >= 3600:
        return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
    if seconds >= 60:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds} s"


class Line:
    """One line on a terminal that is overwritten; prints nothing if the output is no terminal."""

    def __init__(self, stream=None):
        self._stream = stream or sys.stderr
        self.visible = self._stream.isatty()
        self._width = 0

    def show(self, text: str) -> None:
        """Replaces the line by `text`."""
        if self.visible:
            self._stream.write("\r" + text.ljust(self._width))
            self._stream.flush()
            self._width = len(text)

    def clear(self) -> None:
        """Empties the line, so that ordinary output can follow."""
        if self.visible and self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0


def progress(items: Iterable, total: int | None, label: str) -> Iterator:
    """Yields `items` and shows on a terminal how many are done and how long the rest will take."""
    line, start, shown = Line(), time.monotonic(), 0.0
    for done, item in enumerate(items):
        now = time.monotonic()
        if line.visible and now - shown > 0.2:
            shown = now
            rate = done / max(now - start, 1e-9)
            rest = f", {duration((total - done) / rate)} left" if total and done else ""
            line.show(f"{label}: {done}{f' of {total}' if total else ''}, {rate:.1f}/s{rest}")
        yield item
    line.clear()
