"""Names the known word that a wrong one may mean."""

import difflib
from collections.abc import Iterable
from typing import Any


def did_you_mean(received: Any, names: Iterable[str]) -> str:
    """Returns ` Did you mean 'train'?` with the name most similar to `received`, or ""."""
    near = difflib.get_close_matches(str(received), list(names), 1)
    return f" Did you mean {near[0]!r}?" if near else ""
