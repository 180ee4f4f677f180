"""Writes captions into files: beside each picture, in its metadata, or a table for all pictures.

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
import logging
import mmap
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TextIO

from tfcap import errors, files, metadata
from tfcap.captioning.results import Caption
from tfcap.visualize import report

# Kinds of files that captions are written into; "embed" writes into the pictures themselves.
BESIDE = ("txt", "xmp", "embed")
TABLES = {"csv": ".csv", "jsonl": ".jsonl", "html": ".html", "kohya": ".json"}  # kind -> ending
KINDS = (*BESIDE, *TABLES)
EXTENSIONS = (".txt", ".caption")  # of a text beside a picture
UNSURE = "unsure: "  # before a doubted caption
_log = logging.getLogger(__name__)
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


def unlike_first(texts: Sequence[str], count: int) -> list[str]:
    """Chooses captions of a picture that share few words.

    The first text is the first that is chosen. Each further one shares fewer words with those
    before it than any that is left: the highest share of equal words among two texts counts.

    Args:
      texts: the texts, best first; equal ones count once.
      count: the largest number of texts to return.
    """
    left = list(dict.fromkeys(texts))
    chosen, left = left[:1], left[1:]
    words = {text: set(text.lower().split()) for text in texts}

    def likeness(text: str) -> float:
        pairs = [(words[text], words[other]) for other in chosen]
        return max(len(a & b) / (len(a | b) or 1) for a, b in pairs)

    while left and len(chosen) < count:
        chosen.append(min(left, key=likeness))
        left.remove(chosen[-1])
    return chosen


def _owners(kind: str, pictures: Sequence[str], path_of: Callable[[str], str]) -> dict[str, str]:
    """Returns the picture that each file belongs to, by the path of the file.

    Args:
      kind: the kind of files, for errors.
      pictures: the paths of the pictures.
      path_of: a function from the path of a picture to that of its file.

    Raises:
      ValueError: two pictures have the same file, or a picture is no local file, such as a URL.
    """
    owners: dict[str, str] = {}
    for picture in pictures:
        if picture == "-" or "://" in picture:
            raise ValueError(
                f"`write={kind}` needs local files, but {picture} is none. Use `write=csv`."
            )
        other = owners.setdefault(path_of(picture), picture)
        if os.path.abspath(other) != os.path.abspath(picture):
            raise ValueError(
                f"`write={kind}` would write the captions of {other} and {picture} into the same "
                "file. Rename one of the two pictures, or write a table with `write=csv`."
            )
    return owners


@contextlib.contextmanager
def _replacing(path: str) -> Iterator[str]:
    """Context that yields the path of a temporary file, which becomes `path` at the end.

    What a killed command leaves has the same name again, so that nothing stays. The name of `path`
    may be as long as names can be.
    """
    name = hashlib.sha256(os.path.basename(path).encode("utf-8", "surrogateescape")).hexdigest()
    temporary = os.path.join(os.path.dirname(path), f".{name[:16]}.part")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        if isinstance(error, OSError):  # it names the temporary file, and none after a failed write
            raise OSError(error.errno, error.strerror, path) from None
        raise


def _stem(picture: str) -> str:
    """Returns the path of a picture without its ending, or that of a directory of frames."""
    return picture.rstrip("/") if os.path.isdir(picture) else os.path.splitext(picture)[0]


class Texts:
    """Writes each caption into a text file beside its picture, such as dog.txt beside dog.jpg.

    A clip can be a directory of frames; the caption of the directory `clip` goes into `clip.txt`.

    Args:
      pictures: the paths of the pictures that will be captioned.
      overwrite: True replaces text files that exist.
      skip_existing: True leaves out pictures that have a text file. A picture whose text file is
        empty or blank is captioned, and the file is replaced.
      extension: the ending of a text file, one of `EXTENSIONS`.

    Attributes:
      count: number of captions written so far.

    Raises:
      ValueError: a text file exists, and both `overwrite` and `skip_existing` are False; two
        pictures would have the same text file; or a picture is no local file, such as a URL.
    """

    def __init__(
        self,
        pictures: Sequence[str],
        overwrite: bool,
        skip_existing: bool,
        extension: str = EXTENSIONS[0],
    ):
        self.count = 0
        self._extension = extension
        owners = _owners("txt", pictures, self._path)
        existing = [] if overwrite else [path for path in owners if os.path.exists(path)]
        if not skip_existing:
            _refuse(existing)
        self._skipped = {owners[path] for path in existing if not _is_blank(path)}

    def has(self, picture: str) -> bool:
        """True if a picture is left out, because it already has a caption in its text file."""
        return picture in self._skipped

    def write(self, caption: Caption, text: str, further: Sequence[str] = ()) -> None:
        """Writes the text file of a picture.

        Args:
          caption: the caption; its `source` is the path of the picture.
          text: the text to write, a result of `Wording.text`; "" for a picture without a caption.
          further: texts of further captions, each for a line of its own.
        """
        assert caption.source
        with _replacing(self._path(caption.source)) as temporary:
            with open(temporary, "w", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in (text, *further))
        self.count += bool(text)

    def finish(self) -> str:
        """Returns words that say where the captions are, for a message to the user."""
        return "texts beside the pictures"

    def _path(self, picture: str) -> str:
        return f"{_stem(picture)}{self._extension}"


class Descriptions:
    """Writes each caption as the description of its picture: into its file, or an XMP file.

    The XMP file of dog.jpg is dog.jpg.xmp, or else dog.xmp if that exists. What else is in such
    files and in pictures stays, and so do the permissions and the times of pictures. A description
    that tfcap did not write is never replaced.

    Args:
      pictures: the paths of the pictures that will be captioned.
      overwrite: True replaces descriptions that tfcap has written. Pictures with other ones are
        left out, and a note counts them.
      skip_existing: True leaves out pictures that have a description.
      embed: True writes into JPEG, PNG and WebP files; False writes XMP files. Where there is a
        description in a picture, programs would no longer show it beside one in an XMP file, so it
        counts for both.
      language: the language of the captions, such as "en" or "pt-BR"; "" for an unknown one.

    Attributes:
      count: number of captions written so far.

    Raises:
      ValueError: a picture has a description, and both `overwrite` and `skip_existing` are False;
        two pictures would have the same XMP file; or a picture is no local file, such as a URL.
    """

    def __init__(
        self,
        pictures: Sequence[str],
        overwrite: bool,
        skip_existing: bool,
        embed: bool,
        language: str = "",
    ):
        self.count = 0
        self._embed = embed
        self._language = language
        _owners("embed" if embed else "xmp", pictures, self._path)
        if embed and (folder := next(filter(os.path.isdir, pictures), None)):
            raise ValueError(
                f"`write=embed` writes into picture files, but {folder} is a directory. Use "
                "`write=xmp`."
            )
        self._paths = {picture: self._path(picture) for picture in pictures}
        existing = {p: found for p in pictures if (found := self._description(p))}
        if not skip_existing and not overwrite:
            _refuse(list(existing), "has a description")
        if overwrite:
            existing = {p: found for p, found in existing.items() if not found.is_ours}
            if existing:
                _log.warning(
                    "note: %d pictures have a description that tfcap did not write, and are left "
                    "out, such as %s",
                    len(existing),
                    errors.escaped(next(iter(existing))),
                )
        self._skipped = set(existing)

    def has(self, picture: str) -> bool:
        """True if a picture is left out, because it already has a description."""
        return picture in self._skipped

    def write(self, caption: Caption, text: str, further: Sequence[str] = ()) -> None:
        """Writes the description of a picture.

        Args:
          caption: the caption; its `source` is the path of the picture.
          text: the text to write, a result of `Wording.text`; "" for a picture without a caption.
          further: is not written, because a picture has one description.

        Raises:
          MetadataError: the picture or the XMP file cannot hold a description, is damaged, or has
            got a description of somebody since the command began.
        """
        picture = caption.source
        assert picture
        path = os.path.realpath(self._paths[picture])
        content, status = b"", None
        if os.path.exists(path):
            with open(path, "rb+") as file:  # fails for a file that is protected
                content, status = file.read(), os.fstat(file.fileno())
        elif self._embed:
            raise metadata.MetadataError("the picture is no longer there")
        found = self._description(picture)
        if found and not found.is_ours:
            raise metadata.MetadataError("it has a description that tfcap did not write")
        if not text and not found:
            return
        change = metadata.with_description if self._embed else metadata.sidecar
        new = change(content, text, self._language)
        with _replacing(path) as temporary:
            with open(temporary, "wb", opener=_private if status else None) as file:
                file.write(new)
                file.flush()
                os.fsync(file.fileno())  # the new file is on the disk before the old one goes
            if status:
                with contextlib.suppress(OSError):  # only root gives files away
                    os.chown(temporary, status.st_uid, status.st_gid)
                (shutil.copystat if self._embed else shutil.copymode)(path, temporary)
                now = os.stat(path)
                if (now.st_mtime_ns, now.st_size) != (status.st_mtime_ns, status.st_size):
                    raise metadata.MetadataError("the file has changed in the meantime")
        self.count += bool(text)

    def finish(self) -> str:
        """Returns words that say where the captions are, for a message to the user."""
        return "descriptions in the pictures" if self._embed else "XMP files beside the pictures"

    def _path(self, picture: str) -> str:
        if self._embed:
            return picture
        path, short = f"{picture.rstrip('/')}.xmp", f"{_stem(picture)}.xmp"
        return short if os.path.exists(short) and not os.path.exists(path) else path

    def _description(self, picture: str) -> metadata.Description | None:
        found = [_description_in(picture, metadata.description)]
        if not self._embed:
            found.append(_description_in(self._paths[picture], metadata.sidecar_description))
        there = [one for one in found if one]
        return min(there, key=lambda one: one.is_ours) if there else None


def _private(path: str, flags: int) -> int:
    """Opens a new file that nobody else can read, as the picture may be private."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _description_in(
    path: str, read: Callable[[bytes], metadata.Description | None]
) -> metadata.Description | None:
    """Reads a description from a file, of which only the metadata is read from the disk.

    Of a file that is not there or not understood, it is None: writing says why.
    """
    with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return read(content)  # type: ignore[arg-type]  # it has what `read` needs of bytes
    return None


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

    def write(self, caption: Caption, text: str, further: Sequence[str] = ()) -> None:
        """Adds a row to the table.

        Args:
          caption: the caption; its `source` and its score go into the row.
          text: the text to write, a result of `Wording.text`; "" for a picture without a caption.
          further: is not written, because a row has one score.
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


class Kohya(Table):
    """Writes captions into the JSON file of kohya's trainers, `{"PATH": {"caption": "TEXT"}}`.

    It has the arguments of `Table`; `path` ends with `.json`. The keys are absolute paths, which
    all versions of the trainers find; a picture that the file already names keeps its key. Tags,
    and captions of other pictures, stay. Several captions of a picture stand on lines of their own:
    with `enable_wildcard` the trainers draw one. Until `finish`, the captions are in the file
    `PATH.part`.
    """

    def __init__(self, path: str, overwrite: bool, skip_existing: bool):
        self._content: dict[str, Any] = {}  # of the file as it was
        if os.path.exists(path) and (overwrite or skip_existing):
            self._content = _kohya_rows(path)
        super().__init__(path, overwrite, skip_existing)

    def write(self, caption: Caption, text: str, further: Sequence[str] = ()) -> None:
        """Adds a picture.

        Args:
          caption: the caption; its `source` is the path of the picture.
          text: the text to write, a result of `Wording.text`; "" for a picture without a caption.
          further: texts of further captions, each for a line of its own.
        """
        super().write(caption, "\n".join((text, *further)))

    def finish(self) -> str:
        """Writes the file, removes `PATH.part`, and returns the path of the file."""
        self._file.close()
        for name, text, *_ in super()._rows(self._part):
            self._content.setdefault(name, {})["caption"] = text
        files.write_json(self.path, self._content, indent=2)
        os.remove(self._part)
        return self.path

    def _name(self, picture: str) -> str:
        path = os.path.abspath(picture)
        name = os.path.basename(path)
        names = (path, picture, super()._name(picture), name, os.path.splitext(name)[0])
        return next((name for name in names if name in self._content), path)

    def _rows(self, path: str) -> Iterator[list[str]]:
        if path != self.path:
            return super()._rows(path)
        captions = ((name, row.get("caption")) for name, row in self._content.items())
        return ([name, text, "0"] for name, text in captions if text and text.strip())


def _kohya_rows(path: str) -> dict[str, Any]:
    """Reads a JSON file of kohya's trainers."""
    content = files.read_json(path, remedy := "Give another file as `out`.")
    rows = content.values() if isinstance(content, dict) else [None]
    if not all(isinstance(r, dict) and isinstance(r.get("caption", ""), str) for r in rows):
        raise ValueError(f"{path} exists and is not a file of captions for kohya. {remedy}")
    return content


