"""Console output of all commands: help, errors in one line, exit codes, and a progress line.

Exit codes:
* 0: done.
* 2: wrong usage or configuration.
* 3: bad data.
* 75: training was ended by SIGTERM and has saved a checkpoint, or one of several workers was lost;
  the same command continues the training.
* 130: interrupted from the keyboard.
* 141: the reader of standard output has gone, as in `command | head`.
"""

import codecs
import contextlib
import inspect
import io
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn, TextIO, TypeVar

from absl import app, flags, logging

from tfcap import checks, exhausted, usage

_ANY_NAME = "tfcap_any_name"  # the name under which Python knows `_own_bytes`
AGAIN = 75  # the exit code after which the same command goes on
REFRESH = 0.2  # seconds between two states of the line of progress on a terminal
INTERVAL = 30.0  # seconds between two lines of progress in a log file
T = TypeVar("T")


class UsageError(ValueError):
    """An impossible flag or configuration value; the command ends with exit code 2."""


class Interrupted(KeyboardInterrupt):
    """A signal ended the work, and the work is saved; the command ends with exit code `code`."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


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
        arguments that are not flags are errors. `--help` prints the docstring of its module first.
    """

    _write_any_name()

    def parse(argv):
        if usage.asked(argv):
            usage.show(sys.modules[main.__module__].__doc__ or "")
            sys.exit(0)
        return _parse(argv)

    app.run(lambda argv: guard(main, argv), flags_parser=parse)


def _write_any_name() -> None:
    """Lets `print` write names of files and words that the encoding of the output does not have."""
    codecs.register_error(_ANY_NAME, _own_bytes)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            utf8 = stream.encoding.lower().replace("-", "") == "utf8"
            with contextlib.suppress(OSError):  # a stream that another program has opened
                stream.reconfigure(errors=_ANY_NAME if utf8 else "backslashreplace")


def _own_bytes(error: UnicodeError) -> tuple[bytes | str, int]:
    """Writes a name that is not UTF-8 with its own bytes, as `ls` does.

    Other characters that UTF-8 does not have, such as half an emoji in a caption, become escapes.
    """
    assert isinstance(error, UnicodeEncodeError)
    error.end = error.start + 1  # one character at a time: those in a row may be of both kinds
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.backslashreplace_errors(error)


def guard(main: Callable[..., None], argv: list[str]) -> None:
    """Runs `main` and turns expected errors into one line and an exit code, see `run`."""
    if not flags.FLAGS["verbosity"].present:  # official.core and orbit log every step
        logging.set_verbosity(logging.WARNING)
    try:
        if inspect.signature(main).parameters:
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
    except Interrupted as error:
        fail(error, error.code)
    except KeyboardInterrupt:
        fail("Interrupted.", 130)
    except Exception as error:
        full = exhausted.full_disk(error)
        expected = full or isinstance(error, ValueError | OSError)
        if flags.FLAGS.debug or not expected:
            raise
        fail(full or error, 3)


flags.DEFINE_bool("debug", False, "Show the traceback of errors that otherwise have one line.")


def _parse(argv: list[str]) -> list[str]:
    """Parses the flags; a wrong flag gives one line, where absl would print the whole help."""
    try:
        words = flags.FLAGS.read_flags_from_files(argv[1:], force_gnu=False)
        rest = flags.FLAGS([argv[0], *map(_with_home, words)])
    except flags.UnrecognizedFlagError as error:
        modules = flags.FLAGS.flags_by_module_dict().items()  # without those of absl itself
        names = [f.name for m, found in modules if not m.startswith("absl.") for f in found]
        hint = checks.did_you_mean(error.flagname, names)
        fail(f"Unknown command line flag {error.flagname!r}.{hint} (--help lists the flags)", 2)
    except flags.Error as error:
        fail(f"{error} (--help lists the flags)", 2)
    return rest


def _with_home(word: str) -> str:
    """Writes out `~` at the beginning of a path; a shell does not after `=`, `,` and `:`."""
    return re.sub(r"(?:^|(?<=[=,:]))~[\w.-]*(?=/|$)", lambda m: os.path.expanduser(m[0]), word)


