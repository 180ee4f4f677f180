"""Reads text files and tables: their encoding, their lines, the columns of csv and tsv."""

import contextlib
import csv
import functools
import itertools
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tfcap.errors import UsageError
from tfcap.preparing.sources.entry import head
from tfcap.preparing.sources.names import columns_of

_MOST_LINES = 20  # of a row: in a longer one a quote does not end
# A row behind the last, which a quote without an end swallows. csv of Python 3.10 refuses a NUL.
_END = "\ue000 the end of the table"
# The part of `columns` that a column has -> the name that `names` knows.
PARTS = {"image": "path", "caption": "caption", "split": "split", "id": "image_id"}
_REGION_NAMES = ("image_id", "x", "y", "width", "height", "english")  # before the other language
_REGION = re.compile(r"\d+(?:\t\d+){4}(?:\t[^\t]+){2}")  # a line of Hindi Visual Genome
_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}

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

    `encoding_of` says how a file is read. Invalid bytes of UTF-8 become lone surrogates, which
    `Entry.checked` refuses.
    """
    encoding = encoding_of(path)
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


# ---- csv and tsv ---------------------------------------------------------------------------------


class Table(NamedTuple):
    """How the columns of a table are separated and named.

    Attributes:
      delimiter: tab, semicolon or comma.
      names: the names of the columns.
      has_header: whether they stand in the first line.
    """

    delimiter: str
    names: list[str]
    has_header: bool = True


def table_of(path: pathlib.Path, chosen: Mapping[str, str] | None = None) -> Table | None:
    """Finds the delimiter of a table and the names of its columns.

    The lines of Visual Genome in other languages have no names, but are known by their numbers.

    Args:
      path: the file.
      chosen: the columns to read, see `Source.columns`. Other columns then get names without a
        meaning.

    Returns:
      The table; None if no delimiter gives a column of pictures or clips and one of captions.

    Raises:
      UsageError: the table lacks a column of `chosen`.
    """
    lines = first_lines(path)
    if lines and _REGION.fullmatch(lines[0].removeprefix("\ufeff")):
        other = re.search("bengali|malayalam", path.name.lower())
        names = [*_REGION_NAMES, other[0] if other else "hindi"]
        table = Table("\t", names, False)
        return _chosen(table, chosen) if chosen else table
    by_fit = functools.partial(_fit, lines, (chosen or {}).values())
    for delimiter in sorted("\t,;", key=by_fit) if chosen else "\t;,":
        with contextlib.suppress(csv.Error):
            names = [name.strip() for name in next(csv.reader(lines, delimiter=delimiter), [])]
            columns = columns_of(tuple(names))
            if chosen and len(names) > 1:
                has_header = columns.has_captions or columns.has_picture
                has_header |= not all(map(str.isdecimal, chosen.values()))
                return _chosen(Table(delimiter, names, has_header), chosen)
            # Beside the pictures of test there may be no captions.
            is_enough = columns.has_captions or f"{path.name}{delimiter}" == "metadata.csv,"
            if is_enough and (columns.has_picture or columns.clip is not None):
                return Table(delimiter, names)
    return None


def _fit(lines: list[str], columns: Iterable[str], delimiter: str) -> tuple[bool, bool]:
    """Sorts delimiters: first those that give both lines all columns, then equally many cells."""
    names, *rows = (next(csv.reader([line], delimiter=delimiter)) for line in lines or [""])
    sizes = {len(names), *map(len, rows)}
    there = {*map(str.strip, names), *map(str, range(1, min(sizes) + 1))}
    return not there.issuperset(columns), len(sizes) > 1 or sizes == {1}


def _chosen(table: Table, chosen: Mapping[str, str]) -> Table:
    """Returns the table in which only the columns of `chosen` have names with a meaning."""
    regions = _REGION_NAMES[1:5]
    names = [name if name in regions else f"column {n}" for n, name in enumerate(table.names, 1)]
    for part, column in chosen.items():
        where = int(column) - 1 if column.isdecimal() else -1
        where = table.names.index(column) if column in table.names else where
        if not 0 <= where < len(names):
            listed = ", ".join(table.names) if table.has_header else f"1 to {len(names)}"
            raise UsageError(f"`columns`: there is no column {column}; there are: {listed:.200}.")
        names[where] = PARTS[part]
    return table._replace(names=names)


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
