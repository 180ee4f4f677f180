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

from tfcap import progress
from tfcap.files import read_json
from tfcap.marks import UNUSABLE, mark_of
from tfcap.preparing.sources.entry import SPLITS, Entry, FilePart, Source, check_size, head
from tfcap.preparing.sources.splits import files_of, split_name, usual_split

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
# Such as `set`, `data_split` or `partition`: only if the value is a usual name of a split.
_OTHER_SPLIT_COLUMN = re.compile("(?:.*_)?(?:split|subset|set|partition)(?:_.*)?")
_ID_COLUMNS = ("image_id", "imgid", "img_id", "cocoid", "id")
_NUMBER = re.compile(r"(\d{1,19})(\.0+)?")
_OBJECT = re.compile(r"""\s*\{\s*(['"])\w+\1\s*:""")  # the beginning of one, as JSON or Python
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
    lines = re.split(r"\r\n|\n|\r", beginning(path))
    return [line for line in lines[: number + 8] if line.strip()][:number]


def beginning(path: pathlib.Path) -> str:
    """Returns the text in the first bytes of a file."""
    content = head(path)
    encoding = next((name for mark, name in _MARKS.items() if content.startswith(mark)), "utf-8")
    return content.decode(encoding, "replace")


def json_row(line: Any) -> dict[str, Any]:
    """Returns the JSON object in a line, or an item of a list. Raises ValueError for others."""
    row = json.loads(line) if isinstance(line, str) else line
    if not isinstance(row, dict):
        raise ValueError(f"it must be a JSON object, not {row!r:.80}")
    return row


def is_array(path: pathlib.Path) -> bool:
    """True if a file begins like a JSON list of objects, and not like lines of JSON."""
    return re.match(r"\[\s*\{", beginning(path).lstrip()) is not None


def first_row(path: pathlib.Path) -> dict[str, Any]:
    """Returns the first object of a JSON list, or in the first line; empty if there is none."""
    try:
        if is_array(path):
            return json.JSONDecoder().raw_decode(beginning(path), beginning(path).index("{"))[0]
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
    marks: dict[str, str]  # of unusable captions, see `tfcap.marks`: mark -> column


@functools.lru_cache
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
    return Columns(
        first(IMAGE_COLUMNS),
        captions,
        first((*_SPLIT_COLUMNS, *filter(_OTHER_SPLIT_COLUMN.fullmatch, plain))),
        first(_ID_COLUMNS),
        {mark: plain[mark] for mark in UNUSABLE if mark in plain},
    )


def entry_of(row: dict[str, Any]) -> Entry:
    """Makes an entry of a row with any of the known names of columns.

    Of a row that is marked as unusable, `Entry.rejected` has the marks in place of the captions.
    """
    columns = columns_of(tuple(row))
    if columns.image is None:
        raise ValueError(f"it has no column of pictures; it has: {', '.join(row)[:200]}")
    captions = captions_of(row, columns.captions)
    captions, rejected = unmarked(row, captions) if columns.marks else (captions, ())
    numbered = id_fields(columns.id, row[columns.id]) if columns.id else {"id": -1}
    return Entry(
        file_name=row[columns.image],
        split=split_in(row) if columns.split else None,
        captions=captions,
        rejected=rejected,
        **numbered,
    )


