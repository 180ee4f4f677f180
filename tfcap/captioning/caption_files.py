"""Writes captions into files: a text beside each picture, or a table or page for all pictures.

A text file appears only when it is complete. The rows of a table are written to `TABLE.part`, which
is renamed to `TABLE` at the end; a page is made of its rows at the end. So a killed command loses
nothing, and the next one leaves out the pictures that already have a caption.
"""

import contextlib
import csv
import dataclasses
import functools
import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

from tfcap import errors, files
from tfcap.captioning.results import Caption
from tfcap.visualize import report

KINDS = ("txt", "csv", "jsonl", "html")  # of files that captions are written into
UNSURE = "unsure: "  # before a doubted caption
_COLUMNS = ["image", "caption", "score"]
_CONFIDENCE = "confidence"  # a further column, of calibrated models
# English words after which a phrase goes on; more than the prepositions of `bad_endings`.
_UNFINISHED = frozenset(
    (
        "a an the this that these those his her its their my your our some any each every no "
        "one two three four five six several many other another very "
        "in on at of with without by for from to into onto over under through across along around "
        "behind beside between among near against above below during toward towards upon like "
        "and or but nor as while which who whose where when because before after than "
        "is are was were am be been being has have had does do wearing holding carrying front top"
    ).split()
)


@dataclasses.dataclass(frozen=True)
class Wording:
    """How the text of a caption looks in a file.

    Attributes:
      before: text that is put before the caption.
      after: text that is put after the caption.
      max_characters: the largest length of the text, `before` and `after` included; 0 for no limit.
      sentence: True gives the caption a capital at its start and a full stop at its end.
      min_confidence: a caption with a lower confidence, 0 to 1, becomes an empty text; None for no
        limit.
      unsure: True puts "unsure: " before such a caption instead.
    """

    before: str = ""
    after: str = ""
    max_characters: int = 0
    sentence: bool = False
    min_confidence: float | None = None
    unsure: bool = False

    def of(self, caption: Caption) -> str:
        """Returns the text of a caption; "" for one that is doubted, unless it is marked."""
        if self.doubts(caption) and not self.unsure:
            return ""
        return self._for(caption).text(caption.text, caption.words)

    def first(self, caption: Caption) -> Caption:
        """Returns the best caption of a picture that fits into `max_characters` without a cut.

        It is `caption` itself or one of its alternatives. If none of them fits, it is `caption`.
        """
        captions = (caption, *caption.alternatives)
        fitting = (one for one in captions if one.text and self._for(one).fits(one.text))
        return next(fitting, caption)

    def _for(self, caption: Caption) -> "Wording":
        """Returns the wording of a caption, which is marked if it is doubted."""
        is_marked = self.unsure and self.doubts(caption)
        return dataclasses.replace(self, before=UNSURE + self.before) if is_marked else self

    def doubts(self, caption: Caption) -> bool:
        """True if the confidence in a caption is below `min_confidence`."""
        confidence, least = caption.confidence, self.min_confidence
        return confidence is not None and least is not None and confidence < least

    def text(self, caption: str, words: Sequence[str] | None = None) -> str:
        """Returns a caption as text for a file, with `before` and `after`.

        If the text has more than `max_characters`, words at the end of the caption are left out.
        The rest does not end with an English word that needs another after it, such as "a" or "on".
        If no word can stay, the result is "", without `before` and `after`.

        Args:
          caption: the caption.
          words: its words; None if they are what stands between spaces.
        """
        if not self.fits(caption):
            words = list(caption.split() if words is None else words)
            while words and (not self.fits(caption) or words[-1].lower() in _UNFINISHED):
                caption = caption[: caption.rindex(words.pop())].rstrip()
        return self._around(caption) if caption else ""

    def fits(self, caption: str) -> bool:
        """True if a caption fits into `max_characters` without a cut."""
        return not 0 < self.max_characters < len(self._around(caption))

    def _around(self, caption: str) -> str:
        if self.sentence:
            caption = _sentence(caption)
        return f"{self.before}{caption}{self.after}"


def _sentence(caption: str) -> str:
    """Returns a caption with a capital and a full stop."""
    end = "" if caption.endswith((".", "!", "?", "\u3002")) else "."
    return f"{caption[:1].upper()}{caption[1:]}{end}" if caption else ""


