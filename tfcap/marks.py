"""Marks of annotations whose text does not describe the picture, as in VizWiz-Captions."""

import collections
from collections.abc import Iterable, Mapping
from typing import Any

UNUSABLE = ("is_rejected", "is_precanned")  # spam, and "Quality issues are too severe ..."
_VALUES = {
    **dict.fromkeys(("true", "1", "1.0", "yes"), True),
    **dict.fromkeys(("false", "0", "0.0", "no", "", "none", "nan"), False),
}


def mark_of(annotation: Mapping[str, Any]) -> str:
    """Returns the key that marks the caption of an annotation as unusable; "" if none does.

    VizWiz-Captions has two such keys: `is_rejected` (spam) and `is_precanned` (the standard text of
    annotators for a picture of too bad quality). An annotation is marked if one of them is true. If
    both are true, the result is `is_rejected`.

    Args:
      annotation: the values of the annotation by key. A missing key counts as false.

    Raises:
      ValueError: the value of such a key is neither true nor false.
    """
    for mark in UNUSABLE:
        value = annotation.get(mark)
        is_set = _VALUES.get(str(value).strip().lower())
        if is_set is None:
            raise ValueError(f"the mark {mark!r} must be true or false, not {value!r:.80}")
        if is_set:
            return mark
    return ""


def left_out(marks: Iterable[str]) -> str:
    """Returns a note, as "captions with a mark are left out (3 is_rejected, 1 is_precanned)".

    Args:
      marks: the mark of each caption that is left out, see `mark_of`.
    """
    counts = collections.Counter(marks).items()
    listed = ", ".join(f"{number} {mark}" for mark, number in counts)
    return f"captions with a mark are left out ({listed})"
