"""Reads the arrays of features that a detector or another program has written: a class per layout.

A layout finds its files by their names, and reads the arrays of an image by a key: the id of the
image, or a form of its file name. To add a layout, write a class and add it to `LAYOUTS`.

Letters: N images, R regions, F feature width, F2 width of the vector of a whole image, H rows and W
columns of a grid.
"""

import abc
import base64
import collections
import contextlib
import functools
import io
import itertools
import json
import logging
import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import h5py
import numpy as np
import tqdm

from tfcap import files
from tfcap.preparing import spelling

_MOST_PARTS = 100  # names of an HDF5 file that are looked at for the parts of an image
# Names that published files give to the arrays of an image; the first that is there counts.
FEATURES = ("feat", "features", "x", "z")
BOXES = ("boxes", "bbox")
COUNTS = ("num_boxes", "num_bbox")  # rows behind this number are padding
SIZES = tuple(
    (f"{image}{width}", f"{image}{height}")
    for image in ("image_", "img_", "im_", "")
    for width, height in (("w", "h"), ("width", "height"))
)
SHAPES = ("size", "image_size", "img_size", "im_size")  # height before width, as detectors have it
GRAPH = ("graph", "labels")  # edges and objects of a scene graph
OTHERS = (*BOXES, *COUNTS, "image", *GRAPH, *SHAPES, *(name for pair in SIZES for name in pair))

# Names of the columns of a tsv without a header, by their number.
_COLUMNS: dict[int, tuple[str, ...]] = {
    6: ("key", "image_w", "image_h", "num_boxes", "boxes", "features"),
    10: ("key", "img_h", "img_w", *"abcd", "num_boxes", "boxes", "features"),
}

Arrays = Mapping[str, Any]  # of an image, under the names above
_Lines = dict[str, list[tuple[int, int, int]]]  # file, offset and length of the lines of a key
_log = logging.getLogger(__name__)


class FeatureFiles(abc.ABC):
    """Base class of the layouts of feature files. An instance reads the files of one data set.

    A subclass sets `title`, and implements `read`. It sets `endings` or overrides `recognise`, and
    sets `keys` or overrides `has`. `tfcap.prepare` detects only layouts that are listed in
    `LAYOUTS`.

    The key of an image is the text under which the files store the image: its id, its file name
    with or without directory and ending, or the number at the end of the file name.

    Args:
      paths: the files and directories that `recognise` returns, at least one.
      cache: path of a file in which an index may be stored for later runs; None stores none.

    Attributes:
      title: the name of the layout in messages.
      endings: a regular expression for the endings of file names, without the dot.
      keys: the keys of all images; empty in a layout that overrides `has`.
    """

    title: ClassVar[str]
    endings: ClassVar[str]
    keys: Iterable[str] = ()

    def __init__(self, paths: Sequence[pathlib.Path], cache: str | None):
        self.paths = list(paths)

    @classmethod
    def recognise(cls, path: pathlib.Path, inside: Sequence[pathlib.Path]) -> list[pathlib.Path]:
        """Finds the files of this layout.

        Args:
          path: a file or a directory that the user named.
          inside: `path` itself if it is a file, else the files directly in the directory.

        Returns:
          The files or directories with which the layout can be opened; an empty list if `path` has
          another layout.
        """
        ending = re.compile(rf"(?i)\.({cls.endings})$")
        return [file for file in inside if ending.search(file.name)]

    def has(self, key: str) -> bool:
        """Returns whether the files have the features of the image with this key."""
        return key in self.keys

    @abc.abstractmethod
    def read(self, key: str) -> Arrays:
        """Reads the arrays of an image.

        Args:
          key: key of the image; `has(key)` must be True.

        Returns:
          The arrays by name. Names that `checks.checked` knows are, for example, `feat`, `boxes`,
          `image_w`, `image_h` and `image`.
        """

    def near(self, key: str) -> str:
        """Returns a hint for the error about a missing key; "" if there is no hint.

        The hint names a key that exists, as in `; another is 391895`.
        """
        other = next(iter(self.keys), None)
        return "" if other is None else f"; another is {other}"


