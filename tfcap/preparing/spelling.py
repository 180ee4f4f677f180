"""Finds file names despite another spelling: Unicode form, case, or ending.

macOS writes an accent as a separate character (NFD); captions mostly have one character (NFC).
"""

import collections
import functools
import os
import unicodedata
from collections.abc import Callable


def nfc(name: str) -> str:
    """Returns a name in Unicode form NFC, in which names are compared."""
    return unicodedata.normalize("NFC", name)


def on_disk(folder: str | os.PathLike, name: str) -> str:
    """Returns a name below a local folder as it is spelled on the disk; else `name`."""
    if name.isascii():
        return name
    place = ""
    for part in name.split("/"):
        same = _listed(os.path.join(folder, place), nfc).get(nfc(part), [part])
        place = os.path.join(place, part if part in same else same[0])
    return place


def near(folder: str | os.PathLike, name: str) -> str:
    """Returns `; photo.JPG is there` for a missing photo.jpg, or an empty text."""
    place, base = os.path.split(os.path.join(folder, name))
    same = _listed(place, loose).get(loose(base), [])
    return f"; {same[0]} is there" if same else ""


def loose(name: str) -> str:
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
