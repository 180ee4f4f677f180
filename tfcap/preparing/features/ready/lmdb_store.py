"""Features in an LMDB data base, as ruotianluo/ImageCaptioning.pytorch writes them.

A key is the text of an image id, a value the bytes of an npz or npy file. Keys such as `__keys__`
have pickles as values: they are never read.
"""

import os
import pathlib
from collections.abc import Sequence

from tfcap.preparing.features.ready.folder import read_file
from tfcap.preparing.features.ready.layout import DAMAGED, Layout, first_bytes, layout, listed
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

    def copies(self, key: str) -> int:
        return len(self._find(key))

    def place(self, key: str, copy: int = 0) -> str:
        return f"{self._find(key)[copy].path}, {key}"

    def about(self) -> str:
        return f"{self.title}, {', '.join(str(file.path) for file in self.files)}"

    def read(self, key: str, copy: int = 0) -> Found:
        files = self._find(key)
        if not files:
            raise ValueError(f"no key {key} in {self.about()}")
        place = f"{files[copy].path}, {key}"
        try:
            content = files[copy].value(key.encode("utf-8", "replace"), MAX_ARRAY_BYTES)
        except ValueError as error:
            raise ValueError(f"{place}: {error} {DAMAGED}") from None
        return read_file(place, content)

    def _find(self, key: str) -> list[LmdbFile]:
        """Returns the files with a key that holds no pickle."""
        name = key.encode("utf-8", "replace")
        return [] if name.startswith(b"__") else [f for f in self.files if _has(f, name)]


def _has(file: LmdbFile, name: bytes) -> bool:
    try:
        return file.value(name, MAX_ARRAY_BYTES) is not None
    except ValueError:
        return True  # `read` says what is wrong
