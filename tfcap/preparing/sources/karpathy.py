"""Reads caption files in the layout of Karpathy's splits."""

import os
import pathlib
from collections.abc import Mapping
from typing import Any

from tfcap.files import read_json
from tfcap.preparing.sources.entry import SPLITS, ImageEntry, file_name, reader

_SPLIT_NAMES = {**{split: split for split in SPLITS}, "restval": "train"}


@reader("karpathy")
def karpathy(path: str | os.PathLike) -> list[ImageEntry]:
    """Reads a caption file in the layout of Karpathy's splits (`dataset_coco.json` and the like).

    `{"images": [{"filepath" (optional), "filename", "cocoid" or "imgid" (optional), "split",
    "sentences": [{"raw"}] (optional)}]}`. The split `restval` joins `train`, as in every paper on
    COCO. Ids are `cocoid`, else `imgid`, else the position in the file.

    Args:
      path: the JSON file.

    Returns:
      The images in the order of the file.

    Raises:
      ValueError: not such a file, an unknown split, a repeated id, or a file name outside the
        directory of images.
    """
    path = pathlib.Path(path)
    images = _load(path)
    entries: list[ImageEntry] = []
    seen: dict[int, int] = {}
    for position, image in enumerate(images):
        try:
            entry = _entry(image, position)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"{path}: image {position} of the list: {reason}") from None
        if entry.id in seen:
            raise ValueError(
                f"{path}: image ids must be unique. Received: {entry.id} at {seen[entry.id]} and "
                f"at {position} of the list."
            )
        seen[entry.id] = position
        entries.append(entry)
    return entries


def _load(path: pathlib.Path) -> list[Any]:
    content = read_json(path, "Give a caption file in Karpathy's layout with --captions.")
    images = content.get("images") if isinstance(content, dict) else None
    if not isinstance(images, list) or not images:
        raise ValueError(
            f"{path} must be in Karpathy's layout, an object with a list 'images' of at least one."
            f" Received: {type(content).__name__} with"
            f" {sorted(content)[:5] if isinstance(content, dict) else 'no keys'}."
        )
    return images


def _entry(image: Mapping[str, Any], position: int) -> ImageEntry:
    if not isinstance(image, dict):
        raise ValueError(f"an image must be an object. Received: {image!r:.80}")
    split = _SPLIT_NAMES.get(image["split"])
    if split is None:
        raise ValueError(
            f"the split must be one of {', '.join(_SPLIT_NAMES)}. Received: {image['split']!r}"
        )
    number = image.get("cocoid", image.get("imgid", position))
    # bool is an int in Python, but an id `true` is a mistake.
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**63:
        raise ValueError(f"the id must be a whole number from 0 to 2^63 - 1. Received: {number!r}")
    captions = [sentence["raw"] for sentence in image.get("sentences", [])]
    if not all(isinstance(caption, str) for caption in captions):
        raise ValueError(f"captions ('raw') must be text. Received: {captions!r:.80}")
    return ImageEntry(number, _file_name(image), split, tuple(captions))


def _file_name(image: Mapping[str, Any]) -> str:
    """Returns folder and name joined; refuses names of files outside the image directory."""
    folder, name = image.get("filepath", ""), image["filename"]
    if not isinstance(folder, str) or not isinstance(name, str) or not name:
        raise ValueError(f"the file name must be text. Received: {folder!r}, {name!r}")
    return file_name(f"{folder}/{name}" if folder else name)
