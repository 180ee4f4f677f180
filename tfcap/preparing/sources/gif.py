"""Reads captions of clips from lines of JSON."""

import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from tfcap.preparing.sources import text
from tfcap.preparing.sources.entry import (
    Given,
    ImageEntry,
    file_name,
    head,
    reader,
    split_name,
)
from tfcap.preparing.sources.fields import captions, json_object

_NAMES = ("video", "gif")  # keys of the clip; the first that a line has counts


def recognises(path: pathlib.Path) -> bool:
    """Returns whether the first line is an object with a clip and a caption."""
    lines = text.first_lines(head(path), 1)
    try:
        row = json_object(lines[0]) if lines else {}
    except ValueError:
        return False
    return "caption" in row and _key(row) is not None


@reader("gif", recognises)
def gif(given: Given) -> list[ImageEntry]:
    """Reads lines of `{"video" or "gif": name, "caption": text, "split": name (optional)}`.

    The captions of a clip may stand in any lines, or in one line as a list. The clip is a GIF file
    or a folder of frames below --images; `.gif` may be left out, also in some of its lines. Without
    splits, prepare draws them. A line that cannot be used is skipped and listed.

    Args:
      given: the paths of the files, and the directory of the clips.

    Returns:
      The clips in the order of their first lines; their ids are 0, 1, 2, ...

    Raises:
      ValueError: a file cannot be read, no line is usable, or more lines are skipped than
        --max_skipped allows.
    """
    texts_of: dict[str, list[str]] = {}  # by clip, as `splits` and `files`
    splits: dict[str, str | None] = {}
    files: dict[str, str] = {}
    clips: dict[str, str] = {}  # by name
    for place, line in _lines(given):
        try:
            name, split, texts = _read_line(line, given.images)
            if name not in clips:
                clips[name] = _clip(given.images, name)
            clip = clips[name]
            if splits.setdefault(clip, split) != split:
                raise ValueError(f"the clip {name} must be in one split. Received: a second one")
        except ValueError as error:
            given.skip(place, error)
            continue
        files.setdefault(clip, clip_file(given.images, name))
        texts_of.setdefault(clip, []).extend(texts)
    if not texts_of:
        names = ", ".join(str(path) for path in given.captions)
        raise ValueError(
            f"{names} must have a line with 'video' or 'gif' and 'caption'. Received: no such "
            "line. Give a file with one JSON object per line."
        )
    return [
        ImageEntry(number, files[clip], splits[clip], tuple(texts))
        for number, (clip, texts) in enumerate(texts_of.items())
    ]


def clip_file(images: pathlib.Path | None, name: str) -> str:
    """Returns the name of a clip's file or folder below `images`; `.gif` may be left out of it."""
    # Not `Path.exists`, which raises an error for a name that is too long.
    if images is not None and not os.path.exists(images / name):
        if os.path.exists(images / f"{name}.gif"):
            return f"{name}.gif"
    return name


def _clip(images: pathlib.Path | None, name: str) -> str:
    """Returns what all names of a clip have in common: its file, else the name without `.gif`."""
    file = clip_file(images, name)
    found = images is not None and os.path.exists(images / file)
    return file if found else name.removesuffix(".gif")


def _lines(given: Given) -> Iterator[tuple[str, str]]:
    """Yields the place and the text of each line that is not empty."""
    for path in given.captions:
        try:
            for number, line in enumerate(text.lines(path, text.encoding_of(path)), 1):
                if line.strip():
                    yield f"{path}: line {number}", line
        except OSError as error:
            raise ValueError(
                f"Cannot read {path}: {error.strerror}. Correct the path of --captions."
            ) from None


def _read_line(line: str, images: pathlib.Path | None) -> tuple[str, str | None, tuple[str, ...]]:
    """Returns name, split and captions of a line. Raises ValueError for one that is wrong."""
    row = json_object(line)
    key = _key(row)
    if key is None or "caption" not in row:
        raise ValueError(f"a line must have 'video' or 'gif', and 'caption'. Received: {row!r:.80}")
    split = row.get("split")
    return (
        file_name(row[key], images),
        None if split is None else split_name(split),
        captions(row, ["caption"]),
    )


def _key(content: Mapping[str, Any]) -> str | None:
    return next((name for name in _NAMES if name in content), None)
