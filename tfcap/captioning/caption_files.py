"""Writes captions into files: a text file beside each picture, or one table for all pictures.

A text file appears only when it is complete. The rows of a table are written to `TABLE.part`, which
is renamed to `TABLE` at the end. So a killed command loses nothing, and the next one leaves out the
pictures that already have a caption.
"""

import contextlib
import csv
import hashlib
import io
import json
import os
import textwrap
from collections.abc import Iterator, Sequence
from typing import TextIO

from tfcap import files
from tfcap.captioning.captioner import Caption

_COLUMNS = ["image", "caption", "score"]


def shorten(caption: str, before: str = "", after: str = "", max_characters: int = 0) -> str:
    """Returns `before` + caption + `after` with at most `max_characters`; 0 is no limit.

    If the caption is cut, it is cut after a word.
    """
    if max_characters:
        room = max_characters - len(before) - len(after)
        caption = textwrap.shorten(caption, room, placeholder="")
    return before + caption + after


class Texts:
    """A text file beside each picture: `dog.txt` for `dog.jpg`, `clip.txt` for the folder `clip`.

    Args:
      pictures: the paths that will be captioned.
      overwrite: whether existing texts are replaced.
      skip_existing: whether pictures that have a text are left out; an empty text is none. If both
        options are False, an existing text is an error.

    Attributes:
      count: number of captions that were written.
    """

    def __init__(self, pictures: Sequence[str], overwrite: bool, skip_existing: bool):
        self.count = 0
        owners: dict[str, str] = {}
        for picture in pictures:
            if picture == "-" or "://" in picture:
                raise ValueError(f"--write=txt cannot write beside {picture}. Use --write=csv.")
            other = owners.setdefault(self._path(picture), picture)
            if os.path.abspath(other) != os.path.abspath(picture):
                raise ValueError(
                    f"{other} and {picture} would share a text. Rename a picture, or write a table "
                    "with --write=csv."
                )
        existing = [] if overwrite else [path for path in owners if os.path.exists(path)]
        if not skip_existing:
            _refuse(existing)
        self._skipped = {owners[path] for path in existing if not _is_blank(path)}

    def has(self, picture: str) -> bool:
        """True if a picture has a text already and is left out."""
        return picture in self._skipped

    def write(self, caption: Caption, text: str) -> None:
        """Writes `text`, the caption after `shorten`."""
        assert caption.source
        path = self._path(caption.source)
        # What a killed command leaves has the same name again, so that nothing stays. The name of
        # the picture may be as long as names can be.
        name = hashlib.sha256(os.path.basename(path).encode("utf-8", "surrogateescape")).hexdigest()
        temporary = os.path.join(os.path.dirname(path), f".{name[:16]}.part")
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(f"{text}\n")
            os.replace(temporary, path)
        except OSError as error:  # it names the temporary file, and none after a failed write
            with contextlib.suppress(OSError):
                os.remove(temporary)
            raise OSError(error.errno, error.strerror, path) from None
        self.count += 1

    def finish(self) -> str:
        """Returns where the captions are."""
        return "texts beside the pictures"

    def _path(self, picture: str) -> str:
        folder = os.path.isdir(picture)
        return f"{picture.rstrip('/') if folder else os.path.splitext(picture)[0]}.txt"


class Table:
    """A table with the columns image, caption and score, as `.csv` or as `.jsonl`.

    The names of pictures below the folder of the table are relative to it.

    Args:
      path: the table.
      overwrite, skip_existing, count: as for `Texts`.
    """

    def __init__(self, path: str, overwrite: bool, skip_existing: bool):
        self.count = 0
        self.path, self._part = path, f"{path}.part"
        self._folder = os.path.dirname(os.path.abspath(path))
        self._is_csv = path.endswith(".csv")
        existing = [name for name in (self._part, path) if os.path.exists(name)]
        if not overwrite and not skip_existing:
            _refuse(existing)
        rows = [] if overwrite or not existing else list(self._rows(existing[0]))
        self._written = {row[0] for row in rows}
        with files.replacing(self._part) as temporary, self._open(temporary) as file:
            for row in [_COLUMNS, *rows] if self._is_csv else rows:
                self._add(file, row)
        self._file = self._open(self._part)

    def has(self, picture: str) -> bool:
        """True if the table has a caption of a picture already."""
        return self._name(picture) in self._written

    def write(self, caption: Caption, text: str) -> None:
        """Adds a row; `text` is the caption after `shorten`."""
        name = self._name(caption.source or "-")
        self._add(self._file, [name, text, f"{caption.score:.4f}"])
        self._file.flush()
        self.count += 1

    def finish(self) -> str:
        """Renames `TABLE.part` to the table, and returns its path."""
        self._file.close()
        os.replace(self._part, self.path)
        return self.path

    def _name(self, picture: str) -> str:
        if picture == "-" or "://" in picture:
            return picture
        path = os.path.abspath(picture)
        inside = os.path.commonpath([path, self._folder]) == self._folder
        return os.path.relpath(path, self._folder) if inside else path

    def _open(self, path: str) -> TextIO:
        # Names of files need not be UTF-8.
        return open(path, "a", encoding="utf-8", errors="surrogateescape", newline="")

    def _add(self, file: TextIO, row: Sequence[str]) -> None:
        if self._is_csv:
            # Python before 3.13 quotes no CR, which `csv.reader` then refuses.
            writer = csv.writer(
                file,
                lineterminator="\n",
                quoting=csv.QUOTE_ALL if "\r" in row[0] else csv.QUOTE_MINIMAL,
            )
            writer.writerow(row)
        else:
            image, caption, score = row
            file.write(
                files.json_text({"image": image, "caption": caption, "score": float(score)}) + "\n"
            )

    def _rows(self, path: str) -> Iterator[list[str]]:
        """Yields the rows of a table that have a caption.

        A killed command may leave half a row at the end.
        """
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            content = file.read()
        end = len(content) if path == self.path else content.rfind("\n") + 1
        lines = io.StringIO(content[:end], newline="\n")
        try:
            if self._is_csv:
                head, *rows = list(csv.reader(lines)) or [_COLUMNS]
                if head != _COLUMNS:
                    raise ValueError(f"its columns are {', '.join(head)}")
                yield from (row for row in rows if len(row) == 3 and row[1].strip())
            else:
                for row in map(json.loads, lines):
                    if str(row["caption"] or "").strip():
                        yield [row["image"], row["caption"], str(row["score"])]
        except (ValueError, LookupError, TypeError, csv.Error) as error:
            raise ValueError(
                f"{path} is no table of this command ({error!r:.100}). Name another one with --out."
            ) from None


Output = Texts | Table


def _is_blank(path: str) -> bool:
    """True if a file has no text; taggers leave such files for pictures without tags."""
    try:
        with open(path, encoding="utf-8-sig", errors="replace") as file:
            return not file.read().strip()
    except OSError:  # a directory, or a file of somebody else
        return False


def _refuse(existing: Sequence[str]) -> None:
    if existing:
        more = f" and {len(existing) - 1} more exist" if len(existing) > 1 else " exists"
        raise ValueError(
            f"{existing[0]}{more}. --skip_existing captions the pictures that have no caption yet, "
            "and --overwrite replaces captions."
        )
