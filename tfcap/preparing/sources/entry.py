"""What readers of captions get and return, and the table of readers."""

import contextlib
import dataclasses
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from tfcap.preparing.sources.content import Content

SPLITS = ("train", "val", "test")
# Names of splits in files and directories of data sets. Every paper on COCO trains on restval.
SPLIT_NAMES = {
    **dict.fromkeys(("train", "training", "restval"), "train"),
    **dict.fromkeys(("val", "valid", "validate", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
LARGEST_ID = 2**63 - 1
_PRINTED = 20  # skipped rows that are printed in full; a table may have millions


class ImageEntry(NamedTuple):
    """One image of a data set.

    Attributes:
      id: number of the image, unique in the data set.
      file_name: path relative to the directory of images, with forward slashes and without "..".
      split: "train", "val", "test" or another plain name; None if the source has no splits.
      captions: raw captions, as the file has them; may be none.
      words: the file's own words of each caption, or None; only read for `--tokens=given`.
      content: gives the bytes of the picture; None if `file_name` is a file below --images.
      caption_ids: the number of each caption in the file, or empty; split lists may name them.
      own_id: whether `id` is a number of the source. Otherwise the reader counted the images, and
        no file of features and no list of a split means this number.
    """

    id: int
    file_name: str
    split: str | None
    captions: tuple[str, ...]
    words: tuple[tuple[str, ...], ...] | None = None
    content: Content | None = None
    caption_ids: tuple[int, ...] = ()
    own_id: bool = False


class SkippedRow(NamedTuple):
    """A row of a caption file that could not be used."""

    place: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Given:
    """What a reader gets: the paths and options of the command.

    Attributes:
      captions: files or directories of --captions, at least one.
      images: directory of the image files, or None.
      split_ids: lists of the splits, which prepare applies to the entries; readers ignore it.
      seed: random seed.
      given_tokens: whether `ImageEntry.words` is needed.
      most_skipped: how many rows `skip` accepts.
      skipped: the rows that `skip` was called for.
    """

    captions: tuple[pathlib.Path, ...]
    images: pathlib.Path | None = None
    split_ids: pathlib.Path | None = None
    seed: int = 1
    given_tokens: bool = False
    most_skipped: float = 100
    skipped: list[SkippedRow] = dataclasses.field(default_factory=list)

    def skip(self, place: str, reason: object) -> None:
        """Counts, lists and prints a row that cannot be used.

        Args:
          place: where it is, for example `captions.csv: line 7`.
          reason: why it cannot be used.

        Raises:
          ValueError: more rows than --max_skipped allows.
        """
        row = SkippedRow(place, " ".join(str(reason).split())[:300])
        self.skipped.append(row)
        if len(self.skipped) <= _PRINTED:
            print(f"skipped {row.place}: {row.reason}", file=sys.stderr, flush=True)
        elif len(self.skipped) == _PRINTED + 1:
            print("further skipped rows are in dataset.json only", file=sys.stderr, flush=True)
        if len(self.skipped) > self.most_skipped:
            raise ValueError(
                f"{len(self.skipped)} rows cannot be used, --max_skipped allows "
                f"{self.most_skipped:.0f}. The last one is {row.place}: {row.reason}. Repair the "
                "rows or raise --max_skipped."
            )

    def one_file(self) -> pathlib.Path:
        """Returns the path of --captions. Raises ValueError if there are several."""
        if len(self.captions) != 1:
            raise ValueError(
                "--captions must be one file in this layout. Received: "
                f"{len(self.captions)} files, {', '.join(path.name for path in self.captions)}. "
                "Give one of them, or name another layout with --source."
            )
        return self.captions[0]


Reader = Callable[[Given], list[ImageEntry]]
Recognises = Callable[[pathlib.Path], bool]
READERS: dict[str, Reader] = {}  # by the name that --source has
RECOGNISERS: dict[str, Recognises] = {}  # the same names, where --source=auto can find the layout


def reader(name: str, recognises: Recognises | None = None) -> Callable[[Reader], Reader]:
    """Returns a decorator that registers a function that reads captions.

    Args:
      name: the value of the flag `--source`.
      recognises: says from the first bytes of a path of --captions whether it has this layout; it
        never raises. Sources without a caption file get the path of --images. None: only
        `--source=NAME` takes this source.

    Raises:
      ValueError: another function has the name.
    """

    def decorate(function: Reader) -> Reader:
        before = READERS.get(name, function)
        if (
            name in ("auto", "shapes", "moving_shapes")
            or before.__qualname__ != function.__qualname__
        ):
            raise ValueError(f"The name of a source must be new. Received: {name!r}.")
        READERS[name] = function
        if recognises is not None:
            RECOGNISERS[name] = recognises
        return function

    return decorate


def head(path: pathlib.Path, size: int = 1 << 16) -> bytes:
    """Returns the first bytes of a file; empty for a directory or a file that cannot be read."""
    try:
        if not path.is_file():  # a pipe would wait for its writer
            return b""
        with open(path, "rb") as file:
            return file.read(size)
    except (OSError, ValueError):
        return b""


def file_name(text: Any, images: pathlib.Path | None = None) -> str:
    """Returns the file name of an image, with forward slashes.

    Args:
      text: the name; an absolute path below `images` becomes relative to it.
      images: the directory of --images, which may have ".." in it, or be a link, or be reached
        through one in `text`.

    Raises:
      ValueError: it is not text, or it leaves the directory of images.
    """
    if not isinstance(text, str) or not text:
        raise ValueError(f"the file name must be text. Received: {text!r:.80}")
    if images is not None and text.startswith("/"):
        with contextlib.suppress(ValueError):  # what is not below --images is refused below
            text = _below(text, str(images.absolute())) or _real(text, images)
    # Backslashes and drive letters have a meaning on Windows; data sets do not need them.
    parts = pathlib.PurePosixPath(text.replace("\\", "/")).parts
    drive = bool(parts) and parts[0][1:2] == ":"
    if not parts or parts[0].startswith("/") or ".." in parts or drive:
        raise ValueError(
            "the file name must be relative and without '..', so that it stays in the directory of"
            f" images. Received: {text!r:.200}"
        )
    if "\0" in text:
        raise ValueError(f"the file name must not have a NUL character. Received: {text!r:.200}")
    return "/".join(_unicode("the file name", part) for part in parts)


def _below(name: str, folder: str) -> str | None:
    path = pathlib.PurePosixPath(name)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else None


def _real(name: str, folder: pathlib.Path) -> str:
    """Compares without links, except that the picture may be one. Returns `name` if not below."""
    place, file = os.path.split(name)
    if file in ("", "..") or ".." in pathlib.PurePosixPath(place).parts:
        return name
    return _below(os.path.join(os.path.realpath(place), file), os.path.realpath(folder)) or name


def caption(text: Any, key: str = "caption") -> str:
    """Returns a caption. Raises ValueError unless it is text that UTF-8 can hold.

    Args:
      text: what the file has.
      key: its name in the file.
    """
    if not isinstance(text, str):
        raise ValueError(f"captions ({key!r}) must be text. Received: {text!r:.80}")
    return _unicode("a caption", text)


def _unicode(what: str, text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{what} must be valid Unicode text. Received: {text!r:.80}") from None
    return text


def split_name(text: Any) -> str:
    """Returns "train", "val" or "test" for the name of a split in a data set.

    Raises:
      ValueError: an unknown name.
    """
    split = SPLIT_NAMES.get(text.strip().lower()) if isinstance(text, str) else None
    if split is None:
        raise ValueError(
            f"the split must be one of {', '.join(SPLIT_NAMES)}. Received: {text!r:.80}. Write "
            "train, val or test"
        )
    return split


def image_number(value: Any, key: str = "id") -> int:
    """Returns the id of an image. Raises ValueError unless it is a whole number from 0."""
    # bool is an int in Python, but an id `true` is a mistake.
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST_ID:
        raise ValueError(
            f"the {key} must be a whole number from 0 to 2^63 - 1. Received: {value!r:.80}"
        )
    return value


def require_unique(entries: Sequence[ImageEntry], path: object) -> None:
    """Raises ValueError if two images have the same id.

    Args:
      entries: the images.
      path: the file for the message.
    """
    places: dict[int, int] = {}
    for place, entry in enumerate(entries):
        before = places.setdefault(entry.id, place)
        if before != place:
            raise ValueError(
                f"{path}: image ids must be unique. Received: {entry.id} at {before} and at "
                f"{place} of the list. Correct the ids, or remove one of the two images."
            )


def names_of(paths: Iterable[pathlib.Path]) -> str:
    """Returns the names of up to five paths, for messages."""
    names = [path.name or str(path) for path in paths]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