class Several:
    """Writes each caption into several outputs at once, such as text files and a table.

    Args:
      outputs: the outputs. A picture is left out only if all of them already have its caption.
    """

    def __init__(self, outputs: Sequence[Texts | Descriptions | Table]):
        self._outputs = outputs

    @property
    def count(self) -> int:
        """The number of captions written so far, in the output with the most captions."""
        return max(output.count for output in self._outputs)

    def has(self, picture: str) -> bool:
        """True if a picture is left out, because all outputs already have a caption of it."""
        return all(output.has(picture) for output in self._outputs)

    def write(self, caption: Caption, text: str, further: Sequence[str] = ()) -> None:
        """Writes a caption into each output that does not yet have a caption of its picture.

        Args:
          caption: the caption; its `source` is the path of the picture.
          text: the text to write, a result of `Wording.text`.
          further: texts of further captions of the picture.
        """
        for output in self._outputs:
            if not output.has(caption.source or "-"):
                output.write(caption, text, further)

    def finish(self) -> str:
        """Completes all outputs; returns words that say where the captions are, for a message."""
        return ", ".join(output.finish() for output in self._outputs)


def open_output(
    kinds: Sequence[str],
    pictures: Sequence[str],
    tables: Sequence[str],
    overwrite: bool,
    skip_existing: bool,
    extension: str = EXTENSIONS[0],
    language: str = "",
) -> Several:
    """Returns an output that writes captions into files. No file is made before the first caption.

    Args:
      kinds: those of `BESIDE` that are written. Other kinds have no effect: `tables` says which
        other files are written.
      pictures: the paths of the pictures that will be captioned.
      tables: the paths of the tables, with the endings of `TABLES`.
      overwrite: True replaces captions that files already have.
      skip_existing: True leaves out a picture whose caption all files already have.
      extension: the ending of a text beside a picture, one of `EXTENSIONS`.
      language: the language of the captions, such as "en", for `xmp` and `embed`.

    Raises:
      ValueError: a file exists, and both `overwrite` and `skip_existing` are False; or `Texts`,
        `Descriptions` or `Table` raises it for another reason.
    """
    outputs: list[Texts | Descriptions | Table] = []
    if "txt" in kinds:
        outputs.append(Texts(pictures, overwrite, skip_existing, extension))
    for kind in ("xmp", "embed"):
        if kind in kinds:
            embed = kind == "embed"
            outputs.append(Descriptions(pictures, overwrite, skip_existing, embed, language))
    for path in tables:
        table = {".html": Page, ".json": Kohya}.get(os.path.splitext(path)[1], Table)
        outputs.append(table(path, overwrite, skip_existing))
    return Several(outputs)


def _is_blank(path: str) -> bool:
    """True if a file has no text; taggers leave such files for pictures without tags."""
    try:
        with open(path, encoding="utf-8-sig", errors="replace") as file:
            return not file.read().strip()
    except OSError:  # a directory, or a file of somebody else
        return False


def _refuse(existing: Sequence[str], verb: str = "exists") -> None:
    if existing:
        more = f", and {len(existing) - 1} more do" if len(existing) > 1 else ""
        raise ValueError(
            f"{existing[0]} {verb}{more}. `skip_existing` captions only the pictures that have no "
            "caption yet, and `overwrite` replaces the captions."
        )