class Texts:
    """Writes each caption into a text file beside its picture, such as dog.txt beside dog.jpg.

    A clip can be a directory of frames; the caption of the directory `clip` goes into `clip.txt`.

    Args:
      pictures: the paths of the pictures that will be captioned.
      overwrite: True replaces text files that exist.
      skip_existing: True leaves out pictures that have a text file. A picture whose text file is
        empty or blank is captioned, and the file is replaced.

    Attributes:
      count: number of captions written so far.

    Raises:
      ValueError: a text file exists, and both `overwrite` and `skip_existing` are False; two
        pictures would have the same text file; or a picture is no local file, such as a URL.
    """

    def __init__(self, pictures: Sequence[str], overwrite: bool, skip_existing: bool):
        self.count = 0
        owners: dict[str, str] = {}
        for picture in pictures:
            if picture == "-" or "://" in picture:
                raise ValueError(
                    f"`write=txt` writes beside each picture, but {picture} is not a local file. "
                    "Use `write=csv`."
                )
            other = owners.setdefault(self._path(picture), picture)
            if os.path.abspath(other) != os.path.abspath(picture):
                raise ValueError(
                    f"`write=txt` would write the captions of {other} and {picture} into the same "
                    "text file. Rename one of the two pictures, or write a table with `write=csv`."
                )
        existing = [] if overwrite else [path for path in owners if os.path.exists(path)]
        if not skip_existing:
            _refuse(existing)
        self._skipped = {owners[path] for path in existing if not _is_blank(path)}

    def has(self, picture: str) -> bool:
        """True if a picture is left out, because it already has a caption in its text file."""
        return picture in self._skipped

    def write(self, caption: Caption, text: str) -> None:
        """Writes the text file of a picture.

        Args:
          caption: the caption; its `source` is the path of the picture.
          text: the text to write, a result of `Wording.text`; "" for a picture without a caption.
        """
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
        self.count += bool(text)

    def finish(self) -> str:
        """Returns words that say where the captions are, for a message to the user."""
        return "texts beside the pictures"

    def _path(self, picture: str) -> str:
        stem = picture.rstrip("/") if os.path.isdir(picture) else os.path.splitext(picture)[0]
        return f"{stem}.txt"


class Table:
    """Writes captions as rows of a table, with the columns image, caption and score.

    Captions of a calibrated model have the further column confidence, which is empty for captions
    that were written without one. The column image holds the path of the picture. It is relative to
    the directory of the table if the picture lies in or below that directory. Until `finish`, the
    rows are in the file `PATH.part`.

    Args:
      path: the path of the table. Its ending sets the format: `.csv` or `.jsonl`.
      overwrite: True replaces a table that exists.
      skip_existing: True keeps the rows of a table that exists, and leaves out pictures that have a
        caption in it.

    Attributes:
      count: number of captions written so far.

    Raises:
      ValueError: the table exists, and both `overwrite` and `skip_existing` are False; or the rows
        to keep cannot be read.
    """

    def __init__(self, path: str, overwrite: bool, skip_existing: bool):
        self.count = 0
        self.path = path
        self._part = f"{path}.part"
        self._directory = os.path.dirname(os.path.abspath(path))
        self._is_csv = path.endswith(".csv")
        existing = [name for name in (self._part, path) if os.path.exists(name)]
        if not overwrite and not skip_existing:
            _refuse(existing)
        self._old = [] if overwrite or not existing else list(self._rows(existing[0]))
        self._written = {row[0] for row in self._old}
        self._columns = _COLUMNS + [_CONFIDENCE] * any(
            len(row) > len(_COLUMNS) for row in self._old
        )

    @functools.cached_property
    def _file(self) -> TextIO:
        """`TABLE.part` with the rows of the table; made for the first new row."""
        files.make_directory(self._directory)
        with files.replacing(self._part) as temporary, self._open(temporary) as file:
            for row in [self._columns, *self._old] if self._is_csv else self._old:
                self._add(file, row)
        return self._open(self._part)

    def has(self, picture: str) -> bool:
        """True if a picture is left out, because the table already has a caption of it."""
        return self._name(picture) in self._written

    def write(self, caption: Caption, text: str) -> None:
        """Adds a row to the table.

        Args:
          caption: the caption; its `source` and its score go into the row.
          text: the text to write, a result of `Wording.text`; "" for a picture without a caption.
        """
        row = [self._name(caption.source or "-"), text, f"{caption.score:.4f}"]
        if caption.confidence is not None:
            row.append(f"{caption.confidence:.4f}")
            if "_file" not in vars(self):
                self._columns = [*_COLUMNS, _CONFIDENCE]
        self._add(self._file, row)
        self._file.flush()
        self.count += bool(text)

    def finish(self) -> str:
        """Completes the table: renames `PATH.part` to `PATH`, and returns the path."""
        self._file.close()
        os.replace(self._part, self.path)
        return self.path

    def _name(self, picture: str) -> str:
        if picture == "-" or "://" in picture:
            return picture
        path = os.path.abspath(picture)
        inside = os.path.commonpath([path, self._directory]) == self._directory
        return os.path.relpath(path, self._directory) if inside else path

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
            writer.writerow([*row, *[""] * (len(self._columns) - len(row))])
        else:
            image, caption, *numbers = row
            names = [*_COLUMNS[2:], _CONFIDENCE]
            values = zip(names, map(float, numbers), strict=False)
            content = {"image": image, "caption": caption, **dict(values)}
            file.write(files.json_text(content) + "\n")

    def _rows(self, path: str) -> Iterator[list[str]]:
        """Yields the rows of a table that have a caption.

        A killed command may leave half a row at the end.
        """
        # A spreadsheet writes a mark at the start, which `utf-8-sig` leaves out.
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            content = file.read()
        end = len(content) if path == self.path else content.rfind("\n") + 1
        lines = io.StringIO(content[:end], newline="\n")
        try:
            yield from _csv_rows(lines) if self._is_csv else _json_rows(lines)
        except (ValueError, csv.Error) as error:
            raise ValueError(
                f"{path} exists and is not a table of captions: {error}. Give another file as "
                "`out`."
            ) from None


