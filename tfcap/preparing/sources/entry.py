"""`Entry`, one image of a data set as its layout states it, and `Source`, the files to read."""

import collections
import dataclasses
import logging
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tfcap.errors import UsageError
from tfcap.images import MOST_BYTES
from tfcap.marks import UNUSABLE, left_out

SPLITS = ("train", "val", "test")
_MOST_CHARACTERS = 1024  # of a file name; base64 of a picture has more
_BAD_ROW = (KeyError, TypeError, ValueError, AttributeError)  # of an object in another layout
_log = logging.getLogger(__name__)
_COCO_NAME = re.compile(r"(?:.*/)?(?:COCO_\w+_)?(\d{12})\.jpg", re.I)


class Content(Protocol):
    """Protocol of a picture inside another file, such as a tar file, for `Entry.content`.

    A class needs `read` and `__hash__`. An object should hold a path and a position, but no open
    file: a data set can have 100,000 pictures, each with its object.
    """

    def __hash__(self) -> int: ...

    def read(self) -> bytes:
        """Returns the bytes of the picture.

        Raises:
          ValueError, OSError: the picture cannot be read. It is then skipped, with this reason.
        """


@dataclasses.dataclass(frozen=True)
class FilePart:
    """A picture that is a range of bytes of a file, for example a member of a tar file.

    It is a `Content`.

    Attributes:
      path: the file.
      offset: position of the first byte.
      length: number of bytes.
    """

    path: str | os.PathLike
    offset: int  # bytes
    length: int  # bytes

    def read(self) -> bytes:
        check_size(self.length)
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            content = file.read(self.length)
        if len(content) < self.length:
            raise ValueError(f"{self.path} ends before the picture does. Copy the file again.")
        return content


def check_size(size: int) -> None:
    """Raises ValueError if a picture file of `size` bytes is too large to read into memory."""
    if size > MOST_BYTES:
        raise ValueError(
            f"the picture file has {size} bytes, but at most {MOST_BYTES} are read; save it smaller"
        )


class Entry(NamedTuple):
    """One image of a data set, with its captions.

    Attributes:
      id: number of the image, unique in the data set; -1 until `Source.entries` numbers the images.
      file_name: path relative to the directory of pictures, with forward slashes and without "..".
      further: the same of further pictures of the image, such as the other views of an X-ray study.
      split: "train", "val", "test" or another name; None if the source has no splits.
      captions: the captions as the file has them; empty if there are none.
      words: the words of each caption. `vocabulary.tokenize` sets them. Until then there are none,
        or with `tokens=given` the words that the file lists.
      content: the picture, if it is inside another file; None if it is a file of its own.
      caption_ids: the id that the source gives each caption; empty if it gives none. The lists of
        the setting `split_ids` may name captions by these ids.
      has_id: whether the source states the id. Otherwise `id` only counts the images, and neither
        files of features nor lists of splits can refer to it.
      stored: the texts that the records get in place of `captions`: the words of each caption with
        spaces between them. None with `tokens=raw`: the records get `captions`.
      id_column: name of the column with the id, even if its value cannot be used as an id; "" if
        there is no such column. Only `Source.entries` uses it; the entries that it returns have "".
      rejected: a mark, such as "is_rejected" (see `tfcap.marks`), for each caption that the source
        marks as unusable. Such captions are not in `captions`. The function `accepted` empties
        `rejected`.
      domain: the group of images in which the image is also scored, such as "out-domain" of nocaps;
        "" if the source gives none.
      mirrored: whether it is a copy of another image whose pictures are read mirrored, left to
        right; its captions fit the mirrored pictures.
    """

    id: int
    file_name: str
    split: str | None
    captions: tuple[str, ...]
    words: tuple[tuple[str, ...], ...] = ()
    content: Content | None = None
    caption_ids: tuple[int, ...] = ()
    has_id: bool = False
    stored: tuple[str, ...] | None = None
    id_column: str = ""
    rejected: tuple[str, ...] = ()
    domain: str = ""
    further: tuple[str, ...] = ()
    mirrored: bool = False

    @property
    def pictures(self) -> tuple[str, ...]:
        """The file names of all pictures of the image."""
        return (self.file_name, *self.further)

    def renamed(self, change: Callable[[str], str]) -> "Entry":
        """Returns a copy with other file names, the results of `change`."""
        return self._replace(
            file_name=change(self.file_name), further=tuple(map(change, self.further))
        )

    @property
    def usable(self) -> bool:
        """Whether prepare uses the image: a training image needs a caption, other images do not."""
        return bool(self.captions) or self.split != "train"

    def without_id(self) -> "Entry":
        """Returns a copy without the id, as if the source stated none."""
        return self._replace(id=-1, has_id=False, id_column="")

    def checked(self, images: pathlib.Path | None = None) -> "Entry":
        """Checks id, captions, words and file name of the entry.

        Args:
          images: the directory of pictures; an absolute file name must be below it.

        Returns:
          A copy whose file name is relative, with forward slashes.

        Raises:
          ValueError: a field has a wrong value.
        """
        if not isinstance(self.id, int) or not (0 if self.has_id else -1) <= self.id < 2**63:
            raise ValueError(f"the id {self.id!r:.80} is not a whole number from 0 to 2^63 - 1")
        for text in (*self.captions, *(word for words in self.words for word in words)):
            _check_text("a caption", text)
        return self.renamed(lambda name: file_name(name, images))


