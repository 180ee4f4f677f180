"""Prepares the built-in clips."""

import os
import pathlib
from typing import Any

from tfcap.preparing import moving_shapes
from tfcap.preparing.run import prepare
from tfcap.preparing.settings import Settings


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
    overwrite = settings.get("overwrite", False)
    captions = moving_shapes.write(out, train, val, test, seed, overwrite=overwrite)
    given: dict[str, Any] = {
        "name": "moving_shapes",
        "backbone": "pixels",
        "weights": None,
        "frames": moving_shapes.FRAMES[0],
        "images": os.path.join(os.path.dirname(captions), "clips"),
        **{key: value for key, value in settings.items() if value is not None},
        "source": "karpathy",
    }
    return prepare(Settings(captions=captions, out=os.fspath(out), **given))
