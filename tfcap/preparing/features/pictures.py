"""Reads the images of a data set and extracts their features, for `prepare`.

Letters: R regions, F feature width.

Both sources of features, `Pictures` here and `ready.ReadyFeatures`, have the same interface: `dim`
(F), `image_dim` (width F2 of the vector of a whole image, or None without such vectors), `regions`
(R of a typical image), and `read`, which yields an `Extracted` per image, in order.
An unusable image gives an `Extracted` with a reason and no exception, because large data sets have
a few of them.
"""

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfcap import files
from tfcap.data import pictures
from tfcap.data.prepared import without_tuning
from tfcap.images import MOST_BYTES, is_animated, refusal
from tfcap.preparing import spelling
from tfcap.preparing.features.backbone import Backbone
from tfcap.preparing.sources import Entry, check_size

BATCH = 32  # pictures; larger batches are not faster on a CPU
# Of a picture that is stored in its record.
_MOST_KEPT = 2**17  # bytes of a file that is kept as it is
_MARGIN = 8 / 7  # a backbone that crops reads 256 pixels for its 224
_LONGEST = 4  # times the shorter side
_QUALITY = 95  # of JPEG


class Extracted(NamedTuple):
    """The features of one image, or the reason why there are none.

    Attributes:
      entry: the image.
      features: [R, F], or None.
      boxes: [R, 4], x1, y1, x2, y2 in 0..1, or None.
      reason: why the image cannot be used, or None.
      boxes_dropped: whether boxes were dropped because the size of the image is unknown.
      animated: whether the picture is the first frame of an animated GIF.
      image: the vector [F2] of the whole image, or None.
      picture: bytes of the picture file to store in the record, or None.
    """

    entry: Entry
    features: np.ndarray | None
    boxes: np.ndarray | None
    reason: str | None
    boxes_dropped: bool = False
    animated: bool = False
    image: np.ndarray | None = None
    picture: bytes | None = None


