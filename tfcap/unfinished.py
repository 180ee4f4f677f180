"""Tells directories that are being written from directories that a killed process has left.

A directory gets its own name when it is complete. Until then it has a temporary name, and the
process that writes it holds a lock (`flock`) on it. A temporary directory without a lock was left
by a killed process. The parent directory is locked while a directory is made or removed, so that no
process removes a new directory before it is locked. On a file system without locks nothing is
removed.
"""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Iterator

_NAME = re.compile(r"\.tmp-[0-9a-f]{32}")


@contextlib.contextmanager
def alone(folder: str | os.PathLike) -> Iterator[None]:
    """Lets only one process at a time run the block for this directory; the others wait.

    Raises:
      OSError: `folder` cannot be opened.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        _lock(handle)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def directory(parent: str | os.PathLike) -> Iterator[str]:
    """Yields a new directory in `parent`, and removes it at the end unless it was renamed.

    First it removes what killed processes have left.

    Raises:
      OSError: `parent` cannot be written.
    """
    path = os.path.join(parent, f".tmp-{uuid.uuid4().hex}")
    with alone(parent):
        _sweep(parent)
        os.mkdir(path)
        handle = os.open(path, os.O_RDONLY)
        _lock(handle)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


def rename(temporary: str | os.PathLike, path: str | os.PathLike) -> bool:
    """Renames a complete directory; returns False if another directory has the name already.

    Raises:
      OSError: the directory cannot be renamed for another reason.
    """
    try:
        os.rename(temporary, path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def left(parent: str | os.PathLike) -> list[str]:
    """Returns the names of the temporary directories that nobody locks."""
    return sorted(os.path.basename(path) for path in _left(parent))


def _sweep(parent: str | os.PathLike) -> None:
    """Removes the temporary directories that nobody locks."""
    for path in _left(parent):
        shutil.rmtree(path, ignore_errors=True)


def _left(parent: str | os.PathLike) -> Iterator[str]:
    """Yields the temporary directories that nobody locks; each is locked until the next one."""
    for name in os.listdir(parent):
        path = os.path.join(parent, name)
        if not _NAME.fullmatch(name) or os.path.islink(path) or not os.path.isdir(path):
            continue
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # its process has just finished it
            continue
        try:
            if _lock(handle, fcntl.LOCK_NB):
                yield path
        finally:
            os.close(handle)


def _lock(handle: int, more: int = 0) -> bool:
    """Locks an open directory; returns whether that was possible."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | more)
    except OSError:  # another process holds the lock, or the file system has none
        return False
    return True
