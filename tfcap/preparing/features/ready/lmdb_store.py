"""Features in an LMDB data base, as ruotianluo/ImageCaptioning.pytorch writes them.

A key is the text of an image id, a value the bytes of an npz or npy file. Keys such as `__keys__`
have pickles as values: they are never read.
"""

import os
import pathlib
from collections.abc import Sequence

from tfcap.preparing.features.ready.folder import read_file
from tfcap.preparing.features.ready.layout import Layout, first_bytes, layout, listed
from tfcap.preparing.features.ready.lmdb_file import MAGIC, LmdbFile
from tfcap.preparing.features.ready.regions import MAX_ARRAY_BYTES, Found

_MAGIC, _MAGIC_AT = MAGIC.to_bytes(4, "little"), 16


@layout
class Lmdb(Layout):
    """LMDB data bases: a directory with data.mdb, or a file."""

    title = "LMDB"

    def __init__(self, paths: Sequence[pathlib.Path], cache: str | os.PathLike | None):
        del cache
        self.files = [LmdbFile(path) for path in paths]

    @staticmethod
    def recognises(path: pathlib.Path) -> list[pathlib.Path]:
        if path.is_dir() and (path / "data.mdb").is_file():
            files = [path / "data.mdb"]
        else:
            files = listed(path, [".mdb", ".lmdb"])
        return [f for f in files if first_bytes(f, _MAGIC_AT + 4)[_MAGIC_AT:] == _MAGIC]

    def has(self, key: str) -> bool:
        try:
            return self._value(key) is not None
        except ValueError:
            return True  # `read` says what is wrong

    def place(self, key: str) -> str:
        return f"{self.files[0].path}, {key}"

    def about(self) -> str:
        return f"{self.title}, {', '.join(str(file.path) for file in self.files)}"

    def read(self, key: str) -> Found:
        content = self._value(key)
        if content is None:
            raise ValueError(f"no key {key} in {self.about()}")
        return read_file(self.place(key), content)

    def _value(self, key: str) -> bytes | None:
        """Returns the bytes under a key; None without them, or for a key that holds a pickle."""
        name = key.encode("utf-8", "replace")
        if name.startswith(b"__"):
            return None
        try:
            values = (file.value(name, MAX_ARRAY_BYTES) for file in self.files)
            return next((value for value in values if value is not None), None)
        except ValueError as error:
            raise ValueError(f"{self.place(key)}: {error} {self.remedy}") from None
