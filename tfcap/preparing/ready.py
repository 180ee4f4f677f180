"""Reads features that a detector or another program has written, one class per layout.

A layout finds its files by their names, and reads the arrays of an image by a key: the id of the
image, or a form of its file name. To add a layout, write a class and add it to `LAYOUTS`. `checked`
turns the arrays into features [R, F] and boxes in 0..1.

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
import os
import pathlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import h5py
import numpy as np
import tqdm

from tfcap import files
from tfcap.data import clips
from tfcap.images import upright_size
from tfcap.preparing import spelling
from tfcap.preparing.pictures import Extracted
from tfcap.preparing.sources.entry import Entry

INDEX = ".features.index.json"  # in the prepared directory
_PROBES = 20
_MOST_PARTS = 100  # names of an HDF5 file that are looked at for the parts of an image
# Names that published files give to the arrays of an image; the first that is there counts.
_FEATURES = ("feat", "features", "x", "z")
_BOXES = ("boxes", "bbox")
_COUNTS = ("num_boxes", "num_bbox")  # rows behind this number are padding
_SIZES = tuple(
    (f"{image}{width}", f"{image}{height}")
    for image in ("image_", "img_", "im_", "")
    for width, height in (("w", "h"), ("width", "height"))
)
_SHAPES = ("size", "image_size", "img_size", "im_size")  # height before width, as detectors have it
_OTHERS = (*_BOXES, *_COUNTS, "image", *_SHAPES, *(name for pair in _SIZES for name in pair))

# Names of the columns of a tsv without a header, by their number.
_COLUMNS: dict[int, tuple[str, ...]] = {
    6: ("key", "image_w", "image_h", "num_boxes", "boxes", "features"),
    10: ("key", "img_h", "img_w", *"abcd", "num_boxes", "boxes", "features"),
}
_MOST_CELLS = 64  # along a side of a grid; more means that the axes have another order
_PIXEL_ROUNDING = 1.0  # pixels by which a detector's box may leave its image
_UNIT_ROUNDING = 1e-3  # the same for boxes in 0..1
# VinVL appends x1, y1, x2, y2, width and height of a region, in 0..1, to its 2,048 features.
_VINVL_WIDTH, _VINVL_BOX = 2054, 6

_Size = tuple[Any, Any]  # width and height of an image in pixels
Arrays = Mapping[str, Any]  # of an image, under the names above
_Lines = dict[str, list[tuple[int, int, int]]]  # file, offset and length of the lines of a key


class Layout(abc.ABC):
    """Opened files of features.

    Args:
      paths: the files and directories that `recognise` found, at least one.
      cache: a file in which the layout may store an index, or None.

    Attributes:
      title: the name of the layout in printed lines.
      endings: a regular expression for the endings of file names.
      keys: the keys, if the layout can list them.
    """

    title: ClassVar[str]
    endings: ClassVar[str]
    keys: Iterable[str] = ()

    def __init__(self, paths: Sequence[pathlib.Path], cache: str | None):
        self.paths = list(paths)

    @classmethod
    def recognise(cls, path: pathlib.Path, inside: Sequence[pathlib.Path]) -> list[pathlib.Path]:
        """Returns the files of this layout; `inside` has `path`, or the files in this directory."""
        ending = re.compile(rf"(?i)\.({cls.endings})$")
        return [file for file in inside if ending.search(file.name)]

    def has(self, key: str) -> bool:
        return key in self.keys

    @abc.abstractmethod
    def read(self, key: str) -> Arrays:
        """Reads the arrays of a key; the names of the arrays are those that `checked` knows."""

    def near(self, key: str) -> str:
        """Returns a hint for the error about a missing key, or ""."""
        other = next(iter(self.keys), None)
        return "" if other is None else f"; another is {other}"


class Tsv(Layout):
    r"""Lines of text with a tab between their fields; arrays are float32 in base64.

    * bottom-up attention (Anderson et al., CVPR 2018): image_id, image_w, image_h, num_boxes,
      boxes [R, 4] in pixels, features [R, F]. Names may end in a number, as karpathy_train.tsv.0.
    * LXMERT (Tan and Bansal, EMNLP 2019): img_id, img_h, img_w, objects_id, objects_conf, attrs_id,
      attrs_conf, num_boxes, boxes, features; the height is before the width.
    * VinVL (Zhang et al., CVPR 2021): a key and `{"num_boxes": R, "features": [R, 2054]}`.

    If the first line names the columns, those behind the key may have another order. The files are
    read once from end to end to find the position of each line, and later line by line: they may be
    larger than the memory.
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
        """Reads the first whole line of an image.

        Three images of the published features of test2014 have a truncated line before the complete
        line.
        """
        *cut, last = self.keys[key]
        for line in cut:
            with contextlib.suppress(ValueError, KeyError):
                return self._parsed(*line)
        return self._parsed(*last)

    def _parsed(self, number: int, offset: int, length: int) -> Arrays:
        with open(self.paths[number], "rb") as file:
            file.seek(offset)
            fields = [field.strip() for field in file.read(length).split(b"\t")]
        if len(fields) == 2:
            content = json.loads(fields[1])
            return {"features": _floats(content["features"].encode(), content["num_boxes"])}
        names = self._headers[number] or _COLUMNS.get(len(fields), ())
        if len(fields) != len(names):
            wanted = len(names) or "2, 6 or 10"
            raise ValueError(f"a line must have {wanted} fields; this one has {len(fields)}.")
        row = dict(zip(names, fields, strict=True))
        count = int(row["num_boxes"])
        sizes = {name: int(row[name]) for pair in _SIZES for name in pair if name in row}
        corners = _floats(row["boxes"], count, 4)
        return {"features": _floats(row["features"], count), "boxes": corners, **sizes}

    def _index(self) -> _Lines:
        """Reads the files from end to end."""
        lines: _Lines = {}
        total = sum(path.stat().st_size for path in self.paths)
        with tqdm.tqdm(
            total=total, desc="index of features", unit="B", unit_scale=True, disable=None
        ) as bar:
            for number, path in enumerate(self.paths):
                offset = 0
                with open(path, "rb", buffering=1 << 20) as file:
                    for line in file:
                        key, tab, _ = line[:200].partition(b"\t")
                        if tab and key not in (b"image_id", b"img_id"):
                            name = key.strip().decode("utf-8", "replace")
                            lines.setdefault(name, []).append((number, offset, len(line)))
                        offset += len(line)
                        bar.update(len(line))
        print(f"index of features: {len(lines)} images", flush=True)
        return lines


