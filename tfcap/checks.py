"""Checks of single values. A check is a test and the words that complete "KEY must be ..."."""

import difflib
from collections.abc import Callable, Iterable
from typing import Any

Check = tuple[Callable[[Any], bool], str]

POSITIVE: Check = (lambda value: value > 0), "above 0"
RATE: Check = (lambda value: 0 <= value < 1), "at least 0 and below 1"


def one_of(*names: Any) -> Check:
    """Returns a check that a value is one of `names`."""
    return (lambda value: value in names), f"one of {', '.join(map(str, names))}"


def at_least(low: float) -> Check:
    """Returns a check that a value is a number of at least `low`, or None."""
    return (lambda value: value is None or value >= low), f"at least {low}"


def between(low: float, high: float) -> Check:
    """Returns a check that a value is a number from `low` to `high`."""
    return (lambda value: low <= value <= high), f"from {low} to {high}"


def did_you_mean(received: Any, names: Iterable[str]) -> str:
    """Returns ` Did you mean 'train'?` with the name most similar to `received`, or ""."""
    near = difflib.get_close_matches(str(received), list(names), 1)
    return f" Did you mean {near[0]!r}?" if near else ""
