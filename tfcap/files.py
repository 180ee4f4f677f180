"""Reads and writes files: atomic writes, JSON, NumPy arrays, and a lock of a directory.

A path with "://", such as gs://bucket/data, is remote: `tf.io.gfile` reads and writes it, and
TensorFlow is imported only then. Errors of TensorFlow become OSErrors. Join paths with
`os.path.join`, because `pathlib` removes a slash of "://".
"""

import contextlib
import errno
import fcntl
import fnmatch
import functools
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

Path = str | os.PathLike
_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# Functions of `tf.io.gfile` that Python has for local paths.
_LOCAL: dict[str, Callable[[Path], Any]] = {
    "exists": os.path.exists,
    "isdir": os.path.isdir,
    "listdir": os.listdir,
    "makedirs": functools.partial(os.makedirs, exist_ok=True),
    "remove": os.remove,
}
LEFTOVERS = re.compile(r"\.(tmp|old)-\d+-.*")  # names of what a killed command was writing


def is_remote(path: Path | None) -> bool:
    """True for a remote path, such as gs://bucket/data or ram://data; False for None.

    `tf.io.gfile` of TensorFlow reads and writes remote paths.
    """
    return path is not None and _REMOTE.match(os.fspath(path)) is not None


def absolute(path: Path) -> str:
    """Returns the absolute path, without a slash at its end; a remote path is absolute already."""
    return os.fspath(path).rstrip("/") if is_remote(path) else os.path.abspath(path)


def exists(path: Path) -> bool:
    """True if the path is a file or a directory that exists."""
    return _gfile("exists", path)


def is_directory(path: Path) -> bool:
    """True if the path is a directory that exists."""
    return _gfile("isdir", path)


def is_file(path: Path) -> bool:
    """True if the path is a file that exists, and not a directory or a device."""
    return exists(path) and not is_directory(path) if is_remote(path) else os.path.isfile(path)


def size(path: Path) -> int:
    """Returns the size of a file in bytes."""
    return _gfile("stat", path).length if is_remote(path) else os.path.getsize(path)


def names(folder: Path) -> list[str]:
    """Returns the names of the files and directories in a directory, sorted."""
    # An object store marks directories with a slash.
    return sorted(name.rstrip("/") for name in _gfile("listdir", folder))


def matching(folder: Path, pattern: str) -> list[str]:
    """Returns the sorted paths in a directory that match a pattern, such as `*.json` or `train/*`.

    The list is empty if the directory does not exist.
    """
    folder, pattern = os.path.split(os.path.join(folder, pattern))
    matches = fnmatch.filter(names(folder), pattern) if is_directory(folder) else []
    return [os.path.join(folder, name) for name in matches]


def sizes(folder: Path) -> list[int]:
    """Returns the sizes in bytes of all files in a directory and in the directories below it."""
    result: list[int] = []
    for path in matching(folder, "*"):
        result += sizes(path) if is_directory(path) else [size(path)]
    return result


def versions(export_dir: Path) -> list[int]:
    """Returns the numbers of the models that were exported into a directory, in rising order.

    Args:
      export_dir: a directory in which each exported model has a directory with a number as its
        name.
    """
    return sorted(int(name) for name in os.listdir(export_dir) if name.isdecimal())


def make_directory(path: Path) -> None:
    """Makes a directory and its parents, if it does not exist."""
    _gfile("makedirs", path)


def remove(path: Path) -> None:
    """Removes a file, or a directory with all that is in it; a missing path is no error."""
    with contextlib.suppress(FileNotFoundError):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)  # unlike `gfile.rmtree` it follows no links
        else:
            _gfile("rmtree" if is_remote(path) and is_directory(path) else "remove", path)


def copy_files(source: Path, target: Path) -> None:
    """Copies a file, or a directory with all that is in it.

    A file appears at the target only when all of it is copied.
    """
    if is_directory(source):
        make_directory(target)
        for name in names(source):
            copy_files(os.path.join(source, name), os.path.join(target, name))
    else:
        with local_copy(source) as copy, replacing(target) as temporary:
            shutil.copyfile(copy, temporary)


