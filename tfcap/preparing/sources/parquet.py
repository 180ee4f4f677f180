"""Reads captions from Parquet files that hold the bytes of the pictures, as on Hugging Face."""

import collections
import hashlib
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tfcap.preparing.sources import places
from tfcap.preparing.sources.cells import Cell, class_names, named, opened, rows_of
from tfcap.preparing.sources.entry import Given, ImageEntry, file_name, head, reader, split_name
from tfcap.preparing.sources.fields import CAPTION_COLUMNS, caption_keys, captions

if TYPE_CHECKING:
    import pyarrow

METADATA = "metadata.parquet"  # of a folder of pictures; imagefolder.py reads it
_PICTURES = ("image", "img", "picture", "jpg", "jpeg", "png", "webp")
_NAMES = ("file_name", "filename")
_IDS = ("cocoid", "image_id", "imgid", "img_id")  # equal where the picture is the same


class _Row(NamedTuple):
    """A row that can be used.

    Attributes:
      entry: its entry, with the id 0.
      same: what rows of the same picture have in common, with the split; None if nothing says it.
      column: the column that says it, or None.
    """

    entry: ImageEntry
    same: tuple[str | None, int | str] | None
    column: str | None


class _Columns(NamedTuple):
    """The columns that are used.

    Attributes:
      picture: the column of the pictures.
      bytes: where their bytes are, `image.bytes` or `image`.
      path: where their names are, `image.path` or a column; None if there are none.
      captions: the columns of the captions.
      split: the column of the splits, or None.
      split_names: the names of the numbers in that column, if it is a ClassLabel.
      same: the column that tells which rows have the same picture, or None. Pictures of equal
        names may still be different ones.
    """

    picture: str
    bytes: str
    path: str | None
    captions: list[str]
    split: str | None
    split_names: list[str]
    same: str | None

    @property
    def texts(self) -> list[str]:
        """All but the bytes."""
        others = {name: None for name in (self.path, self.split, self.same) if name}
        return [*self.captions, *others]


def _is_parquet(name: str) -> bool:
    return name.endswith(".parquet") and name != METADATA


def recognises(path: pathlib.Path) -> bool:
    """Returns whether a file, or the first one of a directory, is a Parquet file."""
    files = places.below(path, _is_parquet) if path.is_dir() else [path]
    return bool(files) and files[0].name != METADATA and head(files[0]).startswith(b"PAR1")


@reader("parquet", recognises)
def parquet(given: Given) -> list[ImageEntry]:
    """Reads Parquet files with a row per picture, or per caption.

    `image` holds the bytes of the picture, or a structure with `bytes` and `path`. The captions are
    in `captions`, `caption`, `text` or `caption_0` and so on, as texts or lists of texts. Rows of a
    split with the same `image_id` or `cocoid` must have the same picture. Rows with the same
    `filename` have the same picture if the bytes are equal, too. The column `split`, else the name
    of the file (`train-00000-of-00005.parquet`) tells the split; the column has texts, or is a
    ClassLabel whose names are in the schema. Pictures without bytes are taken from --images. A row
    that cannot be used is skipped. Ids are positions.

    Args:
      given: --captions are the files, or a directory of them.

    Raises:
      ValueError: a file that is damaged, or lacks pictures or captions, or different pictures with
        the same id.
    """
    files = places.find(given.captions, _is_parquet)
    rows = [row for path, split in files for row in _read(path, split, given)]
    if not rows:
        raise ValueError(f"{given.captions[0]} must have a usable row. Received: none.")
    return _joined(rows)


def _joined(rows: list[_Row]) -> list[ImageEntry]:
    """Returns an entry per picture; the captions of rows of the same picture are joined."""
    counts = collections.Counter(row.same for row in rows)
    entries: list[ImageEntry] = []
    places_of: dict[Any, int] = {}  # of pictures that several rows may have
    pictures: dict[Any, bytes | str] = {}  # the digest by id
    for entry, same, column in rows:
        key: Any = same
        if same is not None and counts[same] > 1:
            # In the order of the rows, because cells are read forwards.
            picture = _digest(entry)
            if column in _NAMES:
                key = None if picture is None else (same, picture)
            elif picture is not None and pictures.setdefault(same, picture) != picture:
                before = entries[places_of[same]]
                raise ValueError(
                    f"Rows with the same {column} must have the same picture. Received: "
                    f"{same[1]!r:.80} for {_place(before)} and for {_place(entry)}, which differ. "
                    "Make the ids unique, or remove the column."
                )
        place = len(entries) if key is None else places_of.setdefault(key, len(entries))
        if place == len(entries):
            entries.append(entry._replace(id=place))
        else:
            both = entries[place].captions + entry.captions
            entries[place] = entries[place]._replace(captions=both)
    return entries


def _place(entry: ImageEntry) -> str:
    """Returns the name of a picture and the file that holds it, for messages."""
    return entry.file_name + (
        f" in {entry.content.path}" if isinstance(entry.content, Cell) else ""
    )


