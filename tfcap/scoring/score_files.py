"""Keeps matrices of scores on disk, row by row, so that an interrupted command can continue.

Letters: I rows (images), N columns (captions).
"""

import os
from typing import Any

import numpy as np

from tfcap import files
from tfcap.files import map_npy, new_matrix, read_json, replacing, write_json

SETTINGS = "pairs.json"
_REMEDY = "Choose another --output."


class ScoreFiles:
    """Scores float32 [I, N] in .npy files of a directory, or in memory without one.

    A row that is not computed yet is NaN. Files are memory-mapped, so that a matrix may be larger
    than the memory. A new file gets its name when all of its rows hold NaN.

    Args:
      folder: the directory, made if needed; None keeps everything in memory.
      settings: what the scores depend on, as JSON; written beside the scores and compared.
      about: further entries of the same JSON file, which inform readers and are not compared.

    Raises:
      ValueError: the directory holds scores with other settings, or foreign files.
    """

    def __init__(self, folder: str | None, settings: dict[str, Any], about: dict[str, Any]):
        self.folder = folder
        if folder is None:
            return
        files.make_directory(folder)
        path = os.path.join(folder, SETTINGS)
        if os.path.exists(path):
            _check_same(folder, read_json(path, _REMEDY), settings, about)
        elif others := [name for name in os.listdir(folder) if name.endswith(".npy")]:
            raise ValueError(
                f"{folder} must hold no scores without {SETTINGS}, which says what they belong to. "
                f"Received: {sorted(others)[0]}. {_REMEDY}"
            )
        else:
            write_json(path, {**settings, **about})

    def rows(self, name: str, shape: tuple[int, int]) -> np.ndarray:
        """Opens the matrix `name` [I, N]; scores that are not computed yet are NaN.

        A file with fewer rows is extended; of a file with more rows the first I are used.

        Args:
          name: file name without `.npy`.
          shape: (I, N).

        Raises:
          ValueError: the file is damaged.
        """
        if self.folder is None:
            return np.full(shape, np.nan, np.float32)
        path = os.path.join(self.folder, f"{name}.npy")
        known = _open(path) if os.path.exists(path) else None
        if known is not None and len(known) >= shape[0]:
            return known[: shape[0]]
        with replacing(path) as temporary:
            matrix = new_matrix(temporary, np.float32, shape)
            for row in range(shape[0]):  # row by row, to keep no second matrix in memory
                matrix[row] = np.nan if known is None or row >= len(known) else known[row]
            matrix.flush()
            del matrix
        return _open(path)


def _open(path: str) -> np.ndarray:
    """Memory-maps a matrix; the first call refuses a truncated file, which "r+" would extend."""
    map_npy(path, "Delete it and run the command again.")
    return np.lib.format.open_memmap(path, "r+")


def _check_same(folder, known, settings, about):
    if not isinstance(known, dict):
        raise ValueError(
            f"{folder}/{SETTINGS} must hold a JSON object. Received: {type(known).__name__}. "
            "Choose another --output, or delete the directory."
        )
    other = [key for key, value in settings.items() if known.get(key) != value]
    if other:
        was = "; ".join(f"{key} {known.get(key)}" for key in about)
        now = "; ".join(f"{key} {value}" for key, value in about.items())
        raise ValueError(
            f"{folder} holds scores with other settings: {', '.join(other)}. They were for {was}; "
            f"now {now}. Choose another --output, or delete the directory."
        )


def missing(matrix: np.ndarray) -> np.ndarray:
    """Returns the indices, int64, of the rows that still have to be computed."""
    return np.array([i for i, row in enumerate(matrix) if np.isnan(row).any()], np.int64)
