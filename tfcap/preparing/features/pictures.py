"""From the images of a data set to their features, for `prepare`.

R regions, F feature width.

The two readers, `Pictures` here and `feature_files.ReadyFeatures`, have the same face: `dim` (F),
`regions` (R of a typical image), and `read`, which yields a `Found` per image, in order. An image
that cannot be used is a `Found` with a reason, never an exception: a large data set has a few.
"""

import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfcap.preparing.features.backbone import Backbone
from tfcap.preparing.sources import ImageEntry

BATCH = 32  # pictures; larger ones are no faster on a CPU


class Found(NamedTuple):
    """What was found for one image: features [R, F] and boxes [R, 4] or None, or a reason."""

    entry: ImageEntry
    features: np.ndarray | None
    boxes: np.ndarray | None
    reason: str | None


class Pictures:
    """Features of image files, by a backbone."""

    def __init__(self, directory: str | os.PathLike, backbone: Backbone):
        self.directory = pathlib.Path(directory)
        if not self.directory.is_dir():
            raise ValueError(f"the directory of images {directory} does not exist")
        self.backbone = backbone
        self.dim = backbone.feature_dim
        self.regions = backbone.num_regions
        self._extract = backbone.bulk_extractor()
        self._load = tf.function(
            lambda position, path: (position, backbone.decode(tf.io.read_file(path))),
            input_signature=[tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.string)],
        )

    def read(self, entries: Sequence[ImageEntry]) -> Iterator[Found]:
        """Yields a `Found` per entry, in order."""
        paths = [str(self.directory / entry.file_name) for entry in entries]
        # A picture that cannot be decoded drops out here; its position, missing from what comes
        # out, tells which it was. Batches end with the shard, so redoing a shard repeats its bytes.
        dataset = (
            tf.data.Dataset.from_tensor_slices((np.arange(len(paths)), paths))
            .map(self._load, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
            .ignore_errors()
            .batch(max(1, BATCH // self.backbone.crops))
            .prefetch(2)
        )
        done = 0
        for positions, pictures in dataset:
            features = self._extract(pictures).numpy()
            for position, cells in zip(positions.numpy(), features, strict=True):
                for missed in range(done, position):
                    yield self._failed(entries[missed], paths[missed])
                yield Found(entries[position], cells, self.backbone.boxes, None)
                done = position + 1
        for missed in range(done, len(paths)):
            yield self._failed(entries[missed], paths[missed])

    def _failed(self, entry: ImageEntry, path: str) -> Found:
        """Finds out why a picture dropped out, by trying it once more."""
        try:
            if not os.path.isfile(path):
                reason = "no such file"
            elif not os.path.getsize(path):
                reason = "the file is empty"
            else:
                self.backbone.decode(tf.io.read_file(path))
                reason = "could not be read at first; prepare again into another directory"
        except tf.errors.InvalidArgumentError:
            reason = "truncated, or not a JPEG, PNG, GIF or BMP picture"
        except (tf.errors.OpError, OSError) as error:
            reason = " ".join(str(error).split())[:200]
        return Found(entry, None, None, reason)
