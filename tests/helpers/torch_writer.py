"""Writes files as `torch.save` does, without PyTorch, and files that nobody should load.

Tensors are NumPy arrays with the strides that they have; arrays that are views of one base share
its storage. Types that NumPy lacks are given by `kinds`.
"""

import collections
import io
import pickle
import struct
import zipfile

import numpy as np

KINDS = {
    "float32": "FloatStorage",
    "float64": "DoubleStorage",
    "float16": "HalfStorage",
    "int64": "LongStorage",
    "int32": "IntStorage",
    "int16": "ShortStorage",
    "int8": "CharStorage",
    "uint8": "ByteStorage",
    "bool": "BoolStorage",
}
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001


class Named:
    """Is pickled as a global `module name`, whatever that may be."""

    def __init__(self, module, name):
        self.module, self.name = module, name


class Call:
    """Is pickled as the call of a global with `arguments`."""

    def __init__(self, module, name, *arguments):
        self.function, self.arguments = Named(module, name), arguments


class _Pickler(pickle._Pickler):
    """Python's own pickler, which can be told how to write a `Named`."""

    dispatch = dict(pickle._Pickler.dispatch)

    def __init__(self, file, storages, kinds, protocol, older):
        super().__init__(file, protocol)
        self.storages, self.kinds, self.older = storages, kinds, older

    def _named(self, named):
        if self.proto >= 4:
            self.save(named.module)
            self.save(named.name)
            self.write(pickle.STACK_GLOBAL)
        else:
            self.write(pickle.GLOBAL + f"{named.module}\n{named.name}\n".encode())

    def _call(self, call):
        self.save(call.function)
        self.save(tuple(call.arguments))
        self.write(pickle.REDUCE)

    def _array(self, array):
        base = array
        while isinstance(base.base, np.ndarray):
            base = base.base
        flat = np.ndarray(base.size, base.dtype, base)  # what lies in memory, in its order
        storage = Storage(str(self._key(base, flat)), self._kind(base), base.size)
        start = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        strides = tuple(step // array.itemsize for step in array.strides)
        self._call(
            Call(
                *("torch._utils", "_rebuild_tensor_v2", storage, start // array.itemsize),
                *(array.shape, strides, False, collections.OrderedDict()),
            )
        )

    def _key(self, base, flat):
        for key, (expected, _) in self.storages.items():
            if expected is base:
                return key
        key = str(len(self.storages))
        self.storages[key] = (base, flat)
        return key

    def _kind(self, base):
        return self.kinds.get(id(base)) or KINDS[str(base.dtype)]

    def persistent_id(self, value):
        if not isinstance(value, Storage):
            return None
        identity = ("storage", Named("torch", value.kind), value.key, "cpu", value.count)
        return (*identity, None) if self.older else identity

    dispatch[Named] = _named
    dispatch[Call] = _call
    dispatch[np.ndarray] = _array


class Storage:
    """Is pickled as a persistent id."""

    def __init__(self, key, kind, count):
        self.key, self.kind, self.count = key, kind, count


def described(content, storages=None, kinds=None, protocol=2, older=False) -> bytes:
    """The pickle of `content`; the arrays of its tensors are left in `storages`."""
    file = io.BytesIO()
    _Pickler(file, {} if storages is None else storages, kinds or {}, protocol, older).dump(content)
    return file.getvalue()


def write(path, content, top="archive", order=None, kinds=None, protocol=2):
    """The layout since PyTorch 1.6. `order`: the byte order, if it is to be said."""
    storages = {}
    description = described(content, storages, kinds, protocol)
    members = {"data.pkl": description}
    if order:
        members["byteorder"] = order.encode()
    for key, (_, flat) in storages.items():
        swapped = flat.byteswap() if order == "big" else flat
        members[f"data/{key}"] = swapped.tobytes()
    members["version"] = b"3\n"
    write_members(path, {f"{top}/{name}": data for name, data in members.items()})


def write_members(path, members, compression=zipfile.ZIP_STORED):
    """A zip file of `members`."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def write_pickle(path, description: bytes, storages=None):
    """The layout since PyTorch 1.6 around any pickle and any bytes of storages."""
    members = {f"archive/data/{key}": data for key, data in (storages or {}).items()}
    write_members(path, {"archive/data.pkl": description, **members})


def write_older(path, content, cut=0):
    """The layout before PyTorch 1.6; `cut` bytes are left out at the end."""
    storages = {}
    description = described(content, storages, older=True)
    system = {"protocol_version": PROTOCOL, "little_endian": True, "type_sizes": {"int": 4}}
    stream = b"".join(pickle.dumps(value, 2) for value in (MAGIC, PROTOCOL, system))
    stream += description + pickle.dumps(list(storages), 2)
    for _, flat in storages.values():
        stream += struct.pack("<q", flat.size) + flat.tobytes()
    with open(path, "wb") as file:
        file.write(stream[: len(stream) - cut])
