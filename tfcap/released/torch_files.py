"""Reads files of `torch.save` without PyTorch and without running code from the file.

`torch_pickles` reads the pickles in such a file, without unpickling them.

There are two layouts. PyTorch 1.6 and later writes a zip file: `<any>/data.pkl`, the numbers of
each storage in `<any>/data/<key>`, and optionally `<any>/byteorder`. Before, it wrote a stream:
five pickles (magic number, protocol, system, object, keys of the storages), then for each key a
count and the numbers.
"""

import io
import mmap
import os
import re
import reprlib
import struct
import zipfile
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, cast

import numpy as np

from tfcap.released.torch_pickles import KINDS, Global, Storage, Tensor, describe

_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_MAX_PICKLE = 256 << 20  # bytes; a model with its optimizer needs less than one million


def load(path: str | os.PathLike, wrappers: Sequence[str] = ()) -> Any:
    """Reads a file of `torch.save`.

    Args:
      path: the file.
      wrappers: keys to unwrap. While the content is a dictionary that has another dictionary under
        one of these keys, the inner dictionary becomes the content; the tensors outside it are not
        read.

    Returns:
      The content: dictionaries, lists, tuples and plain values, with read-only arrays for tensors
      (shared storages stay shared; bfloat16 becomes float32).

    Raises:
      ValueError: the file cannot be read, is not a file of `torch.save`, is cut or damaged, or
        names anything but tensors.
    """
    try:
        with open(path, "rb") as file:
            start = file.read(4)
            if start == b"PK\x03\x04":
                return _load_zip(file, wrappers)
            if start[:1] == b"\x80":
                return _load_stream(file, wrappers)
            raise ValueError(
                f"it must be a file of torch.save. Received: a file that begins with {start!r}"
            )
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError(f"{path} is refused: {error}") from error


def _load_zip(file, wrappers):
    try:
        with zipfile.ZipFile(file) as archive:
            members = _members(archive, os.fstat(file.fileno()).st_size)
            pickles = [name for name in members if re.fullmatch("[^/]+/data.pkl", name)]
            if len(pickles) != 1:
                raise ValueError(
                    f"it must have one file <folder>/data.pkl. Received: {len(pickles)} files"
                )
            top = pickles[0].removesuffix("data.pkl")
            if members[pickles[0]].file_size > _MAX_PICKLE:
                raise ValueError(f"data.pkl has more than {_MAX_PICKLE} bytes")
            order = "little"
            if f"{top}byteorder" in members:
                order = archive.read(members[f"{top}byteorder"]).decode("ascii", "replace")

            def read(storage: Storage) -> bytes:
                name = f"{top}data/{storage.key}"
                if name not in members:
                    raise ValueError(f"the storage {storage.key!r} is missing")
                _check_size(storage, members[name].file_size)
                return archive.read(members[name])  # `zipfile` checks the checksum

            content = describe(io.BytesIO(archive.read(members[pickles[0]])))
            return _Arrays(read, order).convert(_unwrap(content, wrappers))
    except (zipfile.BadZipFile, EOFError, struct.error, RuntimeError) as error:
        raise ValueError(f"it is cut or damaged ({error})") from error