class Tsv(FeatureFiles):
    """Layout of feature files: lines with tabs between the fields; arrays are float32 in base64.

    R is the number of regions, F the width of a feature vector. There are three kinds:

    * bottom-up attention (Anderson et al., CVPR 2018): image_id, image_w, image_h, num_boxes,
      boxes [R, 4] in pixels, features [R, F]. Names of files may end in a number, as in
      karpathy_train.tsv.0.
    * LXMERT (Tan and Bansal, EMNLP 2019): img_id, img_h, img_w, objects_id, objects_conf, attrs_id,
      attrs_conf, num_boxes, boxes, features. Here the height comes before the width.
    * VinVL (Zhang et al., CVPR 2021): a key and `{"num_boxes": R, "features": [R, 2054]}`.

    If the first line names the columns, the columns after the key may be in any order. The files
    may be larger than the memory: they are read once from end to end to find the position of each
    line, and later line by line.
    """

    title = "tsv of regions"
    endings = r"tsv(\.\d+)?"

    def __init__(self, paths: Sequence[pathlib.Path], cache: str | None):
        super().__init__(paths, cache)
        self._headers = list(map(self._header, paths))
        # Files with other names, sizes or times get a new index.
        made_of = [[str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns] for p in paths]
        if cache is not None and files.exists(cache):
            index = files.read_json(cache, "Remove it.")
            if index["files"] == made_of:
                self.keys: _Lines = index["lines"]
                return
        self.keys = self._index()
        if cache is not None:
            files.write_json(cache, {"files": made_of, "lines": self.keys}, indent=None)

    @staticmethod
    def _header(path: pathlib.Path) -> list[str]:
        """Returns the names of the columns, if the first line has them; else []."""
        with open(path, "rb") as file:
            line = file.readline(1000).decode("utf-8", "replace")
        names = [name.strip() for name in line.split("\t")]
        return names if {"num_boxes", "boxes", "features"} <= set(names) else []

    def read(self, key: str) -> Arrays:
        """Reads the line of an image; if it has several lines, the first complete one.

        In the published features of test2014, three images have an incomplete line before the
        complete one.

        Returns:
          `features`, and, except for VinVL, `boxes` and the width and height of the image.
        """
        *cut, last = self.keys[key]
        for line in cut:
            with contextlib.suppress(ValueError, KeyError):
                return self._parsed(*line)
        return self._parsed(*last)

    def _parsed(self, index: int, offset: int, length: int) -> Arrays:
        with open(self.paths[index], "rb") as file:
            file.seek(offset)
            fields = [field.strip() for field in file.read(length).split(b"\t")]
        if len(fields) == 2:
            content = json.loads(fields[1])
            return {"features": _floats(content["features"].encode(), content["num_boxes"])}
        names = self._headers[index] or _COLUMNS.get(len(fields), ())
        if len(fields) != len(names):
            wanted = len(names) or "2, 6 or 10"
            raise ValueError(
                f"the line of the image has {len(fields)} fields, but must have {wanted}. It may "
                "be cut: copy the file again."
            )
        row = dict(zip(names, fields, strict=True))
        count = int(row["num_boxes"])
        sizes = {name: int(row[name]) for pair in SIZES for name in pair if name in row}
        corners = _floats(row["boxes"], count, 4)
        return {"features": _floats(row["features"], count), "boxes": corners, **sizes}

    def _index(self) -> _Lines:
        """Reads the files from end to end."""
        lines: _Lines = {}
        total = sum(path.stat().st_size for path in self.paths)
        with tqdm.tqdm(
            total=total, desc="index of features", unit="B", unit_scale=True, disable=None
        ) as bar:
            for index, path in enumerate(self.paths):
                offset = 0
                with open(path, "rb", buffering=1 << 20) as file:
                    for line in file:
                        key, tab, _ = line[:200].partition(b"\t")
                        if tab and key not in (b"image_id", b"img_id"):
                            name = key.strip().decode("utf-8", "replace")
                            lines.setdefault(name, []).append((index, offset, len(line)))
                        offset += len(line)
                        bar.update(len(line))
        _log.info(f"index of features: {len(lines)} images")
        return lines


class Hdf5(FeatureFiles):
    """Layout of feature files: HDF5 files.

    `ID` is the key of an image, see `FeatureFiles`, R the number of regions, F the width of a
    feature vector. There are three kinds:

    * M2, ExpansionNet and DLCT: data sets `ID_features` [R, F], `ID_boxes` [R, 4] in pixels and
      other arrays, such as `ID_size` (height, width) and `ID_image`, a vector of the whole image.
      `ID_cls_prob`, `ID_grids` and `ID_mask` are not used.
    * ruotianluo/ImageCaptioning.pytorch: a data set `ID` [R, F] or [14, 14, F] for each image.
    * a group `ID` with the arrays that an npz file may have, see `Folder`.
    """

    title = "HDF5"
    endings = "h5|hdf5|hdf|he5"

    def __init__(self, paths: Sequence[pathlib.Path], cache: str | None):
        super().__init__(paths, cache)
        self._files = []
        for path in paths:
            try:
                self._files.append(h5py.File(path, "r"))
            except OSError as error:
                raise ValueError(f"{path} cannot be opened: {error}. Copy it again.") from None
        # The names are sorted, so that the parts of an image are beside each other.
        first = list(itertools.islice(itertools.chain.from_iterable(self._files), _MOST_PARTS))
        whole = next((name for name in first if name.endswith("_features")), "_features")
        key = whole.removesuffix("features")
        self._parts = {name.removeprefix(key) for name in first if name.startswith(key)}

    def has(self, key: str) -> bool:
        return any(key in file or f"{key}_features" in file for file in self._files)

    def read(self, key: str) -> Arrays:
        for file in self._files:
            if f"{key}_features" in file:
                names = {"features", *OTHERS, *self._parts}
                return {n: file[f"{key}_{n}"] for n in sorted(names) if f"{key}_{n}" in file}
            if key in file:
                return file[key] if isinstance(file[key], h5py.Group) else {"feat": file[key]}
        raise KeyError(key)

    def near(self, key: str) -> str:
        return f"; another is {next(itertools.chain.from_iterable(self._files), None)}"