def escaped(name: object) -> str:
    """Returns a name in one line: line feeds, tabs and other control characters are escapes."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", lambda m: ascii(m[0])[1:-1], str(name))


def duration(seconds: float) -> str:
    """Returns seconds in words: `1 h 02 min` for 3725, `1 min 05 s` for 65, `5 s` for 5."""
    seconds = max(0, int(seconds))
    if seconds >= 3600:
        return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
    if seconds >= 60:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds} s"


def size(number: float) -> str:
    """Returns bytes in words: `512 bytes`, `1.5 kB`, `23 MB`, `1.2 GB`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            break
        number /= 1000
    digits = 1 if number < 10 and unit != "bytes" else 0
    return f"{number:.{digits}f} {unit}"


def pace(done: float, total: float | None, seconds: float, unit: str = "") -> str:
    """Returns rate and time left in words: `2.00 steps/s, 5 s left`; empty if nothing is done.

    Args:
      done: number of items that were finished in `seconds`.
      total: number of items to finish since the time began, those of `done` included; None if it
        is not known.
      seconds: the time since it began.
      unit: the name of the items, such as `steps`.
    """
    if not done:
        return ""
    rate = done / max(seconds, 1e-9)
    rest = f", {duration((total - done) / rate)} left" if total else ""
    return f"{rate:.2f}{' ' * bool(unit)}{unit}/s{rest}"


class Line:
    """A line of progress. A terminal overwrites it; a log file gets a new line every `INTERVAL` s.

    Args:
      stream: where it is shown, standard error by default.
      clock: returns seconds.

    Attributes:
      visible: whether the stream is a terminal.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic):
        self._stream, self._clock = stream or sys.stderr, clock
        self.visible = self._stream.isatty()
        self._width, self._next = 0, clock() + (0.0 if self.visible else INTERVAL)
        self._lock = threading.RLock()

    @property
    def is_due(self) -> bool:
        """Whether `show` would write now."""
        return self._clock() >= self._next

    def show(self, text: str) -> None:
        """Shows `text` if `is_due`: in place of the last text, or in a log file as a new line."""
        with self._lock:
            if not self.is_due:
                return
            self._next = self._clock() + (REFRESH if self.visible else INTERVAL)
            self._stream.write("\r" + text.ljust(self._width) if self.visible else text + "\n")
            self._stream.flush()
            self._width = len(text)

    def clear(self) -> None:
        """Empties the line, so that ordinary output can follow."""
        with self._lock:
            if self.visible and self._width:
                self._stream.write("\r" + " " * self._width + "\r")
                self._stream.flush()
                self._width = 0

    def print(self, text: str) -> None:
        """Clears the line of progress, and prints an ordinary line on standard output."""
        with self._lock:
            self.clear()
            print(text, flush=True)


def progress(
    items: Iterable[T], total: int | None, label: str, line: Line | None = None, clock=None
) -> Iterator[T]:
    """Yields `items` and shows how many are finished, their rate, and the expected time left."""
    clock = clock or time.monotonic
    line, start = line or Line(), clock()
    try:
        for done, item in enumerate(items):
            if line.is_due:
                speed = pace(done, total, clock() - start)
                of = f" of {total}" if total else ""
                line.show(f"{label}: {done}{of}{', ' * bool(speed)}{speed}")
            yield item
    finally:
        line.clear()


@contextlib.contextmanager
def waiting(label: Callable[[], str]) -> Iterator[None]:
    """Shows what `label` returns and the elapsed time, for work without a count."""
    start = time.monotonic()
    with Ticker(lambda: f"{label()}: {duration(time.monotonic() - start)}", Line()):
        yield


class Ticker:
    """Shows a text at short intervals from a thread, while the main thread is busy.

    Args:
      text: returns the current text; it is called in the thread.
      line: where it is shown.
    """

    def __init__(self, text: Callable[[], str], line: Line):
        self._text, self.line = text, line
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Ticker":
        self._thread.start()
        return self

    def __exit__(self, *error) -> None:
        self._end.set()
        self._thread.join()
        self.line.clear()

    def _run(self) -> None:
        while not self._end.wait(REFRESH):
            text = self._text()
            if not self._end.is_set():
                self.line.show(text)
