"""Features of all images in one matrix, with a list of their ids, as SCAN has them.

`NAME_ims.npy` [N, R, F] and `NAME_ids.txt`, one id a line (Lee et al., ECCV 2018); `NAME.npy` with
`NAME_ids.txt` or `NAME.txt` works too, and a matrix [N, F] has one region per image. The matrix is
mapped and never read as a whole. The list may have five equal lines per row, one for each
caption. If an id has several rows, its first usable row counts.

Letters: N images, R regions, F feature width.
"""

import os
import pathlib
from collections.abc import Sequence

import numpy as np

from tfcap.preparing.features.ready.layout import (
    Layout,
    counted,
    first_bytes,
    layout,
    listed,
)
from tfcap.preparing.features.ready.regions import MAX_ARRAY_BYTES, Found

_MAGIC = b"\x93NUMPY"
_END = "_ims"
_MOST_BYTES = 1 << 30  # of a list of ids
_CAPTIONS = 5  # lines of a list with a line per caption, for each image


@layout
class Matrix(Layout):
    """Matrices and their lists of ids."""

    title = "ids + matrix"

    def __init__(self, paths: Sequence[pathlib.Path], cache: str | os.PathLike | None):
        del cache
        self.paths = list(paths)
        self.matrices: list[np.ndarray] = []
        self._places: dict[str, list[tuple[int, int]]] = {}  # matrix and row
        for number, path in enumerate(paths):
            self.matrices.append(_mapped(path))
            for row, key in enumerate(_ids(path, len(self.matrices[-1]))):
                self._places.setdefault(key, []).append((number, row))

    @staticmethod
    def recognises(path: pathlib.Path) -> list[pathlib.Path]:
        files = listed(path, [".npy"])
        if path.is_dir():
            files = [file for file in files if file.stem.endswith(_END)] or files[:20]
        return [
            file
            for file in files
            if file.suffix == ".npy" and ids_of(file) and first_bytes(file, 6) == _MAGIC
        ]

    def copies(self, key: str) -> int:
        return len(self._places.get(key, ()))

    def place(self, key: str, copy: int = 0) -> str:
        number, row = self._places[key][copy]
        return f"{self.paths[number]}, row {row} ({key})"

    def example(self) -> str:
        return next(iter(self._places), "")

    def about(self) -> str:
        repeated = sum(map(len, self._places.values())) - len(self._places)
        again = f", {counted(repeated, 'repeated id')}" if repeated else ""
        return f"{self.title}, {', '.join(map(str, self.paths))}{again}"

    def read(self, key: str, copy: int = 0) -> Found:
        if key not in self._places:
            raise ValueError(
                f"no id {key} in {', '.join(str(ids_of(path)) for path in self.paths)}"
            )
        number, row = self._places[key][copy]
        return Found(np.array(self.matrices[number][row]))


def ids_of(path: pathlib.Path) -> pathlib.Path | None:
    """Returns the list of ids that belongs to a matrix, or None."""
    stem = path.stem.removesuffix(_END)
    for name in (f"{stem}_ids.txt", f"{path.stem}_ids.txt", f"{path.stem}.txt"):
        if (file := path.with_name(name)).is_file():
            return file
    return None


def _mapped(path: pathlib.Path) -> np.ndarray:
    """Maps a matrix [N, R, F] or [N, F] into memory.

    Raises:
      ValueError: not an npy file, a damaged one, or of another shape or type.
    """
    try:
        matrix = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # header and pickle errors have no common base
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"{path} is not a usable npy file: {reason}. Copy it again, or write a plain array "
            "with numpy.save."
        ) from None
    row = int(np.prod(matrix.shape[1:], dtype=object)) * matrix.dtype.itemsize
    if matrix.dtype.kind != "f" or matrix.ndim not in (2, 3) or row > MAX_ARRAY_BYTES:
        raise ValueError(
            f"{path} must be floating point [images, regions, width] or [images, width]. Received: "
            f"{matrix.dtype} {list(matrix.shape)}. Give another file with --features."
        )
    return matrix


def _ids(path: pathlib.Path, rows: int) -> list[str]:
    """Returns the id of each row of a matrix.

    Raises:
      ValueError: the list cannot be read, or has another number of ids.
    """
    file = ids_of(path)
    if file is None:
        raise ValueError(
            f"{path} must have a list of ids beside it. Received: no {path.stem}_ids.txt. "
            "Write that file with one id a line, in the order of the rows."
        )
    if file.stat().st_size > _MOST_BYTES:
        raise ValueError(
            f"{file} must have at most {_MOST_BYTES} bytes. Received: {file.stat().st_size}. Give "
            "the list that belongs to the matrix, one id a line."
        )
    try:
        ids = [line.strip() for line in file.read_text("utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{file} is not UTF-8 text at byte {error.start}. Write it again as UTF-8."
        ) from None
    while ids and not ids[-1]:
        ids.pop()
    firsts = ids[::_CAPTIONS]
    # Another list of this length, such as all ids five times, belongs to another matrix.
    if len(ids) == _CAPTIONS * rows and ids == [key for key in firsts for _ in range(_CAPTIONS)]:
        ids = firsts
    if len(ids) != rows:
        raise ValueError(
            f"{file} must have one id for each of the {rows} rows of {path}. Received: {len(ids)}. "
            "Give the list that belongs to the matrix."
        )
    return ids
