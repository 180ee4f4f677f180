"""Reads files of rows: whatever a file is, it becomes rows with names.

A row comes from a table, JSON lines, a JSON list, a JSON object or a Parquet file. `names` says
what is in it: a picture or clip, and mostly captions, a split and an id. The layouts that `reader`
makes differ only in their files, in what tells the split of a row that states none, and in whether
ids count.
"""

import contextlib
import csv
import functools
import html
import itertools
import json
import logging
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from tfcap.data import films
from tfcap.files import read_json
from tfcap.preparing.sources import tables
from tfcap.preparing.sources.entry import Entry, Source, names_in
from tfcap.preparing.sources.names import (
    CAPTIONS,
    PICTURES,
    WEB_ADDRESSES,
    can_read,
    columns_of,
    entry_of,
    is_web_address,
    texts,
)
from tfcap.preparing.sources.parquet import parquet_file, parquet_rows
from tfcap.preparing.sources.splits import files_of, split_name, usual_split

_LONGEST = 1 << 22  # bytes of a first line; those of Localized Narratives have traces of a mouse
_LISTS = ("data", "images", "annotations", "items", "rows", "samples")  # keys of a list of all rows
_KEY = re.compile(r'\{\s*"((?:[^"\\]|\\.)*)"\s*:\s*(?=\{)')  # of a row in an object
_LIST = re.compile(r'"(?:[^"\\]|\\.)*"\s*:\s*(\[)\s*(?=\{)')  # of rows in an object
_CLIP_LINE = re.compile(r"(\S+_\d+_\d+)\s+(\S.*)")  # of MSVD: a clip and a sentence
# Names in the rows of kohya's trainers, which draw one line of a caption.
_KOHYA = {"caption", "tags", "image_size", "train_resolution"}
_CORRECT = "Correct it, or name another file with `captions`."
_log = logging.getLogger(__name__)


class Row(NamedTuple):
    """A row of a file.

    Attributes:
      location: where the row is, such as `captions.csv: line 7`.
      read: returns names and values of the row; raises ValueError if it cannot be read.
      split: the split of a row that states none; None if the name of the file tells it, and "" if
        nothing does.
      folder: the folder of the picture, as "beach/", or "".
    """

    location: str
    read: Callable[[], dict[str, Any]]
    split: str | None = None
    folder: str = ""


# ---- from files to rows ----------------------------------------------------------------------


def rows_of(path: pathlib.Path, source: Source) -> Iterator[Row]:
    """Yields the rows of a metadata file, whose ending tells what it is."""
    kinds: dict[str, Callable[..., Iterator[Row]]]
    kinds = {".csv": functools.partial(in_table, strip=False), ".jsonl": in_json}
    return kinds.get(path.suffix, in_parquet)(path, source)


def in_table(path: pathlib.Path, source: Source, strip: bool = True) -> Iterator[Row]:
    """Yields the rows of a csv or tsv file; with `strip` without spaces around cells.

    The name of the file tells the split only if there is no column with file names of pictures.
    """
    table = tables.table_of(path, source.columns)
    if table is None:
        raise ValueError(unknown_columns(path))
    if tables.encoding_of(path) == "cp1252":
        _log.info(f"note: {path} is not UTF-8; it is read as Windows-1252")

    def read(cells: list[str]) -> dict[str, Any]:
        row = tables.row_of(table.names, cells, table.delimiter)
        return {name: value.strip() if strip else value for name, value in row.items()}

    split = "" if table.has_header and columns_of(tuple(table.names)).image else None
    lines = tables.table_rows(path, table.delimiter)
    for location, cells in itertools.islice(lines, int(table.has_header), None):
        yield Row(location, functools.partial(read, cells), split)


def in_json(path: pathlib.Path, source: Source) -> Iterator[Row]:
    """Yields the rows of JSON lines, `a.jsonl: line 7`, or of a JSON list, `a.json: entry 7`."""

    def read(item: object) -> dict[str, Any]:
        row = json_row(item)
        return {tables.PARTS[k]: _value(row, name) for k, name in source.columns.items()} or row

    if not is_array(path):
        for location, line in tables.numbered_lines(path):
            yield Row(location, functools.partial(read, line))
        return
    found = 0
    for number, item in enumerate(items := read_json(path, _CORRECT)):
        row = Row(f"{path}: entry {number}", functools.partial(read, item))
        addresses = _addresses(item)
        for names in addresses:
            there = [n for n in names if source.images and os.path.isfile(source.images / n)]
            found += len(there[:1])
            source.notes["pictures are left out: they are not in `images`"] += not there
            yield from (row._replace(read=functools.partial(_product, item, n)) for n in there[:1])
        if not addresses:
            yield row
    if not found and items and _addresses(items[0]):
        raise ValueError(f"None of the pictures in {path} is in `images`.{WEB_ADDRESSES}")


