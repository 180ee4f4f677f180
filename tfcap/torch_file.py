"""Reads the weights in a file of `torch.save` or safetensors, without PyTorch.

It runs no code of the file. A pickle is a program: it names functions and calls them. Here
`find_class` imports nothing. It knows ordered dictionaries, the functions that rebuild tensors, and
the types of their numbers. Every other name stands for an `_Unknown`, which does nothing.

There are three layouts:

* PyTorch 1.6 and later writes a zip file: `<any>/data.pkl`, the numbers of each storage in
  `<any>/data/<key>`, and optionally `<any>/byteorder`.
* Earlier versions of PyTorch wrote a stream: five pickles (magic number, protocol, system, content,
  keys of the storages), then for each key a count and the numbers.
* A safetensors file has the length of its header in 8 bytes, the header in JSON, and the numbers.
"""

import collections
import functools
import itertools
import json
import math
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from io import BytesIO
from typing import Any, BinaryIO, NamedTuple

import numpy as np

_MAGIC = 0x1950A86A20F9469CFC6C
# The types of storages, with the NumPy type of their numbers.
_KINDS = {
    "FloatStorage": "f4",
    "DoubleStorage": "f8",
    "HalfStorage": "f2",
    "BFloat16Storage": "u2",
    "LongStorage": "i8",
    "IntStorage": "i4",
    "ShortStorage": "i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "u1",
}
# The names of these types in a safetensors file.
_SAFE = dict(
    zip("F32 F64 F16 BF16 I64 I32 I16 I8 U8 BOOL".split(), _KINDS, strict=True)  # in this order
)
_LARGEST_HEADER = 100_000_000  # bytes; the limit of the safetensors library
# How files of other formats begin.
_OTHERS = {
    b"\x89HDF\r\n": "the file is an HDF5 file (.h5), such as Keras writes",
    b"\x93NUMPY": "the file is an array of NumPy (.npy)",
    b"GGUF": "the file is GGUF",
    b"{": "the file is JSON, perhaps an index of weights in several files: join them in one",
    b"version https://git-lfs": "the file is a pointer of Git LFS: `git lfs pull` fetches it",
    b"<": "the file is a web page or XML, and not what its link promised: download it again",
    b"\x1f\x8b": "the file is compressed with gzip: unpack it, and give what was in it",
}
# The members by which other zip files are known.
_OTHER_ZIPS = {
    ".npy": "the file is an archive of NumPy (.npz)",
    "model.weights.h5": "the file is a model of Keras (.keras)",
    "constants.pkl": "the file is TorchScript: save torch.jit.load(...).state_dict()",
    ".pth": "the file is a zip archive with files of weights: unpack it, and give one of them",
    ".safetensors": (
        "the file is a zip archive with files of weights: unpack it, and give one of them"
    ),
}
# The keys under which trainers keep the state dict.
WRAPPERS = (
    *("model_state_dict", "state_dict", "model", "net", "network", "module", "weights", "params"),
)
# Parts of names that wrappers of PyTorch add: DataParallel and DistributedDataParallel,
# torch.compile, FSDP, and activation checkpointing.
_WRAPPED = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


class _OtherFormat(ValueError):
    """A whole file that holds no weights in a format that is read here."""


