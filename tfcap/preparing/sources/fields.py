"""The captions of one row of a table or one object of JSON, whatever its columns are called."""

import ast
import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfcap.preparing.sources.entry import caption

LISTS = ("captions", "sentences")  # columns whose cells are lists where they begin with a bracket
# Names of columns, as `plain` gives them; the first that is there counts. `raw` is that of
# Flickr30k's table on Hugging Face.
CAPTION_COLUMNS = (
    *(*LISTS, "caption", "text", "sentence", "description", "comment", "raw"),
    *("descriptions", "comments", "annotation", "alt_text", "title", "prompt"),
)
_STRING = re.compile(  # of Python, and the space before the next
    r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(\s*(?=['"]))?""", re.S
)


def plain(name: str) -> str:
    """Returns the name of a column in lower case with underscores: `image_name` of `Image Name`."""
    return re.sub(r"[\s.-]+", "_", name.strip().lower())


def find(names: Iterable[str], known: Sequence[str]) -> str | None:
    """Returns the column that has the first known name, or None."""
    by_name = {plain(name): name for name in names}
    return next((by_name[name] for name in known if name in by_name), None)


def caption_keys(names: Iterable[str]) -> list[str]:
    """Returns the columns that hold captions.

    That is the first known name, such as `captions`, `caption` or `text`, and the same name with a
    number, such as `caption_0`, `caption_1` and so on, in the order of their numbers.
    """
    names = list(dict.fromkeys(names))
    for known in CAPTION_COLUMNS:
        matches = {name: re.fullmatch(rf"{known}(?:_?(\d{{1,9}}))?", plain(name)) for name in names}
        found = {name: int(match[1] or -1) for name, match in matches.items() if match}
        if found:
            return sorted(found, key=found.__getitem__)
    return []


def captions(row: Mapping[str, Any], keys: Iterable[str]) -> tuple[str, ...]:
    """Returns the captions of a row; each column has what `texts` reads, or None.

    Raises:
      ValueError: a value of another type, or a list that cannot be read.
    """
    values = ((row[key], key) for key in keys if row.get(key) is not None)
    return tuple(one for value, key in values for one in texts(value, key) if one.strip())


def texts(value: Any, key: str) -> list[str]:
    """Returns the captions that a value of the column `key` holds: a text, or a list of texts.

    A text may hold a list, as JSON, Python or NumPy write it: `['A dog.', 'A cat.']` is two
    captions. In a list, an object has its text under the name of a column of captions.

    Raises:
      ValueError: a value of another type, or a text in a column of `LISTS` that begins with a
        bracket and is no list.
    """
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "("):
        several = _listed(value)
        if several is None and key in LISTS and value.lstrip().startswith("["):
            raise ValueError(f"{key!r} begins with '[', so it must be a list of texts: {value:.80}")
        value = value if several is None else several
    if not isinstance(value, list):
        return [caption(value, key)]
    several = [
        one.get(find(one, CAPTION_COLUMNS) or "") if isinstance(one, dict) else one for one in value
    ]
    return [caption(one, key) for one in several]


def _listed(text: str) -> list[Any] | None:
    """Returns the texts or objects of a list that a text wholly is, or None."""
    # NumPy writes no commas: Python's parser would join `['A dog.' 'A cat.']` to one text.
    commas = _STRING.sub(lambda one: one[1] + ("" if one[2] is None else ", "), text.strip())
    for parse, written in ((json.loads, text), (ast.literal_eval, commas)):
        with contextlib.suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            value = parse(written)
            if isinstance(value, list | tuple) and all(
                isinstance(one, str | dict | None) for one in value
            ):
                return list(value)
    return None


def json_object(text: str) -> dict[str, Any]:
    """Returns the object that a text holds as JSON.

    Raises:
      ValueError: it is no JSON, or no object.
    """
    try:
        row = json.loads(text)
    except RecursionError:
        raise ValueError("it has too many brackets in brackets") from None
    except ValueError as error:
        raise ValueError(f"it must be a JSON object: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"it must be a JSON object. Received: {row!r:.80}")
    return row