class Lmdb(FeatureFiles):
    """Layout of feature files: LMDB databases, each a file, or a directory that has data.mdb.

    ruotianluo/ImageCaptioning.pytorch writes them. A key is an image id, and its value is the
    content of an npz or npy file. Keys such as `__keys__` have pickles as values, which are never
    read. `cache` is not used, because a database has an index of its own.
    """

    title = "LMDB"
    endings = "(?<!lock.)mdb|lmdb"

    def __init__(self, paths: Sequence[pathlib.Path], cache: str | None):
        super().__init__(paths, cache)
        try:
            import lmdb
        except ImportError:
            raise ValueError(
                f"{paths[0]} needs the package lmdb. Run: pip install 'tfcap[features]'"
            ) from None
        # Without a lock nothing is written beside the data. A process may open a file once only.
        self._open = functools.partial(lmdb.open, subdir=False, readonly=True, lock=False)

    def has(self, key: str) -> bool:
        return self._value(key) is not None

    def read(self, key: str) -> Arrays:
        return _read_arrays(self._value(key))

    def _value(self, key: str) -> Any:
        name = key.encode("utf-8", "replace")
        if name.startswith(b"__") or len(name) > 511:
            return None
        for path in self.paths:
            with self._open(os.fspath(path)) as store, store.begin() as transaction:
                if (value := transaction.get(name)) is not None:
                    return value
        return None


class Matrix(FeatureFiles):
    """Layout of feature files: one matrix of all images, and a list of their ids.

    The features of SCAN (Lee et al., ECCV 2018) have this layout. The matrix `NAME_ims.npy` is
    [N, R, F], for N images with R regions and feature width F, or [N, F], which is one region per
    image. The list `NAME_ids.txt` has one id per line, in the order of the rows. Each id may be
    repeated five times, once for each caption. The matrix is not read into the memory as a whole.
    """

    title = "ids + matrix"

    def __init__(self, paths: Sequence[pathlib.Path], cache: str | None):
        super().__init__(paths, cache)
        self.keys: dict[str, tuple[np.ndarray, int]] = {}
        for path in paths:
            matrix = np.load(path, mmap_mode="r", allow_pickle=False)
            for row, key in enumerate(self._ids(path, len(matrix))):
                self.keys.setdefault(key, (matrix, row))

    @classmethod
    def recognise(cls, path: pathlib.Path, inside: Sequence[pathlib.Path]) -> list[pathlib.Path]:
        matrices = [file for file in inside if file.name.endswith("_ims.npy")]
        return [file for file in matrices if cls._list_of(file).is_file()]

    def read(self, key: str) -> Arrays:
        matrix, row = self.keys[key]
        return {"feat": np.array(matrix[row])}

    @staticmethod
    def _list_of(path: pathlib.Path) -> pathlib.Path:
        return path.with_name(path.name.removesuffix("_ims.npy") + "_ids.txt")

    @classmethod
    def _ids(cls, path: pathlib.Path, rows: int) -> list[str]:
        """Returns the id of each row of a matrix."""
        file = cls._list_of(path)
        ids = [key.strip() for key in file.read_text("utf-8-sig").rstrip().splitlines()]
        # Another list of this length, such as all ids five times, belongs to another matrix.
        if len(ids) == 5 * rows and ids == [key for key in ids[::5] for _ in range(5)]:
            ids = ids[::5]
        if len(ids) != rows:
            raise ValueError(
                f"{file} has {len(ids)} ids for the {rows} rows of {path}. Write one id "
                "for each row."
            )
        return ids


