"""Finds the files of a data set that is a directory, and the splits that their names tell."""

import os
import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tfcap.preparing.sources.split_lists import split_of

_DEPTH = 2  # directories between the one that is given and a file


class Place(NamedTuple):
    """A file of a data set.

    Attributes:
      path: the file.
      split: "train", "val" or "test", or None if its name tells no split.
    """

    path: pathlib.Path
    split: str | None


def below(folder: pathlib.Path, accepts: Callable[[str], bool]) -> list[pathlib.Path]:
    """Returns the files of a directory and of two levels below it, in the order of their paths.

    Names that begin with a dot are left out: they are files of programs, such as `._a.tar`.

    Args:
      folder: the directory; nothing is found where there is none.
      accepts: says whether a file with this name is wanted.
    """
    files = []
    for place, folders, names in os.walk(folder):
        here = pathlib.Path(place)
        if len(here.relative_to(folder).parts) >= _DEPTH:
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        names = [name for name in names if accepts(name) and not name.startswith(".")]
        files += [here / name for name in sorted(names)]
    return files


def find(paths: Sequence[pathlib.Path], accepts: Callable[[str], bool]) -> list[Place]:
    """Returns the files of `paths` and of its directories, with the splits that their names tell.

    The split is read only from the part of a path below the given directory, or below the directory
    that the given files share, because a data set may lie in a directory that is called `test`.

    Args:
      paths: files and directories of --captions.
      accepts: says whether a file of a directory with this name is wanted.

    Raises:
      ValueError: no file is found.
    """
    folders = [path.absolute().parent for path in paths if not path.is_dir()]
    shared = pathlib.Path(os.path.commonpath(folders)) if folders else pathlib.Path()
    files = []
    for path in paths:
        if path.is_dir():
            inside = [(file, file.relative_to(path)) for file in below(path, accepts)]
        else:
            inside = [(path, path.absolute().relative_to(shared))]
        files += [Place(file, split_of_path(relative)) for file, relative in inside]
    if not files:
        raise ValueError(
            f"--captions must be files of the data set, or a directory that has them. Received: "
            f"{', '.join(map(str, paths))}, which has none. Correct the path."
        )
    return files


def split_of_path(path: pathlib.PurePath) -> str | None:
    """Returns the split in the last part of a path that names one: `train-0.tar`, `dev/0.tar`."""
    return next(filter(None, map(split_of, reversed(path.parts))), None)
