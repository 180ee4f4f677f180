"""Reads captions in the layout of Karpathy's splits."""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from tfcap.preparing.sources.entry import SPLITS, ImageEntry

_SPLIT_NAMES = {**{split: split for split in SPLITS}, "restval": "train"}


def karpathy(path: str | os.PathLike) -> list[ImageEntry]:
    """Reads a caption file in the layout of Karpathy's splits (`dataset_coco.json` and the like).

    `{"images": [{"filepath" (optional), "filename", "cocoid" or "imgid" (optional), "split",
    "sentences": [{"raw"}]}]}`. The split `restval` joins `train`, as every paper on COCO has it.
    Ids are `cocoid`, else `imgid`, else the position in the file.

    Args:
      path: the JSON file.

    Returns:
      The images in the order of the file.

    Raises:
      ValueError: not such a file, an unknown split, an id twice, or a file name that leads out of
        the directory of images.
    """
    path = pathlib.Path(path)
    images = _load(path)
    entries, seen = [], {}
    for position, image in enumerate(images):
        try:
            entry = _entry(image, position)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"{path}: image {position} of the list: {reason}") from None
        if entry.id in seen:
            raise ValueError(
                f"{path}: the image id {entry.id} stands twice, at {seen[entry.id]} and {position}"
                " of the list; ids must be unique"
            )
        seen[entry.id] = position
        entries.append(entry)
    return entries


def _load(path: pathlib.Path) -> list[Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"the caption file {path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"the caption file {path} is not valid JSON ({error})") from None
    images = content.get("images") if isinstance(content, dict) else None
    if not isinstance(images, list) or not images:
        raise ValueError(
            f"{path} is not in Karpathy's layout: expected an object with a list 'images' of at"
            f" least one, got {type(content).__name__} with"
            f" {sorted(content)[:5] if isinstance(content, dict) else 'no keys'}"
        )
    return images


def _entry(image: Mapping[str, Any], position: int) -> ImageEntry:
    if not isinstance(image, dict):
        raise ValueError(f"expected an object, got {image!r:.80}")
    split = _SPLIT_NAMES.get(image["split"])
    if split is None:
        raise ValueError(f"unknown split {image['split']!r}, expected {', '.join(_SPLIT_NAMES)}")
    number = image.get("cocoid", image.get("imgid", position))
    # bool is an int in Python; true as an id is a mistake all the same.
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**63:
        raise ValueError(f"the id must be a whole number from 0 to 2^63 - 1, got {number!r}")
    captions = [sentence["raw"] for sentence in image.get("sentences", [])]
    if not all(isinstance(caption, str) for caption in captions):
        raise ValueError(f"a caption ('raw') is not text: {captions!r:.80}")
    return ImageEntry(number, _file_name(image), split, tuple(captions))


def _file_name(image: Mapping[str, Any]) -> str:
    """Folder and name joined, refused if they could name a file outside the image directory."""
    folder, name = image.get("filepath", ""), image["filename"]
    if not isinstance(folder, str) or not isinstance(name, str) or not name:
        raise ValueError(f"the file name must be text, got {folder!r}, {name!r}")
    joined = f"{folder}/{name}" if folder else name
    # Backslashes and drive letters count on Windows, and no honest data set has them.
    parts = pathlib.PurePosixPath(joined.replace("\\", "/")).parts
    drive = bool(parts) and parts[0][1:2] == ":"
    if not parts or parts[0] == "/" or ".." in parts or drive:
        raise ValueError(
            f"the file name {joined!r} leads out of the directory of images; names must be relative"
            " and without '..'"
        )
    if "\0" in joined:
        raise ValueError(f"the file name {joined!r} holds a NUL character")
    return "/".join(parts)
