"""Reads and writes files safely: JSON, npz, digests, and writing that is whole or not at all.

Every writer fills a temporary file in the same directory and renames it when it is complete. Every
reader checks sizes before it takes memory, and never unpickles.
"""

import contextlib
import hashlib
import json
import os
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

_MAX_ARRAY_BYTES = 4 << 30  # larger than any feature file or table known to us


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[str]:
    """Gives a temporary name beside ``path``; renames it at the end, deletes it on an error."""
    folder, name = os.path.split(os.path.abspath(path))
    temporary = os.path.join(folder, f".tmp-{os.getpid()}-{name}")
    try:
        yield temporary
        with open(temporary, "rb+") as file:  # on disk before it has its name
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)
        raise


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Writes readable UTF-8 JSON in one step; NaN is an error, not an invalid file."""
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, indent=1, allow_nan=False)
        file.write("\n")


def read_json(path: str | os.PathLike) -> Any:
    """Reads JSON. Raises ValueError with one line if it is missing or damaged."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise ValueError(f"Cannot read {path}: {error.strerror}. Run prepare again.") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}). Run prepare again.") from None


def load_npz(
    path: str | os.PathLike, names: Sequence[str] | None = None, remedy: str = "Run prepare again."
) -> dict[str, np.ndarray]:
    """Reads arrays of an npz from anybody: no pickle, and no size believed before it is checked.

    Args:
      path: the file.
      names: arrays that must be there; None reads all.
      remedy: last sentence of the error messages.

    Raises:
      ValueError: missing, damaged, pickled or implausibly large content.
    """
    try:
        with zipfile.ZipFile(path) as archive, np.load(path, allow_pickle=False) as arrays:
            result = {}
            for name in arrays.files if names is None else names:
                _check_member(archive, f"{name}.npy")
                result[name] = arrays[name]
            return result
    except OSError as error:
        raise ValueError(f"Cannot read {path}: {error.strerror or error}. {remedy}") from None
    except Exception as error:  # zip, zlib, header and pickle errors have no common base
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path} is not a usable npz file: {reason}. {remedy}") from None


def _check_member(archive: zipfile.ZipFile, name: str) -> None:
    """Compares the size that an array's header promises with the size of its zip member."""
    if name not in archive.namelist():
        raise ValueError(f"array {name[:-4]!r} is missing")
    size = archive.getinfo(name).file_size
    with archive.open(name) as file:
        version = np.lib.format.read_magic(file)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read is None:
            raise ValueError(f"array {name[:-4]!r} has unknown format {version}")
        shape, _, dtype = read(file)
        if dtype.hasobject:
            raise ValueError(f"array {name[:-4]!r} holds pickled objects, which are refused")
        promised = dtype.itemsize
        for side in shape:
            promised *= int(side)
        if promised != size - file.tell() or promised > _MAX_ARRAY_BYTES:
            raise ValueError(f"array {name[:-4]!r} promises {promised} bytes in {size}")


def write_npz(path: str | os.PathLike, **arrays: np.ndarray) -> None:
    """Writes arrays as npz in one step."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def file_sha256(path: str | os.PathLike) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
