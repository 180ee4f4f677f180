"""Refuses keys that a configuration does not have, and names the keys that may be meant."""

import dataclasses
import difflib
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

from official.modeling import hyperparams

_SHOWN = 3  # keys in a hint


def check_keys(params: hyperparams.Config, content: Mapping[str, Any], source: str) -> None:
    """Checks that a configuration has every key of nested groups.

    Args:
      params: the configuration.
      content: values by key, groups as dictionaries.
      source: the flag or file that gave them, for the error.

    Raises:
      ValueError: a key does not exist, a group has a plain value, or a plain key has a group.
    """
    _check(params, content, source, "", params)


def _check(params, content, source, prefix, root):
    for key, value in content.items():
        fields = [field.name for field in dataclasses.fields(params)]
        if key not in fields:
            hint = _hint(str(key), prefix, fields, root)
            shown = reprlib.repr(value)
            raise ValueError(f"{source}: there is no key {prefix}{key} ({shown}); {hint}")
        child = getattr(params, key)
        if dataclasses.is_dataclass(child):
            if not isinstance(value, dict):
                raise ValueError(
                    f"{source}: {prefix}{key} must be a group of keys. Received: "
                    f"{reprlib.repr(value)}. "
                    f"Write {prefix}{key}.<one of {[f.name for f in dataclasses.fields(child)]}>."
                )
            _check(child, value, source, f"{prefix}{key}.", root)
        elif not _is_plain(value):
            raise ValueError(
                f"{source}: {prefix}{key} must be one value or a list of values. Received: "
                f"{reprlib.repr(value)}."
            )


def _is_plain(value: Any) -> bool:
    """Returns whether a value is a number, a text, a boolean, None, or a list of these."""
    items = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(item, str | int | float | None) for item in items)


def _hint(key: str, prefix: str, fields: list[str], root: hyperparams.Config) -> str:
    """Names the whole keys that end with `key`, else similar ones, else the keys of the group."""
    ends: dict[str, list[str]] = {}
    for path in _paths(root):
        ends.setdefault(path.rpartition(".")[2], []).append(path)
    candidates = ends.get(key, [])
    if not candidates and (near := difflib.get_close_matches(key, fields, 1)):
        candidates = [prefix + near[0]]
    if not candidates and (near := difflib.get_close_matches(key, ends, 1, 0.8)):
        candidates = ends[near[0]]
    if candidates:
        return f"did you mean {' or '.join(candidates[:_SHOWN])}?"
    return f"known: {', '.join(fields)}"


def _paths(params: hyperparams.Config, prefix: str = "") -> Iterator[str]:
    """Yields the dotted keys of all groups and values, without the models that are not chosen."""
    chosen = getattr(params, "type", None) if hasattr(params, "get") else None
    for field in dataclasses.fields(params):
        value = getattr(params, field.name)
        is_group = dataclasses.is_dataclass(value)
        if is_group and chosen is not None and field.name != chosen:
            continue
        yield prefix + field.name
        if is_group:
            yield from _paths(value, f"{prefix}{field.name}.")