class Hdf5(Layout):
    """HDF5 files.

    * M2, ExpansionNet and DLCT: data sets `ID_features` [R, F], `ID_boxes` [R, 4] in pixels and the
      other arrays of an npz file, such as `ID_size` (height, width) and `ID_image` [F2].
      `ID_cls_prob`, `ID_grids` and `ID_mask` are not read.
    * ruotianluo/ImageCaptioning.pytorch: a data set `ID` [R, F] or [14, 14, F] for each image.
    * a group `ID` with the arrays of an npz file, see `Folder`.
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
                names = {"features", *_OTHERS, *self._parts}
                return {n: file[f"{key}_{n}"] for n in sorted(names) if f"{key}_{n}" in file}
            if key in file:
                return file[key] if isinstance(file[key], h5py.Group) else {"feat": file[key]}
        raise KeyError(key)

    def near(self, key: str) -> str:
        return f"; another is {next(itertools.chain.from_iterable(self._files), None)}"


class Lmdb(Layout):
    """LMDB databases of ruotianluo/ImageCaptioning.pytorch: a directory with data.mdb, or a file.

    A key is an image id, a value the bytes of an npz or npy file. Values of keys such as `__keys__`
    are pickles and are never read.
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


class Matrix(Layout):
    """One matrix of all images and a list of their ids, as SCAN has them (Lee et al., ECCV 2018).

    `NAME_ims.npy` [N, R, F] and `NAME_ids.txt`, one id a line; a matrix [N, F] has one region per
    image. The matrix is memory-mapped. The list may have five equal lines per row, one for each
    caption.
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
            raise ValueError(f"{file} has {len(ids)} ids for the {rows} rows of {path}.")
        return ids


class Folder(Layout):
    """Folders with one npz or npy file per image.

    * JDAI-CV/image-captioning: `ID.npz` with `feat` [R, F].
    * MILVLG/bottom-up-attention.pytorch: `ID.npz` with `x` [R, F], `bbox` [R, 4] in pixels,
      `num_bbox`, `image_h`, `image_w` and `info`, a pickle, which is not read.
    * YehLi/xmodaler: `ID.npz` with `features`, `boxes`, `image_w` and `image_h`.
    * ruotianluo/ImageCaptioning.pytorch: `NAME_att/ID.npz` with `feat` or `z` [R, F] or
      [14, 14, F]; beside that folder `NAME_fc/ID.npy` [F2] and `NAME_box/ID.npy` [R, 4] in pixels.

    A file may also hold the vector of the whole image as the array `image` [F2].
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
LAYOUTS: tuple[type[Layout], ...] = (Tsv, Hdf5, Lmdb, Matrix, Folder)


