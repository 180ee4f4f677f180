"""Reads and writes files safely: atomic writes, JSON, npz and SHA-256.

Every writer fills a temporary file in the same directory and renames it when it is complete. Every
reader checks sizes before it allocates memory, and never unpickles. Paths may be remote, see
`tfcap.storage`, except where an array is memory-mapped.
"""

import contextlib
import hashlib
import io
import json
import os
import secrets
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, BinaryIO

import numpy as np

from tfcap import storage

_MAX_ARRAY_BYTES = 4 << 30  # larger than any feature file or table known to us
_MAX_JSON_BYTES = 1 << 30  # all captions of COCO have 67 MB


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[str]:
    """Yields a temporary name beside `path`, renames it at the end, and deletes it on an error.

    For a remote path the name is a local one, and the file is copied at the end.
    """
    if storage.is_remote(path):
        with storage.uploading(path) as temporary:
            yield temporary
        return
    folder, name = os.path.split(os.path.abspath(path))
    # Processes of several machines, whose numbers may be equal, write into one directory.
    temporary = os.path.join(folder, f".tmp-{os.getpid()}-{secrets.token_hex(4)}-{name}")
    try:
        yield temporary
        with open(temporary, "rb+") as file:  # the content is on disk before it gets its name
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        if isinstance(error, OSError) and error.errno and not error.filename:
            error.filename = os.fspath(path)  # Python does not name the file of a failed write
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)
        raise


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
        if os.path.isdir(path):
            os.rename(path, old)
        os.rename(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
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
        if indent is None:  # the encoder of whole texts is written in C and many times faster
            file.write(json.dumps(value, ensure_ascii=False, allow_nan=False))
        else:
            json.dump(value, file, ensure_ascii=False, indent=indent, allow_nan=False)
        file.write("\n")


def read_json(path: str | os.PathLike, remedy: str) -> Any:
    """Reads UTF-8 JSON, with or without a byte order mark.

    Args:
      path: the file.
      remedy: last sentence of the error messages.

    Raises:
      ValueError: missing, too large, not UTF-8 or not JSON; the message is one line.
    """
    try:
        size = storage.size(path)
        if size > _MAX_JSON_BYTES:
            raise ValueError(
                f"{path} must have at most {_MAX_JSON_BYTES} bytes. Received: {size}. {remedy}"
            )
        text = storage.read_bytes(path).decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"Cannot read {path}: {error.strerror or error}. {remedy}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text at byte {error.start}. {remedy}") from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # also an integer of thousands of digits
        raise ValueError(f"{path} is not valid JSON: {error}. {remedy}") from None


def load_npz(
    path: str | os.PathLike,
    names: Sequence[str] | None,
    remedy: str,
    content: bytes | None = None,
) -> dict[str, np.ndarray]:
    """Reads arrays from an npz file of unknown origin: unpickles nothing and trusts no size.

    Args:
      path: the file.
      names: arrays that must be there; None reads all.
      remedy: last sentence of the error messages.
      content: the bytes of the file if it lies inside another one; `path` then names it in errors.

    Raises:
      ValueError: missing, damaged, pickled or implausibly large content.
    """
    try:
        with (
            _opened(path, content) as file,
            zipfile.ZipFile(file) as archive,
            _opened(path, content) as again,
            np.load(again, allow_pickle=False) as arrays,
        ):
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


def load_npy(path: str | os.PathLike, remedy: str, content: bytes | None = None) -> np.ndarray:
    """Reads an array from an npy file of unknown origin, with the checks of `load_npz`.

    Args:
      path: the file.
      remedy: last sentence of the error messages.
      content: as in `load_npz`.

    Raises:
      ValueError: missing, damaged, pickled or implausibly large content.
    """
    try:
        with _opened(path, content) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            _check_header(file, size, "the array")
            file.seek(0)
            return np.load(file, allow_pickle=False)
    except OSError as error:
        raise ValueError(f"Cannot read {path}: {error.strerror or error}. {remedy}") from None
    except Exception as error:  # header and pickle errors have no common base
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path} is not a usable npy file: {reason}. {remedy}") from None


