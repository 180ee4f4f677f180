"""Says what a file has, for errors about a layout or a key that is not known."""

import contextlib
import json
import pathlib
import tarfile
from collections.abc import Iterable

from tfcap.files import read_json
from tfcap.preparing.sources.entry import head
from tfcap.preparing.sources.names import CAPTIONS, PICTURES
from tfcap.preparing.sources.parquet import parquet_file
from tfcap.preparing.sources.rows import first_row, is_array, web_addresses
from tfcap.preparing.sources.splits import files_of
from tfcap.preparing.sources.tables import beginning, first_lines, table_of

_MOST_KEYS = 12  # that a message names
_DEEPEST = 3  # levels of lists and objects that a message names
_MEMBERS = 20  # of a tar file that are looked at
_WITH_KEYS = ("metadata.*", "*.json*", "*.parquet", "*.tar", "*.csv")  # files in a directory
# Where a layout has its captions, by the value of `source`.
_CAPTIONS = {
    "karpathy": "under 'sentences' of each image, as objects with 'raw'",
    "coco": "in the list 'annotations', as objects with 'image_id' and 'caption'",
    "msrvtt": "in the list 'sentences', as objects with 'video_id' and 'caption'",
    "gif": "under 'caption'",
    "sidecar": "in a text file beside each picture",
}
_LISTS = ("annotations", "sentences")  # of captions


def unknown(path: pathlib.Path) -> str:
    """Returns the text of an error for a caption file whose layout is not known."""
    return (
        f"{path} has no layout that tfcap knows: {contents(path)}. Write a table, or a JSON list "
        f"of objects, with a picture ({PICTURES}) and a caption ({CAPTIONS}). docs/prepare.md "
        f"shows the other layouts.{web_addresses(path)}"
    )


def without_captions(path: pathlib.Path, source: str) -> str:
    """Returns the text of an error for a caption file that has no caption.

    Args:
      path: the file.
      source: the name of its layout, a value of the setting `source`.
    """
    where = _CAPTIONS.get(source, f"under one of the names {CAPTIONS}")
    return (
        f"{path} has no captions: the layout {source} has them {where}, and {contents(path)}. "
        "Rename the key of the captions, or give a vocabulary with `vocab` to do without captions."
    )


def contents(path: pathlib.Path) -> str:
    """Describes in words which keys or columns a file has, for an error.

    If `path` is a directory, the first file in it that has keys or columns is described.
    """
    if path.is_dir():
        files = [file for pattern in _WITH_KEYS for file, _ in files_of([path], pattern)]
        return contents(files[0]) if files else f"{path.name} has no table of captions"
    if head(path, 4) == b"PAR1":
        with parquet_file(path) as file:
            return f"{path.name} has the columns {_listed(file.schema_arrow.names)}"
    if head(path) and tarfile.is_tarfile(path):
        return _members(path)
    lines = first_lines(path)
    if (row := first_row(path)) and len(lines) > 1 and not is_array(path):
        return f"{path.name} has lines with {_listed(row)}"
    if path.suffix.lower() == ".json" or beginning(path).lstrip()[:1] in ("{", "["):
        return f"it is {_shape(read_json(path, 'Correct or copy it again.'))}"
    if table := table_of(path):
        return f"{path.name} has the columns {_listed(table.names)}"
    is_text = bool(lines) and "\ufffd" not in lines[0] and "\0" not in lines[0]
    return f"its first line is {lines[0]!r:.100}" if is_text else "it has no line of text"


def _shape(value: object, depth: int = 0) -> str:
    """Says what a JSON value is: its keys, and those of the first list or object in it."""
    if isinstance(value, dict) and value:
        text = f"an object with {_listed(value)}"
        inner = [key for key, item in value.items() if isinstance(item, dict | list) and item]
        # Lists of objects say more than the object `info` at the beginning of many files.
        inner.sort(key=lambda key: (not _has_objects(value[key]), key not in _LISTS))
        if inner and depth < _DEEPEST:
            text += f"; {inner[0]!r:.40} is {_shape(value[inner[0]], depth + 1)}"
        return text
    if isinstance(value, list) and value:
        return f"a list that begins with {_shape(value[0], depth + 1)}"
    kinds = {dict: "an empty object", list: "an empty list", str: "a text", bool: "a truth value"}
    return kinds.get(type(value), "a number" if isinstance(value, int | float) else "null")


def _has_objects(value: object) -> bool:
    return isinstance(value, list) and isinstance(value[0], dict)


def _members(path: pathlib.Path) -> str:
    """Says what the first members of a tar file are, and the keys of the first JSON file."""
    names: list[str] = []
    with tarfile.open(path) as tar:
        for member in tar:
            if len(names) >= _MEMBERS:
                break
            names.append(member.name)
            if member.name.endswith(".json") and (file := tar.extractfile(member)):
                with contextlib.suppress(ValueError):
                    return f"{member.name} in {path.name} is {_shape(json.loads(file.read()))}"
    return f"{path.name} has the members {_listed(names)}"


def _listed(names: Iterable[object]) -> str:
    """Returns the first names of several, each cut."""
    shown = [f"{name!s:.40}" for name in names]
    more = f" and {len(shown) - _MOST_KEYS} more" if len(shown) > _MOST_KEYS else ""
    return ", ".join(shown[:_MOST_KEYS]) + more
