"""Features in a folder with one npz or npy file per image.

* JDAI-CV/image-captioning: `ID.npz` with `feat` [R, F].
* MILVLG/bottom-up-attention.pytorch: `ID.npz` with `x` [R, F], `bbox` [R, 4] in pixels,
  `num_bbox`, `image_w` and `image_h`.
* YehLi/xmodaler: `ID.npz` with `features`, `boxes`, `image_w` and `image_h`.
* ruotianluo/ImageCaptioning.pytorch: `NAME_att/ID.npz` with `feat` or `z` [R, F] or [14, 14, F];
  beside that folder `NAME_fc/ID.npy` [F2] and `NAME_box/ID.npy` [R, 4] in pixels.

A file may also hold the vector of the whole image as the array `image` [F2].
"""

import io
import os
import pathlib
import zipfile
from collections.abc import Sequence

from tfcap.files import load_npy, load_npz
from tfcap.preparing import spelling
from tfcap.preparing.features.ready.layout import Layout, layout
from tfcap.preparing.features.ready.regions import (
    BOXES,
    COUNTS,
    FEATURES,
    MAX_ARRAY_BYTES,
    SIZES,
    Found,
    found,
)

_BESIDE = (*BOXES, *COUNTS, "image", *(name for pair in SIZES for name in pair))
_ATT = "_att"  # end of the name of the folder of regions, in ruotianluo's layout
_REMEDY = "Copy it again, or write plain arrays with numpy.savez."


@layout
class Folder(Layout):
    """Folders with one file per image, and ruotianluo's two folders beside each."""

    title = "one file per image"
    last = True  # a folder may also hold the files of another layout

    def __init__(self, paths: Sequence[pathlib.Path], cache: str | os.PathLike | None):
        del cache
        self.folders = list(paths)
        self.beside = {folder: _beside(folder) for folder in self.folders}

    @staticmethod
    def recognises(path: pathlib.Path) -> list[pathlib.Path]:
        if not path.is_dir():
            return []
        folders = []
        for entry in os.scandir(path):
            if entry.name.endswith((".npz", ".npy")) and not entry.name.startswith("."):
                return [path]
            if entry.is_dir():
                folders.append(entry.name)
        regions = [path / name for name in folders if name.endswith(_ATT)]
        # Without such a folder these may be folders of files, as in train2014/ID.npz.
        return regions[:1] if len(regions) == 1 else [path] if folders and not regions else []

    def copies(self, key: str) -> int:
        return len(self._find(key))

    def place(self, key: str, copy: int = 0) -> str:
        return str(self._find(key)[copy][1])

    def about(self) -> str:
        more = [folder for beside in self.beside.values() for folder in beside.values()]
        return f"{self.title} in {', '.join(map(str, [*self.folders, *more]))}"

    def read(self, key: str, copy: int = 0) -> Found:
        copies = self._find(key)
        if not copies:
            raise ValueError(
                f"{self.folders[0] / key}.npz: No such file, and none that ends in .npy"
                f"{spelling.near(self.folders[0], f'{key}.npz')}."
            )
        own, path = copies[copy]
        content = read_file(path)
        for kind, folder in self.beside[own].items():
            array = load_npy(folder / f"{key}.npy", "Each image must have one.")
            content = (
                content._replace(image=array) if kind == "fc" else content._replace(boxes=array)
            )
        return content

    def _find(self, key: str) -> list[tuple[pathlib.Path, pathlib.Path]]:
        """Returns the folders that have a key, and the files in them."""
        return [
            (folder, path)
            for folder in self.folders
            for ending in (".npz", ".npy")
            if os.path.isfile(path := folder / f"{key}{ending}")
        ]


def _beside(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Returns the folders `NAME_fc` and `NAME_box` beside a folder `NAME_att`, by kind."""
    if not folder.name.endswith(_ATT):
        return {}
    stem = folder.name.removesuffix(_ATT)
    folders = {kind: folder.with_name(f"{stem}_{kind}") for kind in ("fc", "box")}
    return {kind: path for kind, path in folders.items() if path.is_dir()}


def read_file(path: str | os.PathLike, content: bytes | None = None) -> Found:
    """Reads an npz or npy file of unknown origin.

    The features are the array `feat`, `features`, `x` or `z`, or the only array of the file.

    Args:
      path: the file.
      content: its bytes, if it lies inside another file; `path` then names it in errors.

    Raises:
      ValueError: not such a file, pickled content, implausible sizes, or no features.
    """
    begin = content[:6] if content is not None else b""
    if (os.fspath(path).endswith(".npy") and content is None) or begin == b"\x93NUMPY":
        size = os.path.getsize(path) if content is None else len(content)
        if size > MAX_ARRAY_BYTES:
            raise ValueError(
                f"{path} must have at most {MAX_ARRAY_BYTES} bytes. Received: {size}. {_REMEDY}"
            )
        return Found(load_npy(path, _REMEDY, content))
    names = _array_names(path, content)
    name = next((n for n in FEATURES if n in names), None)
    others = [n for n in _BESIDE if n in names]
    if name is None:
        left = [n for n in names if n not in others] or names
        if len(left) != 1:
            raise ValueError(
                f"{path} must have an array named {', '.join(FEATURES)}, or only one array. "
                f"Received: {', '.join(names)}. Rename the array of the features to 'feat'."
            )
        name = left[0]
    return found(load_npz(path, [name, *others], _REMEDY, content), name)


def _array_names(path: str | os.PathLike, content: bytes | None) -> list[str]:
    """Returns the names of the arrays; the zip directory tells their sizes before any is read."""
    try:
        with zipfile.ZipFile(path if content is None else io.BytesIO(content)) as archive:
            members = archive.infolist()
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{path}: not a readable npz file ({reason}). {_REMEDY}") from None
    for member in members:
        if member.file_size > MAX_ARRAY_BYTES:
            raise ValueError(
                f"{path}: the array {member.filename!r} must have at most {MAX_ARRAY_BYTES} bytes. "
                f"Received: it claims {member.file_size} bytes. {_REMEDY}"
            )
    return [member.filename.removesuffix(".npy") for member in members]
