"""The captions of one row of a table or one object of JSON, whatever its columns are called."""

import ast
import contextlib
import io
import json
import re
import token
import tokenize
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
_LIST = re.compile(r"\s*\[\s*['\"{\]]")  # of texts or objects, or an empty one


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
    """Returns the captions of a row; each column has a text, a list of texts, or None.

    A text may hold a list, as JSON, Python or NumPy write it: `['A dog.', 'A cat.']` is two
    captions. In a list, an object has its text under the name of a column of captions.

    Raises:
      ValueError: a value of another type, or a list that cannot be read.
    """
    texts = []
    for key in keys:
        value: Any = row.get(key)
        if isinstance(value, str) and (
            _LIST.match(value) or (key in LISTS and value.lstrip().startswith("["))
        ):
            value = _listed(value, key)
        if isinstance(value, list):
            value = [
                one.get(find(one, CAPTION_COLUMNS) or "") if isinstance(one, dict) else one
                for one in value
            ]
        else:
            value = [] if value is None else [value]
        texts += [caption(one, key) for one in value]
    return tuple(one for one in texts if one.strip())


def _listed(text: str, key: str) -> list[Any]:
    """Returns the list that a text holds."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = error
    with contextlib.suppress(ValueError, SyntaxError, tokenize.TokenError):
        # NumPy writes no commas: Python's parser would join `['A dog.' 'A cat.']` to one text.
        tokens = list(tokenize.generate_tokens(io.StringIO(text.strip()).readline))
        if {one.string.strip() for one in tokens if one.type != token.STRING} <= {*"[],", ""}:
            return [ast.literal_eval(one.string) for one in tokens if one.type == token.STRING]
    raise ValueError(f"{key!r} begins with '[', so it must be a JSON list of texts: {reason}")


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
