"""Reads a pickle of tensors without unpickling it.

A pickle is a program: unpickling an untrusted file can run any code. The small machine here
interprets the pickle opcode by opcode (`pickletools` splits it into opcodes and runs nothing). It
accepts plain values, `OrderedDict` and tensors. It refuses every other name, call or attribute, and
its error contains the name.

A `pickle.Unpickler` with a fixed list in `find_class` is shorter but less safe. It still allocates
a memo as large as an index in the file says, and it still calls the listed functions and sets their
attributes. The machine keeps its memo in a dictionary and calls nothing.
"""

import dataclasses
import math
import pickletools
import reprlib
from collections.abc import Callable
from typing import Any, BinaryIO

_MAX_AXES = 32
# The types of storages, with the NumPy type of their numbers.
KINDS = {
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
# Everything that a pickle may name, as `module name`.
_ADMITTED = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
    *(f"torch {kind}" for kind in KINDS),
}
_REMEDY = (
    "only tensors, dictionaries and plain values are read. If you trust the file, save only the "
    "weights with PyTorch: torch.save(model.state_dict(), ...)"
)


@dataclasses.dataclass(frozen=True)
class Global:
    """A class or function that a pickle refers to.

    Attributes:
      name: one of `_ADMITTED`, such as `torch FloatStorage`.
    """

    name: str


@dataclasses.dataclass(frozen=True)
class Storage:
    """A storage in the file: `count` numbers of the type `kind`, a key of `KINDS`."""

    key: str
    kind: str
    count: int

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self.count * int(KINDS[self.kind][1])


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A view of a storage. Offset and strides count numbers and stay inside the storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def describe(stream: BinaryIO) -> Any:
    """Reads one pickle at the position of `stream`, and leaves `stream` at the end of the pickle.

    Returns:
      Dictionaries, lists, tuples, plain values and `Tensor`.

    Raises:
      ValueError: the pickle uses a name or an opcode that is not admitted, or is cut or damaged.
    """
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(stream):
            if opcode.name == "STOP":
                return machine.stack.pop()
            machine.do(opcode.name, argument)
    except (IndexError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"its pickle is damaged ({type(error).__name__}: {error})") from error
    raise ValueError("its pickle has no end")


class _Machine:
    """The state of a pickle that is being read: a stack, its marks and a memo."""

    def __init__(self):
        self.stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def do(self, name: str, argument: Any) -> None:
        """Applies one opcode to the stack, the marks and the memo."""
        stack = self.stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name]())
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self._memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name in _TUPLES:
            stack[len(stack) - _TUPLES[name] :] = [tuple(self._top(_TUPLES[name]))]
        elif name in ("TUPLE", "LIST", "DICT", "APPENDS", "SETITEMS", "POP_MARK"):
            self._gather(name)
        elif name == "APPEND":
            self._extend(*self._pop(1))
        elif name == "SETITEM":
            self._update(*self._pop(2))
        elif name in ("GLOBAL", "STACK_GLOBAL", "INST"):
            self._name(" ".join(map(str, self._pop(2))) if name == "STACK_GLOBAL" else argument)
        elif name == "BINPERSID":
            stack.append(_storage(stack.pop()))
        elif name == "REDUCE":
            function, arguments = self._pop(2)
            stack.append(_rebuild(function, arguments))
        elif name == "BUILD":
            self._pop(1)  # ignore the attribute _metadata of a state dict
            if not isinstance(stack[-1], dict):
                raise ValueError(f"its pickle sets attributes of {_name_of(stack[-1])}; {_REMEDY}")
        elif name == "POP":
            stack.pop()
        elif name not in ("PROTO", "FRAME"):
            raise ValueError(f"its pickle uses the opcode {name}; {_REMEDY}")

    def _top(self, count: int) -> list[Any]:
        if not 0 <= count <= len(self.stack):
            raise ValueError("its pickle is damaged (it takes more values than the stack has)")
        return self.stack[len(self.stack) - count :]

    def _pop(self, count: int) -> list[Any]:
        values = self._top(count)
        del self.stack[len(self.stack) - count :]
        return values

    def _gather(self, name: str) -> None:
        """Applies an opcode that takes every value since the last mark."""
        values = self._pop(len(self.stack) - self._marks.pop())
        if name == "TUPLE":
            self.stack.append(tuple(values))
        elif name == "LIST":
            self.stack.append(values)
        elif name == "APPENDS":
            self._extend(*values)
        elif name in ("DICT", "SETITEMS"):
            if name == "DICT":
                self.stack.append({})
            self._update(*values)

    def _extend(self, *items: Any) -> None:
        if not isinstance(self.stack[-1], list):
            raise ValueError(f"its pickle appends to {_name_of(self.stack[-1])} instead of a list")
        self.stack[-1].extend(items)

    def _update(self, *items: Any) -> None:
        target, keys, values = self.stack[-1], items[::2], items[1::2]
        # Keys must be plain values: the hash of deeply nested tuples can exhaust Python's stack.
        if not isinstance(target, dict) or not all(type(key) in _KEYS for key in keys):
            raise ValueError(
                "its pickle sets an item of something that is not a dictionary with plain keys"
            )
        target.update(zip(keys, values, strict=True))

    def _name(self, name: str) -> None:
        if name not in _ADMITTED:
            raise ValueError(f"its pickle refers to {name.replace(' ', '.')!r}; {_REMEDY}")
        self.stack.append(Global(name))


