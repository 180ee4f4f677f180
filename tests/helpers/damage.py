"""Damages files the way disks, editors and strangers do, as a function of a seed."""

import json
import pathlib
import random
from collections.abc import Iterator
from typing import Any

VALUES: list[Any] = [None, True, 0, -1, 5, 10**9, 10**30, 1e308, "", "x", "../../x", [], {}, [None]]
VALUES += [{"a": 1}, "\0", "é" * 100_000, [[]] * 3]


def damaged(path: pathlib.Path, content: bytes, rng: random.Random) -> bytes:
    """Returns a damaged file: one value of JSON is changed, or the bytes of any file."""
    if path.suffix == ".json" and rng.random() < 0.7:
        return _json(content, rng)
    return rng.choice(_BYTES)(content, rng)


def _json(content: bytes, rng: random.Random) -> bytes:
    whole = {"": json.loads(content)}
    holder, key = rng.choice(list(_places(whole))[:2000])
    if rng.random() < 0.3 and holder is not whole:
        del holder[key]
    else:
        holder[key] = rng.choice(VALUES)
    return json.dumps(whole[""]).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


def _flip(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 20])):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _insert(content: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(content) + 1)
    garbage = rng.choice([b"\0" * 64, b"\xff\xfe", b"[" * 5000, b"9" * 5000, b"\n" * 3, b"&a *a"])
    return content[:place] + garbage + content[place:]


def _zeros(content: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(content) + 1)
    return content[:start] + b"\0" * (len(content) - start)


def _double(content: bytes, rng: random.Random) -> bytes:
    del rng
    return content + content


def _nothing(content: bytes, rng: random.Random) -> bytes:
    del content, rng
    return b""


def _other(content: bytes, rng: random.Random) -> bytes:
    del content
    texts = [b"[]", b"{}", b"null", b'"x"', b"1"]
    return rng.choice([*texts, b"PK\x03\x04", b"\x93NUMPY", b"\x80\x04.", b"\x1f\x8b"])


_BYTES = [_flip, _flip, _cut, _insert, _zeros, _double, _nothing, _other]