def _check_text(what: str, text: object) -> None:
    """Raises ValueError, which begins with `what`, if a value is not a text in valid UTF-8."""
    if not isinstance(text, str):
        raise ValueError(f"{what} must be text, not {text!r:.80}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} is not valid UTF-8, save it as such: {text!r:.80}") from None


def file_name(text: str, images: pathlib.Path | None = None) -> str:
    """Checks a file name, and returns it with forward slashes and relative to `images`.

    Args:
      text: the file name as the source has it.
      images: the directory of pictures. An absolute name must be below it; with None no absolute
        name is accepted.

    Raises:
      ValueError: the name is empty, too long, not valid UTF-8, or not below `images`.
    """
    if not text:
        raise ValueError("the file name of the picture is empty")
    _check_text("the file name", text)
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(
            f"the file name has {len(text)} characters: {text!r:.40}. If it is the picture itself, "
            "save it to a file and write the name of the file"
        )
    name = text.replace("\\", "/")
    if images is not None and name.startswith("/"):
        folder, base = os.path.split(name)
        real = os.path.join(os.path.realpath(folder), base)  # the picture itself may be a link
        for path, root in ((name, images.absolute()), (real, os.path.realpath(images))):
            if pathlib.PurePosixPath(path).is_relative_to(root):
                name = str(pathlib.PurePosixPath(path).relative_to(root))
                break
    parts = pathlib.PurePosixPath(name).parts
    if not parts or parts[0] == "/" or ".." in parts or parts[0][1:2] == ":" or "\0" in name:
        raise ValueError(
            f"the file {text!r:.200} is not below `images`; write a name relative to that directory"
        )
    return "/".join(parts)


class LeftOut(ValueError):
    """A row that belongs to the data set, but is not meant to be used.

    Such rows are counted by their reason, as in "in other languages than en", and not by
    `max_skipped`.
    """


class SkippedRow(NamedTuple):
    """A row of a caption file that could not be used.

    Attributes:
      location: where the row is, such as `captions.csv: line 7`.
      reason: why it could not be used.
    """

    location: str  # such as `captions.csv: line 7`
    reason: str


