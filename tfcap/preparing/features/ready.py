"""Reads features that a detector or another program has written, one class per layout.

A layout says which files are its own, and finds what they hold for an image by a key: the image's
id, or a name that belongs to the image's file. To add one, write such a class and put it into
`LAYOUTS`. `regions.checked` checks what was found.

Letters: N images, R regions, F feature width, F2 width of the vector of a whole image.
"""

import abc
import base64
import collections
import concurrent.futures
import functools
import io
import json
import os
import pathlib
import re
import threading
import unicodedata
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import h5py
import numpy as np
import tensorflow as tf
import tqdm

from tfcap.files import replacing
from tfcap.picture_files import upright_size
from tfcap.preparing import spelling
from tfcap.preparing.features.pictures import Extracted
from tfcap.preparing.features.regions import Found, Regions, checked
from tfcap.preparing.sources import Entry

INDEX = ".features.index.npz"  # in the prepared directory
_PROBES = 20
_THREADS = 4
_AHEAD = 16  # images that are read before they are asked for
# NumPy reads the header of an array with Python's parser. If two threads do that at a time, CPython
# 3.11 may raise SystemError for a good file (https://github.com/python/cpython/issues/106905).
_PARSER = threading.Lock()

# Names that published files give to the arrays of an image; the first that is there counts.
_FEATURES = ("feat", "features", "x", "z")
_BOXES = ("boxes", "bbox")
_COUNTS = ("num_boxes", "num_bbox")  # rows behind this number are padding
_SIZES = (("image_w", "image_h"), ("img_w", "img_h"))
_OTHERS = (*_BOXES, *_COUNTS, "image", *(name for pair in _SIZES for name in pair))


_Lines = dict[bytes, list[tuple[int, int, int]]]  # file, offset and length of the lines of a key


class Copy(NamedTuple):
    """One of the places that have an image: what errors call it, and a function that reads it."""

    where: str
    read: Callable[[], Found]


class Layout(abc.ABC):
    """Opened files of features; several threads may read them.

    Args:
      paths: the files and directories that `recognise` found, at least one.
      cache: a file in which the layout may keep an index, or None.

    Attributes:
      title: what the layout is called in printed lines.
      endings, beginning: of the names and of the content of its files, as regular expressions.
    """

    title: ClassVar[str]
    endings: ClassVar[str]
    beginning: ClassVar[bytes]

    def __init__(self, paths: Sequence[pathlib.Path], cache: str | os.PathLike | None):
        self.paths = list(paths)

    @classmethod
    def recognise(cls, path: pathlib.Path, files: Sequence[pathlib.Path]) -> list[pathlib.Path]:
        """Returns the files of this layout; only their first bytes are read.

        Args:
          path: a file or a directory.
          files: `path` itself, or the files directly inside it.
        """
        # A number may follow the ending, as in karpathy_train.tsv.0.
        ending = re.compile(rf"(?i)\.({cls.endings})(\.\d+)?$")
        named = [file for file in files if file == path or ending.search(file.name)]
        return [file for file in named if re.search(cls.beginning, _first_bytes(file))]

    @abc.abstractmethod
    def copies(self, key: str) -> list[Copy]:
        """Returns where the features of an image are.

        Files may have an image twice: three images of the published features of test2014 have a cut
        line before the whole one.
        """

    def has(self, key: str) -> bool:
        """Returns whether there are features under a key."""
        return bool(self.copies(key))

    def missing(self, key: str) -> str:
        """Returns what an error says about a key that the files do not have."""
        return f"no {key} in {self.about()}"

    def example(self) -> str:
        """Returns a key of the files, for errors; empty where the layout cannot tell one."""
        return ""

    def about(self) -> str:
        """Describes the files in a few words."""
        return f"{self.title}, {', '.join(map(str, self.paths))}"


