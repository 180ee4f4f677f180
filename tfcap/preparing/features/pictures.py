"""Reads the images of a data set and extracts their features, for `prepare`.

Letters: R regions, F feature width.

Both sources of features, `Pictures` here and `ready.ReadyFeatures`, have the same interface: `dim`
(F), `regions` (R of a typical image), and `read`, which yields an `Extracted` per image, in order.
An unusable image gives an `Extracted` with a reason and no exception, because large data sets have
a few of them.
"""

import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfcap.data.prepared import without_tuning
from tfcap.picture_files import is_animated, refusal
from tfcap.preparing.features.backbone import Backbone
from tfcap.preparing.sources import ImageEntry

BATCH = 32  # pictures; larger batches are not faster on a CPU


class Extracted(NamedTuple):
    """The features of one image, or the reason why there are none.

    Attributes:
      entry: the image.
      features: [R, F], or None.
      boxes: [R, 4], x1, y1, x2, y2 in 0..1, or None.
      reason: why the image cannot be used, or None.
      boxes_dropped: whether boxes were dropped because the size of the image is unknown.
      animated: whether the picture is the first frame of an animated GIF.
    """

    entry: ImageEntry
    features: np.ndarray | None
    boxes: np.ndarray | None
    reason: str | None
    boxes_dropped: bool = False
    animated: bool = False


class Pictures:
    """Extracts features from image files with a backbone.

    Attributes:
      dim: F.
      regions: R.
    """

    def __init__(self, directory: str | os.PathLike, backbone: Backbone):
        self.directory = pathlib.Path(directory)
        if not self.directory.is_dir():
            raise ValueError(
                f"--images must be an existing directory. Received: {directory}. Correct the path."
            )
        self.backbone = backbone
        self.dim = backbone.feature_dim
        self.regions = backbone.num_regions
        self._extract = backbone.bulk_extractor()
        self._load = tf.function(
            self._decode_file,
            input_signature=[tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.string)],
            autograph=False,
        )

    def _decode_file(self, position: tf.Tensor, path: tf.Tensor) -> tuple[tf.Tensor, ...]:
        content = tf.io.read_file(path)
        is_gif = tf.strings.substr(content, 0, 4) == b"GIF8"
        return position, self.backbone.decode(content), is_gif

    def read(self, entries: Sequence[ImageEntry]) -> Iterator[Extracted]:
        """Yields an `Extracted` per entry, in order."""
        paths = [str(self.directory / entry.file_name) for entry in entries]
        # `ignore_errors` drops pictures that cannot be decoded; the positions that are missing
        # from the output tell which. Batches end with the shard, so that a shard that is written
        # again has the same bytes.
        dataset = (
            tf.data.Dataset.from_tensor_slices((np.arange(len(paths)), paths))
            .map(self._load, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
            .ignore_errors()
            .batch(max(1, BATCH // self.backbone.crops))
            .prefetch(2)
        )
        done = 0
        for positions, pictures, are_gif in without_tuning(dataset):
            features = self._extract(pictures).numpy()
            rows = zip(positions.numpy(), features, are_gif.numpy(), strict=True)
            for position, cells, is_gif in rows:
                for missed in range(done, position):
                    yield self._failed(entries[missed], paths[missed])
                path = paths[position]
                animated = bool(is_gif) and is_animated(pathlib.Path(path).read_bytes())
                yield Extracted(
                    entries[position], cells, self.backbone.boxes, None, animated=animated
                )
                done = position + 1
        for missed in range(done, len(paths)):
            yield self._failed(entries[missed], paths[missed])

    def _failed(self, entry: ImageEntry, path: str) -> Extracted:
        """Decodes a dropped picture once more to find the reason."""
        try:
            if not os.path.isfile(path):
                reason = "no such file"
            else:
                self.backbone.decode(tf.io.read_file(path))
                reason = "could not be read the first time; prepare again into another directory"
        except tf.errors.InvalidArgumentError:
            reason = refusal(pathlib.Path(path).read_bytes())
        except (tf.errors.OpError, OSError) as error:
            reason = " ".join(str(error).split())[:200]
        return Extracted(entry, None, None, reason)
