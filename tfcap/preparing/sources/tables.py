"""Reads tables: csv, tsv and JSON lines."""

import ast
import contextlib
import csv
import functools
import itertools
import json
import logging
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from tfcap.files import read_json
from tfcap.marks import UNUSABLE, mark_of
from tfcap.preparing.sources.entry import Entry, Source, head
from tfcap.preparing.sources.splits import files_of, split_name, usual_split

_log = logging.getLogger(__name__)
# Names of columns, as `_plain` gives them; the first that is there counts.
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


def _encoding_of(path: pathlib.Path) -> str:
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

    A file that begins with the byte order mark of UTF-16 is read as UTF-16. A file is read as
    Windows-1252 if it has lines with letters beyond ASCII and none of them is valid UTF-8. All
    other files are read as UTF-8. Their invalid bytes become lone surrogates, which
    `Entry.checked` refuses.
    """
    encoding = _encoding_of(path)
    errors = "surrogateescape" if encoding.startswith("utf-8") else "replace"
    with open(path, encoding=encoding, errors=errors, newline="") as file:
        yield from file


def numbered_lines(path: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Yields the location of each line that is not empty, such as `a.txt: line 7`, and its text."""
    for number, line in enumerate(text_lines(path), 1):
        if line.strip():
            yield f"{path}: line {number}", line


def first_lines(path: pathlib.Path, number: int = 2) -> list[str]:
    """Returns the first `number` lines of a file that are not empty, without line ends.

    Only the first 64 KiB of the file are read, so it may return fewer lines.
    """
    lines = re.split(r"\r\n|\n|\r", beginning(path))
    return [line for line in lines[: number + 8] if line.strip()][:number]


def beginning(path: pathlib.Path) -> str:
    """Returns the first 64 KiB of a file as text."""
    content = head(path)
    encoding = next((name for mark, name in _MARKS.items() if content.startswith(mark)), "utf-8")
    return content.decode(encoding, "replace")


def json_row(line: object) -> dict[str, Any]:
    """Returns the JSON object in a row.

    Args:
      line: a line of text, or an item of a JSON list that is parsed already.

    Raises:
      ValueError: `line` is not a JSON object.
    """
    row = json.loads(line) if isinstance(line, str) else line
    if not isinstance(row, dict):
        raise ValueError(f"the row must be a JSON object, not {row!r:.80}")
    return row


def is_array(path: pathlib.Path) -> bool:
    """True for a file that begins like a JSON list of objects; False for JSON lines."""
    return re.match(r"\[\s*\{", beginning(path).lstrip()) is not None


def first_row(path: pathlib.Path) -> dict[str, Any]:
    """Returns the first object of a JSON list, or of a file with an object per line.

    It returns an empty dict if the file has no such object.
    """
    try:
        if is_array(path):
            return json.JSONDecoder().raw_decode(beginning(path), beginning(path).index("{"))[0]
        return json_row(first_lines(path, 1)[0])
    except (ValueError, IndexError, RecursionError):
        return {}


# ---- columns ---------------------------------------------------------------------------------