class Tsv(Layout):
    r"""Lines of text with a tab between their fields; arrays are float32 in base64.

    * bottom-up attention (Anderson et al., CVPR 2018): image_id, image_w, image_h, num_boxes,
      boxes [R, 4] in pixels, features [R, F].
    * LXMERT (Tan and Bansal, EMNLP 2019): img_id, img_h, img_w, objects_id, objects_conf, attrs_id,
      attrs_conf, num_boxes, boxes, features; the height is before the width.
    * VinVL (Zhang et al., CVPR 2021): a key and `{"num_boxes": R, "features": [R, 2054]}`.

    The files are read once from end to end to find their lines, and later by the place of a line:
    they may be larger than the memory.
    """

    title = "tsv of regions"
    endings = "tsv"
    _BASE64 = rb"(?:b['\"])?[A-Za-z0-9+/]{2,}"
    # The first line may be damaged, or a header.
    beginning = (
        rb"(?m)^[^\t\r\n]{1,200}\t(?:\d{1,9}\t\d{1,9}\t(?:(?:%b=*['\"]?\t){4})?\d{1,9}\t%b"
        rb"|\s*\{\s*\"(?:num_boxes|features)\")"
    ) % (_BASE64, _BASE64)

    def __init__(self, paths: Sequence[pathlib.Path], cache: str | os.PathLike | None):
        super().__init__(paths, cache)
        # `os.pread` needs no position, so that several threads can read at the same time.
        self._files = [open(path, "rb", buffering=0) for path in paths]  # noqa: SIM115
        self._lines = self._kept(cache) or self._built(cache)

    def copies(self, key: str) -> list[Copy]:
        return [
            Copy(
                f"{self.paths[file]}, {key} at byte {offset}",
                functools.partial(self._read, file, offset, length),
            )
            for file, offset, length in self._lines.get(_encoded(key), ())
        ]

    def example(self) -> str:
        return next(iter(self._lines), b"").decode("utf-8", "replace")

    def _read(self, file: int, offset: int, length: int) -> Found:
        line = os.pread(self._files[file].fileno(), length, offset)
        fields = [field.strip() for field in line.split(b"\t")]
        if len(fields) == 2 and fields[1].startswith(b"{"):
            content = json.loads(fields[1])
            return Found(_floats(content["features"], content["num_boxes"]))
        if len(fields) == 6:
            width, height, count, boxes, features = fields[1:]
        elif len(fields) == 10:
            height, width, *_, count, boxes, features = fields[1:]
        else:
            raise ValueError(f"a line must have 2, 6 or 10 fields; this one has {len(fields)}.")
        regions, size = int(count), (int(width), int(height))
        return Found(_floats(features, regions), _floats(boxes, regions, 4), size, pixels=True)

    def _built(self, cache: str | os.PathLike | None) -> _Lines:
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
                            lines.setdefault(key.strip(), []).append((number, offset, len(line)))
                        offset += len(line)
                        bar.update(len(line))
        print(f"index of features: {len(lines)} images", flush=True)
        if cache is not None:
            rows = [(key, place) for key, places in lines.items() for place in places]
            with replacing(cache) as temporary, open(temporary, "wb") as output:
                np.savez(
                    output,
                    made_by=np.frombuffer(self._identity(), np.uint8),
                    keys=np.frombuffer(b"\n".join(key for key, _ in rows), np.uint8),
                    places=np.array([place for _, place in rows], np.int64).reshape(-1, 3),
                )
        return lines

    def _kept(self, cache: str | os.PathLike | None) -> _Lines | None:
        """Reads the index that `_built` has kept; None if there is none of these files."""
        if cache is None or not tf.io.gfile.exists(cache):
            return None
        with tf.io.gfile.GFile(cache, "rb") as file:
            arrays = np.load(io.BytesIO(file.read()), allow_pickle=False)
        if arrays["made_by"].tobytes() != self._identity():
            return None
        lines: _Lines = {}
        keys = arrays["keys"].tobytes().split(b"\n")
        for key, (number, offset, length) in zip(keys, arrays["places"].tolist(), strict=True):
            lines.setdefault(key, []).append((number, offset, length))
        return lines

    def _identity(self) -> bytes:
        """Returns the names, sizes and times of the files; other ones get a new index."""
        files = [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in self.paths]
        return json.dumps({"format": 2, "files": [list(file) for file in files]}).encode()