@dataclasses.dataclass(frozen=True)
class Source:
    """The caption files to read and how to read them: the argument of every layout.

    Attributes:
      captions: the caption files or their directories, at least one.
      images: directory of the pictures, to which file names are relative; None if it is not given.
        The layouts `imagefolder` and `sidecar` need it, even if it is the same as `captions`.
      seed: random seed, for the layout `iaprtc12`, which may draw the images of val.
      drawn: whether the images will be divided into splits anew, so that the splits of the files do
        not count.
      reads_words: whether to read the words that the file lists for each caption, into
        `Entry.words`.
      most_skipped: how many rows may be skipped at most.
      clips: whether films, such as MP4 files, are read. If False, they are left out.
      columns: which columns of a table have the "image", the "caption", the "split" and the "id":
        the name of the column, or its number from 1 as text. Empty if their names tell it.
      language: the language whose captions are read, as the file names it; "" for all.
      skipped: the rows skipped so far; the methods add to it.
      notes: what is said of rows -> how many there are; `entries` prints and empties it.
      languages: language -> rows read, where a column tells it; `entries` prints and empties it.
    """

    captions: tuple[pathlib.Path, ...]
    images: pathlib.Path | None = None
    seed: int = 1
    drawn: bool = False
    reads_words: bool = False
    most_skipped: float = 100
    clips: bool = False
    columns: Mapping[str, str] = dataclasses.field(default_factory=dict)
    language: str = ""
    skipped: list[SkippedRow] = dataclasses.field(default_factory=list)
    notes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    languages: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def skip(self, location: str, reason: object) -> None:
        """Logs a row that cannot be used, and adds it to `skipped`.

        Args:
          location: where the row is, such as `captions.csv: line 7`.
          reason: why it cannot be used.

        Raises:
          ValueError: with this row, more than `most_skipped` rows are skipped.
        """
        row = SkippedRow(location, " ".join(str(reason).split())[:300])
        self.skipped.append(row)
        _log.warning(f"skipped {row.location}: {row.reason}")
        if len(self.skipped) > self.most_skipped:
            raise ValueError(
                f"{len(self.skipped)} rows cannot be used, but `max_skipped` allows "
                f"{self.most_skipped:.0f}. The last one is {row.location}: {row.reason}. Repair "
                "the rows or raise `max_skipped`."
            )

    def usable(
        self, rows: Iterable[tuple[Any, ...]], parse: Callable[..., Any]
    ) -> Iterator[tuple[str, Any]]:
        """Parses rows; skips those that cannot be parsed.

        Args:
          rows: tuples whose first item is the location, such as `captions.csv: line 7`. The other
            items are the arguments of `parse`.
          parse: a function that parses a row. If it raises an error, the row is skipped, with the
            error as the reason. With `LeftOut` the row is only counted, and a UsageError is raised.

        Yields:
          The location and the result of `parse`, for each row that can be parsed.

        Raises:
          ValueError: more than `most_skipped` rows cannot be parsed.
        """
        for location, *row in rows:
            try:
                value = parse(*row)
            except UsageError:
                raise
            except LeftOut as error:
                self.notes[f"rows are left out: they are {error}"] += 1
            except _BAD_ROW as error:
                reason: object = error
                if isinstance(error, KeyError):
                    reason = f"the row has no {error}{names_in(row[0])}"
                elif not isinstance(error, ValueError):
                    reason = f"the row is not in this layout: {row[0]!r:.80}"
                self.skip(location, reason)
            else:
                yield location, value

    def entries(
        self,
        rows: Iterable[tuple[Any, ...]],
        parse: Callable[..., Entry],
        join: bool = True,
    ) -> list[Entry]:
        """Makes the images from rows; skips rows that cannot be used.

        An image without an id gets its position among the images, from 0, as its id. All images get
        their positions if the column of ids does not have a different whole number for each image.

        Args:
          rows: as for `usable`.
          parse: as for `usable`; it makes an `Entry` of a row.
          join: whether rows with the same pictures are captions of one image. If True, images
            without ids may get them from COCO's file names: if no image has an id, and all names
            are like `COCO_val2014_000000000042.jpg` with different numbers, these numbers become
            the ids.

        Returns:
          The images, in the order of the rows.

        Raises:
          ValueError: no row can be used, or more than `most_skipped` cannot be used.
        """
        images: dict[tuple[str, ...] | int, Entry] = {}
        conflict = ""  # between the ids of an image
        for location, entry in self.usable(rows, lambda *row: parse(*row).checked(self.images)):
            first = images.setdefault(entry.pictures if join else len(images), entry)
            if first is entry:
                continue
            if first.split != entry.split:
                self.skip(location, f"{entry.file_name} is in {first.split} and in {entry.split}")
                continue
            if first.id != entry.id and not conflict:
                conflict = f"{entry.file_name} has {_id_in_words(first)} and {_id_in_words(entry)}"
            images[entry.pictures] = with_captions_of(first, entry)
        left_out = "".join(f" {n} {note}." for note, n in (+self.notes).items())
        self._say_notes()
        if not images:
            why = "".join(f" The first is {r.location}: {r.reason}." for r in self.skipped[:1])
            why += left_out
            raise ValueError(
                f"{self.captions[0]} has no usable row.{why} Correct the rows, or name the layout "
                "with `source`."
            )
        return _numbered(_with_usable_ids(list(images.values()), conflict, join), join)

    def _say_notes(self) -> None:
        """Prints the notes about rows."""
        for note, number in (+self.notes).items():
            _log.info(f"note: {number} {note}")
        if len(self.languages) > 1:
            counts = ", ".join(f"{number} {name}" for name, number in self.languages.items())
            _log.info(f"note: captions are in several languages ({counts}): `language` names one")
        self.notes.clear()
        self.languages.clear()

    def one_file(self) -> pathlib.Path:
        """Returns the caption file, for a layout that has only one.

        Raises:
          ValueError: `captions` has several paths.
        """
        if len(self.captions) != 1:
            raise ValueError(
                "This layout has one caption file, but `captions` names "
                f"{names_of(self.captions)}. Give one of them, or name another layout with "
                "`source`."
            )
        return self.captions[0]


