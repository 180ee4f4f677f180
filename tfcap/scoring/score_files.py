"""Matrices of scores on disk that grow row by row, so that work that was stopped can go on.

Letters: I rows (images), N columns (sentences).
"""

import os
from typing import Any

import numpy as np

from tfcap.files import read_json, replacing, write_json

SETTINGS = "pairs.json"
_REMEDY = "Choose another --output."


class ScoreFiles:
    """Scores float32 [I, N] in .npy files of a directory, or in memory without one.

    A row that is not computed yet is NaN. Rows are mapped, not read: a matrix may be larger than
    the memory. A file appears under its name when all of its rows exist, as NaN.

    Args:
      folder: the directory, made if needed; None keeps everything in memory.
      settings: what the scores depend on, JSON; written beside them and compared.
      about: written beside them for people.

    Raises:
      ValueError: the directory holds scores that depend on something else, or files of others.
    """

    def __init__(self, folder: str | None, settings: dict[str, Any], about: dict[str, Any]):
        self.folder = folder
        if folder is None:
            return
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, SETTINGS)
        if os.path.exists(path):
            _check_same(folder, read_json(path, _REMEDY), settings, about)
        elif others := [name for name in os.listdir(folder) if name.endswith(".npy")]:
            raise ValueError(
                f"{folder} holds {sorted(others)[0]} but no {SETTINGS}: choose another --output"
            )
        else:
            write_json(path, {**settings, **about})

    def rows(self, name: str, shape: tuple[int, int]) -> np.ndarray:
        """The matrix `name` [I, N], NaN where nothing is known.

        The rows of a file that has fewer are taken over; one of more serves with its first I.

        Args:
          name: file name without `.npy`.
          shape: (I, N).

        Raises:
          ValueError: the file is not such a matrix.
        """
        if self.folder is None:
            return np.full(shape, np.nan, np.float32)
        path = os.path.join(self.folder, f"{name}.npy")
        known = _open(path, shape[1]) if os.path.exists(path) else None
        if known is not None and len(known) >= shape[0]:
            return known[: shape[0]]
        with replacing(path) as temporary:
            matrix = np.lib.format.open_memmap(temporary, "w+", np.float32, shape)
            for row in range(shape[0]):  # by rows: no second matrix in memory
                matrix[row] = np.nan if known is None or row >= len(known) else known[row]
            matrix.flush()
            del matrix
        return _open(path, shape[1])


def _open(path: str, columns: int) -> np.ndarray:
    """Maps a matrix, after its header and its size were checked."""
    try:
        np.lib.format.open_memmap(path, "r")  # refuses a file cut short, which "r+" would lengthen
        matrix = np.lib.format.open_memmap(path, "r+")
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} cannot be used ({reason}): remove it and begin again") from error
    if matrix.dtype != np.float32 or matrix.ndim != 2 or matrix.shape[1] != columns:
        raise ValueError(
            f"{path} must be float32 of {columns} columns. Received: {matrix.dtype} "
            f"{matrix.shape}: remove it and begin again"
        )
    return matrix


def _check_same(folder, known, settings, about):
    if not isinstance(known, dict):
        raise ValueError(f"{folder}/{SETTINGS} is damaged: choose another --output, or remove it")
    other = [key for key, value in settings.items() if known.get(key) != value]
    if other:
        was = "; ".join(f"{key} {known.get(key)}" for key in about)
        now = "; ".join(f"{key} {value}" for key, value in about.items())
        raise ValueError(
            f"{folder} holds scores of another {' and '.join(other)} ({was}) than this ({now}): "
            "choose another --output, or remove it"
        )


def missing(matrix: np.ndarray) -> np.ndarray:
    """The rows, int64, of a matrix of `ScoreFiles.rows` that are still to be computed."""
    return np.array([i for i, row in enumerate(matrix) if np.isnan(row).any()], np.int64)