class Hdf5(Layout):
    """HDF5 files.

    * M2 and ExpansionNet: data sets `ID_features` [R, F], `ID_boxes` [R, 4] in pixels and
      `ID_cls_prob`, which is not read; also `ID_image` [F2].
    * ruotianluo/ImageCaptioning.pytorch: a data set `ID` [R, F] or [14, 14, F] for each image.
    * a group `ID` with the arrays of an npz file, see `Folder`.
    """

    title = "HDF5"
    endings = "h5|hdf5|hdf|he5"
    beginning = rb"\A\x89HDF\r\n\x1a\n"

    def __init__(self, paths: Sequence[pathlib.Path], cache: str | os.PathLike | None):
        super().__init__(paths, cache)
        self._files = []
        for path in paths:
            try:
                self._files.append(h5py.File(path, "r"))
            except OSError as error:
                raise ValueError(f"{path} cannot be opened: {error}. Copy it again.") from None

    def copies(self, key: str) -> list[Copy]:
        found = []
        for path, file in zip(self.paths, self._files, strict=True):
            names = ("features", "boxes", "image")
            arrays = {n: file[f"{key}_{n}"] for n in names if f"{key}_{n}" in file}
            if "features" in arrays:
                found.append(Copy(f"{path}, {key}_features", functools.partial(_found, arrays)))
            value = file.get(key)
            if isinstance(value, h5py.Dataset):
                found.append(Copy(f"{path}, {key}", functools.partial(_found, {"feat": value})))
            elif isinstance(value, h5py.Group) and any(name in value for name in _FEATURES):
                found.append(Copy(f"{path}, {key}", functools.partial(_found, value)))
        return found

    def example(self) -> str:
        return next((name for file in self._files for name in file), "")


class Lmdb(Layout):
    """LMDB data bases of ruotianluo/ImageCaptioning.pytorch: a directory with data.mdb, or a file.

    A key is an id, a value the bytes of an npz or npy file. Keys such as `__keys__` have pickles as
    values: they are never read.
    """

    title = "LMDB"
    endings = "mdb|lmdb"
    beginning = rb"(?s)\A.{16}\xde\xc0\xef\xbe"
    # The library opens a file once in a process.
    _opened: ClassVar[weakref.WeakValueDictionary[str, Any]] = weakref.WeakValueDictionary()

    def __init__(self, paths: Sequence[pathlib.Path], cache: str | os.PathLike | None):
        try:
            import lmdb
        except ImportError:
            raise ValueError(
                f"{paths[0]} needs the package lmdb. Run: pip install 'tfcap[features]'"
            ) from None
        super().__init__(paths, cache)
        self._stores = []
        for path in paths:
            place = os.path.realpath(path)
            if (store := self._opened.get(place)) is None:
                # Without a lock nothing is written beside the data.
                store = lmdb.open(place, subdir=False, readonly=True, lock=False)
                self._opened[place] = store
            self._stores.append(store)

    def copies(self, key: str) -> list[Copy]:
        name, found = _encoded(key), []
        if name.startswith(b"__") or len(name) > 511:
            return []
        for path, store in zip(self.paths, self._stores, strict=True):
            with store.begin() as transaction:
                content = transaction.get(name)
            if content is not None:
                found.append(Copy(f"{path}, {key}", functools.partial(_read_arrays, content)))
        return found


