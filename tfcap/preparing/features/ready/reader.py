"""Reads ready-made features of images in any layout.

Letters: R regions, F feature width, F2 width of the vector of a whole image.
"""

import collections
import concurrent.futures
import functools
import io
import os
import pathlib
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence

from tfcap.picture_files import upright_size
from tfcap.preparing.features.pictures import Extracted
from tfcap.preparing.features.ready.layout import LAYOUTS, Layout
from tfcap.preparing.features.ready.regions import Regions, checked
from tfcap.preparing.sources import ImageEntry

_PROBES = 20
_THREADS = 4
_AHEAD = 16  # images that are read before they are asked for
INDEX = ".features.index.npz"  # in the prepared directory


def _number(entry: ImageEntry) -> str:
    """Returns the number at the end of a name: 9 for COCO_val2014_000000000009.jpg."""
    match = re.search(r"(\d{1,18})$", pathlib.PurePosixPath(entry.file_name).stem)
    return str(int(match[1])) if match else ""


# What an image may be called in the files, and how that is described. The first of equal ones
# wins. Where a reader counted the images, their numbers name no file.
_KEYS: dict[str, Callable[[ImageEntry], str]] = {
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
        entries: Sequence[ImageEntry],
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
                f"--features must hold features of the images. Received: "
                f"{self.layout.about()}, which has no usable features of the first {len(probes)} "
                f"images, looked for as {' or '.join(filter(None, looked))}{there}: {reasons[0]} "
                "Correct the path or the names of the files."
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

    def read(self, entries: Sequence[ImageEntry]) -> Iterator[Extracted]:
        """Yields an `Extracted` per entry, in order."""
        waiting: collections.deque[concurrent.futures.Future[Extracted]] = collections.deque()
        with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
            for entry in entries:
                waiting.append(pool.submit(self._read, entry))
                if len(waiting) > _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _read(self, entry: ImageEntry) -> Extracted:
        try:
            regions = self._regions(entry)
        except ValueError as error:
            return Extracted(entry, None, None, str(error))
        image = regions.image if self.image_dim else None
        return Extracted(
            entry, regions.features, regions.boxes, None, regions.boxes_dropped, image=image
        )

    def _check_widths(self, regions: Regions) -> None:
        width = regions.features.shape[1]
        if self.dim and width != self.dim:
            raise ValueError(
                f"features must be {self.dim} wide, as in most of the first images. Received: "
                f"{width}."
            )
        vector = None if regions.image is None else len(regions.image)
        if self.image_dim and vector != self.image_dim:
            raise ValueError(
                f"the vector of the whole image must be {self.image_dim} wide, as in most of the "
                f"first images. Received: {vector or 'none'}."
            )

    def _regions(self, entry: ImageEntry) -> Regions:
        """Returns the first usable copy of an image's features.

        Raises:
          ValueError: there is none; the message is about the first copy.
        """
        key = self._spelled(_KEYS[self.named_by](entry))
        reasons: list[ValueError] = []
        while not reasons or len(reasons) < self.layout.copies(key):
            try:
                return self._checked(entry, key, copy=len(reasons))
            except ValueError as error:
                reasons.append(error)
        raise reasons[0]

    def _spelled(self, key: str) -> str:
        """Returns a key as the files have it: macOS writes an accent as a character of its own."""
        if key.isascii():
            return key
        forms = key, unicodedata.normalize("NFC", key), unicodedata.normalize("NFD", key)
        return next((form for form in forms if self.layout.has(form)), key)

    def _checked(self, entry: ImageEntry, key: str, copy: int) -> Regions:
        content = self.layout.read(key, copy)
        try:
            regions = checked(content, functools.partial(self._size, entry))
            self._check_widths(regions)
        except ValueError as error:
            raise ValueError(f"{self.layout.place(key, copy)}: {error}") from None
        return regions

    def _size(self, entry: ImageEntry) -> tuple[int, int] | None:
        if entry.content is not None:
            return upright_size(io.BytesIO(entry.content.read()))
        return None if self.images is None else upright_size(self.images / entry.file_name)


def recognise(paths: Sequence[pathlib.Path]) -> tuple[type[Layout], list[pathlib.Path]]:
    """Finds the layout that recognises all paths; first bytes of files are enough.

    Args:
      paths: files or directories.

    Returns:
      The layout and its files.

    Raises:
      ValueError: a path does not exist, or the paths do not have one layout that is known.
    """
    for path in paths:
        if not path.exists():
            raise ValueError(
                f"--features must be an existing file or directory. Received: {path}. "
                "Correct the path."
            )
    known = ", ".join(cls.title for cls in LAYOUTS)
    for cls in sorted(LAYOUTS, key=lambda cls: cls.last):
        each = [cls.recognises(path) for path in paths]
        if all(each):
            return cls, [file for files in each for file in files]
        if any(each):
            other = next(path for path, files in zip(paths, each, strict=True) if not files)
            raise ValueError(
                f"All files of --features must have one layout. Received: {other}, which is not "
                f"{cls.title} as the others. Prepare them one by one."
            )
    raise ValueError(
        f"--features must be files of features in one of these layouts: {known}. Received: "
        f"{', '.join(map(str, paths))}. See docs/prepare.md for what each looks like."
    )