def _members(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """Returns the files of an archive by name, after a check of their sizes."""
    infos = archive.infolist()
    members = {info.filename: info for info in infos}
    if len(members) < len(infos):
        raise ValueError("two files of the archive have the same name")
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise ValueError(f"{info.filename!r} is compressed, but torch.save never compresses")
    if sum(info.file_size for info in infos) > size:
        raise ValueError(f"the sizes of its files must not exceed the {size} bytes of the archive")
    return members


def _load_stream(file, wrappers):
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        # The file is mapped, so that a wrong length cannot read past its end.
        stream = cast(BinaryIO, view)  # it has the methods that are needed
        if describe(stream) != _MAGIC or describe(stream) != _PROTOCOL:
            raise ValueError("it is a pickle, but not one of torch.save")
        system, content, keys = (describe(stream) for _ in range(3))
        if not isinstance(system, dict) or not isinstance(keys, list):
            raise ValueError("its list of tensor storages is damaged. Copy the file again.")
        order = "little" if system.get("little_endian", True) else "big"
        needed = {storage.key: storage for storage in _storages(content)}
        places = {}
        for key in keys:
            if type(key) is not str or key not in needed or key in places:
                raise ValueError(f"the storage {key!r} is not used by a tensor, or is listed twice")
            (count,) = struct.unpack("<q" if order == "little" else ">q", _read_exactly(view, 8))
            if count != needed[key].count:
                raise ValueError(
                    f"the storage {key!r} has {count} numbers, not {needed[key].count}"
                )
            places[key] = view.tell()
            if view.tell() + needed[key].size > len(view):
                raise ValueError(f"it ends inside the storage {key!r}")
            view.seek(needed[key].size, os.SEEK_CUR)

        def read(storage: Storage) -> bytes:
            if needed[storage.key] != storage or storage.key not in places:
                raise ValueError(f"the storage {storage.key!r} is missing or has two types")
            return view[places[storage.key] : places[storage.key] + storage.size]

        return _Arrays(read, order).convert(_unwrap(content, wrappers))


def _read_exactly(view, size: int) -> bytes:
    content = view.read(size)
    if len(content) != size:
        raise ValueError("it ends too early")
    return content


def _check_size(storage: Storage, size: int) -> None:
    if storage.size != size:
        raise ValueError(f"the storage {storage.key!r} has {size} bytes, not {storage.size}")


def _unwrap(content, wrappers):
    """Returns the innermost dictionary under the keys `wrappers`."""
    for _ in range(10):  # a dictionary may contain itself
        if not isinstance(content, dict):
            break
        inner = [content[key] for key in wrappers if isinstance(content.get(key), dict)]
        if not inner:
            break
        content = inner[0]
    return content


def _storages(content):
    """Yields the storage of every tensor in `content`; visits each container once."""
    seen, waiting = set(), [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            yield value.storage
        elif isinstance(value, dict | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            waiting += value.values() if isinstance(value, dict) else value


class _Arrays:
    """Converts tensors to arrays; reads each storage once and copies each container once."""

    def __init__(self, read: Callable[[Storage], bytes], order: str):
        if order not in ("little", "big"):
            raise ValueError(f"its byte order must be little or big. Received: {order!r}")
        self._read, self._order = read, "<" if order == "little" else ">"
        self._storages: dict[Storage, np.ndarray] = {}
        self._done: dict[int, Any] = {}

    def convert(self, content: Any) -> Any:
        """Returns a copy of `content` with an array for each tensor.

        Raises:
          ValueError: a container contains itself, or a storage is missing or has a wrong size.
        """
        try:
            return self._convert(content)
        except RecursionError:
            raise ValueError("its containers are nested too deeply") from None

    def _convert(self, value):
        if isinstance(value, Tensor):
            return self._view(value)
        if isinstance(value, Global | Storage):
            raise ValueError(f"it holds {reprlib.repr(value)} where a value should be")
        if not isinstance(value, dict | list | tuple):
            return value
        if id(value) not in self._done:
            if isinstance(value, dict):
                copy: Any = {key: self._convert(item) for key, item in value.items()}
            else:
                copy = type(value)(self._convert(item) for item in value)
            self._done[id(value)] = copy
        return self._done[id(value)]

    def _view(self, tensor: Tensor) -> np.ndarray:
        storage = tensor.storage
        if storage not in self._storages:
            content = self._read(storage) if storage.count else b""
            stored = np.frombuffer(content, self._order + KINDS[storage.kind])
            stored = stored.astype(stored.dtype.newbyteorder("="), copy=False)
            if storage.kind == "BFloat16Storage":
                stored = (stored.astype(np.uint32) << 16).view(np.float32)
            elif storage.kind == "BoolStorage":
                stored = stored != 0
            self._storages[storage] = stored
        numbers = self._storages[storage][tensor.offset :]
        if 0 in tensor.shape:
            return np.zeros(tensor.shape, numbers.dtype)
        strides = [stride * numbers.itemsize for stride in tensor.strides]
        return np.lib.stride_tricks.as_strided(numbers, tensor.shape, strides, writeable=False)
