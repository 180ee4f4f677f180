"""The captions of one row of a table or one object of JSON, whatever its columns are called."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from tfcap.preparing.sources.entry import caption

LISTS = ("captions", "sentences")  # columns whose cells may be lists
# Names of columns of a table, in lower case; the first that is there counts.
CAPTION_COLUMNS = ("caption", "text", "sentence", "captions", "description", "sentences")
KEYS = tuple(dict.fromkeys((*LISTS, *CAPTION_COLUMNS)))
_NUMBERED = re.compile(r"(?:caption|text|sentence)_?(\d+)")


def caption_keys(names: Iterable[str]) -> list[str]:
    """Returns the columns that hold captions.

    That is the first known name, such as `captions`, `caption` or `text`; else `caption_0`,
    `caption_1` and so on, in the order of their numbers.
    """
    names = list(names)
    for key in KEYS:
        if key in names:
            return [key]
    numbered = {name: match for name in names if (match := _NUMBERED.fullmatch(name))}
    return sorted(numbered, key=lambda name: int(numbered[name][1]))


def with_lists(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row of a table with the JSON lists in the columns `LISTS` decoded.

    An example of such a cell is `["A dog.", "A cat."]`.

    Raises:
      ValueError: such a cell begins with `[` and is not JSON.
    """
    read = dict(row)
    for key in LISTS:
        if isinstance(value := row.get(key), str) and value.lstrip().startswith("["):
            try:
                read[key] = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise ValueError(
                    f"{key!r} begins with '[', so it must be a JSON list of texts: {error}"
                ) from None
    return read


def captions(row: Mapping[str, Any], keys: Iterable[str]) -> tuple[str, ...]:
    """Returns the captions of a row; each column has a text, a list of texts, or None.

    Raises:
      ValueError: a value of another type.
    """
    texts = []
    for key in keys:
        value = row.get(key)
        values = [] if value is None else value if isinstance(value, list) else [value]
        texts += [caption(one, key) for one in values]
    return tuple(one for one in texts if one.strip())


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
