"""Reads ready-made features: one npz file per image.

Letters: R regions, F feature width.
"""

import collections
import concurrent.futures
import os
import pathlib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tfcap.files import load_npz
from tfcap.preparing.features.pictures import Extracted
from tfcap.preparing.sources import ImageEntry

# A larger array belongs to a damaged or hostile file: 10,000 regions of 4,096 float64.
MAX_ARRAY_BYTES = 10_000 * 4_096 * 8
_PROBES = 20
_SIZES = ("image_w", "image_h")
_PIXEL_ROUNDING = 1.0  # pixels by which a detector's box may leave its image
_UNIT_ROUNDING = 1e-3  # the same for boxes in 0..1
_REMEDY = "Write it again with numpy.savez."


class ReadyFile(NamedTuple):
    """The content of one file.

    Attributes:
      features: float32 [R, F].
      boxes: float32 [R, 4], x1, y1, x2, y2 in 0..1, or None.
      boxes_dropped: whether the file has boxes in pixels but not the size of the image.
    """

    features: np.ndarray
    boxes: np.ndarray | None
    boxes_dropped: bool


class ReadyFeatures:
    """Reads features from one npz file per image, named by image id or by the image's file stem.

    The first images decide which of the two names is used and how wide features must be.

    Attributes:
      dim: F.
      regions: mean R of the first images.
    """

    def __init__(self, directory: str | os.PathLike, entries: Sequence[ImageEntry]):
        self.directory = pathlib.Path(directory)
        if not self.directory.is_dir():
            raise ValueError(
                f"--features must be an existing directory. Received: {directory}. "
                "Correct the path."
            )
        probes = entries[:_PROBES]
        by_id = sum(self._path(entry, True).is_file() for entry in probes)
        by_stem = sum(self._path(entry, False).is_file() for entry in probes)
        self.named_by_id = by_id >= by_stem
        shapes = []
        for entry in probes:
            try:
                shapes.append(read_npz(self._path(entry, self.named_by_id)).features.shape)
            except ValueError:
                continue  # `read` gives the reason
        if not shapes:
            raise ValueError(
                f"--features must hold features of the images. Received: {directory}, which has "
                f"no usable file for the first {len(probes)} images, for example "
                f"{self._path(probes[0], True).name} or {self._path(probes[0], False).name}. "
                "Correct the path or the names of the files."
            )
        self.dim = collections.Counter(width for _, width in shapes).most_common(1)[0][0]
        self.regions = round(sum(regions for regions, _ in shapes) / len(shapes))

    def read(self, entries: Sequence[ImageEntry]) -> Iterator[Extracted]:
        """Yields an `Extracted` per entry, in order."""
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            yield from pool.map(self._read, entries)

    def _read(self, entry: ImageEntry) -> Extracted:
        try:
            features, boxes, dropped = read_npz(self._path(entry, self.named_by_id), self.dim)
        except ValueError as error:
            return Extracted(entry, None, None, str(error))
        return Extracted(entry, features, boxes, None, dropped)

    def _path(self, entry: ImageEntry, by_id: bool) -> pathlib.Path:
        stem = str(entry.id) if by_id else pathlib.PurePosixPath(entry.file_name).stem
        return self.directory / f"{stem}.npz"


