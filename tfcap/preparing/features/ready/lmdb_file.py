"""Finds values in a file of LMDB, the Lightning Memory-Mapped Database, by their keys.

The library lmdb maps a file into memory and trusts every number in it, so that a damaged file ends
the process with SIGBUS or SIGSEGV. This reader only reads, page by page, checks each number, and
needs no package. It reads the main table of format version 1 with keys in the order of their bytes.
Data sets of features have this form.

A page begins with 16 bytes: number u64, pad u16, flags u16, and the ends of its free space, two
u16. In the meta pages 0 and 1, these fields come next: magic u32, version u32, address u64, size of
the map u64, two tables of 48 bytes each (free pages, keys), last page u64 and transaction u64. The
first field of the first table is the size of a page. In branch and leaf pages, the places of the
nodes come next, u16 each, in the order of their keys. A node is three u16, the length of the key,
the key and, in a leaf, the value. A long value lies on pages of its own.
"""

import os
import pathlib
import struct
from typing import NamedTuple

MAGIC, VERSION = 0xBEEFC0DE, 1
_HEAD, _PAGES = 16, (512, 65_536)  # bytes of the head of a page; smallest and largest page
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4  # flags of a page
_BIG, _NOT_PLAIN = 1, 2 | 4  # flags of a node: value on own pages; a table, or several values
_OTHER_ORDER = 0x02 | 0x04 | 0x08 | 0x10 | 0x20 | 0x40  # flags of a table
_DEEPEST = 32
_NO_PAGE = 2**64 - 1


class _Meta(NamedTuple):
    """The content of a meta page: size of a page, flags and root of the table, transaction."""

    page: int
    flags: int
    root: int
    transaction: int


class LmdbFile:
    """A file of LMDB, opened for reading; several threads may read at the same time.

    Args:
      path: the file, data.mdb in the directory of a data base.

    Raises:
      ValueError: not such a file, or a kind of table that is not supported.
    """

    def __init__(self, path: pathlib.Path):
        self.path = path
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115
        self._size = path.stat().st_size
        first = self._meta(0)
        metas = [first] if first else []
        pages = [first.page] if first else [2**power for power in range(9, 17)]
        metas += [meta for page in pages if (meta := self._meta(page)) and meta.page == page]
        if not metas:
            raise ValueError(
                f"{path} must be a file of LMDB, version {VERSION}. Received: another file."
            )
        self._newest = max(metas, key=lambda meta: meta.transaction)
        if self._newest.flags & _OTHER_ORDER:
            raise ValueError(
                f"{path} must have keys in the order of their bytes, one value each. Received: a "
                f"table with the flags {self._newest.flags:#x}."
            )

    def value(self, key: bytes, most: int) -> bytes | None:
        """Reads the value of a key.

        Args:
          key: the key.
          most: largest number of bytes that a value may have.

        Returns:
          The value, or None if there is no such key.

        Raises:
          ValueError: the file is damaged or cut, or the value is too long.
        """
        number = self._newest.root
        try:
            for _ in range(_DEEPEST):
                if number == _NO_PAGE:
                    return None
                page = self._page(number)
                flags, lower = struct.unpack_from("<HH", page, 10)
                count = (lower - _HEAD) // 2
                places = struct.unpack_from(f"<{count}H", page, _HEAD)
                if flags & _LEAF:
                    return self._in_leaf(page, places, key, most)
                if not flags & _BRANCH or not count:
                    raise ValueError(f"page {number} is no part of a table")
                number = self._child(page, places, key)
            raise ValueError("its pages refer to each other in a loop")
        except (struct.error, ValueError) as error:
            raise ValueError(f"{self.path} is damaged: {error}.") from None

    def _meta(self, offset: int) -> _Meta | None:
        content = os.pread(self._file.fileno(), 152 - _HEAD, offset + _HEAD)
        if len(content) < 152 - _HEAD:
            return None
        magic, version = struct.unpack_from("<II", content)
        (page,) = struct.unpack_from("<I", content, 24)
        (flags,) = struct.unpack_from("<H", content, 24 + 48 + 4)
        (root,) = struct.unpack_from("<Q", content, 24 + 48 + 40)
        (transaction,) = struct.unpack_from("<Q", content, 24 + 96 + 8)
        fits = (magic, version) == (MAGIC, VERSION)
        fits = fits and _PAGES[0] <= page <= _PAGES[1] and page & (page - 1) == 0
        return _Meta(page, flags, root, transaction) if fits else None

    def _page(self, number: int) -> bytes:
        return self._bytes(number, 0, self._newest.page)

    def _bytes(self, number: int, begin: int, count: int) -> bytes:
        """Reads bytes of a page, and of those behind it."""
        offset = number * self._newest.page + begin
        if offset + count > self._size:
            raise ValueError(f"page {number} lies behind the end of the file, {self._size} bytes")
        content = os.pread(self._file.fileno(), count, offset)
        if len(content) < count:
            raise ValueError(f"page {number} was cut")
        return content

    def _key(self, page: bytes, place: int) -> bytes:
        (length,) = struct.unpack_from("<H", page, place + 6)
        key = page[place + 8 : place + 8 + length]
        if len(key) < length:
            raise ValueError("a key is longer than the rest of its page")
        return key

    def _child(self, page: bytes, places: tuple[int, ...], key: bytes) -> int:
        """Returns the page that may have a key: the first node has no key and is below all."""
        low, high = 1, len(places)
        while low < high:
            middle = (low + high) // 2
            if self._key(page, places[middle]) <= key:
                low = middle + 1
            else:
                high = middle
        parts = struct.unpack_from("<HHH", page, places[low - 1])
        return parts[0] | parts[1] << 16 | parts[2] << 32

    def _in_leaf(self, page: bytes, places: tuple[int, ...], key: bytes, most: int) -> bytes | None:
        low, high = 0, len(places)
        while low < high:
            middle = (low + high) // 2
            if self._key(page, places[middle]) < key:
                low = middle + 1
            else:
                high = middle
        if low == len(places) or self._key(page, places[low]) != key:
            return None
        lower, upper, flags = struct.unpack_from("<HHH", page, places[low])
        size, begin = lower | upper << 16, places[low] + 8 + len(key)
        if flags & _NOT_PLAIN:
            raise ValueError("a key has several values")
        if size > most:
            raise ValueError(f"a value must have at most {most} bytes, and has {size}")
        if flags & _BIG:
            (number,) = struct.unpack_from("<Q", page, begin)
            (kind,) = struct.unpack_from("<H", self._bytes(number, 10, 2))
            if not kind & _OVERFLOW:
                raise ValueError(f"page {number} holds no value")
            return self._bytes(number, _HEAD, size)
        value = page[begin : begin + size]
        if len(value) < size:
            raise ValueError("a value is longer than the rest of its page")
        return value