class Folder(FeatureFiles):
    """Layout of feature files: a directory with one npz or npy file per image.

    `ID` is the key of an image, see `FeatureFiles`, R the number of regions, F the width of a
    feature vector. The files and their arrays may have the names of these projects:

    * JDAI-CV/image-captioning: `ID.npz` with `feat` [R, F].
    * MILVLG/bottom-up-attention.pytorch: `ID.npz` with `x` [R, F], `bbox` [R, 4] in pixels,
      `num_bbox`, `image_h`, `image_w` and `info`, a pickle, which is not read.
    * YehLi/xmodaler: `ID.npz` with `features`, `boxes`, `image_w` and `image_h`.
    * ruotianluo/ImageCaptioning.pytorch: `NAME_att/ID.npz` with `feat` or `z` [R, F] or
      [14, 14, F]. Beside that directory there may be `NAME_fc/ID.npy`, a vector of the whole image,
      and `NAME_box/ID.npy` [R, 4] in pixels.

    Any of these files may also hold a vector of the whole image as the array `image`, and a scene
    graph as the arrays `graph` and `labels`, see `checks.checked`.
    """

    title = "one file per image"

    @classmethod
    def recognise(cls, path: pathlib.Path, inside: Sequence[pathlib.Path]) -> list[pathlib.Path]:
        if any(file != path and file.suffix in (".npz", ".npy") for file in inside):
            return [path]
        folders = [folder for folder in path.iterdir() if folder.is_dir()] if path.is_dir() else []
        regions = [folder for folder in folders if folder.name.endswith("_att")]
        # Without such a folder these may be folders of files, as in train2014/ID.npz.
        return regions[:1] if len(regions) == 1 else [path] if folders and not regions else []

    def has(self, key: str) -> bool:
        return self._file(key) is not None

    def read(self, key: str) -> Arrays:
        file = self._file(key)
        assert file is not None  # `has` has seen it
        folder = file.parents[key.count("/")]
        arrays: Any = _read_arrays(file.read_bytes())
        if folder.name.endswith("_att"):
            for end, part in (("_fc", "image"), ("_box", "boxes")):
                other = folder.with_name(folder.name.removesuffix("_att") + end)
                if other.is_dir():
                    array = np.load(other / f"{key}.npy", allow_pickle=False)
                    arrays = collections.ChainMap({part: array}, arrays)
        return arrays

    def near(self, key: str) -> str:
        return spelling.near(self.paths[0], f"{key}.npz")

    def _file(self, key: str) -> pathlib.Path | None:
        paths = (path / f"{key}{end}" for path in self.paths for end in (".npz", ".npy"))
        return next((path for path in paths if os.path.isfile(path)), None)


# The first that recognises the files counts; a folder may also hold the files of another layout.
LAYOUTS: tuple[type[FeatureFiles], ...] = (Tsv, Hdf5, Lmdb, Matrix, Folder)


def recognise(paths: Sequence[pathlib.Path]) -> tuple[type[FeatureFiles], list[pathlib.Path]]:
    """Finds the layout of feature files.

    Args:
      paths: files or directories; all must have the same layout.

    Returns:
      The class of the layout, and the files and directories with which it is opened.

    Raises:
      ValueError: a path does not exist, or no layout fits all paths.
    """
    inside = []
    for path in paths:
        if not path.exists():
            raise ValueError(f"`features`: there is no file or directory {path}. Correct the path.")
        entries = os.scandir(path) if path.is_dir() else ()
        names = sorted(e.name for e in entries if e.is_file() and not e.name.startswith("."))
        inside.append([path / name for name in names] if path.is_dir() else [path])
    for cls in LAYOUTS:
        lists = [
            cls.recognise(path, candidates) for path, candidates in zip(paths, inside, strict=True)
        ]
        if all(lists):
            return cls, list(itertools.chain.from_iterable(lists))
    raise ValueError(
        f"`features`: {', '.join(map(str, paths))} has none of the layouts "
        f"{', '.join(cls.title for cls in LAYOUTS)}. See docs/prepare.md for what each looks like."
    )


def _read_arrays(content: bytes) -> Arrays:
    """Reads the bytes of an npz or npy file."""
    try:
        arrays = np.load(io.BytesIO(content), allow_pickle=False)
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise ValueError(
            "the file is a pickle, which can run any program when it is read: write what it holds "
            "as plain arrays into an npz file"
        ) from None
    return {"feat": arrays} if isinstance(arrays, np.ndarray) else arrays


def _floats(text: bytes, rows: int, columns: int = -1) -> np.ndarray:
    """Decodes float32 [rows, columns] from base64, also from `b'...'`, as Python 3 prints it."""
    if text.startswith((b"b'", b'b"')):
        text = text[2:-1]
    try:
        return np.frombuffer(base64.b64decode(text, validate=True), "<f4").reshape(rows, columns)
    except ValueError as error:
        raise ValueError(
            f"the line of the image does not hold {rows} regions in base64 ({error}). It may be "
            "cut: copy the file again."
        ) from None
