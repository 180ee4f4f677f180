"""Reads csv tables, with commas or semicolons, and tsv tables; each row has a caption."""

import collections
import contextlib
import csv
import itertools
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tfcap.picture_files import ENDINGS
from tfcap.preparing.sources import text
from tfcap.preparing.sources.entry import (
    Given,
    ImageEntry,
    file_name,
    head,
    image_number,
    reader,
    split_name,
)
from tfcap.preparing.sources.fields import CAPTION_COLUMNS, caption_keys, captions, find, plain
from tfcap.preparing.sources.rows import IdsDiffer, Rows

# Names of columns, as `fields.plain` gives them; the first that is there counts.
IMAGE_COLUMNS = (
    *("path", "image", "filename", "file_name", "image_path", "image_name", "file", "filepath"),
    *("file_path", "image_file", "image_filename", "img_path", "img_name", "img", "picture"),
    "photo",
)
SPLIT_COLUMNS = ("split", "subset")
ID_COLUMNS = ("image_id", "imgid", "img_id", "cocoid", "id")
_NO_NAME = re.compile(r"[./\\\d]")  # what files have in their names, and columns do not
_MOST_LINES = 20  # of one row: in a longer one a quote does not end


class Columns(NamedTuple):
    """The positions of the columns of a table.

    Attributes:
      width: number of columns.
      image: the position of the column of pictures.
      captions: the positions of the columns of captions.
      names: the names of the columns of captions; empty without a header.
      split, id: their positions, or None.
      plain_id: whether the name of the column of ids is `id`, which may be that of captions.
      others: the names of further columns that could hold captions.
      guessed: whether names of picture files, not the names of the columns, told the columns.
      has_header: whether the first row has the names of the columns.
      delimiter: what stands between the columns.
    """

    width: int
    image: int
    captions: list[int]
    names: list[str]
    split: int | None
    id: int | None
    has_header: bool
    delimiter: str
    plain_id: bool = False
    guessed: bool = False
    others: Sequence[str] = ()


def columns(first: Sequence[str], second: Sequence[str], delimiter: str = ",") -> Columns | None:
    """Finds the columns of a table by its first two rows; None if it has no image or no caption.

    A table of two columns needs no names, if one of them has names of picture files. Then a first
    row without such a name has the names of the columns only if its cell above the picture files
    looks like one: it has no dot, slash or digit. So `scan1.tif` is a row as all others.
    """
    names = [plain(name) for name in first]

    def position(known: Sequence[str]) -> int | None:
        name = find(names, known)
        return None if name is None else names.index(name)

    image, keys = position(IMAGE_COLUMNS), caption_keys(names)
    if image is not None and keys:
        texts = [at for key in keys for at, name in enumerate(names) if name == key]
        split, number = position(SPLIT_COLUMNS), position(ID_COLUMNS)
        plain_id = number is not None and names[number] == "id"
        others = caption_keys(name for name in names if name not in keys)
        keys = [names[at] for at in texts]
        return Columns(
            *(len(names), image, texts, keys, split, number, True, delimiter, plain_id),
            others=others,
        )
    for row, has_header in ((first, False), (second, True)):
        pictures = [cell.strip().lower().endswith(ENDINGS) for cell in row]
        if len(first) == len(row) == 2 and sum(pictures) == 1:
            image = pictures.index(True)
            has_header = has_header and not _NO_NAME.search(first[image])
            known = [names[1 - image] if has_header else ""]
            return Columns(
                2, image, [1 - image], known, None, None, has_header, delimiter, guessed=True
            )
    return None


def _layout(first_lines: Sequence[str], delimiters: str) -> Columns | None:
    """Returns the columns of a table with the first delimiter that fits, or None."""
    for delimiter in delimiters:
        try:
            rows = list(csv.reader(first_lines, delimiter=delimiter))
        except csv.Error:
            continue
        layout = columns(rows[0], rows[1] if len(rows) > 1 else [], delimiter) if rows else None
        if layout is not None:
            return layout
    return None


def recognises_csv(path: pathlib.Path) -> bool:
    """Returns whether a file begins like a table with commas or semicolons."""
    lines = text.first_lines(head(path))
    return _layout(lines, "\t") is None and _layout(lines, ";,") is not None


def recognises_tsv(path: pathlib.Path) -> bool:
    """Returns whether a file begins like a table with tabs."""
    return _layout(text.first_lines(head(path)), "\t") is not None


def unknown_columns(path: pathlib.Path) -> str:
    """Returns what is wrong with a table, or JSON lines, whose columns have no known names."""
    return (
        f"{path} must have names of pictures in a column {', '.join(IMAGE_COLUMNS)} and captions "
        f"in a column {', '.join(CAPTION_COLUMNS)}, or caption_1, caption_2 and so on. Received: "
        f"{''.join(text.first_lines(head(path), 1))!r:.120}. Rename its columns."
    )


@reader("csv", recognises_csv)
def read_csv(given: Given) -> list[ImageEntry]:
    """Reads tables whose columns are separated by commas or semicolons.

    A row has an image, a caption, and optionally a split and an id; an image has any number of
    rows. The first row has the names of the columns, in any order. A table of two columns needs no
    names, if one of them has names of picture files; see `columns`. Encodings: UTF-8, UTF-16,
    and Windows-1252. Rows that cannot be used are skipped.

    Raises:
      ValueError: a file has no such columns, or no usable row.
      OSError: a file cannot be read.
    """
    return _read(given, ";,\t")


