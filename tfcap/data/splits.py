"""The names of splits: train, val and test, and any other plain name such as test2014."""

import re
from collections.abc import Iterable
from typing import Any

USUAL = ("train", "val", "test")
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def split_name(name: Any) -> str:
    """Returns a name that can be part of file names, such as references_<split>.json.

    Raises:
      ValueError: it is not text, or it has other characters than letters, digits, _ and -.
    """
    if not isinstance(name, str) or not _PLAIN.fullmatch(name):
        raise ValueError(
            "the name of a split must be 1 to 64 letters, digits, _ or -, and begin with a letter "
            f"or a digit. Received: {name!r:.80}. Use a name such as test2014."
        )
    return name


def ordered(names: Iterable[str]) -> list[str]:
    """Returns each name once: train, val and test first, then the others as they first occur.

    Raises:
      ValueError: a name is not valid, or two names differ in upper and lower case only,
        which would be one file on some systems.
    """
    splits = dict.fromkeys(names)
    small: dict[str, str] = {}
    for name in map(split_name, splits):
        other = small.setdefault(name.lower(), name)
        if other != name:
            raise ValueError(
                "two splits must differ in more than upper and lower case. Received: "
                f"{other!r} and {name!r}. Rename one of them."
            )
    usual = [name for name in USUAL if name in splits]
    return usual + [name for name in splits if name not in USUAL]
