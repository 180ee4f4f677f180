"""The errors that end a command in one line, and texts that error messages share."""

import difflib
import re
from collections.abc import Iterable

AGAIN = 75  # exit code: the same command resumes


class UsageError(ValueError):
    """An argument or a configuration is wrong, and the user can correct it.

    A command prints the message and ends with exit code 2.
    """


class Interrupted(KeyboardInterrupt):
    """A signal, or the loss of another process, ended the work. What was saved before is kept.

    Args:
      message: the line that the command prints.
      code: the exit code of the command.
    """

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


def did_you_mean(received: object, names: Iterable[str]) -> str:
    """Returns a hint with the most similar name, or "" if no name is similar.

    The hint follows a sentence, so it begins with a space: " Did you mean 'train'?".

    Args:
      received: what the user wrote.
      names: the names that exist.
    """
    near = difflib.get_close_matches(str(received), list(names), 1)
    return f" Did you mean {near[0]!r}?" if near else ""


def escaped(name: object) -> str:
    """Returns a name as one printable line; control characters and bad UTF-8 are escaped."""
    unprintable = r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"
    return re.sub(unprintable, lambda m: ascii(m[0])[1:-1], str(name))


def duration(seconds: float) -> str:
    """Returns a time in words: "1 h 02 min" for 3725 seconds, "1 min 05 s" for 65, "5 s" for 5."""
    seconds = max(0, int(seconds))
    if seconds >= 3600:
        return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
    return f"{seconds // 60} min {seconds % 60:02d} s" if seconds >= 60 else f"{seconds} s"
