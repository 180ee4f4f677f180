"""Reads captions of clips from lines of JSON."""

import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from tfcap.preparing.sources.entry import (
    Given,
    ImageEntry,
    caption,
    file_name,
    head,
    reader,
    split_name,
)

_NAMES = ("video", "gif")  # keys of the clip; the first that a line has counts
_LONGEST_LINE = 1 << 20  # bytes


def recognises(path: pathlib.Path) -> bool:
    """Returns whether the first line is an object with a clip and a caption."""
    line = head(path).removeprefix(b"\xef\xbb\xbf").lstrip().partition(b"\n")[0]
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and "caption" in content and _key(content) is not None


@reader("gif", recognises)
def gif(given: Given) -> list[ImageEntry]:
    """Reads lines of `{"video" or "gif": name, "caption": text, "split": name (optional)}`.

    The captions of a clip may stand in any lines, or in one line as a list. The clip is a GIF file
    or a folder of frames below --images; `.gif` may be left out. Without splits, prepare draws
    them. A line that cannot be used is skipped and listed.

    Args:
      given: the paths of the files, and the directory of the clips.

    Returns:
      The clips in the order of their first lines; their ids are 0, 1, 2, ...

    Raises:
      ValueError: a file cannot be read, no line is usable, or more lines are skipped than
        --max_skipped allows.
    """
    captions: dict[str, list[str]] = {}
    splits: dict[str, str | None] = {}
    for place, line in _lines(given):
        try:
            name, split, texts = _read_line(line)
            if splits.setdefault(name, split) != split:
                raise ValueError(f"the clip {name} must be in one split. Received: a second one")
        except ValueError as error:
            given.skip(place, error)
            continue
        captions.setdefault(name, []).extend(texts)
    if not captions:
        names = ", ".join(str(path) for path in given.captions)
        raise ValueError(
            f"{names} must have a line with 'video' or 'gif' and 'caption'. Received: no such "
            "line. Give a file with one JSON object per line."
        )
    return [
        ImageEntry(number, clip_file(given.images, name), splits[name], tuple(texts))
        for number, (name, texts) in enumerate(captions.items())
    ]


def clip_file(images: pathlib.Path | None, name: str) -> str:
    """Returns the name of a clip's file or folder below `images`; `.gif` may be left out of it."""
    if images is not None and not (images / name).exists():
        if (images / f"{name}.gif").exists():
            return f"{name}.gif"
    return name


def _lines(given: Given) -> Iterator[tuple[str, bytes]]:
    """Yields the place and the bytes of each line that is not empty."""
    for path in given.captions:
        try:
            with open(path, "rb") as file:
                number = 0
                while line := file.readline(_LONGEST_LINE + 1):
                    number += 1
                    if len(line) > _LONGEST_LINE:
                        raise ValueError(
                            f"{path}: line {number}: a line must have at most {_LONGEST_LINE} "
                            "bytes. Received: more. Give a file with one JSON object per line."
                        )
                    if number == 1:
                        line = line.removeprefix(b"\xef\xbb\xbf")
                    if line.strip():
                        yield f"{path}: line {number}", line
        except OSError as error:
            raise ValueError(
                f"Cannot read {path}: {error.strerror}. Correct the path of --captions."
            ) from None


def _read_line(line: bytes) -> tuple[str, str | None, list[str]]:
    """Returns name, split and captions of a line. Raises ValueError for one that is wrong."""
    try:
        content = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise ValueError("the line must be UTF-8") from None
    except RecursionError:
        raise ValueError("the line must be a JSON object. Received: too many brackets") from None
    except ValueError as error:
        raise ValueError(f"the line must be a JSON object ({error})") from None
    key = _key(content) if isinstance(content, dict) else None
    if key is None or "caption" not in content:
        raise ValueError(
            "the line must be an object with 'video' or 'gif', and 'caption'. Received: "
            f"{content!r:.80}"
        )
    texts = content["caption"]
    texts = texts if isinstance(texts, list) else [texts]
    split = content.get("split")
    return (
        file_name(content[key]),
        None if split is None else split_name(split),
        [caption(text) for text in texts],
    )


def _key(content: Mapping[str, Any]) -> str | None:
    return next((name for name in _NAMES if name in content), None)
