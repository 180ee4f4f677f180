"""Reads rows of Parquet files, and later the pictures in their cells, a few at a time."""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tfcap.preparing.sources.content import check_size
from tfcap.preparing.sources.entry import Given

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

_ROWS = 16  # pictures that are read at a time
_TEXTS = 1024  # rows that are read at a time without their pictures
_MOST_TEXT = 1 << 31  # bytes of all captions in a row group
_BUFFER = 1 << 16  # bytes that are read at a time; without it a whole column enters memory
_lock = threading.Lock()  # several pictures are decoded at the same time


@contextlib.contextmanager
def opened(path: str | os.PathLike) -> Iterator["pyarrow.parquet.ParquetFile"]:
    """Opens a Parquet file, so that rows are read in small steps.

    Raises:
      ValueError: it cannot be read or is no Parquet file.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)
    except (pyarrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{path} must be a Parquet file: {reason}. Copy it again.") from None
    with file:
        yield file


def rows_of(
    file: "pyarrow.parquet.ParquetFile",
    group: int,
    columns: Sequence[str],
    path: pathlib.Path,
    given: Given,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields position and values of the rows of a row group; skips what is damaged.

    Args:
      file: the file.
      group: the row group.
      columns: names of columns, or of parts such as `image.path`.
      path: where the file is.
      given: its `skip` is called for what is skipped.
    """
    import pyarrow

    described = file.metadata.row_group(group)
    chunks = [described.column(number) for number in range(described.num_columns)]
    wanted = {name.partition(".")[0] for name in columns if "." not in name}
    size = sum(
        chunk.total_uncompressed_size
        for chunk in chunks
        if chunk.path_in_schema.partition(".")[0] in wanted
    )
    if not 0 <= size <= _MOST_TEXT:
        given.skip(f"{path}: row group {group}", f"its captions have {size} bytes")
        return
    number = 0
    try:
        for batch in file.iter_batches(_TEXTS, row_groups=[group], columns=list(columns)):
            for row in batch.to_pylist():
                yield number, row
                number += 1
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        given.skip(f"{path}: row group {group}", f"damaged from row {number} on: {error}")


def class_names(schema: "pyarrow.Schema", column: str) -> list[str]:
    """Returns the names of the numbers in a column, which Hugging Face calls a ClassLabel.

    They are in the metadata of the schema. The list is empty if there are none for the column.
    """
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        names = features[column]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return []
    whole = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return names if whole else []


def named(value: Any, names: Sequence[str]) -> Any:
    """Returns the name of a number of a ClassLabel; other values stay as they are."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return names[value] if is_number and 0 <= value < len(names) else value


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """The bytes of a picture in a Parquet file; an `ImageEntry.content`.

    Attributes:
      path: the file.
      group: its row group.
      row: row of the row group.
      column: the column of the bytes, `image.bytes` or `image`.
    """

    path: str
    group: int
    row: int
    column: str

    def read(self) -> bytes:
        """Returns the picture file; see `content.Content.read`."""
        with _lock:
            pictures = _pictures(self.path, self.group, self.column, _version(self.path))
            value = pictures.get(self.row)
        if value is None:
            raise ValueError("the cell has no bytes")
        check_size(len(value))
        return value


def _version(path: str) -> tuple[int, int] | None:
    """Returns what changes when a file is written again, as by another command of a notebook."""
    try:
        found = os.stat(path)
    except OSError:
        return None  # `opened` says what is wrong
    return found.st_mtime_ns, found.st_size


class _Pictures:
    """The pictures of a row group; they are read forwards, and the last few are kept."""

    def __init__(self, path: str, group: int, column: str, version: tuple[int, int] | None):
        del version
        self._arguments = path, group, column
        self._restart()

    def _restart(self) -> None:
        self._batches = self._read(*self._arguments)
        self._first = 0  # row of the first picture that is kept
        self._kept: list[Any] = []

    @staticmethod
    def _read(path: str, group: int, column: str) -> Iterator[list[Any]]:
        """Yields the cells of the next rows."""
        import pyarrow

        name, _, part = column.partition(".")
        with opened(path) as file:
            try:
                for batch in file.iter_batches(_ROWS, row_groups=[group], columns=[column]):
                    cells = batch.column(0)
                    yield list(cells.field("bytes") if part else cells)
            except (pyarrow.ArrowException, OSError) as error:
                raise ValueError(f"{path}: row group {group} is damaged: {error}") from None

    def get(self, row: int) -> bytes | None:
        """Returns the cell of a row."""
        if row < self._first:
            self._restart()
        while row >= self._first + len(self._kept):
            batch = next(self._batches, None)
            if batch is None:
                raise ValueError(f"row {row} cannot be read: the row group is damaged before it")
            # Pictures that are decoded at the same time are asked for in nearly the order.
            dropped = max(0, len(self._kept) - _ROWS)
            self._kept = self._kept[dropped:] + batch
            self._first += dropped
        return self._kept[row - self._first].as_py()


_pictures = functools.lru_cache(maxsize=2)(_Pictures)
