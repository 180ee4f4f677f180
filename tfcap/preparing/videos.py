"""Prepares the built-in clips."""

import os
import pathlib
from typing import Any

from tfcap.preparing import moving_shapes
from tfcap.preparing.run import built_in_settings, prepare


def prepare_moving_shapes(
    out: str | os.PathLike,
    *,
    train: int = 2400,
    val: int = 200,
    test: int = 200,
    seed: int = 1,
    **settings: Any,
) -> pathlib.Path | str:
    """Writes the built-in clips into `out` and prepares them there with the backbone `pixels`.

    Args:
      out: directory to write.
      train, val, test, seed: as in `moving_shapes.write`.
      **settings: further fields of `Settings`.

    Returns:
      `out`.
    """
    given: dict[str, Any] = {
        "name": "moving_shapes",
        "backbone": "pixels",
        "seed": seed,
        "frames": moving_shapes.FRAMES[0],
        **{key: value for key, value in settings.items() if value is not None},
    }
    ready = built_in_settings("moving_shapes", "clips", out, given)
    moving_shapes.write(out, train, val, test, seed, overwrite=ready.overwrite)
    return prepare(ready)