class Columns(NamedTuple):
    """The names of the columns of a table that are used; None for a column that the table lacks.

    Attributes:
      image: the column with the file name of the picture.
      captions: the columns of captions: the column with a known name, such as `caption`, and those
        with the same name and a number, such as `caption_0` and `caption_1`, in the order of the
        numbers. If several known names occur, only the first in `CAPTION_COLUMNS` counts.
      split: the column with the split.
      id: the column with the id of the image.
      marks: the columns that mark captions as unusable: name in `tfcap.marks` -> column.
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
    """Finds the columns that prepare uses.

    Args:
      names: names of all columns of a table, in upper or lower case.
    """
    plain = {_plain(name): name for name in reversed(names)}

    def first(accepted: Iterable[str]) -> str | None:
        return next((plain[name] for name in accepted if name in plain), None)

    captions: list[str] = []
    for accepted in CAPTION_COLUMNS:
        if not captions:
            pattern = re.compile(rf"{accepted}(?:_?(\d+))?")
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
    """Makes an entry of a row whose keys are known names of columns: `image`, `caption` and so on.

    If the row is marked as unusable (see `tfcap.marks`), the entry has no captions, and its
    `rejected` has the mark once for each caption of the row.

    Raises:
      ValueError: no column has the name of a picture, or a value cannot be used.
    """
    columns = columns_of(tuple(row))
    if columns.image is None:
        raise ValueError(
            f"the row has no column of pictures ({', '.join(IMAGE_COLUMNS)}); it has: "
            f"{', '.join(row)[:200]}"
        )
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
    """Separates captions that their row marks as unusable.

    Args:
      row: the row, with its marks under the names in `tfcap.marks`.
      captions: the captions of the row.

    Returns:
      The usable captions, and the marks of the others. If the row has no mark: all captions, and an
      empty tuple. If it has one: an empty tuple, and the mark repeated for each caption.
    """
    columns = columns_of(tuple(row)).marks
    mark = mark_of({mark: row[column] for mark, column in columns.items()}) if columns else ""
    return ((), (mark,) * len(captions)) if mark else (captions, ())


def split_in(row: dict[str, Any]) -> str | None:
    """Returns the split that a row states; None if it states none.

    Raises:
      ValueError: the value is not a name.
    """
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


def id_fields(column: str, value: object) -> dict[str, Any]:
    """Returns keyword arguments of `Entry` for the id of an image.

    Args:
      column: name of the column or key that has the id.
      value: its value in the row.

    Returns:
      A dict with `id`, which is -1 if the value is not a whole number. If the value is not empty,
      the dict also has `has_id` and `id_column`.
    """
    if value is None or value != value or value == "":
        return {"id": -1}
    number = _whole_number(value)
    return {
        "id": -1 if number is None else number,
        "has_id": number is not None,
        "id_column": column,
    }


def _whole_number(value: object) -> int | None:
    """Returns an id that a table writes as 7, "7", 7.0 or "7.0"; None for other values."""
    if isinstance(value, float) and value.is_integer() and value < 2**53:  # exact
        value = int(value)
    if isinstance(value, str) and (match := _NUMBER.fullmatch(value.strip())):
        value = int(match[1])
    return value if type(value) is int and 0 <= value < 2**63 else None


def captions_of(row: dict[str, Any], columns: Iterable[str]) -> tuple[str, ...]:
    """Returns all captions in some columns of a row.

    Args:
      row: the row.
      columns: names of the columns; the value of each is a text, a list of texts, or None.
    """
    values = ((row[key], key) for key in columns if row.get(key) is not None)
    return tuple(text for value, key in values for text in texts(value, key) if text.strip())


def texts(value: object, column: str = "caption") -> list[str]:
    """Returns the captions in the value of a column.

    The value is a text, a JSON object, or a list of these. A text such as `['A dog.', 'A cat.']`,
    as JSON, Python or NumPy write a list, gives two captions. An object, or a text such as
    `{"caption": "A dog."}`, gives the captions under its keys that are names of caption columns.

    Args:
      value: the value.
      column: name of the column, for errors. In the columns `captions` and `sentences` a text that
        begins with a bracket must be a list.

    Raises:
      ValueError: the value has another type, an object has no such key, or a text is no list
        although it must be.
    """
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "(", "{"):
        parsed = _parsed(value)
        begin = value.lstrip()[0]
        is_list = _plain(column) in _LISTS and begin != "("
        if parsed is None and (is_list or _OBJECT.match(value)):
            raise ValueError(
                f"the value of {column!r} begins with {begin!r} but is not a list of texts: "
                f"{value:.80}"
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
    """Finds the delimiter of a table (tab, semicolon or comma) and the names of its columns.

    Returns:
      The delimiter and the names of the columns; "" and [] if no delimiter gives a column of
      pictures and one of captions.
    """
    for delimiter in "\t;,":
        with contextlib.suppress(csv.Error):
            table = csv.reader(first_lines(path), delimiter=delimiter)
            names = [name.strip() for name in next(table, [])]
            columns = columns_of(tuple(names))
            if columns.image is not None and columns.captions:
                return delimiter, names
    return "", []


def is_jsonl(path: pathlib.Path) -> bool:
    """True for JSON lines, or a JSON list of objects, whose first row has a picture and a caption.

    False for files of the layouts `blip` and `xmodaler`.
    """
    row = first_row(path)
    columns = columns_of(tuple(row))
    by_column = all(isinstance(value, dict) for value in row.values())  # of pandas' to_json()
    others = by_column or is_xmodaler(path) or is_blip(path)
    return columns.image is not None and bool(columns.captions) and not others


def is_blip(path: pathlib.Path) -> bool:
    """True for a JSON list of objects with the keys `image` and `caption`.

    `caption` may be missing from the first object.
    """
    row = first_row(path)
    captions = '"caption"' in beginning(path) and not columns_of(tuple(row)).captions
    return is_array(path) and "image" in row and ("caption" in row or captions)


def is_xmodaler(path: pathlib.Path) -> bool:
    """True for a file whose first object has the keys of X-modaler, `img_path` and `sentences`."""
    return {"img_path", "sentences"} <= first_row(path).keys()


def unknown_columns(path: pathlib.Path) -> str:
    """Returns the text of an error for a table whose columns have no known names."""
    names = list(first_row(path)) or re.split("[;,\t]", "".join(first_lines(path, 1)))
    return (
        f"{path} must have a column of pictures ({', '.join(IMAGE_COLUMNS)}) and one of captions "
        f"({', '.join(CAPTION_COLUMNS)}); it has: {', '.join(names)[:200]}."
    )


def read_table(source: Source) -> list[Entry]:
    """Reads the layouts `csv` and `tsv`: tables with a column of pictures and a column of captions.

    There may be columns of splits and of ids. The first line has the names of the columns, which
    may be in any order.

    Args:
      source: what to read; `captions` are the files.

    Returns:
      An entry per picture; rows with the same picture are joined.
    """

    def rows() -> Iterator[tuple[Any, ...]]:
        for path in source.captions:
            if _encoding_of(path) == "cp1252":
                _log.info(f"note: {path} is not UTF-8; it is read as Windows-1252")
            delimiter, names = header(path)
            if not names:
                raise ValueError(unknown_columns(path))
            for location, cells in itertools.islice(table_rows(path, delimiter), 1, None):
                yield location, delimiter, names, cells

    def parse(delimiter: str, names: list[str], cells: list[str]) -> Entry:
        values = row_of(names, cells, delimiter)
        return entry_of({name: value.strip() for name, value in values.items()})

    return source.entries(rows(), parse)


def table_rows(path: pathlib.Path, delimiter: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the location of each row that is not empty, such as `a.csv: line 7`, and its cells.

    Raises:
      ValueError: a quote has no end, or a cell is too large.
    """
    table = csv.reader(itertools.chain(text_lines(path), [_END]), delimiter=delimiter)
    start = 1
    while True:
        try:
            cells = next(table, [_END])
        except csv.Error as error:
            raise ValueError(
                f"{path}: line {start}: {error}. If a cell is too long, remove its "
                "column, which may hold encoded pictures or web pages."
            ) from None
        if cells == [_END]:
            return
        if table.line_num - start >= _MOST_LINES or cells[-1:] and cells[-1].endswith(_END):
            raise ValueError(
                f'{path}: line {start}: a cell begins with " and has no " at its end. Add '
                "or remove it."
            )
        if any(cell.strip() for cell in cells):
            yield f"{path}: line {start}", cells
        start = table.line_num + 1


