"""Reads Parquet files with pictures, and joins rows that have the same picture."""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import os
import pathlib
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tfcap import progress
from tfcap.preparing.sources.entry import (
    SPLITS,
    Entry,
    FilePart,
    Source,
    check_size,
    head,
    with_captions_of,
)
from tfcap.preparing.sources.names import CAPTION_COLUMNS, Columns, columns_of, entry_of
from tfcap.preparing.sources.splits import files_of

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

METADATA = "metadata.parquet"  # of a folder of pictures; see `archives.imagefolder`
_PICTURES = ("image", "img", "picture", "jpg", "jpeg", "png", "webp")
_HASHED = 64  # pictures that are in memory while pictures are compared
_lock = threading.Lock()  # several pictures are decoded at the same time
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class _Cell:
    """The bytes of a picture in a Parquet file; a `Content`."""

    path: str
    group: int  # row group
    row: int  # of the row group
    column: str  # of the bytes: `image.bytes` or `image`
    digest: bytes = b""  # SHA-256 of the bytes; empty if there are none

    def read(self) -> bytes:
        with _lock:
            column = _pictures(self.path, self.group, self.column, os.stat(self.path).st_mtime_ns)
        value = column[self.row].as_py()
        value = value["bytes"] if isinstance(value, dict) else value
        if value is None:
            raise ValueError(
                "the cell of the picture has no bytes. Store the content of the picture file in it"
            )
        check_size(len(value))
        return value


@functools.lru_cache(maxsize=2)
def _pictures(path: str, group: int, column: str, changed: int) -> "pyarrow.ChunkedArray":
    """Returns the pictures of a row group of a file that was last changed at `changed`."""
    del changed
    with parquet_file(path) as file:
        return file.read_row_group(group, columns=[column]).column(0)


@contextlib.contextmanager
def parquet_file(path: str | os.PathLike) -> Iterator["pyarrow.parquet.ParquetFile"]:
    """Opens a Parquet file for the `with` block.

    Raises:
      ValueError: the file is damaged.
    """
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(
            f"{path} is not a complete Parquet file: {error}. Copy it again."
        ) from None