def _csv_rows(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yields the rows of a .csv that have a caption."""
    head, *rows = list(csv.reader(lines)) or [_COLUMNS]
    if head not in (_COLUMNS, [*_COLUMNS, _CONFIDENCE]):
        raise ValueError(
            f"the columns of the table must be {', '.join(_COLUMNS)}, not "
            f"{errors.escaped(', '.join(head))[:100]}"
        )
    yield from (row for row in rows if len(row) == len(head) and row[1].strip())


def _json_rows(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yields the rows of a .jsonl that have a caption."""
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            values = [row[key] for key in _COLUMNS]
        except (ValueError, LookupError, TypeError):
            keys = ", ".join(_COLUMNS)
            raise ValueError(
                f"line {number} of the table must be a JSON object with the keys {keys}"
            ) from None
        image, caption, score = values
        if str(caption or "").strip():
            more = row.get(_CONFIDENCE)
            yield [image, caption, str(score), *([] if more is None else [str(more)])]


class Page(Table):
    """Writes an HTML page with small pictures, their captions and their scores.

    It has the arguments of `Table`; `path` ends with `.html`. Pictures without a caption are left
    out. Until `finish` writes the page, the captions are in the file `PATH.part`. If
    `skip_existing` is True, the new page also has the captions of the existing page.
    """

    def finish(self) -> str:
        """Makes the page of the captions, removes `PATH.part`, and returns the path of the page."""
        self._file.close()
        rows = list(super()._rows(self._part))
        name = errors.escaped(os.path.basename(self._directory))
        pictures = [os.path.join(self._directory, row[0]) for row in rows]
        report.write_captions(self.path, rows, pictures, f"Captions of {name}")
        os.remove(self._part)
        return self.path

    def _rows(self, path: str) -> Iterator[list[str]]:
        return report.read_captions(path) if path == self.path else super()._rows(path)


class Several:
    """Writes each caption into several outputs at once, such as text files and a table.

    Args:
      outputs: the outputs. A picture is left out only if all of them already have its caption.
    """

    def __init__(self, outputs: Sequence[Texts | Table]):
        self._outputs = outputs

    @property
    def count(self) -> int:
        """The number of captions written so far, in the output with the most captions."""
        return max(output.count for output in self._outputs)

    def has(self, picture: str) -> bool:
        """True if a picture is left out, because all outputs already have a caption of it."""
        return all(output.has(picture) for output in self._outputs)

    def write(self, caption: Caption, text: str) -> None:
        """Writes a caption into each output that does not yet have a caption of its picture.

        Args:
          caption: the caption; its `source` is the path of the picture.
          text: the text to write, a result of `Wording.text`.
        """
        for output in self._outputs:
            if not output.has(caption.source or "-"):
                output.write(caption, text)

    def finish(self) -> str:
        """Completes all outputs; returns words that say where the captions are, for a message."""
        return ", ".join(output.finish() for output in self._outputs)


def open_output(
    kinds: Sequence[str],
    pictures: Sequence[str],
    tables: Sequence[str],
    overwrite: bool,
    skip_existing: bool,
) -> Several:
    """Returns an output that writes captions into files. No file is made before the first caption.

    Args:
      kinds: if `txt` is among them, a text file is written beside each picture. Other kinds have no
        effect: `tables` says which other files are written.
      pictures: the paths of the pictures that will be captioned.
      tables: the paths of the tables (.csv or .jsonl) and of the page (.html).
      overwrite: True replaces captions that files already have.
      skip_existing: True leaves out a picture whose caption all files already have.

    Raises:
      ValueError: a file exists, and both `overwrite` and `skip_existing` are False; or `Texts` or
        `Table` raises it for another reason.
    """
    outputs: list[Texts | Table] = []
    if "txt" in kinds:
        outputs.append(Texts(pictures, overwrite, skip_existing))
    for path in tables:
        table = Page if path.endswith(".html") else Table
        outputs.append(table(path, overwrite, skip_existing))
    return Several(outputs)


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
            f"{existing[0]}{more}. `skip_existing` captions only the pictures that have no caption "
            "yet, and `overwrite` replaces the captions."
        )