def recognise(paths: Sequence[pathlib.Path]) -> tuple[type[Layout], list[pathlib.Path]]:
    """Finds the layout that recognises all paths, and its files."""
    inside = []
    for path in paths:
        if not path.exists():
            raise ValueError(f"--features: there is no file or directory {path}.")
        entries = os.scandir(path) if path.is_dir() else ()
        names = sorted(e.name for e in entries if e.is_file() and not e.name.startswith("."))
        inside.append([path / name for name in names] if path.is_dir() else [path])
    for cls in LAYOUTS:
        several = [cls.recognise(path, found) for path, found in zip(paths, inside, strict=True)]
        if all(several):
            return cls, [file for found in several for file in found]
    raise ValueError(
        f"--features: {', '.join(map(str, paths))} has none of the layouts "
        f"{', '.join(cls.title for cls in LAYOUTS)}. See docs/prepare.md for what each looks like."
    )


def _number(entry: Entry) -> str:
    """Returns the number at the end of a name: 9 for COCO_val2014_000000000009.jpg."""
    match = re.search(r"(\d{1,18})$", pathlib.PurePosixPath(entry.file_name).stem)
    return str(int(match[1])) if match else ""


# What an image may be called in the files, and how that is described. The first of equal ones
# wins. Where a reader counted the images, their numbers name no file.
_KEYS: dict[str, Callable[[Entry], str]] = {
    "name of the image file": lambda entry: pathlib.PurePosixPath(entry.file_name).stem,
    "image id": lambda entry: str(entry.id) if entry.own_id else "",
    "number in the name": _number,
    "path of the image file": lambda entry: str(
        pathlib.PurePosixPath(entry.file_name).with_suffix("")
    ),
    "file name": lambda entry: entry.file_name,
}


class ReadyFeatures:
    """Reads the features of each image from files.

    The first images decide which form of the file name is the key, how wide features must be, and
    whether there are vectors of whole images.

    Args:
      paths: files or directories.
      entries: the images of the data set.
      images: the directory of pictures, which give the size of an image if the files lack it.
      cache: a directory in which an index is stored for later runs, or None.
      frames: for clips, whose regions are frames: the number of frames to use, by the rule of
        `tfcap.data.clips`. None uses all regions.

    Attributes:
      named_by: which form of an image's name is its key in the files.
      dim: F.
      image_dim: F2, or None without vectors of whole images.
      regions: `frames`, or the mean R of the first images.
      unread: names of the arrays of an image that are not read.
    """

    def __init__(
        self,
        paths: Sequence[pathlib.Path],
        entries: Sequence[Entry],
        images: str | os.PathLike | None = None,
        cache: str | os.PathLike | None = None,
        frames: int | None = None,
    ):
        self.frames = frames
        self.images = None if images is None else pathlib.Path(images)
        cls, found = recognise(paths)
        self.layout: Layout = cls(found, None if cache is None else os.path.join(cache, INDEX))
        self._files = f"{cls.title}, {', '.join(map(str, found))}"
        probes = entries[:_PROBES]
        counts = {
            name: sum(self.layout.has(self._spelled(key)) for key in map(key_of, probes) if key)
            for name, key_of in _KEYS.items()
        }
        self.named_by = max(counts, key=lambda name: counts[name])  # the first of equal ones
        self.dim, self.image_dim = 0, None  # until the first images are read
        first = [self._extracted(entry) for entry in probes]
        usable = [extracted for extracted in first if extracted.features is not None]
        if not usable:
            looked = dict.fromkeys(key_of(probes[0]) for key_of in _KEYS.values())
            raise ValueError(
                f"--features: none of the first {len(probes)} images has usable features, looked "
                f"for as {' or '.join(filter(None, looked))}: {first[0].reason}"
            )
        widths = collections.Counter(map(_widths, usable))
        self.dim, self.image_dim = widths.most_common(1)[0][0]
        arrays = self.layout.read(self._spelled(_KEYS[self.named_by](usable[0].entry)))
        self.unread = sorted(set(arrays) - {_name_of_features(arrays), *_OTHERS})
        self.regions = round(sum(len(np.asarray(e.features)) for e in usable) / len(usable))

    def about(self) -> str:
        """Describes the files and what they hold in a line."""
        vectors = f", vectors of whole images {self.image_dim}" if self.image_dim else ""
        unread = f"; not read: {', '.join(self.unread)}" if self.unread else ""
        return f"{self._files}; named by {self.named_by}{vectors}{unread}"

    def read(self, entries: Sequence[Entry]) -> Iterator[Extracted]:
        """Yields an `Extracted` per entry, in order."""
        yield from map(self._extracted, entries)

    def _extracted(self, entry: Entry) -> Extracted:
        key = self._spelled(_KEYS[self.named_by](entry))
        if not key or not self.layout.has(key):
            reason = f"no {key} in {self._files}{self.layout.near(key)}"
            return Extracted(entry, None, None, reason)
        try:
            extracted = checked(entry, self.layout.read(key), self._size)
            if self.dim and not self.image_dim:
                extracted = extracted._replace(image=None)
            widths = _widths(extracted)
            if self.dim and widths != (self.dim, self.image_dim):
                raise ValueError(
                    f"features are {widths[0]} wide, the vector of the whole image {widths[1]}; "
                    f"most of the first images have {self.dim} and {self.image_dim}."
                )
        except Exception as error:  # of NumPy, h5py, zip and zlib
            reason = f"{key} in {self._files}: {' '.join(str(error).split())[:300]}"
            return Extracted(entry, None, None, reason)
        if self.frames is not None:
            features, boxes = np.asarray(extracted.features), clips.sheet_boxes(self.frames)
            kept = clips.frame_positions(len(features), self.frames).numpy()
            extracted = extracted._replace(features=features[kept], boxes=boxes)
        return extracted

    def _spelled(self, key: str) -> str:
        """Returns a key as the files spell it; on macOS an accent is a separate character."""
        if key.isascii():
            return key
        forms = key, unicodedata.normalize("NFC", key), unicodedata.normalize("NFD", key)
        return next((form for form in forms if self.layout.has(form)), key)

    def _size(self, entry: Entry) -> _Size | None:
        if entry.content is not None:
            return upright_size(io.BytesIO(entry.content.read()))
        return None if self.images is None else upright_size(self.images / entry.file_name)


