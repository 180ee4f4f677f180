"""Imports a package without the optional packages that it would import, to start faster."""

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def without(*names: str) -> Iterator[None]:
    """Makes imports inside the block act as if the packages `names` were not installed.

    Only for packages that the imported code can do without. A package that was imported before
    stays, and after the block all of them can be imported as usual.

    Args:
      names: names of packages.
    """
    blocked = [name for name in names if name not in sys.modules]
    for name in blocked:
        sys.modules[name] = None  # type: ignore[assignment]  # makes `import name` an ImportError
    try:
        yield
    finally:
        for name in blocked:
            if sys.modules.get(name) is None:
                sys.modules.pop(name, None)