def _addresses(item: Any) -> list[tuple[str, str]]:
    """Returns the two names that each picture of an item of FACAD may have once it is downloaded.

    They are the name in its web address, and `ID_COLOUR_NUMBER.jpg`, as several programs write it.
    """
    is_read = not isinstance(item, dict) or columns_of(tuple(item)).image
    images = None if is_read else item.get("images")
    parts = [part for part in images if isinstance(part, dict)] if isinstance(images, list) else []
    return [
        (os.path.basename(url.split("?")[0]), f"{item.get('id')}_{part.get('color')}_{number}.jpg")
        for part in parts
        for number, url in part.items()
        if is_web_address(url)
    ]


def _product(item: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns the row of one picture of an item of FACAD, with the HTML of its caption as text."""
    text = " ".join(texts(_value(item, "description"), "description"))
    return {"path": name, "caption": " ".join(html.unescape(re.sub("<[^<>]*>", " ", text)).split())}


def in_object(path: pathlib.Path, source: Source) -> Iterator[Row]:
    """Yields the rows of a JSON object.

    Its values are lists of rows, or rows with the name of the picture as their key. The key of a
    list is a split, the folder of the pictures, or a word such as `data`.
    """
    content = read_json(path, _CORRECT)
    lists = {key: rows for key, rows in content.items() if _has_rows(key, rows)}
    if others := [k for k, v in content.items() if v and isinstance(v, list) and k not in lists]:
        note = f"lists without pictures and captions are left out: {', '.join(others)}"
        source.notes[note] = len(others) if lists else 0
    named = any(map(usual_split, lists))
    is_division = len(lists) == sum(value != [] for value in content.values())
    for key, row in content.items() if not lists else ():
        yield Row(f"{path}: {key}", functools.partial(_with_key, key, row))
    for key, items in lists.items():
        split = split_name(key) if named else None
        folder = f"{key}/" if is_division and not named and key not in _LISTS else ""
        for number, item in enumerate(items):
            row = functools.partial(_with_key, "", item)
            yield Row(f"{path}: {key} {number}", row, split, folder)


def _has_rows(key: str, value: object) -> bool:
    """True for a list with a row that can be read; in a split, captions may be missing."""
    rows = [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []
    pictures = (columns_of(tuple(row)).has_picture for row in rows)
    return any(map(can_read, rows)) or (usual_split(key) is not None and any(pictures))


def _with_key(key: str, item: object) -> dict[str, Any]:
    row = json_row(item if isinstance(item, dict) else [item])
    if key and row.keys() <= _KOHYA and isinstance(row.get("caption"), str):
        row = {**row, "captions": [*filter(str.strip, row["caption"].splitlines())]}
    return {"path": key, **row} if key and not columns_of(tuple(row)).image else row


def in_parquet(path: pathlib.Path, source: Source) -> Iterator[Row]:
    """Yields the rows of a Parquet file."""
    with parquet_file(path) as file:
        for group in range(file.num_row_groups):
            for number, row in enumerate(parquet_rows(file, group, file.schema_arrow.names)):
                yield Row(
                    f"{path}: row {number} of row group {group}", functools.partial(dict, row)
                )


def in_clips(path: pathlib.Path, source: Source) -> Iterator[Row]:
    """Yields rows about clips: of JSON lines or lists, tables, or the text of MSVD."""
    if not is_clip_lines(path):
        read = in_json if first_row(path) else in_table
        known = is_gif(path)
        for row in read(path, source):
            yield Row(row.location, functools.partial(_gif_row, row), "") if known else row
        return
    for location, line in tables.numbered_lines(path):
        if not line.startswith("#"):
            yield Row(location, functools.partial(_clip_row, line))


def _gif_row(row: Row) -> dict[str, Any]:
    """Returns a row of the layout `gif`, whose clip stands under `video` or `gif` alone."""
    values = row.read()
    return {**values, "path": _value(values, "video" if "video" in values else "gif")}


def _clip_row(line: str) -> dict[str, Any]:
    match = _CLIP_LINE.fullmatch(line.strip())
    if match is None:
        raise ValueError(f"the line must be CLIP_START_END and a sentence, not {line!r:.80}")
    return {"video": match[1], "caption": match[2]}


def _value(row: dict[str, Any], name: str) -> Any:
    if name not in row:
        raise ValueError(f"the row has no {name!r}{names_in(row)}")
    return row[name]


def json_row(line: object) -> dict[str, Any]:
    """Returns the JSON object in a line, or in an item of a list; ValueError for anything else."""
    row = json.loads(line) if isinstance(line, str) else line
    if not isinstance(row, dict):
        raise ValueError(f"the row must be a JSON object, not {row!r:.80}")
    return row


# ---- recognition -----------------------------------------------------------------------------


def is_array(path: pathlib.Path) -> bool:
    """True for a file that begins like a JSON list of objects; False for JSON lines."""
    return re.match(r"\[\s*\{", tables.beginning(path).lstrip()) is not None


def first_row(path: pathlib.Path) -> dict[str, Any]:
    """Returns the first object of a JSON list, or of a file with an object per line.

    It returns an empty dict if the file has no such object.
    """
    try:
        text = tables.beginning(path)
        if is_array(path):
            return json.JSONDecoder().raw_decode(text, text.index("{"))[0]
        line = tables.first_lines(path, 1)[0]
        if line.startswith("{") and "\n" not in text:  # cut
            with open(path, encoding="utf-8-sig") as file:
                line = file.readline(_LONGEST)
        return json_row(line)
    except (ValueError, IndexError, RecursionError):
        return {}


def first_in_object(path: pathlib.Path) -> dict[str, Any]:
    """Returns the first row that can be read in the first 64 KiB of a JSON object, or {}."""
    text = tables.beginning(path).lstrip("\ufeff \t\r\n")
    decode = json.JSONDecoder().raw_decode
    errors = (ValueError, RecursionError)  # such as of the end that is not read
    with contextlib.suppress(*errors):
        if match := _KEY.match(text):
            row = _with_key(match[1], decode(text, match.end())[0])
            if can_read(row):
                return row
    with contextlib.suppress(*errors):
        end = 0 if text.startswith("{") else len(text)
        while match := _LIST.search(text, end):
            if can_read(row := decode(text, match.end())[0]):
                return row
            end = decode(text, match.start(1))[1]
    return {}


def is_object(path: pathlib.Path) -> bool:
    """True for a JSON object with rows that can be read, and not for lines of JSON objects."""
    is_lines = first_row(path) and len(tables.first_lines(path)) > 1
    return not is_lines and not can_read(first_row(path)) and bool(first_in_object(path))


def is_table(path: pathlib.Path, delimiters: str) -> bool:
    """True for a table with one of some delimiters, and columns of pictures and captions."""
    table = tables.table_of(path)
    if table is None or table.delimiter not in delimiters:
        return False
    row: dict[str, Any] = dict.fromkeys(table.names, "")
    with contextlib.suppress(ValueError, csv.Error):
        lines = tables.first_lines(path)[int(table.has_header) :]
        row = tables.row_of(table.names, next(csv.reader(lines, delimiter=table.delimiter), []))
    return can_read(row)


def is_jsonl(path: pathlib.Path) -> bool:
    """True for JSON lines, or a JSON list of objects, whose first row has a picture and a caption.

    False for files of the layouts `blip` and `xmodaler`.
    """
    row = first_row(path)
    by_column = all(isinstance(value, dict) for value in row.values())  # of pandas' to_json()
    return can_read(row) and not (by_column or is_xmodaler(path) or is_blip(path))


def is_blip(path: pathlib.Path) -> bool:
    """True for a JSON list of objects with `image` and `caption`, which the first may lack."""
    row = first_row(path)
    captions = '"caption"' in tables.beginning(path) and not columns_of(tuple(row)).captions
    return is_array(path) and "image" in row and ("caption" in row or captions)


def is_xmodaler(path: pathlib.Path) -> bool:
    """True for a file whose first object has the keys of X-modaler, `img_path` and `sentences`."""
    return {"img_path", "sentences"} <= first_row(path).keys()


def is_gif(path: pathlib.Path) -> bool:
    """True for a file whose first row has the keys `caption`, and `video` or `gif`."""
    keys = first_row(path).keys()
    return "caption" in keys and bool({"video", "gif"} & keys)


def is_clips(path: pathlib.Path) -> bool:
    """True for other rows with a clip and a caption: of VATEX, and MSVD's table and text."""
    row, table = first_row(path), tables.table_of(path)
    columns = columns_of(tuple(table.names if table else row))
    is_row = columns.clip is not None and columns.image is None and columns.has_captions
    return (is_row and not is_gif(path)) or is_clip_lines(path)


def is_clip_lines(path: pathlib.Path) -> bool:
    """True for lines with the name of a clip, which ends in two numbers, and a sentence."""
    lines = [line for line in tables.first_lines(path, 20) if not line.startswith("#")]
    return any(map(_CLIP_LINE.fullmatch, lines[:1]))


def kind_of(path: pathlib.Path) -> str:
    """Returns the layout of a file of rows whose names are not known: jsonl, tsv or csv."""
    if first_row(path):
        return "jsonl"
    return "tsv" if "\t" in "".join(tables.first_lines(path, 1)) else "csv"


def unknown_columns(path: pathlib.Path) -> str:
    """Returns the text of an error for a table whose columns have no known names."""
    names = list(first_row(path)) or re.split("[;,\t]", "".join(tables.first_lines(path, 1)))
    return (
        f"{path} must have a column of pictures ({PICTURES}) and one of captions ({CAPTIONS}); "
        f"it has: {', '.join(names)[:200]}.{web_addresses(path)}"
    )


def web_addresses(path: pathlib.Path) -> str:
    """Returns what to do with a file of web addresses, for the end of an error; "" for others."""
    return WEB_ADDRESSES if re.search("https?://", tables.beginning(path)) else ""


# ---- layouts ---------------------------------------------------------------------------------


def reader(
    rows: Callable[[pathlib.Path, Source], Iterable[Row]],
    change: Callable[[Entry, Source], Entry] = lambda entry, source: entry,
    is_named: bool = False,
) -> Callable[[Source], list[Entry]]:
    """Makes a function for `Layout.read`, which joins rows with the same picture.

    Args:
      rows: a function that yields the rows of a file.
      change: a function that is applied to each entry.
      is_named: whether the names of files tell the split of rows that state none, even if all names
        have the same split. If False, they do so only if they have several splits.
    """

    def read(source: Source) -> list[Entry]:
        files = files_of(source.captions, "*.jsonl", "*.jsonline", "*.jsonlines")
        tell = is_named or len({split for _, split in files}) > 1

        has_images: dict[pathlib.Path, bool] = {}  # of files: their first rows name pictures

        def located() -> Iterator[tuple[str, Row, pathlib.Path]]:
            for path, split in files:
                for row in rows(path, source):
                    tells = tell and row.split is None
                    yield row.location, row._replace(split=split) if tells else row, path

        def parse(row: Row, path: pathlib.Path) -> Entry:
            values = row.read()
            names = columns_of(tuple(values))
            if has_images.setdefault(path, bool(names.image)) and not (names.image or names.clip):
                raise ValueError(f"the row has no column of pictures{names_in(values)}")
            try:
                entry = entry_of(values, source)
                if row.folder:
                    entry = entry.renamed(lambda name: name and f"{row.folder}{name}")
                return change(entry._replace(split=entry.split or row.split or None), source)
            except (AttributeError, KeyError, TypeError) as error:
                raise ValueError(f"the row cannot be read ({error}){names_in(values)}") from None

        return source.entries(located(), parse)

    return read


def of_clip(entry: Entry, source: Source) -> Entry:
    """Returns the entry of a clip with the name of its file."""
    if not (entry.captions or entry.rejected) and entry.split in (None, "train"):
        raise ValueError("the row has no caption")
    return entry.without_id()._replace(file_name=clip_file(source.images, entry.file_name))


def clip_file(images: pathlib.Path | None, name: str) -> str:
    """Returns the name of a clip below `images`; the ending may be left out of it."""
    # Not `Path.exists`, which raises an error for a name that is too long.
    if images is not None and not os.path.exists(images / name):
        for ending in (".gif", *films.ENDINGS):
            if os.path.exists(images / f"{name}{ending}"):
                return f"{name}{ending}"
    return name
