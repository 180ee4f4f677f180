"""The interface of a layout of ready-made features, and the list of all layouts.

A layout is one module with a class that `layout` decorates. The class finds the features of an
image by a key: the text of an image id, or a name that belongs to the image's file. A key may have
several copies, of which a published file may have damaged the first.
"""

import abc
import functools
import os
import pathlib
from collections.abc import Sequence
from typing import ClassVar, TypeVar

from tfcap.preparing.features.ready.regions import Found


class Layout(abc.ABC):
    """Opened files of features in one layout.

    Args:
      paths: the files and directories that `recognises` returned, at least one.
      cache: a file in which the layout may keep an index, or None.

    Attributes:
      title: what the layout is called in printed lines.

    Raises:
      ValueError: the files cannot be used.
    """

    title: ClassVar[str]
    last: ClassVar[bool] = False  # whether other layouts are asked first whether they recognise

    @abc.abstractmethod
    def __init__(self, paths: Sequence[pathlib.Path], cache: str | os.PathLike | None): ...

    @staticmethod
    @abc.abstractmethod
    def recognises(path: pathlib.Path) -> list[pathlib.Path]:
        """Returns the files of this layout: `path`, or files in it. Only first bytes are read.

        Args:
          path: an existing file or directory. No content of a file leads to an exception.
        """

    @abc.abstractmethod
    def copies(self, key: str) -> int:
        """Returns how many times the files have features under a key."""

    def has(self, key: str) -> bool:
        """Returns whether there are features under a key."""
        return self.copies(key) > 0

    @abc.abstractmethod
    def read(self, key: str, copy: int = 0) -> Found:
        """Reads a copy of the features under a key. Several threads may call it, in any order.

        Raises:
          ValueError: there are none, or they are damaged; the message names the file.
        """

    @abc.abstractmethod
    def place(self, key: str, copy: int = 0) -> str:
        """Returns where a copy is, for errors about what it holds."""

    def example(self) -> str:
        """Returns a key of the files, for errors; empty where the layout cannot tell one."""
        return ""

    def about(self) -> str:
        """Describes the files in a few words."""
        return self.title


DAMAGED = "Copy or download the file again."  # the remedy where content is cut or broken
LAYOUTS: list[type[Layout]] = []
Class = TypeVar("Class", bound=type[Layout])


def layout(cls: Class) -> Class:
    """Adds a class to `LAYOUTS`."""
    LAYOUTS.append(cls)
    return cls


def listed(path: pathlib.Path, endings: Sequence[str]) -> list[pathlib.Path]:
    """Returns `path`, or the files directly inside it, whose names have one of the endings, sorted.

    A number may follow the ending, as in `features.tsv.0`. Names that begin with a dot are left
    out.
    """
    if not path.is_dir():
        return [path]
    kept = []
    for name in _names(path, path.stat().st_mtime_ns):
        stem, dot, number = name.rpartition(".")
        whole = stem if dot and number.isdecimal() else name
        if whole.lower().endswith(tuple(endings)) and not name.startswith("."):
            kept.append(path / name)
    return kept


@functools.lru_cache(maxsize=2)
def _names(directory: pathlib.Path, changed: int) -> tuple[str, ...]:
    """Returns the sorted names of the files of a directory that was last changed at `changed`.

    Every layout asks for them, and a directory of 118,000 files takes a second to list.
    """
    del changed
    return tuple(sorted(entry.name for entry in os.scandir(directory) if entry.is_file()))


def counted(number: int, what: str) -> str:
    """Returns `1 file` or `2 files`."""
    return f"{number} {what}{'s' * (number != 1)}"


def first_bytes(path: pathlib.Path, count: int) -> bytes:
    """Returns the first bytes of a file; none if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(count)
    except OSError:
        return b""