@contextlib.contextmanager
def local_copy(path: Path) -> Iterator[str]:
    """Context that yields a local path with the content of a file or directory.

    For a local `path` it yields `path` itself. For a remote path it yields the path of a copy,
    which is removed at the end of the block.
    """
    if not is_remote(path):
        yield os.fspath(path)
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, os.path.basename(absolute(path)))
        if is_directory(path):
            copy_files(path, copy)
        else:
            _gfile("copy", path, copy)
        yield copy


def _gfile(function: str, path: Path, *args: Any) -> Any:
    """Calls a function of `tf.io.gfile`; its errors become OSErrors about `path`.

    A local path needs no TensorFlow, which takes seconds to import.
    """
    if not is_remote(path) and function in _LOCAL:
        return _LOCAL[function](path)
    import tensorflow as tf

    try:
        return getattr(tf.io.gfile, function)(os.fspath(path), *args)
    except tf.errors.NotFoundError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path)) from None
    except tf.errors.OpError as error:
        raise OSError(errno.EIO, " ".join(error.message.split()), os.fspath(path)) from None


@contextlib.contextmanager
def replacing(path: Path, flush: bool = True) -> Iterator[str]:
    """Context for writing a whole file at once: yields the path of a temporary local file.

    Write that file. It is renamed to `path` at the end of the block. After an error `path` is
    unchanged. If `path` is a link, the file behind the link is replaced. If `path` is a device or a
    pipe, such as /dev/stdout, the content of the temporary file is written to `path`.

    Args:
      path: the path of the file.
      flush: whether the content is on disk before the file gets its name, which takes about a
        millisecond. With False, a power failure can leave a file without its content.
    """
    if is_remote(path) or _is_stream(path):
        with tempfile.TemporaryDirectory() as folder:
            yield (temporary := os.path.join(folder, os.path.basename(path)))
            if is_remote(path):
                # Under another name first: some file systems show a file while it is written.
                _gfile("copy", temporary, half := _temporary_name(path))
                _gfile("rename", half, os.fspath(path), True)
            else:  # standard output may be a file in which other lines stand
                with open(temporary, "rb") as source, open(path, "ab") as target:
                    shutil.copyfileobj(source, target)
        return
    path = os.path.realpath(os.path.expanduser(path))
    temporary = _temporary_name(path)
    try:
        yield temporary
        if flush:
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        # Python names the temporary file, and none after a failed write.
        if isinstance(error, OSError) and error.errno and error.filename in (None, temporary):
            error.filename = os.fspath(path)
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)
        raise


def _is_stream(path: Path) -> bool:
    """True for a device or a pipe, such as /dev/stdout, even if it is redirected to a file."""
    is_named = os.path.abspath(path).startswith(("/dev/std", "/dev/fd/", "/proc/"))
    return is_named or os.path.exists(path) and not os.path.isfile(path)


def _temporary_name(path: Path) -> str:
    # Processes of several machines, whose numbers may be equal, write into one directory.
    folder, name = os.path.split(path)
    return os.path.join(folder, f".tmp-{os.getpid()}-{secrets.token_hex(4)}-{name}")


def read_bytes(path: Path) -> bytes:
    """Returns the content of a file, local or remote."""
    with local_copy(path) as local, open(local, "rb") as file:
        return file.read()


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with local_copy(path) as local, open(local, "rb", buffering=0) as file:
        # Large blocks: before each, a thread waits until another one lets it run Python.
        block = memoryview(bytearray(min(1 << 24, os.path.getsize(local) + 1)))
        while count := file.readinto(block):
            digest.update(block[:count])
    return digest.hexdigest()


def write_json(path: Path, value: Any, indent: int | None = 1) -> None:
    """Writes a value as UTF-8 JSON. The file appears only when all of it is written.

    Args:
      path: the file.
      value: what `json.dumps` can write.
      indent: number of spaces per level; None writes one line.

    Raises:
      ValueError: the value has NaN or infinity, which JSON does not have.
    """
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write(json_text(value, indent) + "\n")


