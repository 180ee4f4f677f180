"""Reads tables: csv, tsv, JSON lines, and Parquet files that hold the bytes of the pictures."""

import ast
import collections
import contextlib
import csv
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import pathlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tfcap.preparing.sources import Entry, Source, check_size, head
from tfcap.preparing.sources.splits import files_of, split_name

# Names of columns, as `plain` gives them; the first that is there counts.
IMAGE_COLUMNS = (
    *("path", "image", "filename", "file_name", "image_path", "image_name", "file", "filepath"),
    *("file_path", "image_file", "image_filename", "img_path", "img_name", "img", "picture"),
    "photo",
)
_LISTS = ("captions", "sentences")  # cells that begin with a bracket must be lists
CAPTION_COLUMNS = (  # `raw` is that of Flickr30k's table on Hugging Face
    *(*_LISTS, "caption", "text", "sentence", "description", "comment", "raw"),
    *("descriptions", "comments", "annotation", "alt_text", "title", "prompt"),
)
_SPLIT_COLUMNS = ("split", "subset")
_ID_COLUMNS = ("image_id", "imgid", "img_id", "cocoid", "id")
_MOST_LINES = 20  # of a row: in a longer one a quote does not end
# A row behind the last, which a quote without an end swallows. csv of Python 3.10 refuses a NUL.
_END = "\ue000 the end of the table"
_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_STRING = re.compile(  # of Python, and the space before the next
    r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(\s*(?=['"]))?""", re.S
)

# ---- text ------------------------------------------------------------------------------------


def encoding_of(path: pathlib.Path) -> str:
    """Returns the encoding of a text file.

    A byte order mark decides. Without it the encoding is UTF-8; but if no line with letters beyond
    ASCII is valid UTF-8, it is Windows-1252, which old spreadsheets write.
    """
    for mark, name in _MARKS.items():
        if head(path, 3).startswith(mark):
            return name
    invalid = False
    with open(path, "rb") as file:
        for line in file:
            try:
                if not line.isascii() and line.decode():
                    return "utf-8"
            except UnicodeDecodeError:
                invalid = True
    return "cp1252" if invalid else "utf-8"


def text_lines(path: pathlib.Path) -> Iterator[str]:
    """Yields the lines of a text file with their ends, which may be LF, CR LF or CR.

    Invalid bytes become lone surrogates, which `Entry` refuses.
    """
    encoding = encoding_of(path)
    errors = "surrogateescape" if encoding.startswith("utf-8") else "replace"
    with open(path, encoding=encoding, errors=errors, newline="") as file:
        yield from file


def numbered_lines(path: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Yields (place, text) of the lines that are not empty."""
    for number, line in enumerate(text_lines(path), 1):
        if line.strip():
            yield f"{path}: line {number}", line


def first_lines(path: pathlib.Path, number: int = 2) -> list[str]:
    """Returns the first lines with text from the first bytes of a file, without line ends."""
    content = head(path)
    encoding = next((name for mark, name in _MARKS.items() if content.startswith(mark)), "utf-8")
    lines = re.split(r"\r\n|\n|\r", content.decode(encoding, "replace"))
    return [line for line in lines[: number + 8] if line.strip()][:number]


def json_row(line: str) -> dict[str, Any]:
    """Returns the JSON object in a line. Raises ValueError if there is none."""
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError(f"it must be a JSON object, not {row!r:.80}")
    return row


def first_row(path: pathlib.Path) -> dict[str, Any]:
    """Returns the object in the first line of a file; empty if there is none."""
    try:
        return json_row(first_lines(path, 1)[0])
    except (ValueError, IndexError, RecursionError):
        return {}


# ---- columns ---------------------------------------------------------------------------------


class Columns(NamedTuple):
    """The names of the columns that are used; None if the table has no such column.

    Columns of captions are the first column with a known name, and columns with the same name and a
    number, such as `caption_0`, `caption_1` and so on, in the order of the numbers.
    """

    image: str | None
    captions: list[str]
    split: str | None
    id: str | None


def _plain(name: str) -> str:
    """Returns the name of a column in lower case with underscores: `Image Name` -> `image_name`."""
    return re.sub(r"[\s.-]+", "_", name.strip().lower())


@functools.lru_cache
def columns_of(names: tuple[str, ...]) -> Columns:
    """Finds the columns that are used by their names, ignoring case."""
    plain = {_plain(name): name for name in reversed(names)}

    def first(known: Iterable[str]) -> str | None:
        return next((plain[name] for name in known if name in plain), None)

    captions: list[str] = []
    for known in CAPTION_COLUMNS:
        if not captions:
            pattern = re.compile(rf"{known}(?:_?(\d+))?")
            matches = [(pattern.fullmatch(_plain(name)), name) for name in names]
            numbered = [(int(match[1] or -1), name) for match, name in matches if match]
            captions = [name for _, name in sorted(numbered)]
    return Columns(first(IMAGE_COLUMNS), captions, first(_SPLIT_COLUMNS), first(_ID_COLUMNS))


def entry_of(row: dict[str, Any]) -> Entry:
    """Makes an entry of a row with any of the known names of columns."""
    columns = columns_of(tuple(row))
    if columns.image is None:
        raise ValueError(f"it has no column of pictures; it has: {', '.join(row)[:200]}")
    number = row.get(columns.id or "")
    if isinstance(number, str) and number.isdecimal():
        number = int(number)
    split = row.get(columns.split or "")
    return Entry(
        -1 if number is None else number,
        row[columns.image],
        split_name(split) if split not in (None, "") else None,
        captions_of(row, columns.captions),
        own_id=number is not None,
    )


def captions_of(row: dict[str, Any], columns: Iterable[str]) -> tuple[str, ...]:
    """Returns the captions in some columns of a row, each a text, a list of texts, or None."""
    values = ((row[key], key) for key in columns if row.get(key) is not None)
    return tuple(text for value, key in values for text in texts(value, key) if text.strip())


def texts(value: Any, column: str = "caption") -> list[str]:
    """Returns the captions in a value: a text, or a list of texts.

    The text `['A dog.', 'A cat.']`, a list as JSON, Python or NumPy write it, is two captions. An
    item of a list may be an object with the text under a known name of a caption column.
    """
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "("):
        several = _listed(value)
        if several is None and _plain(column) in _LISTS and value.lstrip().startswith("["):
            raise ValueError(f"{column!r} begins with '[' but is not a list of texts: {value:.80}")
        value = value if several is None else several
    found: list[str] = []
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, dict):
            found += captions_of(item, columns_of(tuple(item)).captions)
        elif isinstance(item, str):
            found.append(item)
        else:
            raise ValueError(f"the caption under {column!r} must be text, not {item!r:.80}")
    return found


def _listed(text: str) -> list[Any] | None:
    """Parses a text that is a list, and returns its items; None for other texts."""
    # NumPy writes no commas: Python's parser would join `['A dog.' 'A cat.']` to one text.
    commas = _STRING.sub(lambda one: one[1] + ("" if one[2] is None else ", "), text.strip())
    for parse, written in ((json.loads, text), (ast.literal_eval, commas)):
        with contextlib.suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            value = parse(written)
            if isinstance(value, list | tuple) and {*map(type, value)} <= {str, dict}:
                return list(value)
    return None


# ---- csv, tsv and JSON lines -------------------------------------------------------------------


def header(path: pathlib.Path) -> tuple[str, list[str]]:
    """Finds the delimiter with which the first line has known columns; returns it and the names."""
    for delimiter in "\t;,":
        with contextlib.suppress(csv.Error):
            table = csv.reader(first_lines(path), delimiter=delimiter)
            names = [name.strip() for name in next(table, [])]
            columns = columns_of(tuple(names))
            if columns.image is not None and columns.captions:
                return delimiter, names
    return "", []


def is_jsonl(path: pathlib.Path) -> bool:
    """True if the first line of a file is a JSON object with an image and a caption."""
    row = first_row(path)
    columns = columns_of(tuple(row))
    return columns.image is not None and bool(columns.captions) and not is_xmodaler(path)


def is_xmodaler(path: pathlib.Path) -> bool:
    """True if a file begins with an object of X-modaler."""
    return {"img_path", "sentences"} <= first_row(path).keys()


def unknown_columns(path: pathlib.Path) -> str:
    """Returns an error text for a table whose columns have no known names."""
    names = list(first_row(path)) or re.split("[;,\t]", "".join(first_lines(path, 1)))
    return (
        f"{path} must have a column of pictures ({', '.join(IMAGE_COLUMNS)}) and one of captions "
        f"({', '.join(CAPTION_COLUMNS)}); it has: {', '.join(names)[:200]}."
    )


def read_table(source: Source) -> list[Entry]:
    """Reads tables: an image, a caption, optionally a split and an id, in any order."""

    def rows() -> Iterator[tuple[Any, ...]]:
        for path in source.captions:
            if encoding_of(path) == "cp1252":
                print(f"note: {path} is not UTF-8; it is read as Windows-1252", flush=True)
            delimiter, names = header(path)
            if not names:
                raise ValueError(unknown_columns(path))
            for place, cells in itertools.islice(table_rows(path, delimiter), 1, None):
                yield place, delimiter, names, cells

    def parse(delimiter: str, names: list[str], cells: list[str]) -> Entry:
        values = row_of(names, cells, delimiter)
        return entry_of({name: value.strip() for name, value in values.items()})

    return source.entries(rows(), parse)


def table_rows(path: pathlib.Path, delimiter: str) -> Iterator[tuple[str, list[str]]]:
    """Yields (place, cells) of the rows that are not empty."""
    lines, start = itertools.chain(text_lines(path), [_END]), 1
    table = csv.reader(lines, delimiter=delimiter)
    while True:
        try:
            cells = next(table, [_END])
        except csv.Error as error:
            raise ValueError(f"{path}: line {start}: {error}.") from None
        if cells == [_END]:
            return
        if table.line_num - start >= _MOST_LINES or cells[-1:] and cells[-1].endswith(_END):
            raise ValueError(f'{path}: line {start}: a cell begins with " and has no " at its end.')
        if any(cell.strip() for cell in cells):
            yield f"{path}: line {start}", cells
        start = table.line_num + 1


def row_of(names: list[str], cells: list[str], delimiter: str = ",") -> dict[str, str]:
    """Returns column name -> cell.

    A caption in the last column may contain the delimiter without quotes.
    """
    last = len(names) - 1
    while len(cells) > len(names) and not cells[-1].strip():
        cells = cells[:-1]
    if len(cells) > len(names) and columns_of(tuple(names)).captions == [names[last]]:
        cells = [*cells[:last], delimiter.join(cells[last:])]
    if len(cells) != len(names):
        raise ValueError(
            f"it has {len(cells)} cells, and the table {len(names)} columns. Put quotes around "
            "captions that contain the delimiter"
        )
    return dict(zip(names, cells, strict=True))


def jsonl(source: Source) -> list[Entry]:
    """Reads files with one JSON object per line; the keys are names of columns.

    The names of the files tell the splits of objects without one, if they name several splits.
    """
    return _json_lines(source, entry_of)


def xmodaler(source: Source) -> list[Entry]:
    """Reads X-modaler's annotations of Flickr30k: `{"img_path": "1.jpg", "sentences": ["A dog."]}`.

    --captions are the files or their directory. The names of the files tell the splits, as in
    `all_data_final_train_2014.jsonline`. Ids are positions in all files together.
    """

    def parse(row: dict[str, Any]) -> Entry:
        return Entry(-1, row["img_path"], None, captions_of(row, ["sentences"]))

    return _json_lines(source, parse, named=True)


def _json_lines(
    source: Source, parse: Callable[[dict[str, Any]], Entry], named: bool = False
) -> list[Entry]:
    """Reads lines; names of files tell missing splits, with `named` also if all name the same."""
    files = files_of(source.captions, "*.jsonl", "*.jsonline", "*.jsonlines")
    tell = named or len({split for _, split in files}) > 1

    def rows() -> Iterator[tuple[str, str, str | None]]:
        for path, split in files:
            for place, line in numbered_lines(path):
                yield place, line, split if tell else None

    def parse_line(line: str, split: str | None) -> Entry:
        entry = parse(json_row(line))
        return entry if entry.split else entry._replace(split=split)

    return source.entries(rows(), parse_line)


# ---- Parquet -----------------------------------------------------------------------------------

METADATA = "metadata.parquet"  # of a folder of pictures; see `archives.imagefolder`
_PICTURES = ("image", "img", "picture", "jpg", "jpeg", "png", "webp")
_SAME = ("cocoid", "image_id", "imgid", "img_id", "file_name", "filename")
_lock = threading.Lock()  # several pictures are decoded at the same time


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """The bytes of a picture in a Parquet file; a `Content`."""

    path: str
    group: int  # row group
    row: int  # of the row group
    column: str  # of the bytes: `image.bytes` or `image`

    def read(self) -> bytes:
        with _lock:
            column = _pictures(self.path, self.group, self.column, os.stat(self.path).st_mtime_ns)
        value = column[self.row].as_py()
        value = value["bytes"] if isinstance(value, dict) else value
        if value is None:
            raise ValueError("the cell has no bytes")
        check_size(len(value))
        return value


@functools.lru_cache(maxsize=2)
def _pictures(path: str, group: int, column: str, changed: int) -> Any:
    """Returns the pictures of a row group of a file that was last changed at `changed`."""
    del changed
    with parquet_file(path) as file:
        return file.read_row_group(group, columns=[column]).column(0)


@contextlib.contextmanager
def parquet_file(path: str | os.PathLike) -> Iterator[Any]:
    """Opens a Parquet file. Raises ValueError if the file is damaged."""
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(
            f"{path} is not a complete Parquet file: {error}. Copy it again."
        ) from None


def parquet_rows(file: Any, group: int, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields the values of some columns of a row group.

    Numbers of splits are replaced by names: Hugging Face writes the names of a ClassLabel into the
    schema.
    """
    names: Sequence[str] = ()
    with contextlib.suppress(KeyError, TypeError, ValueError):
        schema = json.loads((file.schema_arrow.metadata or {})[b"huggingface"])
        names = schema["info"]["features"]["split"]["names"]
    for batch in file.iter_batches(row_groups=[group], columns=list(columns)):
        for row in batch.to_pylist():
            split = row.get("split")
            if type(split) is int and 0 <= split < len(names):
                row["split"] = names[split]
            yield row


def is_parquet(path: pathlib.Path) -> bool:
    """True for a Parquet file with pictures and captions that is no metadata of an imagefolder."""
    if path.name == METADATA or not head(path, 4).startswith(b"PAR1"):
        return False
    with contextlib.suppress(ValueError):
        require_pictures(path)
        return True
    return False


def require_pictures(path: pathlib.Path) -> None:
    """Raises ValueError if a Parquet file has no pictures, or no captions, or is damaged."""
    with parquet_file(path) as file:
        _parquet_columns(path, file.schema_arrow)


def parquet(source: Source) -> list[Entry]:
    """Reads Parquet files with a row per picture, or per caption, as on Hugging Face.

    `image` holds the bytes of the picture, or a structure with `bytes` and `path`. Rows of a split
    with the same `cocoid`, `image_id` or `filename` are captions of one picture if the bytes are
    equal, too. The split is in the column `split`, or else in the name of the file. Pictures
    without bytes are read from --images. Ids are positions.
    """
    same: dict[Any, Any] = {}  # what rows of the same picture may share, by content or file name

    def rows() -> Iterator[tuple[Any, ...]]:
        for path, split in files_of(source.captions, "*.parquet"):
            if path.name == METADATA:  # of `archives.imagefolder`
                continue
            with parquet_file(path) as file:
                picture, parts, columns = _parquet_columns(path, file.schema_arrow)
                texts = [name for name in file.schema_arrow.names if name in (*_SAME, "split")]
                texts += [*columns, *([f"{picture}.path"] if "path" in parts else [])]
                leaf = f"{picture}.bytes" if parts else picture
                for group in range(file.num_row_groups):
                    in_files = _all_null(file.metadata.row_group(group), leaf)
                    for number, row in enumerate(parquet_rows(file, group, texts)):
                        cell = None if in_files else Cell(str(path.absolute()), group, number, leaf)
                        place = f"{path}: row {number} of row group {group}"
                        yield place, row, cell, row.get(picture), columns, split

    def parse(
        row: dict[str, Any], cell: Cell | None, picture: Any, columns: list[str], split: str | None
    ) -> Entry:
        name = (picture or {}).get("path") or row.get("file_name") or row.get("filename") or ""
        if cell is not None:
            # Hugging Face sometimes writes the path of the machine that made the file.
            label = f"{pathlib.Path(cell.path).stem}-{cell.group}-{cell.row}"
            name = pathlib.PurePosixPath(name.replace("\\", "/")).name or label
        split = split if row.get("split") is None else split_name(row["split"])
        entry = Entry(-1, name, split, captions_of(row, columns), content=cell)
        entry = entry.checked(source.images)
        same[cell or entry.file_name] = next((row[name] for name in _SAME if name in row), None)
        return entry

    return _joined(source.entries(rows(), parse, join=False), same)


def _parquet_columns(path: pathlib.Path, schema: Any) -> tuple[str, list[str], list[str]]:
    """Returns the column of pictures, the names inside of it, and the columns of captions."""
    from pyarrow import types

    parts: dict[str, list[str]] = {}  # of each column of pictures
    for field in schema:
        is_struct = types.is_struct(field.type)
        inside = {part.name: part.type for part in field.type} if is_struct else {}
        kind = inside.get("bytes", field.type)
        if types.is_binary(kind) or types.is_large_binary(kind):
            parts[field.name] = list(inside)
    pictures = [name for name in _PICTURES if name in parts] or list(parts)
    captions = columns_of(tuple(name for name in schema.names if name not in parts)).captions
    if not captions or not pictures:
        raise ValueError(
            f"{path} must have a column with the bytes of pictures, such as image, and a "
            f"column of captions ({', '.join(CAPTION_COLUMNS)}); it has: "
            f"{', '.join(schema.names)[:200]}."
        )
    return pictures[0], parts[pictures[0]], captions


def _all_null(group: Any, column: str) -> bool:
    """True if no row of a row group has bytes: then `path` is a file below --images."""
    for number in range(group.num_columns):
        chunk = group.column(number)
        if chunk.path_in_schema == column and chunk.is_stats_set:
            return bool(chunk.statistics.null_count == group.num_rows)
    return False


def _joined(entries: list[Entry], same: dict[Any, Any]) -> list[Entry]:
    """Returns an entry per picture; the captions of rows with the same picture are joined."""
    keys = [(entry.split, same[entry.content or entry.file_name]) for entry in entries]
    counts = collections.Counter(keys)
    found: dict[Any, Entry] = {}
    for entry, key in zip(entries, keys, strict=True):
        picture: Any = None
        if key[1] is not None and counts[key] > 1:  # in the order in which cells are read fast
            with contextlib.suppress(ValueError):  # no bytes: prepare skips the image
                content = entry.content
                picture = hashlib.sha256(content.read()).digest() if content else entry.file_name
        before = found.setdefault(len(found) if picture is None else (key, picture), entry)
        if before is not entry:
            captions = before.captions + entry.captions
            found[key, picture] = before._replace(captions=captions)
    return [entry._replace(id=number) for number, entry in enumerate(found.values())]
