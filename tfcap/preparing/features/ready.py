"""Ready features: one npz file per image.

R regions, F feature width.
"""

import collections
import concurrent.futures
import os
import pathlib
import zipfile
from collections.abc import Iterator, Sequence

import numpy as np

from tfcap.files import load_npz
from tfcap.preparing.features.pictures import Found
from tfcap.preparing.sources import ImageEntry

# Above this a feature file is taken for damaged or hostile: 10,000 regions of 4,096 float64.
MAX_ARRAY_BYTES = 10_000 * 4_096 * 8
_PROBES = 20


class ReadyFeatures:
    """Features that lie in one npz file per image, named by image id or by the image's file stem.

    Which of the two names is used, and how wide features must be, is what most of the first images
    say.
    """

    def __init__(self, directory: str | os.PathLike, entries: Sequence[ImageEntry]):
        self.directory = pathlib.Path(directory)
        if not self.directory.is_dir():
            raise ValueError(f"the directory of features {directory} does not exist")
        probes = entries[:_PROBES]
        by_id = sum(self._path(entry, True).is_file() for entry in probes)
        by_stem = sum(self._path(entry, False).is_file() for entry in probes)
        self.named_by_id = by_id >= by_stem
        shapes = []
        for entry in probes:
            try:
                shapes.append(read_npz(self._path(entry, self.named_by_id))[0].shape)
            except ValueError:
                continue  # `read` will say why
        if not shapes:
            raise ValueError(
                f"{directory} holds no usable features for the first {len(probes)} images, such as"
                f" {self._path(probes[0], True).name} or {self._path(probes[0], False).name}; check"
                " --features"
            )
        self.dim = collections.Counter(width for _, width in shapes).most_common(1)[0][0]
        self.regions = round(sum(regions for regions, _ in shapes) / len(shapes))

    def read(self, entries: Sequence[ImageEntry]) -> Iterator[Found]:
        """Yields a `Found` per entry, in order."""
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            yield from pool.map(self._read, entries)

    def _read(self, entry: ImageEntry) -> Found:
        try:
            return Found(entry, *read_npz(self._path(entry, self.named_by_id), self.dim), None)
        except ValueError as error:
            return Found(entry, None, None, str(error))

    def _path(self, entry: ImageEntry, by_id: bool) -> pathlib.Path:
        stem = str(entry.id) if by_id else pathlib.PurePosixPath(entry.file_name).stem
        return self.directory / f"{stem}.npz"


def read_npz(
    path: str | os.PathLike, dim: int | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Reads the ready features of one image.

    The array is `feat` (files of JDAI-CV/image-captioning), `features` (of YehLi/xmodaler), or the
    only array of the file. Boxes are read if they lie in 0..1; the released files in pixels come
    without the image's size, so theirs are left out.

    Args:
      path: an npz file.
      dim: F that is required; None takes any.

    Returns:
      features: float32 [R, F], finite.
      boxes: float32 [R, 4], x1, y1, x2, y2 in 0..1, or None.

    Raises:
      ValueError: not an npz, pickled content, a wrong shape or type, no region, NaN or infinity.
    """
    names = _array_names(path)
    name = next((n for n in ("feat", "features") if n in names), None)
    if name is None:
        if len(names) != 1:
            raise ValueError(f"{path}: no array 'feat' or 'features' among {names}")
        name = names[0]
    wanted = [name, "boxes"] if "boxes" in names and name != "boxes" else [name]
    arrays = load_npz(path, wanted, remedy="Write it again with numpy.savez.")
    features = arrays[name]
    if features.ndim != 2 or features.dtype.kind != "f":
        raise ValueError(
            f"{path}: features must be floats of [regions, width]. Received: {features.dtype}"
            f" {list(features.shape)}"
        )
    if not len(features):
        raise ValueError(f"{path}: features with zero regions")
    if dim is not None and features.shape[1] != dim:
        raise ValueError(f"{path}: features are {features.shape[1]} wide, expected {dim}")
    if not np.isfinite(features).all():
        raise ValueError(f"{path}: features hold NaN or infinity")
    boxes = _boxes_in_unit(path, arrays.get("boxes"), len(features))
    return features.astype(np.float32), boxes


def _array_names(path: str | os.PathLike) -> list[str]:
    """The arrays of an npz. Its zip directory tells their sizes before a byte is unpacked."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (OSError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{path}: not a readable npz file ({reason})") from None
    for member in members:
        if member.file_size > MAX_ARRAY_BYTES:
            raise ValueError(
                f"{path}: the array {member.filename!r} claims {member.file_size} bytes,"
                f" features of one image have at most {MAX_ARRAY_BYTES}"
            )
    return [member.filename.removesuffix(".npy") for member in members]


def _boxes_in_unit(
    path: str | os.PathLike, boxes: np.ndarray | None, regions: int
) -> np.ndarray | None:
    if boxes is None:
        return None
    if boxes.shape != (regions, 4) or boxes.dtype.kind not in "fiu":
        raise ValueError(
            f"{path}: boxes must be numbers of [{regions}, 4]. Received: {boxes.dtype}"
            f" {list(boxes.shape)}"
        )
    inside = np.all((boxes >= 0) & (boxes <= 1))
    return boxes.astype(np.float32) if inside else None