_VALUES = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE"),
    *("BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_KEYS = {str, bytes, int, float, bool, type(None)}


def _storage(identity: Any) -> Storage:
    """Returns the storage of a persistent id. In the older layout the id ends with a None."""
    match identity:
        case ("storage", Global(name), str(key), str(), int(count)) | (
            "storage",
            Global(name),
            str(key),
            str(),
            int(count),
            None,
        ) if name.startswith("torch ") and count >= 0:
            return Storage(key, name.removeprefix("torch "), count)
    raise ValueError(f"its pickle describes a storage as {reprlib.repr(identity)}")


def _rebuild(function: Any, arguments: Any) -> Any:
    """Returns what an admitted function would return for `arguments`; nothing is called."""
    match function, arguments:
        case Global("collections OrderedDict"), ():
            return {}
        case Global("torch._utils _rebuild_parameter"), (Tensor() as tensor, bool(), dict()):
            return tensor
        case Global("torch._utils _rebuild_tensor_v2"), (
            Storage() as storage,
            int(offset),
            tuple(shape),
            tuple(strides),
            bool(),
            dict(),
            *_,
        ):
            return _tensor(storage, offset, shape, strides)
    raise ValueError(
        f"its pickle calls {_name_of(function)} in another way than torch.save; {_REMEDY}"
    )


def _tensor(storage: Storage, offset: int, shape: tuple, strides: tuple) -> Tensor:
    numbers = (offset, *shape, *strides)
    plain = all(type(number) is int and 0 <= number < 1 << 62 for number in numbers)
    if not plain or len(shape) != len(strides) or len(shape) > _MAX_AXES:
        raise ValueError(
            "the shape, strides and offset of a tensor must be integers of at least 0, at most "
            f"{_MAX_AXES} axes. Received: the shape {reprlib.repr(shape)}, "
            f"the strides {reprlib.repr(strides)} and the offset {reprlib.repr(offset)}"
        )
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    if 0 not in shape and (last >= storage.count or math.prod(shape) > storage.count):
        raise ValueError(
            f"a tensor with shape {shape}, strides {strides} and offset {offset} reaches out of "
            f"its storage {storage.key!r}, which has {storage.count} numbers"
        )
    # The stride of an axis of length 1 is never used and may have any value.
    strides = tuple(step if n > 1 else 0 for n, step in zip(shape, strides, strict=True))
    return Tensor(storage, offset, shape, strides)


def _name_of(value: Any) -> str:
    return value.name if isinstance(value, Global) else f"a {type(value).__name__}"