def _digest(entry: ImageEntry) -> bytes | str | None:
    """Returns the SHA-256 of a picture, or its path below --images; None if it has no bytes."""
    if entry.content is None:
        return entry.file_name
    try:
        return hashlib.sha256(entry.content.read()).digest()
    except ValueError:
        return None  # it is skipped with this reason when its features are computed


def _read(path: pathlib.Path, split: str | None, given: Given) -> Iterator[_Row]:
    """Yields the rows of a file that can be used."""
    with opened(path) as file:
        columns = _columns(file.schema_arrow, path)
        for group in range(file.num_row_groups):
            in_files = _all_null(file.metadata.row_group(group), columns.bytes)
            for number, row in rows_of(file, group, columns.texts, path, given):
                try:
                    label = None if in_files else f"{path.stem}-{group}-{number}"
                    name = _name(row, columns, label, given.images)
                    entry = _entry(row, columns, name)
                except ValueError as error:
                    given.skip(f"{path}: row {number} of row group {group}", error)
                    continue
                if not in_files:
                    content = Cell(str(path.absolute()), group, number, columns.bytes)
                    entry = entry._replace(content=content)
                entry = entry._replace(split=entry.split or split)
                value = row.get(columns.same or "")
                same = (entry.split, value) if isinstance(value, int | str) else None
                yield _Row(entry, same, columns.same)


def _columns(schema: "pyarrow.Schema", path: pathlib.Path) -> _Columns:
    """Finds the columns. Raises ValueError if there are none for pictures or captions."""
    from pyarrow import types

    def is_bytes(kind: Any) -> bool:
        return types.is_binary(kind) or types.is_large_binary(kind)

    inside: dict[str, list[str]] = {}  # columns of pictures -> their parts
    for field in schema:
        if is_bytes(field.type):
            inside[field.name] = []
        elif types.is_struct(field.type):
            parts = {part.name: part.type for part in field.type}
            if "bytes" in parts and is_bytes(parts["bytes"]):
                inside[field.name] = list(parts)
    names = schema.names
    pictures = [name for name in _PICTURES if name in inside] or sorted(inside)
    caption_columns = caption_keys(name for name in names if name not in inside)
    if len(pictures) < 1 or (len(pictures) > 1 and pictures[0] not in _PICTURES):
        raise ValueError(
            f"{path} must have one column with the bytes of pictures, such as 'image'. Received: "
            f"{', '.join(pictures) or 'none'} among {', '.join(names)[:200]}."
        )
    if not caption_columns:
        raise ValueError(
            f"{path} must have a column of captions: one of {', '.join(CAPTION_COLUMNS)}, or "
            f"caption_0, caption_1 and so on. Received: {', '.join(names)[:200]}. Rename the "
            "column."
        )
    picture = pictures[0]
    named = next((name for name in _NAMES if name in names), None)
    path_column = f"{picture}.path" if "path" in inside[picture] else named
    in_structure = bool(inside[picture])
    return _Columns(
        picture,
        f"{picture}.bytes" if in_structure else picture,
        path_column,
        caption_columns,
        "split" if "split" in names else None,
        _split_names(schema, path),
        next((name for name in (*_IDS, *_NAMES) if name in names), None),
    )


def _split_names(schema: "pyarrow.Schema", path: pathlib.Path) -> list[str]:
    """Returns the names of the numbers in the column `split`; none for a column of texts.

    Raises:
      ValueError: the column has numbers without names.
    """
    from pyarrow import types

    names = class_names(schema, "split")
    if "split" in schema.names and not names:
        kind = schema.field("split").type
        if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
            raise ValueError(
                f"{path}: the column 'split' must have texts, or numbers whose names are in the "
                f"schema (a ClassLabel of Hugging Face). Received: {kind} without names. Write "
                "train, val or test into the column."
            )
    return names


def _all_null(group: Any, column: str) -> bool:
    """Returns whether no row of a row group has bytes: then `path` is a file below --images."""
    for number in range(group.num_columns):
        chunk = group.column(number)
        if chunk.path_in_schema == column:
            known = chunk.is_stats_set and chunk.statistics.has_null_count
            return known and 0 < group.num_rows == chunk.statistics.null_count
    return False


def _name(
    row: dict[str, Any], columns: _Columns, label: str | None, images: pathlib.Path | None
) -> str:
    """Returns the name of the picture of a row.

    Args:
      row: the values.
      columns: the columns.
      label: a name for pictures without one; None if the picture is a file below `images`.
      images: directory of --images, or None.

    Raises:
      ValueError: there is no name, or it leads out of the directory.
    """
    values = row.get(columns.picture)
    name = values.get("path") if isinstance(values, dict) else None
    name = name or row.get(columns.path or "") or ""
    if label is None:
        return file_name(str(name), images)
    # Hugging Face sometimes writes the path that a picture had on the machine that made the file.
    return file_name(pathlib.PurePosixPath(str(name).replace("\\", "/")).name or label)


def _entry(row: dict[str, Any], columns: _Columns, name: str) -> ImageEntry:
    """Returns the entry of a row, with the id 0 and without content."""
    split = named(row.get(columns.split or ""), columns.split_names)
    own = None if split is None else split_name(split)
    return ImageEntry(0, name, own, captions(row, columns.captions))
