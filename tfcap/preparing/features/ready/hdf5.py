"""Features in HDF5 files.

* ruotianluo/ImageCaptioning.pytorch: a data set `ID` [R, F] or [14, 14, F] for each image.
* M2 and ExpansionNet: data sets `ID_features` [R, F], `ID_boxes` [R, 4] in pixels, and
  `ID_cls_prob`, which is not read.
* a group `ID` with the arrays of an npz file: `features` or `feat`, `boxes` or `bbox`, and so on.

The vector of a whole image may stand beside them as `ID_image` [F2]. Data sets whose values are in
another file or at another place (links, external storage, virtual data sets) are refused.
"""

import math
import os
import pathlib
from collections.abc import Sequence

import h5py
import numpy as np

from tfcap.preparing.features.ready.layout import DAMAGED, Layout, first_bytes, layout, listed
from tfcap.preparing.features.ready.regions import (
    BOXES,
    COUNTS,
    FEATURES,
    MAX_ARRAY_BYTES,
    SIZES,
    Found,
    found,
)

_GROUP = (*BOXES, *COUNTS, "image", *(name for pair in SIZES for name in pair))
_SIGNATURE = b"\x89HDF\r\n\x1a\n"


class _RefusedError(ValueError):
    """A data set that another copy of the file would have, too; the message has the remedy."""


@layout
class Hdf5(Layout):
    """HDF5 files."""

    title = "HDF5"

    def __init__(self, paths: Sequence[pathlib.Path], cache: str | os.PathLike | None):
        del cache
        self.paths = list(paths)
        self.files = []
        for path in paths:
            try:
                self.files.append(h5py.File(path, "r"))
            except (OSError, RuntimeError) as error:
                raise ValueError(
                    f"{path} must be an HDF5 file that can be opened. Received: {_line(error)}. "
                    f"{DAMAGED}"
                ) from None

    @staticmethod
    def recognises(path: pathlib.Path) -> list[pathlib.Path]:
        files = listed(path, [".h5", ".hdf5", ".hdf", ".he5"])
        return [file for file in files if first_bytes(file, len(_SIGNATURE)) == _SIGNATURE]

    def copies(self, key: str) -> int:
        return len(self._find(key))

    def place(self, key: str, copy: int = 0) -> str:
        number, prefix, name = self._find(key)[copy]
        return f"{self.paths[number]}, {prefix}{name}"

    def example(self) -> str:
        return next((name for file in self.files for name in file), "")

    def about(self) -> str:
        return f"{self.title}, {', '.join(map(str, self.paths))}"

    def read(self, key: str, copy: int = 0) -> Found:
        copies = self._find(key)
        if not copies:
            raise ValueError(f"no data set {key} or {key}_features in {self.about()}")
        number, prefix, name = copies[copy]
        try:
            file = self.files[number]
            known = _GROUP if prefix.endswith("/") else ("boxes", "image") if prefix else ()
            others = [other for other in known if _exists(file, prefix + other)]
            return found({n: _array(file, prefix + n) for n in (name, *others)}, name)
        except _RefusedError as error:
            raise ValueError(f"{self.place(key, copy)}: {error}") from None
        except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{self.place(key, copy)}: {_line(error)}. {DAMAGED}") from None

    def _find(self, key: str) -> list[tuple[int, str, str]]:
        """Returns the files with the features of a key; the data set is called prefix + name."""
        names = [(f"{key}_", "features"), ("", key), *((f"{key}/", name) for name in FEATURES)]
        copies: list[tuple[int, str, str]] = []
        for number, file in enumerate(self.files if key.strip("./") else ()):
            for prefix, name in names:
                if prefix.endswith("/") and copies and copies[-1][0] == number:
                    break  # a file with data sets of an image has no group of it
                try:
                    if _exists(file, prefix + name):
                        copies.append((number, prefix, name))
                except (OSError, RuntimeError, KeyError, TypeError, ValueError):
                    continue  # a damaged entry, or a name that HDF5 does not allow
        return copies


def _exists(file: h5py.File, name: str) -> bool:
    """Returns whether there is a data set, or a link, which `_array` refuses."""
    return _link(file, name) is not None or isinstance(file.get(name), h5py.Dataset)


def _link(file: h5py.File, name: str) -> str | None:
    """Returns the kind of the first soft or external link in a name; None if there is none.

    No link is followed: an external one would open another file.
    """
    path = ""
    for part in filter(None, name.split("/")):
        path += f"/{part}"
        link = file.get(path, getlink=True)
        if link is None:
            return None
        if not isinstance(link, h5py.HardLink):
            return type(link).__name__
    return None


def _array(file: h5py.File, name: str) -> np.ndarray:
    """Reads a data set after its place, type, size and chunks were checked."""
    elsewhere = _link(file, name)
    if elsewhere is None:
        data = file[name]
        elsewhere = "virtual" if data.is_virtual else "external storage" if data.external else None
    if elsewhere is not None:
        raise _RefusedError(
            f"{name} must be a data set with its values in this file. Received: {elsewhere}. Copy "
            "the values into this file."
        )
    sizes = [math.prod(data.shape or (0,)), math.prod(data.chunks or (1,))]
    if data.dtype.kind not in "fiu" or max(sizes) * data.dtype.itemsize > MAX_ARRAY_BYTES:
        raise _RefusedError(
            f"{name} must be numbers of at most {MAX_ARRAY_BYTES} bytes. Received: {data.dtype} "
            f"{list(data.shape or ())}, chunks {data.chunks}. Write it as float32."
        )
    return np.asarray(data[()])


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