class Matrix(Layout):
    """One matrix of all images and a list of their ids, as SCAN has them (Lee et al., ECCV 2018).

    `NAME_ims.npy` [N, R, F] and `NAME_ids.txt`, one id a line; `NAME.npy` with `NAME_ids.txt` or
    `NAME.txt` works too, and a matrix [N, F] has one region per image. The matrix is mapped and
    never read as a whole. The list may have five equal lines per row, one for each caption.
    """

    title = "ids + matrix"
    endings = "npy"
    beginning = rb"\A\x93NUMPY"

    def __init__(self, paths: Sequence[pathlib.Path], cache: str | os.PathLike | None):
        super().__init__(paths, cache)
        self._rows: dict[str, list[tuple[pathlib.Path, np.ndarray, int]]] = {}
        for path in paths:
            try:
                matrix = np.load(path, mmap_mode="r", allow_pickle=False)
            except (ValueError, OSError, EOFError) as error:
                raise ValueError(f"{path} cannot be read: {error}. Copy it again.") from None
            if matrix.dtype.kind != "f" or matrix.ndim not in (2, 3):
                raise ValueError(
                    f"{path} has {matrix.dtype} {list(matrix.shape)}: write floating point "
                    "[images, regions, width] or [images, width]."
                )
            for row, key in enumerate(self._ids(path, len(matrix))):
                self._rows.setdefault(key, []).append((path, matrix, row))

    @classmethod
    def recognise(cls, path: pathlib.Path, files: Sequence[pathlib.Path]) -> list[pathlib.Path]:
        if path.is_dir():  # which may also be a folder of one file per image
            files = [file for file in files if file.suffix == ".npy"]
            files = [file for file in files if file.stem.endswith("_ims")] or files[:20]
        return super().recognise(path, [file for file in files if cls._list_of(file)])

    def copies(self, key: str) -> list[Copy]:
        return [
            Copy(f"{path}, row {row} ({key})", functools.partial(self._read, matrix, row))
            for path, matrix, row in self._rows.get(key, ())
        ]

    def example(self) -> str:
        return next(iter(self._rows), "")

    @staticmethod
    def _read(matrix: np.ndarray, row: int) -> Found:
        return Found(np.array(matrix[row]))

    @staticmethod
    def _list_of(path: pathlib.Path) -> pathlib.Path | None:
        """Returns the list of ids that belongs to a matrix, or None."""
        stem = path.stem.removesuffix("_ims")
        names = (f"{stem}_ids.txt", f"{path.stem}_ids.txt", f"{path.stem}.txt")
        return next((file for name in names if (file := path.with_name(name)).is_file()), None)

    @classmethod
    def _ids(cls, path: pathlib.Path, rows: int) -> list[str]:
        """Returns the id of each row of a matrix."""
        file = cls._list_of(path)
        assert file is not None  # `recognise` has seen it
        try:
            ids = file.read_text("utf-8-sig").rstrip().splitlines()
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} is not UTF-8 text at byte {error.start}.") from None
        ids = [key.strip() for key in ids]
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

    def __init__(self, paths: Sequence[pathlib.Path], cache: str | os.PathLike | None):
        super().__init__(paths, cache)
        beside = [_beside(path, end) for path in paths for end in ("_fc", "_box")]
        self._about = [path for path in (*paths, *beside) if path]

    @classmethod
    def recognise(cls, path: pathlib.Path, files: Sequence[pathlib.Path]) -> list[pathlib.Path]:
        if any(file != path and file.suffix in (".npz", ".npy") for file in files):
            return [path]
        folders = [folder for folder in path.iterdir() if folder.is_dir()] if path.is_dir() else []
        regions = [folder for folder in folders if folder.name.endswith("_att")]
        # Without such a folder these may be folders of files, as in train2014/ID.npz.
        return regions[:1] if len(regions) == 1 else [path] if folders and not regions else []

    def copies(self, key: str) -> list[Copy]:
        return [
            Copy(str(file), functools.partial(self._read, folder, file, key))
            for folder in self.paths
            for ending in (".npz", ".npy")
            if os.path.isfile(file := folder / f"{key}{ending}")
        ]

    def missing(self, key: str) -> str:
        file = self.paths[0] / f"{key}.npz"
        near = spelling.near(self.paths[0], f"{key}.npz")
        return f"{file}: No such file, and none that ends in .npy{near}."

    def about(self) -> str:
        return f"{self.title} in {', '.join(map(str, self._about))}"

    def _read(self, folder: pathlib.Path, file: pathlib.Path, key: str) -> Found:
        found = _read_arrays(file.read_bytes())
        if vectors := _beside(folder, "_fc"):
            found = found._replace(
                image=_read_arrays((vectors / f"{key}.npy").read_bytes()).features
            )
        if boxes := _beside(folder, "_box"):
            found = found._replace(boxes=_read_arrays((boxes / f"{key}.npy").read_bytes()).features)
        return found


def _beside(folder: pathlib.Path, end: str) -> pathlib.Path | None:
    """Returns the folder NAME_fc or NAME_box beside a folder NAME_att, or None."""
    other = folder.with_name(folder.name.removesuffix("_att") + end)
    return other if folder.name.endswith("_att") and other.is_dir() else None


# The first that recognises the files counts; a folder may also hold the files of another layout.
LAYOUTS: tuple[type[Layout], ...] = (Tsv, Hdf5, Lmdb, Matrix, Folder)


