"""Finds file names despite another spelling: Unicode form, case, or ending.

macOS writes an accent as a separate character (NFD); captions mostly have one character (NFC).
"""

import collections
import functools
import os
import pathlib
import re
import unicodedata
from collections.abc import Callable, Iterator


def nfc(name: str) -> str:
    """Returns a name in the Unicode form NFC, in which names are compared.

    NFC has one character for a letter with its accent; macOS writes two.
    """
    return unicodedata.normalize("NFC", name)


def on_disk(folder: str | os.PathLike, name: str) -> str:
    """Returns a file name as the disk spells it: a letter with its accent as one character or two.

    Args:
      folder: a local directory.
      name: a path relative to `folder`.

    Returns:
      The path relative to `folder`; `name` itself if no such file exists.
    """
    if name.isascii():
        return name
    path = ""
    for part in name.split("/"):
        same = _listed(os.path.join(folder, path), nfc).get(nfc(part), [part])
        path = os.path.join(path, part if part in same else same[0])
    return path


def near(folder: str | os.PathLike, name: str) -> str:
    """Looks for a missing file under a name with another ending or other case.

    Args:
      folder: a local directory.
      name: path of the missing file, relative to `folder`.

    Returns:
      A hint for an error, such as `; photo.JPG is there` for photo.jpg, or "".
    """
    directory, base = os.path.split(os.path.join(folder, name))
    same = _listed(directory, _loose).get(_loose(base), [])
    return f"; {same[0]} is there" if same else ""


def elsewhere(folder: str | os.PathLike, name: str) -> str:
    """Looks for a missing file in all subdirectories, by its name or else by the number in it.

    For example, `a_0012.jpg` has the same number as `b_12.jpg`.

    Args:
      folder: a local directory.
      name: path of the missing file, relative to `folder`.

    Returns:
      A hint for an error, such as `; train/photo.jpg is there` for photo.jpg, or "".
    """
    base = _loose(os.path.basename(name))
    digits = number(name)
    same = ""
    for file in below(folder):
        if _loose(os.path.basename(file)) == base:
            return f"; {file} is there"
        if digits is not None and number(file) == digits:
            same = same or f"; {file} is there"
    return same


def number(name: str) -> int | None:
    """Returns the number at the end of a file name, 12 for `b_0012.jpg`; None without a number."""
    match = re.search(r"(\d{1,18})(\.\w+)?$", name)
    return int(match[1]) if match else None


def below(folder: str | os.PathLike) -> Iterator[str]:
    """Yields the paths of all files in a local directory and its subdirectories.

    The paths are relative to the directory, with forward slashes, and sorted in each directory.
    """
    for directory, subdirectories, names in os.walk(os.fspath(folder)):
        subdirectories.sort()
        for name in sorted(names):
            yield pathlib.Path(directory, name).relative_to(folder).as_posix()


def _loose(name: str) -> str:
    """Returns a name without its ending and case."""
    return os.path.splitext(nfc(name))[0].casefold()


def _listed(folder: str, key: Callable[[str], str]) -> dict[str, list[str]]:
    """Returns key -> names in a directory; empty if it cannot be read."""
    try:
        return _names(folder, os.stat(folder).st_mtime_ns, key)
    except (OSError, ValueError):
        return {}


@functools.lru_cache(maxsize=64)
def _names(folder: str, changed: int, key: Callable[[str], str]) -> dict[str, list[str]]:
    """See `_listed`; `changed` makes the cache read a changed directory again."""
    del changed
    names = collections.defaultdict(list)
    for name in sorted(os.listdir(folder)):
        names[key(name)].append(name)
    return dict(names)