def unmarked(
    row: dict[str, Any], captions: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the captions of a row and no marks, or no captions and the mark of each."""
    columns = columns_of(tuple(row)).marks
    mark = mark_of({mark: row[column] for mark, column in columns.items()}) if columns else ""
    return ((), (mark,) * len(captions)) if mark else (captions, ())


def split_in(row: dict[str, Any]) -> str | None:
    """Returns the split that a row states, or None."""
    column = columns_of(tuple(row)).split or ""
    value = row.get(column)
    if value is None or value != value or value == "":  # pandas writes NaN for a missing value
        return None
    if _plain(column) not in _SPLIT_COLUMNS:
        return usual_split(value)
    try:
        return split_name(value)
    except ValueError as error:
        raise ValueError(f"{column!r}: {error}") from None


def id_fields(column: str, value: Any) -> dict[str, Any]:
    """Returns the fields of an entry that tell its id, for the value of a column or a key."""
    if value is None or value != value or value == "":
        return {"id": -1}
    number = _whole_number(value)
    return {
        "id": -1 if number is None else number,
        "own_id": number is not None,
        "id_column": column,
    }


def _whole_number(value: Any) -> int | None:
    """Returns an id that a table writes as 7, "7", 7.0 or "7.0"; None for other values."""
    if isinstance(value, float) and value.is_integer() and value < 2**53:  # exact
        value = int(value)
    if isinstance(value, str) and (match := _NUMBER.fullmatch(value.strip())):
        value = int(match[1])
    return value if type(value) is int and 0 <= value < 2**63 else None


def captions_of(row: dict[str, Any], columns: Iterable[str]) -> tuple[str, ...]:
    """Returns the captions in some columns of a row, each a text, a list of texts, or None."""
    values = ((row[key], key) for key in columns if row.get(key) is not None)
    return tuple(text for value, key in values for text in texts(value, key) if text.strip())


def texts(value: Any, column: str = "caption") -> list[str]:
    """Returns the captions in a value: a text, or a list of texts.

    The text `['A dog.', 'A cat.']`, a list as JSON, Python or NumPy write it, is two captions. An
    object, also as a text, has the captions under a known name of a caption column.
    """
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "(", "{"):
        parsed = _parsed(value)
        begin = value.lstrip()[0]
        is_list = _plain(column) in _LISTS and begin != "("
        if parsed is None and (is_list or _OBJECT.match(value)):
            raise ValueError(
                f"{column!r} begins with {begin!r} but is not a list of texts: {value:.80}"
            )
        value = value if parsed is None else parsed
    captions: list[str] = []
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, str) and item.lstrip().startswith("{"):
            item = _parsed(item) or item
        if isinstance(item, dict):
            captions += _texts_in(item, column)
        elif isinstance(item, str):
            captions.append(item)
        else:
            raise ValueError(f"the caption under {column!r} must be text, not {item!r:.80}")
    return captions


def _texts_in(item: dict[str, Any], column: str) -> tuple[str, ...]:
    columns = columns_of(tuple(map(str, item)))
    if not columns.captions:
        raise ValueError(
            f"the object under {column!r} has no text under a known name (such as text, caption "
            f"or raw); it has: {', '.join(map(str, item))[:200]}"
        )
    return captions_of(item, columns.captions)


def _parsed(text: str) -> Any:
    """Returns the list or the object that a text is; None for other texts."""
    # NumPy writes no commas: Python's parser would join `['A dog.' 'A cat.']` to one text.
    commas = _STRING.sub(lambda one: one[1] + ("" if one[2] is None else ", "), text.strip())
    for parse, written in ((json.loads, text), (ast.literal_eval, commas)):
        with contextlib.suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            value = parse(written)
            if isinstance(value, list | tuple) and {*map(type, value)} <= {str, dict}:
                return list(value)
            if isinstance(value, dict):
                return value
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
    """True if the first row of lines of JSON, or of a list, has an image and a caption."""
    row = first_row(path)
    columns = columns_of(tuple(row))
    by_column = all(isinstance(value, dict) for value in row.values())  # of pandas' to_json()
    others = by_column or is_xmodaler(path) or is_blip(path)
    return columns.image is not None and bool(columns.captions) and not others


def is_blip(path: pathlib.Path) -> bool:
    """True if a file is a JSON list of objects with the keys of BLIP; the first may lack one."""
    row = first_row(path)
    captions = '"caption"' in beginning(path) and not columns_of(tuple(row)).captions
    return is_array(path) and "image" in row and ("caption" in row or captions)


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
            raise ValueError(
                f"{path}: line {start}: {error}. Leave out columns with whole pictures or pages."
            ) from None
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
    """Reads files with one JSON object per line, or a JSON list; the keys are names of columns.

    The names of the files tell the splits of objects without one, if they name several splits.
    """
    return json_rows(source, entry_of)


def blip(source: Source) -> list[Entry]:
    """Reads files in the layout of BLIP and LAVIS: a file per split, `coco_karpathy_train.json`.

    A file is a list of `{"image", "caption"}`. In training files `caption` is a text, and an image
    has several rows; in other files it is a list of texts. Ids are the numbers in COCO's file
    names, or else positions: the `image_id` of these files is not a COCO id.
    """
    return json_rows(source, lambda row: _without_id(entry_of(row)), named=True)


def xmodaler(source: Source) -> list[Entry]:
    """Reads X-modaler's annotations of Flickr30k: `{"img_path": "1.jpg", "sentences": ["A dog."]}`.

    --captions are the files or their directory. The names of the files tell the splits, as in
    `all_data_final_train_2014.jsonline`. Ids are positions in all files together.
    """
    return json_rows(source, lambda row: _without_id(entry_of(row)), named=True)


def _without_id(entry: Entry) -> Entry:
    return entry._replace(id=-1, own_id=False, id_column="")


def json_rows(
    source: Source, parse: Callable[[dict[str, Any]], Entry], named: bool = False
) -> list[Entry]:
    """Reads lines or lists of objects.

    Names of files tell the splits of objects without one, with `named` also if all name the same.
    """
    files = files_of(source.captions, "*.jsonl", "*.jsonline", "*.jsonlines")
    tell = named or len({split for _, split in files}) > 1

    def rows() -> Iterator[tuple[str, Any, str | None]]:
        for path, split in files:
            for place, row in json_items(path):
                yield place, row, split if tell else None

    def parse_row(row: Any, split: str | None) -> Entry:
        entry = parse(json_row(row))
        return entry if entry.split else entry._replace(split=split)

    return source.entries(rows(), parse_row)


def json_items(path: pathlib.Path) -> Iterator[tuple[str, Any]]:
    """Yields (place, row) of a file: the text of each line, or the items of a JSON list."""
    if is_array(path):
        items = read_json(path, "Correct it, or name another file with --captions.")
        yield from ((f"{path}: entry {number}", item) for number, item in enumerate(items))
    else:
        yield from numbered_lines(path)


# ---- Parquet -----------------------------------------------------------------------------------

METADATA = "metadata.parquet"  # of a folder of pictures; see `archives.imagefolder`
_PICTURES = ("image", "img", "picture", "jpg", "jpeg", "png", "webp")
_HASHED = 64  # pictures that are in memory while pictures are compared
_lock = threading.Lock()  # several pictures are decoded at the same time


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
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
    with equal bytes are captions of one picture. The split is in a column, or else in the name of
    the file. Pictures without bytes are read from --images, and rows with the same path are those
    of one picture. Ids are positions.
    """

    def rows() -> Iterator[tuple[Any, ...]]:
        for path, split in files_of(source.captions, "*.parquet"):
            if path.name == METADATA:  # of `archives.imagefolder`
                continue
            with parquet_file(path) as file:
                pictures, total = _picture_rows(path, file), file.metadata.num_rows
                for row in progress.progress(pictures, total, f"reading {path}", "row"):
                    yield *row, split

    def parse(row: dict[str, Any], name: str, cell: Cell | None, split: str | None) -> Entry:
        if cell is not None:
            # Hugging Face sometimes writes the path of the machine that made the file.
            label = f"{pathlib.Path(cell.path).stem}-{cell.group}-{cell.row}"
            name = pathlib.PurePosixPath(name.replace("\\", "/")).name or label
        entry = entry_of({**row, "path": name})
        return entry._replace(content=cell, split=entry.split or split)

    entries = source.entries(rows(), parse, join=False)
    return joined(entries, picture_of(entries), source.drawn)


def _picture_rows(path: pathlib.Path, file: Any) -> Iterator[tuple[Any, ...]]:
    """Yields the place of each row, its columns, the name of its picture, and its `Cell`."""
    picture, parts, columns = _parquet_columns(path, file.schema_arrow)
    used = [*columns.captions, *columns.marks.values(), *filter(None, [columns.split])]
    names = [f"{picture}.path"] if "path" in parts else []
    names += filter(None, [columns.image])
    leaf = f"{picture}.bytes" if parts else picture
    for group in range(file.num_row_groups):
        digests = list(_digests(file, group, leaf))
        for number, row in enumerate(parquet_rows(file, group, [*used, *names])):
            cell = None
            if any(digests):  # else `path` is a file below --images
                cell = Cell(str(path.absolute()), group, number, leaf, digests[number])
            inside = row.get(picture) or {}
            name = inside.get("path") or row.get(columns.image or "") or ""
            place = f"{path}: row {number} of row group {group}"
            yield place, {column: row[column] for column in used}, name, cell


def _digests(file: Any, group: int, column: str) -> Iterator[bytes]:
    """Yields the SHA-256 of each picture of a row group; empty for a picture without bytes.

    Pictures are read twice: here, and when their features are made. To compare them otherwise, all
    would have to be in memory.
    """
    for batch in file.iter_batches(_HASHED, row_groups=[group], columns=[column]):
        pictures = batch.column(0)
        pictures = pictures.flatten()[0] if "." in column else pictures  # of a structure
        for picture in pictures:
            yield hashlib.sha256(picture.as_buffer()).digest() if picture.is_valid else b""


def _parquet_columns(path: pathlib.Path, schema: Any) -> tuple[str, list[str], Columns]:
    """Returns the column of pictures, the names inside of it, and the other columns."""
    from pyarrow import types

    parts: dict[str, list[str]] = {}  # of each column of pictures
    for field in schema:
        is_struct = types.is_struct(field.type)
        inside = {part.name: part.type for part in field.type} if is_struct else {}
        kind = inside.get("bytes", field.type)
        if types.is_binary(kind) or types.is_large_binary(kind):
            parts[field.name] = list(inside)
    pictures = [name for name in _PICTURES if name in parts] or list(parts)
    columns = columns_of(tuple(name for name in schema.names if name not in parts))
    if not columns.captions or not pictures:
        raise ValueError(
            f"{path} must have a column with the bytes of pictures, such as image, and a "
            f"column of captions ({', '.join(CAPTION_COLUMNS)}); it has: "
            f"{', '.join(schema.names)[:200]}."
        )
    return pictures[0], parts[pictures[0]], columns


def picture_of(entries: Iterable[Entry]) -> Callable[[Entry], Any]:
    """Makes a function that returns what entries with the same picture have in common.

    Of pictures in files, 64 bytes are read of each, and all bytes only of those that may be equal.
    """
    contents = (entry.content for entry in entries)
    probes = {part: _probe(part) for part in contents if isinstance(part, FilePart)}
    counts = collections.Counter(probes.values())

    def picture(entry: Entry) -> Any:
        content = entry.content
        if isinstance(content, Cell):
            return content.digest or content  # without bytes: prepare skips the image
        if isinstance(content, FilePart) and counts[probes[content]] > 1:
            with contextlib.suppress(ValueError):  # too large: prepare skips the image
                return hashlib.sha256(content.read()).digest()
        return content or entry.file_name

    return picture


def _probe(part: FilePart) -> tuple[int, bytes]:
    """Returns the length and some bytes of a picture, which other pictures hardly share."""
    middle = part.length // 2
    some = dataclasses.replace(part, offset=part.offset + middle, length=min(64, middle))
    return part.length, some.read()


def joined(
    entries: Iterable[Entry], picture_of: Callable[[Entry], Any], drawn: bool = False
) -> list[Entry]:
    """Returns an entry per picture and split, with all captions, and numbers them.

    A note tells how many pictures are in several splits: the source states these, so they stay. If
    train, val and test are `drawn` anew, such a picture is one image of them.
    """
    images: dict[Any, Entry] = {}
    names: dict[Any, dict[str | None, str]] = {}  # of each picture: split -> file name
    for entry in entries:
        picture = picture_of(entry)
        split = "" if drawn and entry.split in SPLITS else entry.split
        names.setdefault(picture, {}).setdefault(split, entry.file_name)
        before = images.setdefault((picture, split), entry)
        if before is not entry:
            images[picture, split] = before._replace(
                captions=before.captions + entry.captions,
                rejected=before.rejected + entry.rejected,
            )
    if several := [by_split for by_split in names.values() if len(by_split) > 1]:
        parts = ((name, split or "train, val or test") for split, name in several[0].items())
        example = " and ".join(f"{name} of {split}" for name, split in parts)
        print(f"note: pictures in several splits: {len(several)}, such as {example}", flush=True)
    return [entry._replace(id=number) for number, entry in enumerate(images.values())]