class Pictures:
    """Extracts features from pictures with a backbone.

    A picture is the content of its entry, or else a file.

    Attributes:
      dim: F.
      regions: R.
    """

    def __init__(self, directory: str | os.PathLike | None, backbone: Backbone, keep: bool = False):
        """Loads nothing yet.

        Args:
          directory: directory of the image files; None if every entry has its content.
          backbone: the network.
          keep: whether each `Extracted` also gets the picture, see `kept`.
        """
        self.directory = None if directory is None else os.fspath(directory)
        if self.directory is not None and not files.is_directory(self.directory):
            raise ValueError(f"--images={directory} is no directory.")
        self.backbone, self.keep = backbone, keep
        self.dim = backbone.feature_dim
        self.image_dim: int | None = None
        self.regions = backbone.num_regions
        self._extract = backbone.bulk_extractor()
        self._signature = (tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.string))
        self._load_file, self._load_content = (
            tf.function(load, input_signature=self._signature, autograph=False)
            for load in (self._decode_file, self._decode)
        )
        self._expected: list[list[Entry]] = []
        self._number = 0  # of the next expected list
        self._batches: Iterator[Sequence[tf.Tensor]] = iter(())  # of all expected lists
        self._next: Sequence[tf.Tensor] | None = None

    def expect(self, lists: Sequence[Sequence[Entry]]) -> None:
        """Takes the lists for which `read` will be called, in this order.

        All lists share one `tf.data.Dataset`. One data set per list would cost a fifth of a second
        for each.
        """
        if any(entry.content is not None for entries in lists for entry in entries):
            return  # Python reads the pictures, list by list
        self._expected = [list(entries) for entries in lists]
        self._number, self._next = 0, None
        rows = [self._readable(entries) for entries in lists]
        ends = tf.constant(np.cumsum([0, *(len(places) for places, _ in rows)]), tf.int64)
        places = tf.constant([place for places, _ in rows for place in places], tf.int64)
        paths = tf.constant([path for _, paths in rows for path in paths], tf.string)

        @tf.autograph.experimental.do_not_convert  # nothing in it needs AutoGraph, which is slow
        def of_list(number: tf.Tensor) -> tf.data.Dataset:
            own = slice(ends[number], ends[number + 1])
            numbers = tf.fill(tf.shape(places[own]), number)
            dataset = tf.data.Dataset.from_tensor_slices((numbers, places[own], paths[own]))
            return self._batched(
                dataset.map(
                    lambda number, *row: (number, *self._load_file(*row)),
                    num_parallel_calls=tf.data.AUTOTUNE,
                    deterministic=True,
                )
            )

        dataset = tf.data.Dataset.range(len(rows)).flat_map(of_list).prefetch(2)
        self._batches = iter(without_tuning(dataset))

    def _decode_file(self, position: tf.Tensor, path: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return self._decode(position, tf.io.read_file(path))

    def _decode(self, position: tf.Tensor, content: tf.Tensor) -> tuple[tf.Tensor, ...]:
        is_gif = tf.strings.substr(content, 0, 4) == b"GIF8"
        picture = pictures.decode(content)
        stored = tf.constant(b"")
        if self.keep:
            stored = kept(content, picture, self.backbone.image_size)
        return position, self.backbone.resize(picture), is_gif, tf.shape(picture)[:2], stored

    def read(self, entries: Sequence[Entry]) -> Iterator[Extracted]:
        """Yields an `Extracted` per entry, in order."""
        done = 0
        for positions, resized, *others in self._batches_of(entries):
            features = self._extract(resized).numpy()
            columns = (column.numpy() for column in (positions, *others))
            rows = zip(features, *columns, strict=True)
            for cells, position, is_gif, size, stored in rows:
                for missed in range(done, position):
                    yield self._failed(entries[missed])
                entry = entries[position]
                animated = bool(is_gif) and is_animated(self._bytes(entry))
                boxes = self.backbone.boxes_in(*size.tolist())
                picture = stored if self.keep else None
                yield Extracted(entry, cells, boxes, None, animated=animated, picture=picture)
                done = position + 1
        for missed in range(done, len(entries)):
            yield self._failed(entries[missed])

    def _batched(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Makes batches of the pictures of a list that can be decoded.

        Positions that are missing in the output belong to pictures that cannot be decoded. The last
        batch ends with the list, so that a shard that is written again has the same bytes.
        """
        return dataset.ignore_errors().batch(max(1, BATCH // self.backbone.crops))

    def _batches_of(self, entries: Sequence[Entry]) -> Iterator[Sequence[tf.Tensor]]:
        """Yields the batches of a list, from the shared data set if the list was expected."""
        number = self._number
        if number >= len(self._expected) or self._expected[number] != list(entries):
            yield from without_tuning(self._batched(self._decoded(entries)).prefetch(2))
            return
        self._number += 1
        while True:
            if self._next is None:
                self._next = next(self._batches, None)
            if self._next is None or self._next[0][0] > number:
                return
            batch, self._next = self._next, None
            if batch[0][0] == number:  # a list that was not read to its end has left some
                yield batch[1:]

    def _readable(self, entries: Sequence[Entry]) -> tuple[list[int], list[str]]:
        """Returns the positions and the paths of the files that TensorFlow may read.

        Too large files, pipes and devices are left out. A missing file is kept, because TensorFlow
        reports it.
        """
        paths = [self._path(entry) for entry in entries]
        places = [place for place, path in enumerate(paths) if _may_be_read(path)]
        return places, [paths[place] for place in places]

    def _decoded(self, entries: Sequence[Entry]) -> tf.data.Dataset:
        """Returns a data set of (position, picture, whether it is a GIF); faults are errors."""
        if any(entry.content is not None for entry in entries):
            # Python reads one picture after the other, and TensorFlow decodes them in parallel.
            dataset = tf.data.Dataset.from_generator(
                lambda: self._contents(entries), output_signature=self._signature
            )
            load = self._load_content
        else:
            places, paths = self._readable(entries)
            tensors = np.array(places, np.int64), tf.constant(paths, tf.string)
            dataset = tf.data.Dataset.from_tensor_slices(tensors)
            load = self._load_file
        return dataset.map(load, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

    def _contents(self, entries: Sequence[Entry]) -> Iterator[tuple[int, bytes]]:
        """Yields the bytes of the pictures that can be read, with their positions."""
        for position, entry in enumerate(entries):
            try:
                yield position, self._bytes(entry)
            except (ValueError, OSError):
                continue  # `_failed` reads it again and gives the reason

    def _path(self, entry: Entry) -> str:
        return os.path.join(self.directory or "", entry.file_name)

    def _bytes(self, entry: Entry) -> bytes:
        """Returns the bytes of a picture; raises OSError or ValueError."""
        if entry.content is not None:
            return entry.content.read()
        path = self._path(entry)
        check_size(files.size(path))
        return files.read_bytes(path)

    def _failed(self, entry: Entry) -> Extracted:
        """Decodes a dropped picture once more to find the reason."""
        try:
            if entry.content is None and not files.is_file(path := self._path(entry)):
                reason = "not a regular file"
                if not files.exists(path):
                    reason = "no such file"
                    if not files.is_remote(path):
                        reason += spelling.near(*os.path.split(path))
                return Extracted(entry, None, None, reason)
            content = self._bytes(entry)
            try:
                self.backbone.decode(tf.constant(content))
                reason = "could not be read the first time; prepare again into another directory"
            except tf.errors.InvalidArgumentError:
                reason = refusal(content)
        except (tf.errors.OpError, OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
        return Extracted(entry, None, None, reason)


def _may_be_read(path: str) -> bool:
    """Returns whether reading a file would end; TensorFlow finds that one is missing.

    Remote files are not asked one after the other, which would take longer than reading them. A
    pipe waits, and a device may have no end.
    """
    if files.is_remote(path) or not os.path.exists(path):
        return True
    return os.path.isfile(path) and os.path.getsize(path) <= MOST_BYTES


def shorter_side(image_size: int) -> int:
    """Returns the largest shorter side that a stored picture can have, in pixels.

    Args:
      image_size: side of the square that the backbone reads.
    """
    return round(image_size * _MARGIN)


def expected_bytes(image_size: int) -> int:
    """Returns about how many bytes a kept photograph has."""
    return round(0.8 * shorter_side(image_size) ** 2)


def kept(content: tf.Tensor, image: tf.Tensor, image_size: int) -> tf.Tensor:
    """Returns the file itself if it is small, and otherwise a smaller JPEG of the upright picture.

    A small file is kept byte for byte, so that training decodes what a server decodes. A larger one
    would be decoded and shrunk in every epoch: a photograph of a camera takes ten times as long and
    a hundred times the space. Its shorter side is resized to `shorter_side`, which is a little more
    than the backbone reads, and its aspect is kept, because a backbone may crop. JPEG of quality 95
    without chroma subsampling is hardly visible after the backbone has shrunk the picture again.

    Args:
      content: string [], bytes of a picture file.
      image: uint8 [H, W, 3], what `data.pictures.decode` returns for it.
      image_size: side of the square that the backbone reads.

    Returns:
      string [], bytes of a picture file.
    """
    sides, short = tf.shape(image)[:2], shorter_side(image_size)
    fits = (tf.reduce_min(sides) <= short) & (tf.reduce_max(sides) <= _LONGEST * short)
    is_small = fits & (tf.strings.length(content) <= _MOST_KEPT)
    return tf.cond(is_small, lambda: content, lambda: _encoded(image, sides, short))


def _encoded(image: tf.Tensor, sides: tf.Tensor, short: int) -> tf.Tensor:
    """Returns a JPEG of uint8 [H, W, 3] whose shorter side has at most `short` pixels."""
    scale = tf.minimum(1.0, short / tf.cast(tf.reduce_min(sides), tf.float32))
    size = tf.cast(tf.round(tf.cast(sides, tf.float32) * scale), tf.int32)
    size = tf.clip_by_value(size, 1, _LONGEST * short)
    resized = tf.image.resize(image, size, method="bilinear", antialias=True)
    resized = tf.saturate_cast(tf.round(resized), tf.uint8)
    return tf.io.encode_jpeg(resized, quality=_QUALITY, chroma_downsampling=False)
