"""Reads caption files in the layout of BLIP and LAVIS."""

import pathlib
import re
from typing import Any

from tfcap.files import read_json
from tfcap.preparing.sources.entry import Given, ImageEntry, file_name, head, reader
from tfcap.preparing.sources.fields import captions
from tfcap.preparing.sources.rows import Rows
from tfcap.preparing.sources.split_lists import split_of


def recognises(path: pathlib.Path) -> bool:
    """Returns whether a file begins like a list of objects with `image` and `caption`."""
    content = head(path)
    start = re.match(rb'(\xef\xbb\xbf)?\s*\[\s*{\s*"', content)
    return bool(start) and b'"image"' in content and b'"caption"' in content


@reader("blip", recognises)
def blip(given: Given) -> list[ImageEntry]:
    """Reads files in the layout of BLIP: a file per split, named `coco_karpathy_train.json`.

    A file is a list of `{"image", "caption"}`. In training files `caption` is a text, and an image
    has several rows; in others it is a list of texts. `image` is relative to --images. The file
    names tell the splits. Ids are those that COCO's file names have, else positions: the
    `image_id` of these files is no COCO id.

    Args:
      given: the paths of the JSON files.

    Raises:
      ValueError: not such a file, or only some file names tell a split.
    """
    images = Rows()
    splits = [split_of(path.stem) for path in given.captions]
    if None in splits and any(splits):
        unknown = given.captions[splits.index(None)]
        raise ValueError(
            "Either all file names or none must have their split (train, val or test). Received: "
            f"{unknown.name}, without a split. Rename it."
        )
    for path, split in zip(given.captions, splits, strict=True):
        rows = read_json(path, "Give a caption file in BLIP's layout with --captions.")
        if not isinstance(rows, list) or not rows:
            raise ValueError(
                f"{path} must be in BLIP's layout, a list of objects with 'image' and 'caption'. "
                f"Received: {type(rows).__name__} {str(rows)[:60]}."
            )
        for position, row in enumerate(rows):
            try:
                _add(row, split, images, given.images)
            except ValueError as error:
                raise ValueError(
                    f"{path}: entry {position} of the list: {error}. Correct the file."
                ) from None
    return images.entries()


def _add(row: Any, split: str | None, images: Rows, folder: pathlib.Path | None) -> None:
    if not isinstance(row, dict) or "image" not in row:
        raise ValueError(f"it must be an object with 'image'. Received: {row!r:.80}")
    images.add(file_name(row["image"], folder), captions(row, ["caption"]), split)