def _widths(found: Extracted) -> tuple[int, int | None]:
    """Returns F and F2."""
    return np.asarray(found.features).shape[1], None if found.image is None else len(found.image)


def _read_arrays(content: bytes) -> Arrays:
    """Reads the bytes of an npz or npy file."""
    arrays = np.load(io.BytesIO(content), allow_pickle=False)
    return {"feat": arrays} if isinstance(arrays, np.ndarray) else arrays


def _floats(text: bytes, rows: int, columns: int = -1) -> np.ndarray:
    """Decodes float32 [rows, columns] from base64, also from `b'...'`, as Python 3 prints it."""
    if text.startswith((b"b'", b'b"')):
        text = text[2:-1]
    try:
        return np.frombuffer(base64.b64decode(text, validate=True), "<f4").reshape(rows, columns)
    except ValueError as error:
        raise ValueError(
            f"the line is not base64 of {rows} regions ({error}). It may be cut."
        ) from None


def checked(
    entry: Entry, arrays: Arrays, size_of: Callable[[Entry], _Size | None] = lambda entry: None
) -> Extracted:
    """Converts the arrays of an image to features [R, F] and boxes in 0..1.

    The features are [R, F], [1, R, F], [R, 1, F], one vector [F], or a grid [H, W, F], which
    becomes H * W regions, row by row, with the boxes of its cells. Features [F, R] beside R boxes,
    as in MCAN and OpenVQA, are transposed. Features of VinVL have the box in their last six
    columns, which are used if there are no other boxes. Boxes are x1, y1, x2, y2 in 0..1, or in
    pixels; then the file or `size_of` gives the size of the image.
    """
    name = _name_of_features(arrays)

    def first(*names: str) -> np.ndarray | None:
        return next((np.asarray(arrays[n]) for n in names if n in arrays and n != name), None)

    values, boxes = np.asarray(arrays[name]), first(*_BOXES)
    count, image = first(*_COUNTS), first("image")
    size = _stated_size(first)
    if image is not None and (image.dtype.kind != "f" or image.squeeze().ndim != 1):
        image = None  # something else, such as the pixels of the picture
    if boxes is not None and boxes.shape[:1] == values.shape[1:] != values.shape[:1]:
        values = values.T
    if count is not None and count.size == 1 and values.ndim == 2:
        regions = int(count.item())
        if not 0 < regions <= len(values):
            raise ValueError(
                f"{regions} regions do not fit features {list(values.shape)}: write them as "
                "[regions, width]."
            )
        values = values[:regions]
        boxes = None if boxes is None else boxes[:regions]
    features, unit = _rows(values)
    dropped = False
    if boxes is not None:
        unit = _unit_boxes(boxes, len(features), size, lambda: size_of(entry))
        dropped = unit is None
    elif unit is None and features.shape[1] == _VINVL_WIDTH:
        unit = _last_columns(features)
    return Extracted(
        entry,
        np.asarray(features, np.float32),
        None if unit is None else np.asarray(unit, np.float32),
        None,
        dropped,
        image=None if image is None else image.astype(np.float32).ravel(),
    )


