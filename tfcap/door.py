"""Makes the module of a command callable: `tfcap.train` is a module, and `tfcap.train(...)` works.

The names `tfcap.evaluate`, `tfcap.prepare` and `tfcap.train` belong to commands, and Python sets
them to the modules of these commands as soon as one of them is imported. A function of the same
name would be replaced then. So the modules themselves can be called, in any order of imports.
"""

import inspect
import sys
import types
from collections.abc import Callable
from typing import Any


class _CallableModule(types.ModuleType):
    """A module with a function that a call of the module runs."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["_called"](*args, **kwargs)


def make_callable(name: str, function: Callable[..., Any]) -> None:
    """Makes a module callable.

    Args:
      name: its name.
      function: what a call runs; the module gets its signature.
    """
    module = sys.modules[name]
    module.__class__ = _CallableModule
    module.__dict__["_called"] = function
    module.__dict__["__signature__"] = inspect.signature(function)
