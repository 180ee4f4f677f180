"""Writes the captions of a shard: as Parquet, as JSON lines, or as a tar file of WebDataset."""

import contextlib
import io
import json
import tarfile
from collections.abc import Iterator
from typing import IO, Any, Protocol

from PIL import Image

from tfcap import files
from tfcap.captioning.shards.reading import Row
from tfcap.images import is_picture_name

ENDINGS = {"parquet": "parquet", "jsonl": "jsonl", "webdataset": "tar"}
_ROWS = 1000  # of a row group


class Writer(Protocol):
    """Protocol of an open file of captions."""

    def add(self, row: Row, values: dict[str, Any]) -> None:
        """Adds a picture.

        Args:
          row: the picture.
          values: its captions, with the columns of docs/large_sets.md.
        """


@contextlib.contextmanager
def opened(kind: str, path: str) -> Iterator[Writer]:
    """Opens a file of captions, which appears under its name only when it is whole.

    Args:
      kind: one of `ENDINGS`.
      path: the file.
    """
    with files.replacing(path) as temporary:
        if kind == "jsonl":
            with open(temporary, "w", encoding="utf-8") as file:
                yield _Lines(file)
        elif kind == "parquet":
            with _Table(temporary) as table:
                yield table
        else:
            with tarfile.open(temporary, "w") as tar:
                yield _Tar(tar)


class _Lines:
    def __init__(self, file: IO[str]):
        self._file = file

    def add(self, row: Row, values: dict[str, Any]) -> None:
        del row
        self._file.write(files.json_text(values) + "\n")


class _Table:
    def __init__(self, path: str):
        import pyarrow
        import pyarrow.parquet

        texts, numbers = pyarrow.list_(pyarrow.string()), pyarrow.list_(pyarrow.float32())
        types = {
            "key": pyarrow.string(),
            "caption": pyarrow.string(),
            "captions": texts,
            "scores": numbers,
            "confidences": numbers,
            "given": texts,
        }
        self._rows: list[dict[str, Any]] = []
        self._schema = pyarrow.schema(list(types.items()))
        self._file: pyarrow.parquet.ParquetWriter = pyarrow.parquet.ParquetWriter(
            path, self._schema
        )

    def __enter__(self) -> "_Table":
        return self

    def __exit__(self, *error: object) -> None:
        self._write()
        self._file.close()

    def add(self, row: Row, values: dict[str, Any]) -> None:
        del row
        self._rows.append(values)
        if len(self._rows) >= _ROWS:
            self._write()

    def _write(self) -> None:
        import pyarrow

        if self._rows:
            self._file.write_table(pyarrow.Table.from_pylist(self._rows, self._schema))
            self._rows = []


class _Tar:
    """A tar file with the picture as it was, its new caption, and all else in JSON.

    Its names are unlike and have no dots, as WebDataset takes files of one name for one picture,
    and cuts the name at a dot. The JSON has the key as it was.
    """

    def __init__(self, tar: tarfile.TarFile):
        self._tar = tar
        self._names: set[str] = set()

    def add(self, row: Row, values: dict[str, Any]) -> None:
        assert row.content is not None
        entries = {}
        if "json" in row.files:
            with contextlib.suppress(ValueError):
                entries = json.loads(row.files["json"])
        if not isinstance(entries, dict):
            entries = {}
        text = files.json_text({**entries, **values})
        new = {"txt": values["caption"].encode(), "json": text.encode()}
        ending = row.ending
        if not is_picture_name(f"x.{ending}"):
            ending = (Image.open(io.BytesIO(row.content)).format or "").lower()
        folder, slash, base = row.key.rpartition("/")
        name = f"{folder}{slash}{base.replace('.', '_')}"
        while name in self._names:
            name += f"-{len(self._names)}"
        self._names.add(name)
        for kind, content in {ending: row.content, **row.files, **new}.items():
            info = tarfile.TarInfo(f"{name}.{kind}")  # without a time: equal runs, equal bytes
            info.size = len(content)
            self._tar.addfile(info, io.BytesIO(content))