@reader("tsv", recognises_tsv)
def read_tsv(given: Given) -> list[ImageEntry]:
    """Reads tables whose columns are separated by tabs; all else is as in `read_csv`."""
    return _read(given, "\t;,")


def _read(given: Given, delimiters: str) -> list[ImageEntry]:
    """Reads one or several tables, see `read_csv`; the first delimiter is tried first."""
    images = Rows()
    for path in given.captions:
        encoding = text.encoding_of(path)
        if encoding == "cp1252":
            print(f"note: {path} is not UTF-8; it is read as Windows-1252", flush=True)
        lines = text.lines(path, encoding)
        first = list(itertools.islice(lines, 2 * _MOST_LINES))
        where = _layout([line for line in first if line.strip()][:2], delimiters)
        if where is None:
            raise ValueError(unknown_columns(path))
        if where.has_header and where.guessed:
            names = next(line.strip() for line in first if line.strip())
            print(
                f"note: {path}: the first row has the names of columns: {names!r:.120}", flush=True
            )
        rows = read_rows(itertools.chain(first, lines), where.delimiter)
        _add_rows(given, path, rows, where, images)
    if not len(images):
        raise ValueError(f"{given.captions[0]} must have at least one usable row. Received: none.")
    entries = images.entries()
    if where and where.others and not any(entry.captions for entry in entries):
        raise ValueError(
            f"{path}: the column {where.names[0]!r} is empty in all rows. Remove it, so that the "
            f"captions are those of {where.others[0]!r}."
        )
    return entries


def read_rows(lines: Iterator[str], delimiter: str) -> Iterator[tuple[int, list[str] | str]]:
    """Yields the number of the first line of each row, and its cells or why it has none.

    A line with a quote that does not end is no row. The next row begins in the next line: the
    quote does not join rows up to the next quote.
    """
    waiting: collections.deque[str] = collections.deque()
    start = 1
    while True:
        used: list[str] = []
        table = csv.reader(_taken(waiting, lines, used), delimiter=delimiter, strict=True)
        try:
            cells: list[str] | str = next(table)
        except StopIteration:
            return
        except csv.Error as error:
            cells = f"it is no row of a table: {error}"
            waiting.extendleft(reversed(used[1:]))
            del used[1:]
            if used[0].count('"') % 2 == 0:  # "Stop" sign: what follows the quote belongs to it
                with contextlib.suppress(csv.Error):
                    cells = next(csv.reader(used, delimiter=delimiter))
        yield start, cells
        start += len(used)


def _taken(waiting: collections.deque[str], lines: Iterator[str], used: list[str]) -> Iterator[str]:
    """Yields the lines of one row, the `waiting` ones first, and adds them to `used`."""
    for line in itertools.chain(iter(lambda: waiting.popleft() if waiting else None, None), lines):
        used.append(line)
        yield line
        if len(used) == _MOST_LINES:
            return


def _add_rows(
    given: Given,
    path: pathlib.Path,
    rows: Iterator[tuple[int, list[str] | str]],
    where: Columns,
    images: Rows,
) -> None:
    """Adds the rows of a table to `images`; skips those that cannot be used."""
    joined, needs_header = 0, where.has_header
    for number, cells in rows:
        if not isinstance(cells, str) and not any(cell.strip() for cell in cells):
            continue
        if needs_header:
            needs_header = False
            continue
        try:
            if isinstance(cells, str):
                raise ValueError(cells)
            joined += _add(cells, where, images, given.images)
        except IdsDiffer as error:
            if where.plain_id:
                raise ValueError(f"{path}: line {number}: {error}. {error.remedy}") from None
            given.skip(f"{path}: line {number}", error)
        except ValueError as error:
            given.skip(f"{path}: line {number}", error)
    if joined:
        print(
            f"note: {path}: {joined} captions have the separator of the columns and no quotes; "
            "they were put together again",
            flush=True,
        )


def _add(cells: list[str], where: Columns, images: Rows, folder: pathlib.Path | None) -> bool:
    """Adds a row; returns whether its caption had separators without quotes."""
    while len(cells) > where.width and not cells[-1].strip():
        del cells[-1]
    last = where.width - 1
    joined = len(cells) > where.width and where.captions == [last]
    if joined:
        cells = [*cells[:last], where.delimiter.join(cells[last:])]
    if len(cells) != where.width:
        raise ValueError(
            f"a row must have {where.width} cells. Received: {len(cells)}. Put quotes around "
            "captions that have the separator"
        )
    split = None if where.split is None else cells[where.split].strip()
    number = None if where.id is None else cells[where.id].strip()
    if number is not None and not (number.isdecimal() and len(number) < 20):
        raise ValueError(f"the id must be a whole number. Received: {number!r:.80}")
    texts = [
        captions({name: cells[at].strip()}, [name])
        for name, at in zip(where.names, where.captions, strict=True)
    ]
    images.add(
        file_name(cells[where.image].strip(), folder),
        [one for several in texts for one in several],
        split_name(split) if split else None,
        None if number is None else image_number(int(number)),
    )
    return joined
