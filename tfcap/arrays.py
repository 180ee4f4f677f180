"""Reads and writes NumPy arrays safely: npz and npy files, memory maps and their SHA-256.

Every reader checks sizes before it allocates memory, and never unpickles. Paths may be remote, see
`tfcap.storage`, except where an array is memory-mapped.
"""

import contextlib
import functools
import hashlib
import io
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, BinaryIO, Concatenate, ParamSpec, TypeVar

import numpy as np

from tfcap import storage
from tfcap.files import replacing

_MAX_ARRAY_BYTES = 4 << 30  # larger than any feature file or table known to us
_TRIES = 20  # eight threads that did nothing but read failed once in 250 tries

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _tried_again(
    load: Callable[Concatenate[storage.Path, Parameters], Result],
) -> Callable[Concatenate[storage.Path, Parameters], Result]:
    """Makes a function that reads an array try again when Python's parser fails by mistake.

    NumPy reads the header of an array with `ast.literal_eval`. If several threads do that at the
    same time, CPython 3.11 may confuse their recursion depths and raise SystemError for a good file
    (https://github.com/python/cpython/issues/106905).
    """

    @functools.wraps(load)
    def loaded(path: storage.Path, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        for _ in range(_TRIES - 1):
            with contextlib.suppress(SystemError):
                return load(path, *args, **kwargs)
        try:
            return load(path, *args, **kwargs)
        except SystemError as error:
            raise ValueError(
                f"{path} cannot be read: Python's parser failed {_TRIES} times ({error}). Give "
                "the same command again."
            ) from None

    return loaded


@_tried_again
def load_npz(
    path: storage.Path,
    names: Sequence[str] | None,
    remedy: str,
    content: bytes | None = None,
) -> dict[str, np.ndarray]:
    """Reads arrays from an npz file of unknown origin; unpickles nothing and checks every size.

    Args:
      path: the file.
      names: arrays that must be there; None reads all.
      remedy: last sentence of the error messages.
      content: the bytes of the file if it lies inside another one; `path` then names it in errors.

    Raises:
      ValueError: missing, damaged, pickled or implausibly large content.
    """
    with (
        _refused(path, "npz", remedy),
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


@_tried_again
def load_npy(path: storage.Path, remedy: str, content: bytes | None = None) -> np.ndarray:
    """Reads an array from an npy file of unknown origin, with the checks of `load_npz`.

    Args:
      path: the file.
      remedy: last sentence of the error messages.
      content: as in `load_npz`.

    Raises:
      ValueError: missing, damaged, pickled or implausibly large content.
    """
    with _refused(path, "npy", remedy), _opened(path, content) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        _check_header(file, size, "the array")
        file.seek(0)
        array = np.load(file, allow_pickle=False)
    return array


@_tried_again
def map_npy(path: storage.Path, dtype: Any, shape: Sequence[int | None], remedy: str) -> np.ndarray:
    """Memory-maps an npy file of unknown origin and of any size for reading.

    Args:
      path: the file.
      dtype: the dtype that the array must have.
      shape: the shape that the array must have; None stands for any length.
      remedy: last sentence of the error messages.

    Raises:
      ValueError: missing, damaged, pickled, or with another dtype, shape or order in memory.
    """
    if storage.is_remote(path):
        raise ValueError(
            f"{path} must be on a local disk, because it is memory-mapped. Received: a remote "
            f"path. {remedy}"
        )
    with _refused(path, "npy", remedy), open(path, "rb") as file:
        _check_header(file, os.path.getsize(path), "the array", largest=None)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
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


@contextlib.contextmanager
def _refused(path: storage.Path, kind: str, remedy: str) -> Iterator[None]:
    """Turns every error of a file into a ValueError of one line."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"Cannot read {path}: {error.strerror or error}. {remedy}") from None
    except SystemError:  # not a fault of the file, see `_tried_again`
        raise
    except Exception as error:  # zip, zlib, header and pickle errors have no common base
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path} is not a usable {kind} file: {reason}. {remedy}") from None


def _opened(path: storage.Path, content: bytes | None) -> BinaryIO:
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
        raise ValueError(
            f"the header of {what} promises {promised} bytes in a file of {size} bytes"
        )


def write_npz(path: storage.Path, **arrays: Any) -> None:
    """Writes arrays into an npz file, which appears only when it is complete.

    Args:
      path: the file; it may be remote.
      **arrays: the arrays by their names.

    Raises:
      OSError: the file cannot be written.
    """
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, **arrays)


def new_matrix(path: storage.Path, dtype: Any, shape: Sequence[int]) -> np.memmap:
    """Makes an npy file and memory-maps it for writing.

    The space on the disk is reserved now, because a write into a memory map kills the process if
    the disk is full.

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


def arrays_sha256(arrays: Mapping[str, Any], before: bytes = b"") -> str:
    """Computes the SHA-256 of named arrays, such as a model's weights, in the order of their names.

    Args:
      arrays: name -> array or variable; shapes and dtypes are not part of the digest.
      before: bytes that the digest reads before the arrays.
    """
    digest = hashlib.sha256(before)
    for name, value in sorted(arrays.items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()
