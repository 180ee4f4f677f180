"""Reads ready-made features: finds how the files name the images, and checks what they hold.

Letters: R regions, F feature width, F2 width of the vector of a whole image.
"""

import collections
import io
import os
import pathlib
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tfcap.data import clips
from tfcap.images import upright_size
from tfcap.preparing.pictures import Extracted
from tfcap.preparing.ready.checks import Size, checked, name_of_features
from tfcap.preparing.ready.layouts import OTHERS, FeatureFiles, recognise
from tfcap.preparing.sources.entry import Entry

INDEX = ".features.index.json"  # in the prepared directory
_PROBES = 20  # images by which the files are understood


def _number(entry: Entry) -> str:
    """Returns the number at the end of a name: 9 for COCO_val2014_000000000009.jpg."""
    match = re.search(r"(\d{1,18})$", pathlib.PurePosixPath(entry.file_name).stem)
    return str(int(match[1])) if match else ""


# What an image may be called in the files, and how that is described. The first of equal ones
# wins. Where a reader counted the images, their numbers name no file.
_KEYS: dict[str, Callable[[Entry], str]] = {
    "name of the image file": lambda entry: pathlib.PurePosixPath(entry.file_name).stem,
    "image id": lambda entry: str(entry.id) if entry.has_id else "",
    "number in the name": _number,
    "path of the image file": lambda entry: str(
        pathlib.PurePosixPath(entry.file_name).with_suffix("")
    ),
    "file name": lambda entry: entry.file_name,
}


class ReadyFeatures:
    """Reads features of images that another program has written into files.

    The constructor looks for the first 20 images in the files. They decide three things: which
    name of an image is its key in the files, how wide the feature vectors of all images must be,
    and whether there are vectors of whole images.

    Args:
      paths: files or directories of features, all in one layout.
      entries: the images of the data set; the first 20 are enough.
      images: the directory of the pictures. It is needed only if boxes are in pixels and the files
        lack the size of the images. With None, such boxes are dropped.
      cache: a directory in which an index is stored for later runs; None stores none.
      frames: for clips, whose regions are frames: number of frames to use, evenly spaced. Of a
        shorter clip the last frame is repeated. None uses all regions.

    Attributes:
      named_by: which name of an image is its key in the files: "name of the image file" (without
        directory and ending), "image id", "number in the name", "path of the image file" (without
        ending), or "file name" (path and ending).
      dim: width of a feature vector.
      image_dim: width of the vector of a whole image; None if there are no such vectors.
      regions: number of regions of an image: `frames`, or the rounded mean of the first images.
      unread: names of the arrays in the files that are not used.

    Raises:
      ValueError: no layout fits the paths, or none of the first images has usable features.
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
        layout, inside = recognise(paths)
        index = None if cache is None else os.path.join(cache, INDEX)
        self.files: FeatureFiles = layout(inside, index)
        self._described = f"{layout.title}, {', '.join(map(str, inside))}"
        probes = entries[:_PROBES]
        counts = {
            name: sum(self.files.has(self._spelled(key)) for key in map(key_of, probes) if key)
            for name, key_of in _KEYS.items()
        }
        self.named_by = max(counts, key=lambda name: counts[name])  # the first of equal ones
        self.dim = 0  # until the first images are read
        self.image_dim: int | None = None
        first = [self._extracted(entry) for entry in probes]
        usable = [extracted for extracted in first if extracted.features is not None]
        if not usable:
            looked = dict.fromkeys(key_of(probes[0]) for key_of in _KEYS.values())
            raise ValueError(
                f"`features`: none of the first {len(probes)} images has usable features. The "
                f"first was looked for under the names {', '.join(filter(None, looked))}: "
                f"{(first[0].reason or '').rstrip('.')}. Repair the files, or give those of this "
                "data set."
            )
        widths = collections.Counter(map(_widths, usable))
        self.dim, self.image_dim = widths.most_common(1)[0][0]
        arrays = self.files.read(self._spelled(_KEYS[self.named_by](usable[0].entry)))
        self.unread = sorted(set(arrays) - {name_of_features(arrays), *OTHERS})
        self.regions = round(sum(len(np.asarray(e.features)) for e in usable) / len(usable))

    def about(self) -> str:
        """Describes the features in one line of text.

        The line has the layout, the paths, `named_by`, `image_dim` and `unread`.
        """
        vectors = f", vectors of whole images {self.image_dim}" if self.image_dim else ""
        unread = f"; not read: {', '.join(self.unread)}" if self.unread else ""
        return f"{self._described}; named by {self.named_by}{vectors}{unread}"

    def read(self, entries: Sequence[Entry]) -> Iterator[Extracted]:
        """Reads the features of images.

        Yields:
          An `Extracted` for each entry, in order. For an image without usable features, the
          `Extracted` has a reason and no features.
        """
        yield from map(self._extracted, entries)

    def _extracted(self, entry: Entry) -> Extracted:
        key = self._spelled(_KEYS[self.named_by](entry))
        if not key or not self.files.has(key):
            reason = f"no {key} in {self._described}{self.files.near(key)}"
            return Extracted(entry, None, None, reason)
        try:
            extracted = checked(entry, self.files.read(key), self._size)
            if self.dim and not self.image_dim:
                extracted = extracted._replace(image=None)
            widths = _widths(extracted)
            if self.dim and widths != (self.dim, self.image_dim):
                raise ValueError(
                    f"the image has {_in_words(*widths)}, but most of the first images have "
                    f"{_in_words(self.dim, self.image_dim)}. Write the same widths for all images."
                )
        except Exception as error:  # of NumPy, h5py, zip and zlib
            reason = f"{key} in {self._described}: {' '.join(str(error).split())[:300]}"
            return Extracted(entry, None, None, reason)
        if self.frames is not None:
            features = np.asarray(extracted.features)
            chosen = clips.frame_positions(len(features), self.frames).numpy()
            boxes = clips.sheet_boxes(self.frames)
            extracted = extracted._replace(features=features[chosen], boxes=boxes)
        return extracted

    def _spelled(self, key: str) -> str:
        """Returns a key as the files spell it; on macOS an accent is a separate character."""
        if key.isascii():
            return key
        forms = key, unicodedata.normalize("NFC", key), unicodedata.normalize("NFD", key)
        return next((form for form in forms if self.files.has(form)), key)

    def _size(self, entry: Entry) -> Size | None:
        if entry.content is not None:
            return upright_size(io.BytesIO(entry.content.read()))
        return None if self.images is None else upright_size(self.images / entry.file_name)


def _widths(extracted: Extracted) -> tuple[int, int | None]:
    """Returns F and F2."""
    image = extracted.image
    return np.asarray(extracted.features).shape[1], None if image is None else len(image)


def _in_words(dim: int, image_dim: int | None) -> str:
    """Describes the widths F and F2."""
    whole = "no vector" if image_dim is None else f"a vector of the width {image_dim}"
    return f"features of the width {dim} and {whole} of the whole image"