def read_npz(path: str | os.PathLike, dim: int | None = None) -> ReadyFile:
    """Reads the ready-made features of one image.

    The features are the array `feat` (files of JDAI-CV/image-captioning), `features` (files of
    YehLi/xmodaler), or the only array of the file. Boxes in pixels are divided by `image_w` and
    `image_h`, which the released files carry; without these two they are dropped.

    Args:
      path: an npz file.
      dim: F that is required; None accepts any.

    Raises:
      ValueError: not an npz file, pickled content, a wrong shape or type, no region, NaN or
        infinity, or boxes that lie outside the image.
    """
    names = _array_names(path)
    name: str | None = next((n for n in ("feat", "features") if n in names), None)
    if name is None:
        if len(names) != 1:
            raise ValueError(
                f"{path} must have an array 'feat' or 'features'. Received: {names}. {_REMEDY}"
            )
        name = names[0]
    others = [n for n in ("boxes", *_SIZES) if n in names and n != name]
    arrays = load_npz(path, [name, *others], remedy=_REMEDY)
    features = arrays.pop(name)
    if features.ndim != 2 or features.dtype.kind != "f" or not len(features):
        raise ValueError(
            f"{path}: features must be floating point [regions, width] with at least one region. "
            f"Received: {features.dtype} {list(features.shape)}. {_REMEDY}"
        )
    if dim is not None and features.shape[1] != dim:
        raise ValueError(
            f"{path}: features must be {dim} wide, as in most of the first images. "
            f"Received: {features.shape[1]}. {_REMEDY}"
        )
    if not np.isfinite(features).all():
        raise ValueError(f"{path}: features must be finite. Received: NaN or infinity. {_REMEDY}")
    boxes = _unit_boxes(path, arrays, len(features))
    dropped = "boxes" in arrays and boxes is None
    return ReadyFile(features.astype(np.float32), boxes, dropped)


def _array_names(path: str | os.PathLike) -> list[str]:
    """Returns the names of the arrays; the zip directory tells their sizes before any is read."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (OSError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{path}: not a readable npz file ({reason}). {_REMEDY}") from None
    for member in members:
        if member.file_size > MAX_ARRAY_BYTES:
            raise ValueError(
                f"{path}: the array {member.filename!r} must have at most {MAX_ARRAY_BYTES} bytes. "
                f"Received: it claims {member.file_size} bytes. {_REMEDY}"
            )
    return [member.filename.removesuffix(".npy") for member in members]


def _unit_boxes(
    path: str | os.PathLike, arrays: Mapping[str, np.ndarray], regions: int
) -> np.ndarray | None:
    """Returns boxes float32 [R, 4] in 0..1, or None if there are none or the size is unknown."""
    if "boxes" not in arrays:
        return None
    boxes = arrays["boxes"]
    if boxes.shape != (regions, 4) or boxes.dtype.kind not in "fiu":
        raise ValueError(
            f"{path}: boxes must be numbers [{regions}, 4]. Received: {boxes.dtype} "
            f"{list(boxes.shape)}. {_REMEDY}"
        )
    boxes = boxes.astype(np.float64)
    rounding = np.full(4, _UNIT_ROUNDING)
    if not _inside(boxes, rounding):  # so they are in pixels
        size = _image_size(path, arrays)
        if size is None:
            return None
        boxes, rounding = boxes / size, _PIXEL_ROUNDING / size
    if not _inside(boxes, rounding) or not (boxes[:, :2] <= boxes[:, 2:]).all():
        raise ValueError(
            f"{path}: boxes must be x1, y1, x2, y2 inside the image, with x1 <= x2 and y1 <= y2. "
            f"Received: {arrays['boxes'].min()} to {arrays['boxes'].max()}, image size "
            f"{[arrays[name].tolist() for name in _SIZES if name in arrays]}. {_REMEDY}"
        )
    return np.clip(boxes, 0, 1).astype(np.float32)


def _inside(boxes: np.ndarray, rounding: np.ndarray) -> bool:
    """Returns whether all boxes [R, 4] lie in 0..1 up to rounding [4]; False for NaN."""
    return bool(((boxes >= -rounding) & (boxes <= 1 + rounding)).all())


def _image_size(path: str | os.PathLike, arrays: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Returns (w, h, w, h) float64 [4] in pixels, or None if the file does not have both."""
    if not all(name in arrays for name in _SIZES):
        return None
    width, height = (arrays[name] for name in _SIZES)
    valid = [
        a.size == 1 and a.dtype.kind in "fiu" and 0 < a.item() < np.inf for a in (width, height)
    ]
    if not all(valid):
        raise ValueError(
            f"{path}: image_w and image_h must be one positive number each. Received: "
            f"{width.tolist()!r:.60} and {height.tolist()!r:.60}. {_REMEDY}"
        )
    return np.array([width.item(), height.item()] * 2, np.float64)
