"""Makes a command start faster: fewer imports, and no work that pays off only in long runs."""

import contextlib
import gc
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn


@contextlib.contextmanager
def block_imports(*names: str) -> Iterator[None]:
    """Makes imports inside the block act as if the packages `names` were not installed.

    Use it only for packages that the imported code does not need. A package that was imported
    before stays imported. After the block all of them can be imported as usual.

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


@contextlib.contextmanager
def bare_packages(*names: str) -> Iterator[None]:
    """Makes imports inside the block skip the `__init__` of the packages `names`.

    The `__init__` of such a package imports all of its modules, of which a command needs one or
    two. After the block an import of the package runs its `__init__`.

    Args:
      names: names of installed packages.
    """
    bare = {}
    for name in names:
        spec = importlib.util.find_spec(name) if name not in sys.modules else None
        if spec is not None:
            bare[name] = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        yield
    finally:
        for name, module in bare.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


@contextlib.contextmanager
def building() -> Iterator[None]:
    """Switches the garbage collector off inside the block.

    Building a graph makes millions of objects that stay in memory. The collector would go through
    them again and again and find no garbage.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def unoptimized(wanted: bool) -> Iterator[None]:
    """Runs graphs inside the block without TensorFlow's optimisation of graphs, if `wanted`.

    TensorFlow takes longer to optimize a graph than the optimized graph saves in a few calls.
    """
    import tensorflow as tf

    options = tf.config.optimizer
    before = options.get_experimental_options().get("disable_meta_optimizer", False)
    options.set_experimental_options({"disable_meta_optimizer": wanted or before})
    try:
        yield
    finally:
        options.set_experimental_options({"disable_meta_optimizer": before})


def run_and_end(run: Callable[[], None]) -> NoReturn:
    """Runs a command and ends the process at once, with the exit code of the command.

    Python would first free all objects of the graphs one by one, which takes a second.
    """
    code: object = 0
    try:
        run()
    except SystemExit as end:
        code = end.code or 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)