def json_text(value: Any, indent: int | None = None) -> str:
    """Returns a value as JSON text.

    Letters such as é are not escaped. But if one of the strings is not valid Unicode, all letters
    beyond ASCII are escaped, as in \\u00e9.

    Args:
      value: what `json.dumps` can write.
      indent: number of spaces per level; None gives one line.

    Raises:
      ValueError: the value has NaN or infinity, which JSON does not have.
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
    return json.dumps(value, indent=indent) if re.search(r"[\ud800-\udfff]", text) else text


def read_json(path: Path, remedy: str) -> Any:
    """Reads a file of UTF-8 JSON, local or remote.

    Args:
      path: the file.
      remedy: a sentence at the end of the error message: what the user can do about a bad file.

    Raises:
      ValueError: the file cannot be read or is not JSON.
    """
    path = os.path.expanduser(path)
    try:
        return json.loads(read_bytes(path).decode("utf-8-sig"))
    except OSError as error:
        raise ValueError(f"Cannot read {path}: {error.strerror or error}. {remedy}") from None
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}. {remedy}") from None


@contextlib.contextmanager
def lock(folder: Path, name: str, remedy: str) -> Iterator[None]:
    """Context that holds a lock of a directory: no other process can take the same lock.

    The lock is a lock of the file `.NAME.lock` in the directory. It ends with the block or the
    process. A remote directory is not locked, and neither is a directory on a file system without
    locks.

    Args:
      folder: the directory.
      name: what the lock is for, the NAME in the name of the file.
      remedy: what the user can do instead of waiting. The error message ends with "Wait for it, or
        REMEDY."

    Raises:
      ValueError: another process has the lock.
    """
    if is_remote(folder):
        yield
        return
    with open(os.path.join(folder, f".{name}.lock"), "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"Another process is writing to {folder}. Wait for it, or {remedy}."
            ) from None
        except OSError:
            pass
        yield


def load_npz(path: Path, names: Sequence[str], remedy: str) -> dict[str, np.ndarray]:
    """Reads arrays from an npz file, local or remote, without unpickling.

    Args:
      path: the file.
      names: the names of the arrays to read.
      remedy: a sentence at the end of the error message: what the user can do about a bad file.

    Raises:
      ValueError: the file cannot be read, or lacks one of the arrays.
    """
    arrays = _read_arrays(path, remedy)
    if missing := [name for name in names if name not in getattr(arrays, "files", ())]:
        raise ValueError(f"{path} lacks the array {missing[0]}. {remedy}")
    try:
        return {name: arrays[name] for name in names}
    except Exception as error:  # zip, zlib, header and pickle errors have no common base
        raise ValueError(f"{path} cannot be read as arrays: {error}. {remedy}") from None


def load_npy(path: Path, remedy: str) -> np.ndarray:
    """Reads an array from an npy file, local or remote, without unpickling.

    Args:
      path: the file.
      remedy: a sentence at the end of the error message: what the user can do about a bad file.

    Raises:
      ValueError: the file cannot be read.
    """
    return _read_arrays(path, remedy)


def _read_arrays(path: Path, remedy: str) -> Any:
    try:
        return np.load(io.BytesIO(read_bytes(path)), allow_pickle=False)
    except OSError as error:
        raise ValueError(f"Cannot read {path}: {error.strerror or error}. {remedy}") from None
    except Exception as error:
        raise ValueError(f"{path} cannot be read as arrays: {error}. {remedy}") from None


def write_npz(path: Path, **arrays: Any) -> None:
    """Writes arrays into an npz file, which appears only when all of it is written.

    Args:
      path: the file.
      **arrays: the arrays by name.
    """
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, **arrays)


def arrays_sha256(arrays: Mapping[str, Any], before: bytes = b"") -> str:
    """Computes the SHA-256 of named arrays, such as a model's weights, in hexadecimal.

    For each array, in the order of the sorted names, the name and the bytes are hashed. Shapes and
    dtypes are not hashed.

    Args:
      arrays: the arrays by name.
      before: bytes that are hashed before the arrays.
    """
    digest = hashlib.sha256(before)
    for name, value in sorted(arrays.items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()
