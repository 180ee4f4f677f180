"""Reads `results.csv` of Flickr30k, a table with bars between its columns."""

import pathlib
import re

from tfcap.preparing.sources import text
from tfcap.preparing.sources.entry import Given, ImageEntry, caption, file_name, head, reader

_HEADER = ["image_name", "comment_number", "comment"]
# One row of the released file lacks its second bar: `2199200615.jpg| 4   A dog runs ...`.
_WITHOUT_BAR = re.compile(r"([^|]+)\|\s*(\d+)\s+([^|]+)")


def recognises(path: pathlib.Path) -> bool:
    """Returns whether a file begins with the names of the columns."""
    lines = text.first_lines(head(path), 1)
    return bool(lines) and _columns(lines[0]) == _HEADER


@reader("flickr30k", recognises)
def flickr30k(given: Given) -> list[ImageEntry]:
    """Reads `results.csv`: `image_name| comment_number| comment`, a row per caption, no splits.

    A row whose second bar is missing is read as well: the released file has one. Ids are positions
    in the file.

    Raises:
      ValueError: a wrong header, a row that is not as above, a caption number twice, or a name
        outside the directory of images.
      OSError: the file cannot be read.
    """
    path = given.one_file()
    lines = enumerate(text.lines(path, text.encoding_of(path)), 1)
    first = next(lines, (1, ""))[1]
    if _columns(first) != _HEADER:
        raise ValueError(
            f"{path}: line 1: must be {'| '.join(_HEADER)}. Received: {first!r:.80}. Give "
            "results.csv of Flickr30k."
        )
    captions: dict[str, dict[int, str]] = {}
    for number, line in lines:
        if not line.strip():
            continue
        try:
            name, place, sentence = _row(line)
            own = captions.setdefault(file_name(name, given.images), {})
            if place in own:
                raise ValueError(f"must be the only caption {place} of {name}. Received: a second")
            own[place] = caption(sentence)
        except ValueError as error:
            raise ValueError(f"{path}: line {number}: {error}") from None
    if not captions:
        raise ValueError(f"{path} must have at least one caption. Received: none.")
    return [
        ImageEntry(number, name, None, tuple(numbered.values()))
        for number, (name, numbered) in enumerate(captions.items())
    ]


def _columns(line: str) -> list[str]:
    return [part.strip() for part in line.split("|")]


def _row(line: str) -> tuple[str, int, str]:
    """Returns file name, number and text of a caption."""
    parts = line.split("|", 2)
    if len(parts) == 2 and (match := _WITHOUT_BAR.fullmatch(line.strip())):
        parts = list(match.groups())
    name, place, sentence = ([part.strip() for part in parts] + ["", "", ""])[:3]
    if len(parts) != 3 or not (place.isascii() and place.isdecimal() and len(place) < 5):
        raise ValueError(
            f"must be a file name, a number and a caption with bars between. Received: {line!r:.80}"
        )
    return name, int(place), sentence
