"""Chooses the engine that calls a function for each shard."""

import functools
import importlib.util
from collections.abc import Sequence

from tfcap import errors
from tfcap.preparing.engines import Engine, in_processes, inline


def choose(name: str, workers: int, options: Sequence[str], fork: bool = False) -> Engine:
    """Returns the engine of a name.

    Args:
      name: one of `engines.ENGINES`.
      workers: number of processes of "local"; one works in this process.
      options: options of Apache Beam for "beam".
      fork: whether the processes of "local" are copies of this one, see `engines.in_processes`.

    Raises:
      UsageError: Beam is not installed, or cannot read its options.
    """
    if name == "local":
        return functools.partial(in_processes, workers, fork=fork) if workers > 1 else inline
    if importlib.util.find_spec("apache_beam") is None:
        raise errors.UsageError("`engine=beam` needs Apache Beam. Run: pip install 'tfcap[beam]'")
    from tfcap.preparing import beam

    return beam.engine(options)