def map_npy(
    path: str | os.PathLike, dtype: Any, shape: Sequence[int | None], remedy: str
) -> np.ndarray:
    """Memory-maps an npy file of unknown origin for reading, however large it is.

    Args:
      path: the file.
      dtype: what its numbers must be.
      shape: what its shape must be; None fits any number.
      remedy: last sentence of the error messages.

    Raises:
      ValueError: missing, damaged, pickled, or with another dtype, shape or order in memory.
    """
    if storage.is_remote(path):
        raise ValueError(
            f"{path} must be on a local disk, because it is memory-mapped. Received: a remote "
            f"path. {remedy}"
        )
    try:
        with open(path, "rb") as file:
            _check_header(file, os.path.getsize(path), "the array", largest=None)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise ValueError(f"Cannot read {path}: {error.strerror or error}. {remedy}") from None
    except Exception as error:  # header errors have no common base
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path} is not a usable npy file: {reason}. {remedy}") from None
    fits = len(array.shape) == len(shape) and all(
        side in (None, own) for side, own in zip(shape, array.shape, strict=True)
    )
    if not fits or array.dtype != np.dtype(dtype) or not array.flags.c_contiguous:
        sides = ", ".join("any" if side is None else str(side) for side in shape)
        order = "" if array.flags.c_contiguous else " in Fortran order"
        raise ValueError(
            f"{path} must hold {np.dtype(dtype)} [{sides}]. Received: {array.dtype} "
            f"{list(array.shape)}{order}. {remedy}"
        )
    return array


def _opened(path: str | os.PathLike, content: bytes | None) -> BinaryIO:
    if content is None and not storage.is_remote(path):
        return open(path, "rb")
    return io.BytesIO(storage.read_bytes(path) if content is None else content)


def _check_member(archive: zipfile.ZipFile, name: str) -> None:
    """Raises ValueError unless the header of an array promises as many bytes as the zip has."""
    if name not in archive.namelist():
        raise ValueError(f"array {name[:-4]!r} is missing")
    size = archive.getinfo(name).file_size
    with archive.open(name) as file:
        _check_header(file, size, f"array {name[:-4]!r}")


def _check_header(
    file: IO[bytes], size: int, what: str, largest: int | None = _MAX_ARRAY_BYTES
) -> None:
    """Raises ValueError unless the header of an npy file of `size` bytes promises what it has."""
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise ValueError(f"{what} has unknown format {version}")
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise ValueError(f"{what} holds pickled objects, which are refused")
    promised = dtype.itemsize
    for side in shape:
        promised *= int(side)
    if promised != size - file.tell() or (largest is not None and promised > largest):
        raise ValueError(f"{what} promises {promised} bytes in {size}")


def write_npz(path: str | os.PathLike, **arrays: np.ndarray) -> None:
    """Writes arrays as npz atomically."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def new_matrix(path: str | os.PathLike, dtype: Any, shape: Sequence[int]) -> np.memmap:
    """Makes an npy file and memory-maps it for writing.

    The disk reserves all of its bytes now: a write into a map of a full disk ends the process.

    Raises:
      OSError: the disk has not enough space.
    """
    matrix = np.lib.format.open_memmap(path, "w+", dtype, tuple(shape))
    if hasattr(os, "posix_fallocate"):  # not on macOS
        with open(path, "rb+") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, os.path.getsize(path))
            except OSError as error:
                raise OSError(error.errno, error.strerror, os.fspath(path)) from None
    return matrix


def file_sha256(path: str | os.PathLike) -> str:
    """Returns the SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with storage.local_copy(path) as local, open(local, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def arrays_sha256(arrays: Mapping[str, Any], before: bytes = b"") -> str:
    """SHA-256 of named arrays or variables in the order of their names, such as a model's weights.

    Args:
      arrays: name -> array; shapes and dtypes are not part of the digest.
      before: content that comes before the arrays.
    """
    digest = hashlib.sha256(before)
    for name, value in sorted(arrays.items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def versions(export_dir: str | os.PathLike) -> list[int]:
    """Lists the versions in the directory of all versions of a SavedModel, in rising order."""
    return sorted(int(name) for name in os.listdir(export_dir) if name.isdecimal())