def row_of(names: list[str], cells: list[str], delimiter: str = ",") -> dict[str, str]:
    """Returns the cells of a row as a dict: name of the column -> cell.

    A caption in the last column may contain the delimiter without quotes around it.

    Args:
      names: names of the columns.
      cells: the cells of the row.
      delimiter: the delimiter of the table.

    Raises:
      ValueError: the row has more or fewer cells than the table has columns.
    """
    last = len(names) - 1
    while len(cells) > len(names) and not cells[-1].strip():
        cells = cells[:-1]
    if len(cells) > len(names) and columns_of(tuple(names)).captions == [names[last]]:
        cells = [*cells[:last], delimiter.join(cells[last:])]
    if len(cells) != len(names):
        raise ValueError(
            f"the row has {len(cells)} cells, but the table has {len(names)} columns. Put quotes "
            "around captions that contain the delimiter"
        )
    return dict(zip(names, cells, strict=True))


def jsonl(source: Source) -> list[Entry]:
    """Reads the layout `jsonl`: files with a JSON object per line, or with a JSON list of objects.

    The keys are the names that columns of a table may have. If the names of the files contain
    different splits, as `train.jsonl` and `val.jsonl`, an object without a split gets that of its
    file.

    Args:
      source: what to read; `captions` are the files or their directory.

    Returns:
      An entry per picture; objects with the same picture are joined.
    """
    return _json_rows(source, entry_of)