def _name_of_features(arrays: Arrays) -> str:
    name = next((name for name in _FEATURES if name in arrays), None)
    if name is not None:
        return name
    left = [n for n in arrays if n not in _OTHERS] or list(arrays)
    if len(left) != 1:
        raise ValueError(
            f"no array {', '.join(_FEATURES)}; it has: {', '.join(left)}. Rename the array of "
            "the features to feat."
        )
    return left[0]


def _stated_size(first: Callable[..., np.ndarray | None]) -> _Size | None:
    """Returns width and height as the file has them; `first` gives the array of a name."""
    for names in _SIZES:
        width, height = map(first, names)
        if width is not None and height is not None:
            return width, height
    shape = first(*_SHAPES)  # with the channels, if it is that of an array
    return None if shape is None or shape.size not in (2, 3) else tuple(shape.ravel()[1::-1])


def _rows(values: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns features [R, F], and the boxes of the cells if they were a grid."""
    features, boxes = values, None
    if features.ndim == 3 and len(features) == 1:
        features = features[0]
    # No grid is one cell wide. [2048, 1, 1] is neither: it has its channels first.
    if features.ndim == 3 and features.shape[1] == 1 < features.shape[2]:
        features = features[:, 0]
    features = features[None] if features.ndim == 1 else features
    if features.ndim == 3 and max(features.shape[:2]) <= _MOST_CELLS:
        rows, columns, _ = features.shape
        y, x = np.divmod(np.arange(rows * columns), columns)
        boxes = np.stack([x / columns, y / rows, (x + 1) / columns, (y + 1) / rows], 1)
        features = features.reshape(rows * columns, -1)
    if features.ndim != 2 or features.dtype.kind != "f" or 0 in features.shape:
        raise ValueError(
            f"features are {values.dtype} {list(values.shape)}: write floating point "
            f"[regions, width], or a grid [rows, columns, width] of at most {_MOST_CELLS} rows."
        )
    return features, boxes


def _last_columns(features: np.ndarray) -> np.ndarray | None:
    """Returns the boxes [R, 4] in the last columns of VinVL's features, or None."""
    columns = features[:, -_VINVL_BOX:].astype(np.float64)
    boxes, sides = columns[:, :4], columns[:, 4:]
    fits = _inside(boxes, _UNIT_ROUNDING)
    fits = fits and np.allclose(boxes[:, 2:] - boxes[:, :2], sides, atol=_UNIT_ROUNDING)
    return np.clip(boxes, 0, 1) if fits and (sides >= 0).all() else None


def _unit_boxes(
    corners: np.ndarray, regions: int, size: _Size | None, size_of: Callable[[], _Size | None]
) -> np.ndarray | None:
    """Returns boxes [R, 4] in 0..1, or None if they are in pixels and the size is unknown."""
    if corners.shape != (regions, 4):
        raise ValueError(f"the boxes have the shape {list(corners.shape)}: write [{regions}, 4].")
    boxes, rounding = corners.astype(np.float64), np.full(4, _UNIT_ROUNDING)
    pixels = "of unknown size"
    if not _inside(boxes, rounding):
        size = size or size_of()
        if size is None:
            return None
        sides = np.array([np.asarray(side).item() for side in size] * 2, np.float64)
        if not (sides > 0).all():
            return None
        pixels = f"of {sides[0]:g} x {sides[1]:g} pixels (width x height)"
        boxes, rounding = boxes / sides, _PIXEL_ROUNDING / sides
    if not _inside(boxes, rounding) or not (boxes[:, :2] <= boxes[:, 2:]).all():
        raise ValueError(
            f"the boxes have values from {corners.min()} to {corners.max()}, and the image is "
            f"{pixels}: write x1, y1, x2, y2 inside the image, with x1 <= x2 and y1 <= y2."
        )
    return np.clip(boxes, 0, 1)


def _inside(boxes: np.ndarray, rounding: np.ndarray | float) -> bool:
    """True if all boxes [R, 4] lie in 0..1 up to rounding; False for NaN."""
    return bool(((boxes >= -rounding) & (boxes <= 1 + rounding)).all())