def names_in(row: object) -> str:
    """Returns `; it has: caption, url` for an object, or an empty text."""
    return f"; it has: {', '.join(map(str, row))[:200]}" if isinstance(row, dict) and row else ""


def with_captions_of(first: Entry, other: Entry) -> Entry:
    """Returns a copy of `first` with the captions of both entries, which are of the same image."""
    return first._replace(
        captions=first.captions + other.captions, rejected=first.rejected + other.rejected
    )


def _id_in_words(entry: Entry) -> str:
    return "none" if entry.id < 0 else f"the id {entry.id}"


def _with_usable_ids(entries: list[Entry], conflict: str, all_or_none: bool) -> list[Entry]:
    """Drops all ids if their column does not have one whole number for each image.

    Such a column may hold texts, or ids of captions, persons or studies. A note says so.
    """
    column = next((entry.id_column for entry in entries if entry.id_column), "")
    if not column:
        return entries
    if without := [e for e in entries if e.id < 0 and (e.id_column or all_or_none)]:
        conflict = conflict or f"{without[0].file_name:.80} has no whole number in it"
    conflict = conflict or _same_id(entries)
    if conflict:
        _log.info(
            f"note: the column {column!r} is not used as the id of the pictures, because "
            f"{conflict}; the pictures are numbered"
        )
        entries = [entry.without_id() for entry in entries]
    return [entry._replace(id_column="") for entry in entries]


def _same_id(entries: Iterable[Entry]) -> str:
    """Returns `a.jpg and b.jpg have the same id 7`, or ""."""
    names: dict[int, str] = {}
    for entry in entries:
        if entry.id in names:
            return f"{names[entry.id]} and {entry.file_name} have the same id {entry.id}"
        names[entry.id] = entry.file_name
    return ""


def _numbered(entries: list[Entry], by_name: bool) -> list[Entry]:
    """Numbers entries that have no id, by the numbers of COCO in their names if `by_name`."""
    names = [_COCO_NAME.fullmatch(e.file_name) for e in entries if e.id < 0] if by_name else []
    numbers = {int(match[1]): None for match in names if match}
    if len(numbers) == len(entries):
        pairs = zip(entries, numbers, strict=True)
        return [entry._replace(id=number, has_id=True) for entry, number in pairs]
    return [e if e.id >= 0 else e._replace(id=number) for number, e in enumerate(entries)]


def accepted(entries: list[Entry]) -> list[Entry]:
    """Leaves out images whose captions are all marked as unusable by the source.

    Images stay if they have a split other than train. A message counts the images left out and the
    marked captions.

    Returns:
      The remaining images, with `rejected` empty.

    Raises:
      ValueError: no caption remains.
    """
    marks = [mark for entry in entries for mark in entry.rejected]
    if not marks:
        return entries
    trained = (None, "train")  # images of other splits need no caption
    kept = [e for e in entries if e.captions or not e.rejected or e.split not in trained]
    number = len(entries) - len(kept)
    images = f", and {number} images that have no other caption" if number else ""
    _log.info(f"note: {left_out(marks)}{images}")
    if not any(entry.captions for entry in kept):
        raise ValueError(
            f"All captions are marked as unusable, with {' or '.join(UNUSABLE)}. Remove these keys "
            "or columns to use the captions."
        )
    return [entry._replace(rejected=()) if entry.rejected else entry for entry in kept]


def require_unique(entries: Sequence[Entry], path: object) -> None:
    """Checks that no two images have the same id.

    Args:
      entries: the images.
      path: the caption file, which the error names.

    Raises:
      ValueError: two images have the same id.
    """
    if same := _same_id(entries):
        raise ValueError(
            f"{path}: {same}. Give each image an id of its own, or remove the ids if the layout "
            "does not need them."
        )


def head(path: pathlib.Path, size: int = 1 << 16) -> bytes:
    """Returns the first `size` bytes of a file.

    It returns no bytes for a directory, or for a file that cannot be read.
    """
    try:
        if not path.is_file():  # a pipe would wait for its writer
            return b""
        with open(path, "rb") as file:
            return file.read(size)
    except (OSError, ValueError):
        return b""


def names_of(paths: Iterable[pathlib.Path]) -> str:
    """Returns the names of the first five files, as `a, b, c, d, e and 3 more`."""
    names = [path.name or str(path) for path in paths]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