def read_tensors(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Reads the weights in a file of `torch.save` or safetensors, without PyTorch.

    In a file of `torch.save` the state dict may be inside other dictionaries, under one of the keys
    `WRAPPERS`. These keys are tried in order, and the first dictionary that holds tensors is read.
    Entries that are not tensors are left out.

    Args:
      path: the file, local.

    Returns:
      Read-only arrays by name, with the dtypes of the file; bfloat16 becomes float32. The names are
      those of the plain model: `module.` and other parts that wrappers of PyTorch add are removed.
      A prefix that all names share is removed too, unless it is `features.`. If only some names
      begin with `module.`, the other entries, such as a counter, belong to the wrapper and are left
      out.

    Raises:
      ValueError: the file cannot be read or is damaged, or holds no weights.
    """
    try:
        with open(os.path.expanduser(path), "rb") as file:
            start = file.read(512)
            file.seek(0)
            if _is_safetensors(start):
                arrays = _read_safetensors(file)
            elif is_weights(start):
                arrays = _read_torch(file, _read_zip if start[:1] == b"P" else _read_stream)
            else:
                raise _OtherFormat(other_format(start) or _by_end(file))
        if not arrays:
            raise _OtherFormat("the file holds no tensors by name, as a state dict does")
        return _bare(arrays)
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read: {error.strerror or error}. Check the path."
        ) from error
    except Exception as error:  # a damaged pickle raises errors of many types
        save = "with torch.save(model.state_dict(), ...)"
        if isinstance(error, _OtherFormat):
            remedy = f"Give a file of the weights alone, saved {save}"
        else:
            remedy = f"Copy it again, or save the weights alone {save}"
        raise ValueError(
            f"{path} is no usable file of torch.save: {str(error)[:300] or 'the file is cut'}. "
            f"{remedy}"
        ) from error


def other_format(start: bytes) -> str:
    """Names the format of a file that is neither torch.save nor safetensors, for an error.

    Args:
      start: the first 512 bytes of the file.

    Returns:
      A text such as "the file is a web page or XML, ..."; "" if the format is not known.
    """
    if not start:
        return "the file is empty"
    if start[257:262] == b"ustar":
        return "the file is a tar archive: unpack it, and give the file of weights that was in it"
    return next((text for magic, text in _OTHERS.items() if start.startswith(magic)), "")


def _by_end(file: BinaryIO) -> str:
    """Says what a file is by its last bytes."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - 8))
    is_table = int.from_bytes(file.read(), "little") == 0xDB4775248B80FB57  # of LevelDB
    return "the file is a checkpoint of TensorFlow" if is_table else "the file has another format"


def is_weights(start: bytes) -> bool:
    """True if a file begins like one of torch.save or safetensors.

    Args:
      start: the first 512 bytes of the file.
    """
    return start.startswith((b"PK", b"\x80")) or _is_safetensors(start)


def read_values(content: bytes) -> Any:
    """Reads a pickle of plain values, such as a table of words, without running its code.

    Args:
      content: the bytes of the pickle.

    Returns:
      The value: dictionaries, lists, numbers, text. A dictionary stands in place of each class,
      each function, and each object of a class. That of an object has its attributes, if the pickle
      stores them by name; the others are empty.

    Raises:
      ValueError: the pickle is damaged.
    """
    try:
        return _ValueUnpickler(BytesIO(content)).load()
    except Exception as error:  # a damaged pickle raises errors of many types
        raise ValueError(
            f"the pickle is damaged: {str(error)[:300] or 'its end is missing'}"
        ) from error


class _Storage(NamedTuple):
    """The numbers of tensors.

    Attributes:
      kind: type of the numbers, a key of `_KINDS`.
      key: name of the storage in the file.
      length: number of numbers.
    """

    kind: str
    key: str
    length: int


class _Tensor(NamedTuple):
    """A view of a storage; offset and strides count numbers."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Unknown(dict):
    """Stands for any other object or function: it takes what a pickle gives it and does nothing."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __new__(cls, *_, **__):
        return super().__new__(cls)

    def __init__(self, *_, **__):
        super().__init__()

    def __call__(self, *_, **__):
        return _Unknown()

    def __setstate__(self, _):
        pass

    append = extend = add = __setstate__


# The Python version, because its memo is a dictionary: a huge index in the file needs no memory.
_InPython: Any = pickle._Unpickler


class _Unpickler(_InPython):
    """Imports nothing, and calls nothing but what `find_class` returns."""

    # Reads what is there, where the original first allocates the size that the file promises.
    dispatch = {**_InPython.dispatch, pickle.BYTEARRAY8[0]: _InPython.load_binbytes8}

    def __init__(self, file: BinaryIO):
        super().__init__(file, encoding="latin-1")  # Python 2 wrote bytes
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _KINDS:
            return name
        match module, name:
            case "collections", "OrderedDict":
                return collections.OrderedDict
            case "torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2":
                return lambda storage, offset, shape, strides, *_: (
                    _Tensor(storage, offset, shape, strides)
                    if type(storage) is _Storage
                    else _Unknown()
                )
            case "torch._utils", "_rebuild_parameter":
                return lambda tensor, *_: tensor
        return _Unknown

    def persistent_load(self, identity: Any) -> Any:
        # Before PyTorch 1.6 a sixth value says which part of another storage this one is.
        if type(identity) is tuple and identity[0] == "storage" and identity[5:] in ((), (None,)):
            storage = _Storage(identity[1], identity[2], identity[4])
            if [*map(type, storage)] == [str, str, int] and storage.kind in _KINDS:
                return self.storages.setdefault(storage.key, storage)
        return _Unknown()


class _Object(_Unknown):
    """Stands for an object, and holds its attributes."""

    def __setstate__(self, state):
        if isinstance(state, dict):
            self.update(state)


class _ValueUnpickler(_Unpickler):
    """Keeps the attributes of objects."""

    def find_class(self, module: str, name: str) -> Any:
        result = super().find_class(module, name)
        return _Object if result is _Unknown else result


def _is_safetensors(start: bytes) -> bool:
    return start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= _LARGEST_HEADER


def _read_safetensors(file: BinaryIO) -> dict[str, np.ndarray]:
    """Returns the arrays of a safetensors file by name."""
    first = 8 + int.from_bytes(file.read(8), "little")
    left = file.seek(0, os.SEEK_END) - first
    if left < 0:  # `read` would allocate what the file promises
        raise ValueError("the file is cut: it ends before its header does")
    file.seek(8)
    entries = json.loads(file.read(first - 8))
    arrays = {}
    for name, entry in entries.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in _SAFE:
            raise _OtherFormat(
                f"the tensor {name} has the type {entry['dtype']}, which is not read"
            )
        shape, (start, end) = entry["shape"], entry["data_offsets"]
        left -= end - start  # tensors that share bytes could need any memory
        sizes = *shape, start, end - start
        if not all(type(n) is int and n >= 0 for n in sizes) or left < 0:
            raise ValueError(f"the file is damaged: the tensor {name} reaches out of it")
        storage = _Storage(_SAFE[entry["dtype"]], name, math.prod(shape))
        file.seek(first + start)
        arrays[name] = _numbers(storage, file.read(end - start), "little").reshape(shape)
        arrays[name].flags.writeable = False
    return arrays


def _read_torch(file: BinaryIO, read_file: Callable) -> dict[str, np.ndarray]:
    """Returns the arrays of a file of torch.save by name."""
    content, read, order = read_file(file)
    numbers = functools.cache(lambda storage: _numbers(storage, read(storage), order))
    return {
        name: _view(tensor, numbers(tensor.storage))
        for name, tensor in _state_dict(content, set()).items()
    }


def _read_zip(file: BinaryIO) -> tuple[Any, Callable, str]:
    """Returns the content of a zip file, a function that reads a storage, and the byte order."""
    archive = zipfile.ZipFile(file)
    names = archive.namelist()
    pickled = next((name for name in names if name.endswith("/data.pkl")), None)
    for ending, text in _OTHER_ZIPS.items():
        if any(name.endswith(ending) for name in names):
            raise _OtherFormat(text)
    if pickled is None:
        raise _OtherFormat(
            "the file is a zip file without data.pkl, which torch.save would write: if the weights "
            "are a file in it, unpack it, and give that file"
        )
    top = pickled.removesuffix("data.pkl")
    if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
        raise _OtherFormat(
            "the file is a zip file with compression, which torch.save never uses: unpack it, and "
            "pack it again without compression, with zip -0 -r"
        )
    order = archive.read(f"{top}byteorder") if f"{top}byteorder" in names else b"little"
    content = _Unpickler(BytesIO(archive.read(pickled))).load()
    return content, lambda storage: archive.read(f"{top}data/{storage.key}"), order.decode()


def _read_stream(file: BinaryIO) -> tuple[Any, Callable, str]:
    """Does what `_read_zip` does for the layout before PyTorch 1.6."""
    unpicklers = [_Unpickler(file) for _ in range(5)]
    if unpicklers[0].load() != _MAGIC:
        raise _OtherFormat("the file is a pickle of another program, and not of torch.save")
    _, system, content, keys = (unpickler.load() for unpickler in unpicklers[1:])
    storages = unpicklers[3].storages
    starts: dict[str, int] = {}
    order = "little" if system.get("little_endian", True) else "big"
    for key in keys:
        if type(key) is not str or key not in storages:
            raise ValueError("the file has a storage (the numbers of tensors) of an unknown type")
        (count,) = struct.unpack("<q" if order == "little" else ">q", file.read(8))
        if count != storages[key].length:
            raise ValueError(
                f"the file is damaged: a storage has {count} numbers, not {storages[key].length}"
            )
        starts[key] = file.tell()
        file.seek(_size(storages[key]), os.SEEK_CUR)

    def read(storage: _Storage) -> bytes:
        file.seek(starts[storage.key])
        return file.read(_size(storage))

    return content, read, order


def _size(storage: _Storage) -> int:
    return storage.length * np.dtype(_KINDS[storage.kind]).itemsize


def _numbers(storage: _Storage, content: bytes, order: str) -> np.ndarray:
    """Returns the numbers of a storage, [count]."""
    if len(content) != _size(storage):
        raise ValueError(
            f"the file is damaged: a storage has {len(content)} bytes, not {_size(storage)}"
        )
    numbers = np.frombuffer(content, {"little": "<", "big": ">"}[order] + _KINDS[storage.kind])
    if storage.kind == "BFloat16Storage":
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    if storage.kind == "BoolStorage":
        return numbers != 0
    return numbers.astype(numbers.dtype.newbyteorder("="), copy=False)


def _view(tensor: _Tensor, numbers: np.ndarray) -> np.ndarray:
    """Returns the array of a tensor after a check that it stays inside its storage."""
    _, offset, shape, strides = tensor
    plain = all(type(number) is int and number >= 0 for number in (offset, *shape, *strides))
    if not plain or len(shape) != len(strides):
        raise ValueError(
            "the file is damaged: a tensor has a size, stride or offset below 0 or not whole"
        )
    if 0 in shape:
        return np.zeros(shape, numbers.dtype)
    # The stride of an axis of length 1 is never used and may have any value.
    strides = tuple(step if n > 1 else 0 for n, step in zip(shape, strides, strict=True))
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    if last >= len(numbers) or math.prod(shape) > len(numbers):
        raise ValueError("the file is damaged: a tensor reaches out of its storage")
    strides = tuple(step * numbers.itemsize for step in strides)
    return np.lib.stride_tricks.as_strided(numbers[offset:], shape, strides, writeable=False)


def _bare(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Removes from the names what wrappers of the model added, see `read_tensors`."""
    names = [[p for p in name.split(".") if p not in _WRAPPED] or [name] for name in arrays]
    if len({*map(".".join, names)}) < len(names):
        raise ValueError(
            "two tensors get the same name once the prefixes of PyTorch's wrappers, such as "
            "module, are removed. Save the weights of one model only"
        )
    if any(wrapped := [name.startswith("module.") for name in arrays]):
        names = [*itertools.compress(names, wrapped)]
        arrays = dict(itertools.compress(arrays.items(), wrapped))
    # A VGG without its classes has `features` alone.
    while len(names) > 1 and len({name[0] for name in names}) == 1 and names[0][0] != "features":
        if min(map(len, names)) == 1:
            break
        names = [name[1:] for name in names]
    return dict(zip(map(".".join, names), arrays.values(), strict=True))


def _state_dict(content: Any, visited: set[int]) -> dict[str, _Tensor]:
    """Returns the tensors by name of the first dictionary that has any.

    Args:
      content: a dictionary; other values have no tensors.
      visited: ids of the dictionaries that were searched: one may contain itself.
    """
    if not isinstance(content, dict) or id(content) in visited:
        return {}
    visited.add(id(content))
    for key in WRAPPERS:
        if tensors := _state_dict(content.get(key), visited):
            return tensors
    return {
        name: value
        for name, value in content.items()
        if type(name) is str and type(value) is _Tensor
    }