def blip(source: Source) -> list[Entry]:
    """Reads the layout `blip` of BLIP and LAVIS: a file per split, as `coco_karpathy_train.json`.

    A file is a list of `{"image", "caption"}`. In training files `caption` is a text, and an image
    has several objects; in other files it is a list of texts. Ids are the numbers in COCO's file
    names, or else positions, because the `image_id` of these files is not a COCO id.

    Args:
      source: what to read; `captions` are the files or their directory.

    Returns:
      An entry per picture.
    """
    return _json_rows(source, lambda row: entry_of(row).without_id(), named=True)


def xmodaler(source: Source) -> list[Entry]:
    """Reads the layout `xmodaler`: X-modaler's annotations of Flickr30k, an object per line.

    An object is `{"img_path": "1.jpg", "sentences": ["A dog."]}`. The split is in the name of the
    file, as in `all_data_final_train_2014.jsonline`. Images are numbered from 0 over all files.

    Args:
      source: what to read; `captions` are the files or their directory.

    Returns:
      An entry per picture.
    """
    return _json_rows(source, lambda row: entry_of(row).without_id(), named=True)


def _json_rows(
    source: Source, parse: Callable[[dict[str, Any]], Entry], named: bool = False
) -> list[Entry]:
    """Reads lines or lists of objects.

    Names of files tell the splits of objects without one, with `named` also if all name the same.
    """
    files = files_of(source.captions, "*.jsonl", "*.jsonline", "*.jsonlines")
    tell = named or len({split for _, split in files}) > 1

    def rows() -> Iterator[tuple[str, Any, str | None]]:
        for path, split in files:
            for location, row in json_items(path):
                yield location, row, split if tell else None

    def parse_row(row: object, split: str | None) -> Entry:
        entry = parse(json_row(row))
        return entry if entry.split else entry._replace(split=split)

    return source.entries(rows(), parse_row)


def json_items(path: pathlib.Path) -> Iterator[tuple[str, Any]]:
    """Yields the location and the row of each object in a file.

    In a JSON list a row is the parsed item, and its location `a.json: entry 7`. Otherwise a row is
    the text of a line, and its location `a.jsonl: line 7`.
    """
    if is_array(path):
        items = read_json(path, "Correct it, or name another file with `captions`.")
        yield from ((f"{path}: entry {number}", item) for number, item in enumerate(items))
    else:
        yield from numbered_lines(path)
