"""Features in the tsv files of VinVL (Zhang et al., CVPR 2021).

A line is a key, a tab, and JSON: `{"num_boxes": n, "features": base64 of float32 [n, 2054]}`. The
last six columns of the features are the box of the region in 0..1, its width and its height. Beside
NAME.tsv there may be NAME.lineidx, a text file with the offset of each line.
"""

import json
import os
import pathlib
import re
from collections.abc import Sequence

import numpy as np

from tfcap.preparing.features.ready.base64_arrays import float32_rows
from tfcap.preparing.features.ready.layout import DAMAGED, Layout, first_bytes, layout, listed
from tfcap.preparing.features.ready.lines import HEAD, LONGEST, Lines
from tfcap.preparing.features.ready.regions import Found

_LINE = re.compile(rb"(?m)^[^\t\r\n]{1,200}\t\s*\{\s*\"(?:num_boxes|features)\"")
_MOST_BOXES = 10_000
_MOST_BYTES = 256 << 20  # of an index: ten million lines


@layout
class VinVL(Layout):
    """Reads features of regions from the tsv files of VinVL."""

    title = "VinVL tsv"

    def __init__(self, paths: Sequence[pathlib.Path], cache: str | os.PathLike | None):
        self.lines = Lines(paths, _key, cache, starts=line_index)

    @staticmethod
    def recognises(path: pathlib.Path) -> list[pathlib.Path]:
        return [file for file in listed(path, [".tsv"]) if _LINE.search(first_bytes(file, HEAD))]

    def copies(self, key: str) -> int:
        return self.lines.copies(key)

    def place(self, key: str, copy: int = 0) -> str:
        return self.lines.place(key, copy)

    def example(self) -> str:
        return self.lines.example()

    def about(self) -> str:
        return f"{self.title}, {self.lines.about()}"

    def read(self, key: str, copy: int = 0) -> Found:
        text = self.lines.read(key, copy).partition(b"\t")[2]
        try:
            content = json.loads(text)
            boxes, features = content["num_boxes"], content["features"]
            if type(boxes) is not int or not 0 < boxes <= _MOST_BOXES:
                raise ValueError(f"num_boxes must be 1 to {_MOST_BOXES}. Received: {boxes!r:.40}.")
            if not isinstance(features, str):
                raise ValueError(f"features must be base64. Received: {features!r:.40}.")
            return Found(float32_rows(features.encode(), boxes, "features"))
        except (KeyError, TypeError, RecursionError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else "not a JSON object"
            raise ValueError(f"{self.place(key, copy)}: {reason}. {DAMAGED}") from None
        except ValueError as error:
            raise ValueError(f"{self.place(key, copy)}: {error} {DAMAGED}") from None


def line_index(path: pathlib.Path) -> np.ndarray | None:
    """Reads the offsets of the lines of a tsv file from its .lineidx.

    Returns:
      int64 [N], or None if there is no index, or if it does not fit the file: then the file
      is read once to find its lines.
    """
    for index in (path.with_suffix(".lineidx"), path.with_name(path.name + ".lineidx")):
        if not index.is_file() or index.stat().st_size > _MOST_BYTES:
            continue
        try:
            starts = np.array(index.read_text("ascii").split(), np.int64)
        except (ValueError, OverflowError):
            starts = np.zeros(0, np.int64)
        if _fits(path, starts):
            return starts
        print(
            f"note: {index} does not fit {path.name}: the file is read to find its lines",
            flush=True,
        )
    return None


def _fits(path: pathlib.Path, starts: np.ndarray) -> bool:
    """Returns whether a line of the file begins at each of the offsets."""
    size = path.stat().st_size
    if not len(starts) or starts[0] != 0 or starts[-1] >= size or (np.diff(starts) <= 0).any():
        return False
    last = int(starts[-1])
    if size - last > LONGEST:
        return False
    with open(path, "rb") as file:
        file.seek(last)
        if b"\n" in file.read(size - last).rstrip(b"\r\n"):
            return False  # the index was cut
        for start in starts[1:].tolist():
            file.seek(start - 1)
            if file.read(1) != b"\n":
                return False
    return True


def _key(head: bytes) -> bytes | None:
    key, tab, _ = head.partition(b"\t")
    return key.strip() if tab else None
