"""Reads and writes files at local paths and at paths of `tf.io.gfile`, such as gs://bucket/data.

A path with "://" is remote: TensorFlow reads and writes it, and is imported only then. All other
paths use the functions of Python. Errors of remote paths are OSErrors as well; a file system that
TensorFlow does not know is a ValueError. Join paths with `os.path.join`, because `pathlib` removes
a slash of "://".
"""

import contextlib
import errno
import fnmatch
import os
import pathlib
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")

Path = str | os.PathLike


def is_remote(path: Path | None) -> bool:
    """Returns whether a path is one of `tf.io.gfile`, such as gs://bucket/data or ram://data."""
    return path is not None and _REMOTE.match(os.fspath(path)) is not None


def plain(path: Path) -> str:
    """Returns the path as text, without a slash at its end."""
    return os.fspath(path).rstrip("/") if is_remote(path) else str(pathlib.Path(path))


def absolute(path: Path) -> str:
    """Returns the absolute path, which a process with another working directory can use."""
    return plain(path) if is_remote(path) else os.path.abspath(path)


def exists(path: Path) -> bool:
    """Returns whether there is a file or directory."""
    if not is_remote(path):
        return os.path.exists(path)
    with _gfile(path) as gfile:
        return gfile.exists(path)


def is_directory(path: Path) -> bool:
    """Returns whether there is a directory."""
    if not is_remote(path):
        return os.path.isdir(path)
    with _gfile(path) as gfile:
        return gfile.isdir(path)


def is_file(path: Path) -> bool:
    """Returns whether there is a file."""
    if not is_remote(path):
        return os.path.isfile(path)
    return exists(path) and not is_directory(path)


def size(path: Path) -> int:
    """Returns the size of a file in bytes. Raises OSError if it cannot be found."""
    if not is_remote(path):
        return os.path.getsize(path)
    with _gfile(path) as gfile:
        return gfile.stat(path).length


def changed(path: Path) -> float:
    """Returns when a file was changed or put in place last, in seconds of the system's clock.

    Raises:
      OSError: there is no such file.
    """
    if not is_remote(path):
        status = os.stat(path)
        return max(status.st_mtime, status.st_ctime)  # a file that is moved keeps its mtime
    with _gfile(path) as gfile:
        return gfile.stat(os.fspath(path)).mtime_nsec / 1e9


def read_bytes(path: Path) -> bytes:
    """Returns the content of a file. Raises OSError if it cannot be read."""
    if not is_remote(path):
        with open(path, "rb") as file:
            return file.read()
    with _gfile(path) as gfile, gfile.GFile(path, "rb") as file:
        return file.read()


def names(folder: Path) -> list[str]:
    """Lists the names in a directory, sorted. Raises OSError if there is no such directory."""
    if not is_remote(folder):
        return sorted(os.listdir(folder))
    with _gfile(folder) as gfile:  # an object store marks directories with a slash
        return sorted(name.rstrip("/") for name in gfile.listdir(folder))


def matching(folder: Path, pattern: str) -> list[str]:
    """Lists the paths that match a pattern, sorted; empty if there is no such directory.

    Args:
      folder: the directory.
      pattern: a name with `*`, `?` or `[...]`, or FOLDER/NAME for names in a directory inside.
    """
    inside, name = os.path.split(pattern)
    place = os.path.join(folder, inside) if inside else os.fspath(folder)
    if not is_directory(place):
        return []
    return [os.path.join(place, found) for found in fnmatch.filter(names(place), name)]


def make_directory(path: Path) -> None:
    """Makes a directory with those above it, unless it exists.

    Raises:
      ValueError: the path, or a part of it, is a file.
      OSError: the directory cannot be made.
    """
    if not is_remote(path):
        try:
            os.makedirs(path, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            place = os.path.abspath(path)
            while not os.path.lexists(place):
                place = os.path.dirname(place)
            raise ValueError(
                f"{os.fspath(path)} must be a directory. Received: {place} is a file. Name another "
                "directory, or move the file away."
            ) from None
        return
    with _gfile(path) as gfile:
        gfile.makedirs(path)


def remove(path: Path) -> None:
    """Removes a file, or a directory with all that is in it, if it exists."""
    if is_remote(path):
        with contextlib.suppress(FileNotFoundError), _gfile(path) as gfile:
            (gfile.rmtree if gfile.isdir(path) else gfile.remove)(path)
    elif os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


@contextlib.contextmanager
def local_copy(path: Path) -> Iterator[str]:
    """Yields a local path with the content of a file, or of a directory of files.

    A local path is yielded as it is. A remote one is copied to a local file or directory of the
    same name, which is deleted at the end of the block.
    """
    if not is_remote(path):
        yield os.fspath(path)
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, os.path.basename(absolute(path)))
        copy_files(path, copy)
        yield copy


def copy_files(source: Path, target: Path) -> None:
    """Copies a file, or the files of a directory, between local and remote paths."""
    if is_directory(source):
        make_directory(target)
        for name in names(source):
            copy_files(os.path.join(source, name), os.path.join(target, name))
    elif is_remote(source) or is_remote(target):
        with _gfile(source if is_remote(source) else target) as gfile:
            gfile.copy(os.fspath(source), os.fspath(target), overwrite=True)
    else:
        shutil.copyfile(source, target)


@contextlib.contextmanager
def uploading(path: Path) -> Iterator[str]:
    """Yields a temporary local path, and copies its file or directory to a remote path at the end.

    A remote file gets its name when it is complete, also on a file system that shows files while
    they are written. The files of a directory appear one after the other.

    Args:
      path: the remote path. A file or a directory that is there is replaced.
    """
    folder, name = os.path.split(absolute(path))
    with tempfile.TemporaryDirectory() as place:
        temporary = os.path.join(place, name)
        yield temporary
        if os.path.isdir(temporary):
            remove(path)
            copy_files(temporary, path)
            return
        # The same kind of name as local files have until they are whole, see `files.replacing`.
        half = os.path.join(folder, f".tmp-{os.getpid()}-{secrets.token_hex(4)}-{name}")
        try:
            copy_files(temporary, half)
            with _gfile(path) as gfile:
                gfile.rename(half, os.fspath(path), overwrite=True)
        except BaseException:
            with contextlib.suppress(OSError):
                remove(half)
            raise


@contextlib.contextmanager
def _gfile(path: Path) -> Iterator[Any]:
    """Yields `tf.io.gfile`; TensorFlow's errors in the block become OSErrors about `path`.

    Raises:
      ValueError: TensorFlow does not know the file system of `path`.
    """
    import tensorflow as tf

    name = os.fspath(path)
    try:
        yield tf.io.gfile
    except tf.errors.NotFoundError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from None
    except tf.errors.UnimplementedError:
        known = filter(None, tf.io.gfile.get_registered_schemes())
        raise ValueError(
            f"{name} must be local, or begin with one of "
            f"{', '.join(f'{scheme}://' for scheme in known)}, the file systems of this "
            "TensorFlow. Mount another file system as a directory, and give its local path."
        ) from None
    except tf.errors.OpError as error:
        reason = " ".join(str(error.message).split()) or type(error).__name__
        raise OSError(errno.EIO, reason, name) from None