def recognise(paths: Sequence[pathlib.Path]) -> tuple[type[Layout], list[pathlib.Path]]:
    """Finds the layout that recognises all paths; first bytes of files are enough.

    Args:
      paths: files or directories.

    Returns:
      The layout and its files.

    Raises:
      ValueError: a path does not exist, or the paths do not have one layout that is known.
    """
    inside = []
    for path in paths:
        if not path.exists():
            raise ValueError(f"--features: there is no file or directory {path}.")
        entries = os.scandir(path) if path.is_dir() else ()
        names = sorted(e.name for e in entries if e.is_file() and not e.name.startswith("."))
        inside.append([path / name for name in names] if path.is_dir() else [path])
    for cls in LAYOUTS:
        each = [cls.recognise(path, files) for path, files in zip(paths, inside, strict=True)]
        if all(each):
            return cls, [file for files in each for file in files]
        if any(each):
            other = next(path for path, files in zip(paths, each, strict=True) if not files)
            raise ValueError(f"--features: {other} is not {cls.title} as the others.")
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

    The first images decide which name of an image is its key in the files, how wide features must
    be, and whether there are vectors of whole images.

    Args:
      paths: files or directories.
      entries: the images of the data set.
      images: the directory of pictures, which give the size of an image if the files lack it.
      cache: a directory in which an index is kept between runs, or None.

    Attributes:
      layout: the files.
      named_by: which name of an image is its key in the files.
      dim: F.
      image_dim: F2, or None without vectors of whole images.
      regions: mean R of the first images.

    Raises:
      ValueError: the files have no known layout, or no features of the first images.
    """

    def __init__(
        self,
        paths: Sequence[pathlib.Path],
        entries: Sequence[Entry],
        images: str | os.PathLike | None = None,
        cache: str | os.PathLike | None = None,
    ):
        self.images = None if images is None else pathlib.Path(images)
        cls, files = recognise(paths)
        self.layout: Layout = cls(files, None if cache is None else os.path.join(cache, INDEX))
        probes = entries[:_PROBES]
        counts = {
            name: sum(self.layout.has(self._spelled(key)) for key in map(of, probes) if key)
            for name, of in _KEYS.items()
        }
        self.named_by = max(counts, key=lambda name: counts[name])  # the first of equal ones
        self.dim, self.image_dim = 0, None  # until the first images are read
        samples, reasons = [], []
        for entry in probes:
            try:
                samples.append(self._regions(entry))
            except ValueError as error:
                reasons.append(str(error))
        if not samples:
            looked = dict.fromkeys(of(probes[0]) for of in _KEYS.values())
            example = self.layout.example()
            there = f"; a name in the files is {example}" if example else ""
            raise ValueError(
                f"--features: {self.layout.about()} has no usable features of the first "
                f"{len(probes)} images, looked for as {' or '.join(filter(None, looked))}{there}: "
                f"{reasons[0]}"
            )
        shapes = [one.features.shape for one in samples]
        self.dim = collections.Counter(width for _, width in shapes).most_common(1)[0][0]
        self.regions = round(sum(regions for regions, _ in shapes) / len(shapes))
        vectors = collections.Counter(None if r.image is None else len(r.image) for r in samples)
        self.image_dim = vectors.most_common(1)[0][0]

    def about(self) -> str:
        """Describes the files and what they hold in a line."""
        vectors = f", vectors of whole images {self.image_dim}" if self.image_dim else ""
        return f"{self.layout.about()}; named by {self.named_by}{vectors}"

    def read(self, entries: Sequence[Entry]) -> Iterator[Extracted]:
        """Yields an `Extracted` per entry, in order."""
        waiting: collections.deque[concurrent.futures.Future[Extracted]] = collections.deque()
        with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
            for entry in entries:
                waiting.append(pool.submit(self._read, entry))
                if len(waiting) > _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _read(self, entry: Entry) -> Extracted:
        try:
            regions = self._regions(entry)
        except ValueError as error:
            return Extracted(entry, None, None, str(error))
        image = regions.image if self.image_dim else None
        return Extracted(
            entry, regions.features, regions.boxes, None, regions.boxes_dropped, image=image
        )

    def _regions(self, entry: Entry) -> Regions:
        """Returns the first usable copy of an image's features.

        Raises:
          ValueError: there is none; the message is about the first copy.
        """
        key = self._spelled(_KEYS[self.named_by](entry))
        reasons = []
        for copy in self.layout.copies(key) if key else ():
            try:
                regions = checked(copy.read(), functools.partial(self._size, entry))
                self._check_widths(regions)
                return regions
            except Exception as error:  # of NumPy, h5py, zip, zlib, base64 and JSON
                kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
                reasons.append(f"{copy.where}: {kind}{' '.join(str(error).split())[:300]}")
        raise ValueError(reasons[0] if reasons else self.layout.missing(key))

    def _check_widths(self, regions: Regions) -> None:
        width = regions.features.shape[1]
        if self.dim and width != self.dim:
            raise ValueError(
                f"features must be {self.dim} wide, as in most of the first images, and are "
                f"{width}."
            )
        vector = None if regions.image is None else len(regions.image)
        if self.image_dim and vector != self.image_dim:
            raise ValueError(
                f"the vector of the whole image must be {self.image_dim} wide, as in most of the "
                f"first images, and is {vector or 'missing'}."
            )

    def _spelled(self, key: str) -> str:
        """Returns a key as the files have it: macOS writes an accent as a character of its own."""
        if key.isascii():
            return key
        forms = key, unicodedata.normalize("NFC", key), unicodedata.normalize("NFD", key)
        return next((form for form in forms if self.layout.has(form)), key)

    def _size(self, entry: Entry) -> tuple[int, int] | None:
        if entry.content is not None:
            return upright_size(io.BytesIO(entry.content.read()))
        return None if self.images is None else upright_size(self.images / entry.file_name)


def _read_arrays(content: bytes) -> Found:
    """Reads what an image has in the bytes of an npz or npy file."""
    if not content.startswith((b"\x93NUMPY", b"PK")):
        raise ValueError("not an npz or npy file: copy it again.")
    with _PARSER:
        arrays = np.load(io.BytesIO(content), allow_pickle=False)
        return Found(arrays) if isinstance(arrays, np.ndarray) else _found(arrays)


def _found(arrays: Mapping[str, Any]) -> Found:
    """Returns what an image has in an npz file or in HDF5, by the names of its arrays."""
    name = next((name for name in _FEATURES if name in arrays), None)
    if name is None:
        left = [n for n in arrays if n not in _OTHERS] or list(arrays)
        if len(left) != 1:
            raise ValueError(
                f"no array {', '.join(_FEATURES)}; it has: {', '.join(left)}. Rename the array of "
                "the features to feat."
            )
        name = left[0]

    def first(names: Sequence[str]) -> np.ndarray | None:
        there = (other for other in names if other in arrays and other != name)
        return next((np.asarray(arrays[other]) for other in there), None)

    count, image = first(_COUNTS), first(["image"])
    regions = None
    if count is not None and count.size == 1 and count.dtype.kind in "iuf":
        regions = count.item()
    sizes = ((first([width]), first([height])) for width, height in _SIZES)
    size = next(((w, h) for w, h in sizes if w is not None and h is not None), None)
    if image is not None and (image.dtype.kind != "f" or image.squeeze().ndim != 1):
        image = None  # something else, such as the pixels of the picture
    return Found(np.asarray(arrays[name]), first(_BOXES), size, image, regions=regions)


def _floats(text: bytes | str, rows: int, columns: int | None = None) -> np.ndarray:
    """Decodes float32 [rows, columns] in base64; None takes the columns that the length gives.

    Python 3 programs sometimes write `b'...'` around the text; this is removed.
    """
    text = text.encode() if isinstance(text, str) else text
    if text.startswith((b"b'", b'b"')):
        text = text[2:-1]
    try:
        raw = base64.b64decode(text, validate=True)
        if columns is None or len(raw) == 4 * rows * columns:
            return np.frombuffer(raw, "<f4").reshape(rows, -1)
        raise ValueError(f"{len(raw)} bytes")
    except ValueError as error:
        raise ValueError(
            f"no float32 [{rows}, {columns or 'width'}] in base64 ({error}): the line may be cut."
        ) from None


def _encoded(key: str) -> bytes:
    return key.encode("utf-8", "replace")  # a name may have half of a surrogate pair


def _first_bytes(path: pathlib.Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(1 << 16)  # LXMERT's fields before the boxes have up to 4 kB
