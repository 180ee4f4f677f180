"""Reads which objects are labelled in each image, from COCO's instances_*.json.

`{"images": [...], "annotations": [{"image_id", "category_id", "segmentation", ...}], "categories":
[{"id", "name"}]}`. The file of train2014 has 333 MB, most of it outlines. The annotations are
decoded one at a time, so that the memory holds the text and the labels only.
"""

import json
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from tfcap.metrics import results

_LARGEST = 1 << 30  # bytes
_SPACE = re.compile(r"[ \t\r\n]*")
_REMEDY = "Give COCO's instances_train2014.json, instances_val2014.json or a file like them."


def labelled_objects(path: str | os.PathLike) -> dict[int, set[str]]:
    """Returns image id -> names of its labelled classes; an empty set for an image without labels.

    Raises:
        ValueError: The file cannot be read, is too large or has another layout.
    """
    names: dict[int, str] = {}
    categories: dict[int, set[int]] = {}
    seen = set()
    for key, position, value in _parts(path):
        place = f"{path}: {key} {position}"
        seen.add(key)
        if position < 0:  # the list begins; it may be empty
            continue
        if key == "images":
            categories.setdefault(results.integer(value, "id", place), set())
        elif key == "annotations":
            image = results.integer(value, "image_id", place)
            categories.setdefault(image, set()).add(results.integer(value, "category_id", place))
        elif key == "categories":
            number = results.integer(value, "id", place)
            if not isinstance(value.get("name"), str):
                raise ValueError(f'{place}: "name" must be text. {_REMEDY}')
            names[number] = value["name"]
    if missing := {"images", "annotations", "categories"} - seen:
        raise ValueError(
            f"{path} must hold the lists images, annotations and categories. Received: no "
            f"{', '.join(sorted(missing))}. {_REMEDY}"
        )
    unknown = {number for numbers in categories.values() for number in numbers} - names.keys()
    if unknown:
        raise ValueError(
            f"{path}: every category_id must be in categories. Received: {min(unknown)}. {_REMEDY}"
        )
    return {image: {names[number] for number in numbers} for image, numbers in categories.items()}


def _parts(path: str | os.PathLike) -> Iterator[tuple[str, int, Any]]:
    """Yields key, position and value of the entries of every list; position -1 begins a list."""
    try:
        size = os.path.getsize(path)
        if size > _LARGEST:
            raise ValueError(f"{path} must have at most {_LARGEST} bytes. Received: {size}.")
        text = pathlib.Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"Cannot read {path}: {error.strerror or error}. {_REMEDY}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text at byte {error.start}. {_REMEDY}") from None
    try:
        yield from _entries(text)
    except (json.JSONDecodeError, RecursionError, IndexError) as error:
        raise ValueError(f"{path} is not a JSON object of lists: {error}. {_REMEDY}") from None


def _entries(text: str) -> Iterator[tuple[str, int, Any]]:
    """Walks over the object; raises JSONDecodeError where the text is not such JSON."""
    decode = json.JSONDecoder().raw_decode
    at = _expect(text, 0, "{")
    while text[at] != "}":
        key, at = decode(text, at)
        at = _expect(text, _skip(text, at), ":")
        if text[at] != "[":
            _, at = decode(text, at)  # such as "info"
        else:
            at, position = _expect(text, at, "["), 0
            yield str(key), -1, None
            while text[at] != "]":
                value, at = decode(text, at)
                yield str(key), position, value
                position += 1
                at = _separator(text, at, "]")
            at += 1
        at = _separator(text, at, "}")


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _expect(text: str, at: int, sign: str) -> int:
    """Returns the place of what follows the sign."""
    at = _skip(text, at)
    if text[at : at + 1] != sign:
        raise json.JSONDecodeError(f"Expecting {sign!r}", text, at)
    return _skip(text, at + 1)


def _separator(text: str, at: int, end: str) -> int:
    """Returns the place of what follows a comma, or that of the closing sign."""
    at = _skip(text, at)
    return at if text[at : at + 1] == end else _expect(text, at, ",")