def parquet_rows(
    file: "pyarrow.parquet.ParquetFile", group: int, columns: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Reads some columns of a row group, that is, of a part of a Parquet file.

    Hugging Face may store a split as a number (`ClassLabel`), and the name of the split in the
    schema. Such a number is replaced by the name.

    Args:
      file: the open file.
      group: index of the row group, from 0.
      columns: names of the columns.

    Yields:
      A dict for each row: name of the column -> value.
    """
    column = columns_of(tuple(columns)).split
    names: Sequence[str] = ()
    with contextlib.suppress(KeyError, TypeError, ValueError):
        schema = json.loads((file.schema_arrow.metadata or {})[b"huggingface"])
        names = schema["info"]["features"][column]["names"]
    for batch in file.iter_batches(row_groups=[group], columns=list(columns)):
        for row in batch.to_pylist():
            split = row.get(column)
            if type(split) is int and 0 <= split < len(names):
                row[column] = names[split]
            yield row


def is_parquet(path: pathlib.Path) -> bool:
    """True for a Parquet file with columns of pictures and of captions.

    False for `metadata.parquet`: the layout `imagefolder` reads it.
    """
    if path.name == METADATA or not head(path, 4).startswith(b"PAR1"):
        return False
    with contextlib.suppress(ValueError):
        require_pictures(path)
        return True
    return False


def require_pictures(path: pathlib.Path) -> None:
    """Checks that a Parquet file has columns of pictures and of captions.

    Raises:
      ValueError: a column is missing, or the file is damaged.
    """
    with parquet_file(path) as file:
        _parquet_columns(path, file.schema_arrow)


def read_parquet(source: Source) -> list[Entry]:
    """Reads the layout `parquet`: Parquet files with a row per picture or per caption.

    This is how Hugging Face stores data sets. The column `image` holds the bytes of the picture, or
    a structure with `bytes` and `path`. If there are no bytes, `path` names a file below `images`.
    Rows of a split with the same picture are captions of one image. The split is in a column, or
    else in the name of the file. Images are numbered from 0.

    Args:
      source: what to read; `captions` are Parquet files or directories of them.

    Returns:
      An entry per picture; a picture that is in several splits has an entry in each.
    """

    def rows() -> Iterator[tuple[Any, ...]]:
        for path, split in files_of(source.captions, "*.parquet"):
            if path.name == METADATA:  # of `archives.imagefolder`
                continue
            with parquet_file(path) as file:
                total = file.metadata.num_rows
                label = f"reading {path}"
                for row in progress.progress(_picture_rows(path, file), total, label, "row"):
                    yield *row, split

    def parse(row: dict[str, Any], name: str, cell: _Cell | None, split: str | None) -> Entry:
        if cell is not None:
            # Hugging Face sometimes writes the path of the machine that made the file.
            label = f"{pathlib.Path(cell.path).stem}-{cell.group}-{cell.row}"
            name = pathlib.PurePosixPath(name.replace("\\", "/")).name or label
        entry = entry_of({**row, "path": name}, source)
        return entry._replace(content=cell, split=entry.split or split)

    entries = source.entries(rows(), parse, join=False)
    return joined(entries, picture_of(entries), source.drawn)


def _picture_rows(
    path: pathlib.Path, file: "pyarrow.parquet.ParquetFile"
) -> Iterator[tuple[Any, ...]]:
    """Yields the location of each row, its columns, the name of its picture, and its `_Cell`."""
    picture, parts, columns = _parquet_columns(path, file.schema_arrow)
    used = [*columns.captions, *columns.languages.values(), *columns.marks.values()]
    used += filter(None, [columns.split, columns.language])
    names = [f"{picture}.path"] if "path" in parts else []
    names += filter(None, [columns.image])
    leaf = f"{picture}.bytes" if parts else picture
    for group in range(file.num_row_groups):
        digests = list(_digests(file, group, leaf))
        for number, row in enumerate(parquet_rows(file, group, [*used, *names])):
            cell = None
            if any(digests):  # else `path` is a file below `images`
                cell = _Cell(str(path.absolute()), group, number, leaf, digests[number])
            inside = row.get(picture) or {}
            name = inside.get("path") or row.get(columns.image or "") or ""
            location = f"{path}: row {number} of row group {group}"
            yield location, {column: row[column] for column in used}, name, cell


def _digests(file: "pyarrow.parquet.ParquetFile", group: int, column: str) -> Iterator[bytes]:
    """Yields the SHA-256 of each picture of a row group; empty for a picture without bytes.

    Pictures are read twice: here, and when their features are made. To compare them otherwise, all
    would have to be in memory.
    """
    for batch in file.iter_batches(_HASHED, row_groups=[group], columns=[column]):
        pictures = batch.column(0)
        pictures = pictures.flatten()[0] if "." in column else pictures  # of a structure
        for picture in pictures:
            yield hashlib.sha256(picture.as_buffer()).digest() if picture.is_valid else b""


def _parquet_columns(
    path: pathlib.Path, schema: "pyarrow.Schema"
) -> tuple[str, list[str], Columns]:
    """Returns the column of pictures, the names inside of it, and the other columns."""
    parts = _parts(schema)
    picture = picture_column(schema)
    columns = columns_of(tuple(name for name in schema.names if name not in parts))
    if not columns.has_captions or picture is None:
        raise ValueError(
            f"{path} must have a column with the bytes of pictures, such as image, and a "
            f"column of captions ({', '.join(CAPTION_COLUMNS)}); it has: "
            f"{', '.join(schema.names)[:200]}."
        )
    return picture, parts[picture], columns


def picture_column(schema: "pyarrow.Schema") -> str | None:
    """Returns the column with the bytes of pictures, or None if there is none.

    Its values are bytes, or structures with `bytes` and perhaps `path`.
    """
    parts = _parts(schema)
    return next((name for name in (*_PICTURES, *parts) if name in parts), None)


def _parts(schema: "pyarrow.Schema") -> dict[str, list[str]]:
    """Returns each column that can hold pictures, with the names inside of it."""
    from pyarrow import types

    parts: dict[str, list[str]] = {}
    for field in schema:
        is_struct = types.is_struct(field.type)
        inside = {part.name: part.type for part in field.type} if is_struct else {}
        kind = inside.get("bytes", field.type)
        if types.is_binary(kind) or types.is_large_binary(kind):
            parts[field.name] = list(inside)
    return parts


def picture_of(entries: Iterable[Entry]) -> Callable[[Entry], Hashable]:
    """Makes a function that returns the same value for entries with the same picture.

    Pictures inside other files, such as tar files, are the same if their bytes are equal. Other
    pictures are the same if their file names are equal. To save time, a picture in a tar file is
    read as a whole only if another one has the same length and the same 64 bytes in the middle.

    Args:
      entries: all entries that will be compared.

    Returns:
      The function. Its argument is one of `entries`.
    """
    contents = (entry.content for entry in entries)
    probes = {part: _probe(part) for part in contents if isinstance(part, FilePart)}
    counts = collections.Counter(probes.values())

    def picture(entry: Entry) -> Hashable:
        content = entry.content
        if isinstance(content, _Cell):
            return content.digest or content  # without bytes: prepare skips the image
        if isinstance(content, FilePart) and counts[probes[content]] > 1:
            with contextlib.suppress(ValueError):  # too large: prepare skips the image
                return hashlib.sha256(content.read()).digest()
        return entry.file_name if content is None else content

    return picture


def _probe(part: FilePart) -> tuple[int, bytes]:
    """Returns the length and some bytes of a picture, which other pictures hardly share."""
    middle = part.length // 2
    some = dataclasses.replace(part, offset=part.offset + middle, length=min(64, middle))
    return part.length, some.read()


def joined(
    entries: Iterable[Entry], picture_of: Callable[[Entry], Hashable], drawn: bool = False
) -> list[Entry]:
    """Joins entries with the same picture and the same split into one entry with all captions.

    A picture that the source has in several splits keeps an entry in each. A message counts such
    pictures.

    Args:
      entries: the entries; several may have the same picture.
      picture_of: a function of an entry that returns equal values for the same picture, such as the
        function `picture_of` of this module makes.
      drawn: whether the images will be divided into train, val and test anew. If True, these three
        count as one split, so that a picture in several of them gets only one entry.

    Returns:
      The joined entries, numbered from 0.
    """
    images: dict[tuple[Hashable, str | None], Entry] = {}
    names: dict[Hashable, dict[str | None, str]] = {}  # of each picture: split -> file name
    for entry in entries:
        picture = picture_of(entry)
        split = "" if drawn and entry.split in SPLITS else entry.split
        names.setdefault(picture, {}).setdefault(split, entry.file_name)
        first = images.setdefault((picture, split), entry)
        if first is not entry:
            images[picture, split] = with_captions_of(first, entry)
    if several := [by_split for by_split in names.values() if len(by_split) > 1]:
        parts = ((name, split or "train, val or test") for split, name in several[0].items())
        example = " and ".join(f"{name} of {split}" for name, split in parts)
        _log.info(f"note: pictures in several splits: {len(several)}, such as {example}")
    return [entry._replace(id=number) for number, entry in enumerate(images.values())]
