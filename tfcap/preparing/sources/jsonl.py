"""Reads files of JSON lines: each line is an object with an image and its captions."""

import json
import pathlib
from typing import Any

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
from tfcap.preparing.sources.fields import caption_keys, captions, find, json_object
from tfcap.preparing.sources.rows import IdsDiffer, Rows
from tfcap.preparing.sources.tables import (
    ID_COLUMNS,
    IMAGE_COLUMNS,
    SPLIT_COLUMNS,
)


def recognises(path: pathlib.Path) -> bool:
    """Returns whether the first line of a file is an object with an image and a caption."""
    lines = text.first_lines(head(path), 1)
    try:
        row = json.loads(lines[0]) if lines else None
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(row, dict)
        and find(row, IMAGE_COLUMNS) is not None
        and bool(caption_keys(row))
        and not {"img_path", "sentences"} <= row.keys()  # of X-modaler
    )


@reader("jsonl", recognises)
def jsonl(given: Given) -> list[ImageEntry]:
    """Reads files with a JSON object a line.

    An object has the keys of the columns of a table: `image` or `path`, `caption` (text) or
    `captions` (a list of texts), optionally `split` and `id`. An image has any number of lines.
    Lines that cannot be used are skipped.

    Raises:
      ValueError: no usable line.
      OSError: a file cannot be read.
    """
    images = Rows()
    for path in given.captions:
        for number, line in enumerate(text.lines(path, text.encoding_of(path)), 1):
            if not line.strip():
                continue
            try:
                _add(json_object(line), images, given.images)
            except IdsDiffer as error:
                if _id_key(json_object(line)) == "id":
                    place = f"{path}: line {number}"
                    raise ValueError(f"{place}: {error}. {error.remedy}") from None
                given.skip(f"{path}: line {number}", error)
            except ValueError as error:
                given.skip(f"{path}: line {number}", error)
    if not len(images):
        raise ValueError(f"{given.captions[0]} must have at least one usable line. Received: none.")
    return images.entries()


def _id_key(row: dict[str, Any]) -> str:
    return next((key for key in ID_COLUMNS if key in row), "id")


def _add(row: dict[str, Any], images: Rows, folder: pathlib.Path | None) -> None:
    name_key = find(row, IMAGE_COLUMNS)
    if name_key is None or not isinstance(row[name_key], str):
        raise ValueError(
            f"a line must have the image's file name under {', '.join(IMAGE_COLUMNS)}. Received: "
            f"{row[name_key] if name_key else sorted(row)!r:.80}"
        )
    number = row.get(_id_key(row))
    split = next((row[key] for key in SPLIT_COLUMNS if row.get(key) is not None), None)
    images.add(
        file_name(row[name_key], folder),
        captions(row, caption_keys(row)),
        None if split is None else split_name(split),
        None if number is None else image_number(number),
    )
