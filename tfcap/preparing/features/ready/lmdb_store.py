"""Features in an LMDB data base, as ruotianluo/ImageCaptioning.pytorch writes them.

A key is the text of an image id, a value the bytes of an npz or npy file. Keys such as `__keys__`
have pickles as values: they are never read.
"""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

from tfcap.preparing.features.ready.folder import read_file
from tfcap.preparing.features.ready.layout import Layout, first_bytes, layout, listed
from tfcap.preparing.features.ready.regions import MAX_ARRAY_BYTES, Found

_MAGIC, _MAGIC_AT = b"\xde\xc0\xef\xbe", 16
_LONGEST_KEY = 511


@layout
class Lmdb(Layout):
    """LMDB data bases: a directory with data.mdb, or a file."""

    title = "LMDB"

    def __init__(self, paths: Sequence[pathlib.Path], cache: pathlib.Path | None):
        del cache
        try:
            import lmdb
        except ImportError:
            raise ValueError(
                f"{paths[0]} is an LMDB data base, which needs the package lmdb. Received: it is "
                "not installed. Run: pip install 'tfcap[lmdb]'"
            ) from None
        self.paths = list(paths)
        self._errors = (lmdb.Error, MemoryError)
        self.stores = [self._open(lmdb, path) for path in paths]

    def _open(self, lmdb: Any, path: pathlib.Path) -> Any:
        try:
            # Without a lock nothing is written beside the file, which may be read-only.
            store = lmdb.open(
                str(path), subdir=False, readonly=True, lock=False, readahead=False, max_dbs=0
            )
            pages, page = store.info()["last_pgno"] + 1, store.stat()["psize"]
        except (*self._errors, OSError) as error:
            raise ValueError(f"{path}: {error}. {self.remedy}") from None
        # The library maps the file into memory, and a page behind its end would end the process.
        if pages * page > (size := os.path.getsize(path)):
            raise ValueError(
                f"{path} must have {pages} pages of {page} bytes. Received: {size} bytes; it was "
                f"cut. {self.remedy}"
            )
        return store

    @staticmethod
    def recognises(path: pathlib.Path) -> list[pathlib.Path]:
        if path.is_dir() and (path / "data.mdb").is_file():
            files = [path / "data.mdb"]
        else:
            files = listed(path, [".mdb", ".lmdb"])
        return [f for f in files if first_bytes(f, _MAGIC_AT + 4)[_MAGIC_AT:] == _MAGIC]

    def has(self, key: str) -> bool:
        return self._value(key) is not None

    def place(self, key: str) -> str:
        return f"{self.paths[0]}, {key}"

    def about(self) -> str:
        return f"{self.title}, {', '.join(map(str, self.paths))}"

    def read(self, key: str) -> Found:
        content = self._value(key)
        if content is None:
            raise ValueError(f"no key {key} in {self.about()}")
        if len(content) > MAX_ARRAY_BYTES:
            raise ValueError(
                f"{self.place(key)}: a value must have at most {MAX_ARRAY_BYTES} bytes. Received: "
                f"{len(content)}. {self.remedy}"
            )
        return read_file(self.place(key), content)

    def _value(self, key: str) -> bytes | None:
        """Returns the bytes under a key; None without them, or for a key that holds a pickle."""
        name = key.encode("utf-8", "replace")
        if not 0 < len(name) <= _LONGEST_KEY or name.startswith(b"__"):
            return None
        for store in self.stores:
            try:
                with store.begin() as transaction:
                    if (value := transaction.get(name)) is not None:
                        return value
            except self._errors as error:
                raise ValueError(f"{self.place(key)}: {error}. {self.remedy}") from None
        return None
