"""Reads and writes files safely: atomic writes, JSON and SHA-256.

Every writer fills a temporary file in the same directory and renames it when it is complete. Every
reader checks sizes before it allocates memory. Paths may be remote, see `tfcap.storage`.
"""

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from typing import Any

from tfcap import storage

_END_BYTES = 1 << 20
_MAX_JSON_BYTES = 1 << 30  # all captions of COCO have 67 MB


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[str]:
    """Yields a temporary name beside `path`, renames it at the end, and deletes it on an error.

    For a remote path the name is a local one, and the file is copied at the end. A link stays, and
    the file that it names is replaced. A device or a pipe stays, and the content is written to it.
    """
    if storage.is_remote(path):
        with storage.uploading(path) as temporary:
            yield temporary
        return
    if _is_special(path):
        with tempfile.TemporaryDirectory() as place:
            yield (temporary := os.path.join(place, os.path.basename(path)))
            # Output that goes to a file is not cut off: other lines stand in it.
            with open(temporary, "rb") as source, open(path, "ab") as target:
                shutil.copyfileobj(source, target)
        return
    path = os.path.realpath(os.path.expanduser(path))
    folder, name = os.path.split(path)
    # Processes of several machines, whose numbers may be equal, write into one directory.
    temporary = os.path.join(folder, f".tmp-{os.getpid()}-{secrets.token_hex(4)}-{name}")
    try:
        yield temporary
        with open(temporary, "rb+") as file:  # the content is on disk before it gets its name
            os.fsync(file.fileno())
        if os.path.isfile(path):
            with contextlib.suppress(OSError):  # a file system without modes
                shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException as error:
        # Python names the temporary file, and none after a failed write.
        if isinstance(error, OSError) and error.errno and error.filename in (None, temporary):
            error.filename = os.fspath(path)
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)
        raise


def _is_special(path: str | os.PathLike) -> bool:
    """Returns whether a path is a device or a pipe, for which no file can be put in place.

    `/dev/stdout` is one even if the output of the command goes to a file.
    """
    with contextlib.suppress(OSError):
        mode = os.stat(path).st_mode
        opened = os.path.abspath(path).startswith(("/dev/std", "/dev/fd/", "/proc/"))
        return opened or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
    return False


@contextlib.contextmanager
def replacing_directory(path: str | os.PathLike) -> Iterator[str]:
    """Yields a new directory beside `path`, and puts it in place of `path` at the end.

    For a remote path the directory is a local one, and its files are copied at the end.
    """
    if storage.is_remote(path):
        with storage.uploading(path) as temporary:
            os.mkdir(temporary)
            yield temporary
        return
    folder, name = os.path.split(os.path.abspath(path))
    # In containers the numbers of processes repeat, and a killed one leaves its directory.
    unique = f"{os.getpid()}-{secrets.token_hex(4)}"
    temporary, old = (os.path.join(folder, f".{kind}-{unique}-{name}") for kind in ("tmp", "old"))
    os.mkdir(temporary)
    try:
        yield temporary
        try:
            if os.path.isdir(path):
                os.rename(path, old)
            os.rename(temporary, path)
        except BaseException:
            if os.path.isdir(old) and not os.path.exists(path):
                os.rename(old, path)
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if os.path.exists(path):
            shutil.rmtree(old, ignore_errors=True)


def write_json(path: str | os.PathLike, value: Any, indent: int | None = 1) -> None:
    """Writes UTF-8 JSON atomically.

    Args:
      path: the file.
      value: its content.
      indent: spaces per level; None writes one line.

    Raises:
      ValueError: NaN or infinity, which JSON does not have.
    """
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write(json_text(value, indent) + "\n")


def json_text(value: Any, indent: int | None = None) -> str:
    """Returns JSON that UTF-8 can hold.

    Letters stay as they are. Only a text with parts of a name that is not UTF-8, which Python keeps
    as lone surrogates, has escapes for all letters beyond ASCII.

    Args:
      value: its content.
      indent: spaces per level; None gives one line.

    Raises:
      ValueError: NaN or infinity, which JSON does not have.
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent, allow_nan=False)
    return text


def read_json(path: str | os.PathLike, remedy: str, most: int | None = None) -> Any:
    """Reads UTF-8 JSON, with or without a byte order mark.

    Args:
      path: the file.
      remedy: last sentence of the error messages.
      most: its largest size in bytes; None takes that of all captions of COCO, many times.

    Raises:
      ValueError: missing, too large, not UTF-8 or not JSON; the message is one line.
    """
    path = os.path.expanduser(path)
    try:
        size = storage.size(path)
        if size > (most := most or _MAX_JSON_BYTES):
            raise ValueError(f"{path} must have at most {most} bytes. Received: {size}. {remedy}")
        text = storage.read_bytes(path).decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"Cannot read {path}: {error.strerror or error}. {remedy}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text at byte {error.start}. {remedy}") from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # also an integer of thousands of digits
        raise ValueError(f"{path} is not valid JSON: {error}. {remedy}") from None


def file_sha256(path: str | os.PathLike) -> str:
    """Returns the SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with storage.local_copy(path) as local, open(local, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def ends_sha256(path: str | os.PathLike) -> str:
    """Returns the SHA-256 of a file's size and of its first and last MiB, in hexadecimal.

    It tells files apart that are too large to be read whole. The end of a Parquet file holds the
    sizes of all its parts.
    """
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        digest = hashlib.sha256(str(size).encode())
        for start in (0, max(0, size - _END_BYTES)):
            file.seek(start)
            digest.update(file.read(_END_BYTES))
    return digest.hexdigest()


def versions(export_dir: str | os.PathLike) -> list[int]:
    """Lists the numbers of the exported versions in a directory, in rising order."""
    return sorted(int(name) for name in os.listdir(export_dir) if name.isdecimal())


def sizes(folder: str | os.PathLike) -> list[int]:
    """Returns the bytes of every file in a directory and in the directories below it."""
    each: list[int] = []
    for name in storage.names(folder):
        path = os.path.join(folder, name)
        each += sizes(path) if storage.is_directory(path) else [storage.size(path)]
    return each
