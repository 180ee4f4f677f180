"""Reads a folder of pictures with metadata files, the layout of Hugging Face's imagefolder."""

import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tfcap.preparing import spelling
from tfcap.preparing.sources import places, tables, text
from tfcap.preparing.sources.cells import class_names, named, opened, rows_of
from tfcap.preparing.sources.content import FilePart
from tfcap.preparing.sources.entry import Given, ImageEntry, file_name, reader, split_name
from tfcap.preparing.sources.fields import caption_keys, captions, find, json_object
from tfcap.preparing.sources.rows import Rows

_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
_NAME = "file_name"


class _Row(NamedTuple):
    """A row of a metadata file: where it stands, and its values or why it has none."""

    place: str
    values: dict[str, Any] | ValueError


def _is_metadata(name: str) -> bool:
    return name in _METADATA


def recognises(path: pathlib.Path) -> bool:
    """Returns whether a directory has metadata files; one file alone is a table."""
    return path.is_dir() and bool(places.below(path, _is_metadata)) or path.name == _METADATA[2]


@reader("imagefolder", recognises)
def imagefolder(given: Given) -> list[ImageEntry]:
    """Reads `metadata.csv`, `.jsonl` or `.parquet` files, each in a directory of pictures.

    A row has `file_name`, relative to its metadata file, and the captions: `text`, `caption`,
    `captions` (a list) or `caption_0` and so on. A picture has any number of rows. The column
    `split`, else the directories (`train/metadata.csv`) tell the split. A row that cannot be used
    is skipped. Ids are positions.

    Args:
      given: --images or --captions is the directory.

    Raises:
      ValueError: no metadata file, two in one directory, or no usable row.
      OSError: a file cannot be read.
    """
    root = given.one_file()
    root = root if root.is_dir() else root.parent
    base = root if given.images is None else given.images
    images = Rows()
    files = places.find(given.captions, _is_metadata)
    _require_one_each(files)
    for path, split in files:
        if path.suffix not in _READERS:
            raise ValueError(
                "--captions must be a directory, or a metadata file that ends in "
                f"{', '.join(_READERS)}. Received: {path}."
            )
        for place, values in _READERS[path.suffix](path, given):
            try:
                if isinstance(values, ValueError):
                    raise values
                name, texts, own = _entry(values, path.parent)
                row_split = own or split or places.split_of_path(pathlib.PurePosixPath(name).parent)
                images.add(_below(path.parent / name, base), texts, row_split)
            except ValueError as error:
                given.skip(place, error)
    if not len(images):
        raise ValueError(f"{root} must have a metadata file with a usable row. Received: none.")
    entries = images.entries()
    return entries if given.images is not None else _with_content(entries, base, given)


def _require_one_each(files: Sequence[places.Place]) -> None:
    """Raises ValueError if a directory has two metadata files, which tell each caption twice."""
    before: dict[pathlib.Path, pathlib.Path] = {}
    for path, _ in files:
        first = before.setdefault(path.absolute().parent, path)
        if first.name != path.name:
            raise ValueError(
                f"A directory of pictures must have one metadata file. Received: {first} and "
                f"{path.name}. Remove one of them."
            )


def _entry(row: dict[str, Any], folder: pathlib.Path) -> tuple[str, tuple[str, ...], str | None]:
    """Returns the file name, the captions and the split of a row."""
    keys = [key for key in row if key == _NAME] or [key for key in row if key.endswith(f"_{_NAME}")]
    keys = keys or list(filter(None, [find(row, tables.IMAGE_COLUMNS)]))
    if len(keys) != 1:
        raise ValueError(f"it must have a column {_NAME!r}. Received: {sorted(row)[:8]}")
    texts = captions(row, caption_keys(row))
    split = None if row.get("split") in (None, "") else split_name(row["split"])
    return file_name(row[keys[0]], folder), texts, split


def _below(path: pathlib.Path, base: pathlib.Path) -> str:
    """Returns the name of a picture relative to the directory of images."""
    try:
        return path.absolute().relative_to(base.absolute()).as_posix()
    except ValueError:
        raise ValueError(
            f"the picture must be in the directory of --images, {base}. Received: {path}"
        ) from None


def _with_content(entries: list[ImageEntry], base: pathlib.Path, given: Given) -> list[ImageEntry]:
    """Returns the entries with their files as content, for a command without --images.

    An entry whose file cannot be found is skipped and left out.
    """
    readable = []
    for entry in entries:
        name = spelling.on_disk(base, entry.file_name)
        path = (base / name).absolute()
        try:
            readable.append(entry._replace(content=FilePart(path, 0, os.path.getsize(path))))
        except OSError as error:
            given.skip(str(path), f"{error.strerror or error}{spelling.near(base, name)}")
    return readable


def _csv_rows(path: pathlib.Path, given: Given) -> Iterator[_Row]:
    names: list[str] | None = None
    for number, cells in tables.read_rows(text.lines(path, text.encoding_of(path)), ","):
        place = f"{path}: line {number}"
        if isinstance(cells, str):
            yield _Row(place, ValueError(cells))
        elif not any(cell.strip() for cell in cells):
            continue
        elif names is None:
            names = [cell.strip() for cell in cells]
        elif len(cells) != len(names):
            reason = f"a row must have {len(names)} cells. Received: {len(cells)}"
            yield _Row(place, ValueError(reason))
        else:
            yield _Row(place, dict(zip(names, cells, strict=True)))


def _json_rows(path: pathlib.Path, given: Given) -> Iterator[_Row]:
    for number, line in enumerate(text.lines(path, text.encoding_of(path)), 1):
        if line.strip():
            values: dict[str, Any] | ValueError
            try:
                values = json_object(line)
            except ValueError as error:
                values = error
            yield _Row(f"{path}: line {number}", values)


def _parquet_rows(path: pathlib.Path, given: Given) -> Iterator[_Row]:
    with opened(path) as file:
        names, split_names = file.schema_arrow.names, class_names(file.schema_arrow, "split")
        wanted = [name for name in names if name.endswith(_NAME) or name == "split"]
        wanted += filter(None, [find(names, tables.IMAGE_COLUMNS)])
        wanted = list(dict.fromkeys([*wanted, *caption_keys(names)]))
        for group in range(file.num_row_groups):
            for number, values in rows_of(file, group, wanted, path, given):
                if split_names and "split" in values:
                    values["split"] = named(values["split"], split_names)
                yield _Row(f"{path}: row {number} of row group {group}", values)


_READERS = {".csv": _csv_rows, ".jsonl": _json_rows, ".parquet": _parquet_rows}
