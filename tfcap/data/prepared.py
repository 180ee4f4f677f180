"""Reads a prepared directory: sharded TFRecord files with an index, read in any order.

Letters: n images of a split, B images of a batch.

The record is defined in record.py, the index in shards.py, and the smaller files in fingerprint.py,
references.py and document_frequency.py.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfcap import storage
from tfcap.cli import did_you_mean
from tfcap.data import tokens
from tfcap.data.document_frequency import (
    DocumentFrequencies,
    load_document_frequencies,
)
from tfcap.data.fingerprint import load_vocabulary, read_fingerprint
from tfcap.data.record import FAULT, parse
from tfcap.data.references import load_references
from tfcap.data.shards import SplitIndex, read_index

DEFAULT_DIRECTORY = os.path.join("data", "shapes")  # the built-in shapes, made on first use
CLIPS_DIRECTORY = os.path.join("data", "moving_shapes")  # the built-in clips, made on first use


@dataclass(frozen=True)
class PreparedData:
    """A prepared directory that has been checked; `PreparedData.load` makes it."""

    folder: str
    fingerprint: dict[str, Any]
    vocab: tokens.Vocab

    @classmethod
    def load(cls, folder: str | os.PathLike) -> "PreparedData":
        """Opens a directory written by prepare, on a disk or at a path such as gs://bucket/data.

        Checks the fingerprint, the hash of the vocabulary, the presence and size of every shard
        (TensorFlow reads a file that is cut between two records without any error) and the
        indices. The checksum of a record shows damage inside it when it is read.

        Raises:
          ValueError: a file is missing or does not fit; the message names it and the remedy.
        """
        folder = storage.plain(folder) if storage.is_remote(folder) else os.path.expanduser(folder)
        fingerprint = read_fingerprint(folder)
        data = cls(folder, fingerprint, load_vocabulary(folder, fingerprint))
        for split in fingerprint["splits"]:
            data.check_split(split)
        return data

    def check_split(self, split: str) -> None:
        """Checks the presence and size of every shard of a split, and its index.

        Raises:
          ValueError: a file is missing or does not fit; the message names it and the remedy.
        """
        entry = self.split(split)
        for shard in entry["shards"]:
            _check_size(os.path.join(self.folder, shard["file"]), shard["bytes"])
        records = len(self.index(split).id)
        if records != entry["images"]:
            raise ValueError(
                f"{self.folder}: split {split} must have {entry['images']} images. Received: "
                f"{records} records. Run prepare again."
            )

    @property
    def feature_dim(self) -> int:
        """F, the width of a region's features."""
        return self.fingerprint["features"]["dim"]

    @property
    def image_dim(self) -> int | None:
        """Width of the vectors of whole images, or None if the records have regions only."""
        return self.fingerprint["features"].get("image_dim")

    @property
    def backbone(self) -> Any:
        """The network of `picture_data.PictureData`; None if the features are stored."""
        return None

    @property
    def input_specs(self) -> dict[str, tf.TensorSpec]:
        """Specs of what a captioner reads of a batch, see `record.inputs_of`."""
        specs = {
            "features": tf.TensorSpec([None, None, self.feature_dim]),
            "mask": tf.TensorSpec([None, None], tf.bool),
        }
        if self.image_dim is not None:
            specs["image"] = tf.TensorSpec([None, self.image_dim])
        return specs

    @property
    def max_regions(self) -> int:
        """The largest number of regions of any image."""
        return self.fingerprint["features"]["max_regions"]

    def most_regions(self, limit: int | None) -> int:
        """Returns the largest number of regions of an image if at most `limit` are kept of each."""
        return self.max_regions if limit is None else min(self.max_regions, limit)

    @property
    def frames(self) -> int | None:
        """N, the frames of each clip; None if the data has pictures and no clips."""
        return self.fingerprint.get("frames")

    @property
    def images(self) -> str | None:
        """Directory of the image files, or None if only features were given."""
        return self.fingerprint.get("images")

    def split(self, split: str) -> dict[str, Any]:
        """Returns the entry of a split in the fingerprint. Raises ValueError if there is none."""
        splits = self.fingerprint["splits"]
        if split not in splits:
            raise ValueError(
                f"split must be one of {', '.join(splits)} in {self.folder}. Received: {split!r}."
                f"{did_you_mean(split, splits)}"
            )
        return splits[split]

    def index(self, split: str) -> SplitIndex:
        """Returns where the records of a split lie."""
        return read_index(self.folder, split, self.split(split)["shards"])

    def references(self, split: str) -> dict[int, list[str]]:
        """Returns raw captions per image id; an empty list for an image without captions."""
        return self._references(split)[1]

    def file_names(self, split: str) -> dict[int, str]:
        """Returns the image file name per image id."""
        return self._references(split)[0]

    def _references(self, split: str) -> tuple[dict[int, str], dict[int, list[str]]]:
        return load_references(self.folder, split, self.split(split).get("references_sha256"))

    def picture_paths(self, split: str, images: str | os.PathLike | None = None) -> dict[int, str]:
        """Returns the paths of existing files by image id; a clip may be a folder of frames.

        Args:
          split: name of the split.
          images: the directory of the files; None takes that of the data, which may have none.
        """
        paths: dict[int, str] = {}
        folder = os.path.expanduser(images) if images else self.images
        if not folder:
            return paths
        for image, name in self.file_names(split).items():
            path = os.path.join(folder, name)
            inside = not os.path.isabs(name) and ".." not in name.split("/")
            if inside and (os.path.isfile(path) or (self.frames and os.path.isdir(path))):
                paths[image] = path
        return paths

    @property
    def has_document_frequencies(self) -> bool:
        """Whether the directory has document frequencies; without a train split it may not."""
        return self.fingerprint.get("document_frequency", "train") is not None

    def document_frequencies(self) -> DocumentFrequencies:
        """Returns the document frequencies for CIDEr-D.

        Raises:
          ValueError: the directory has none, or the file is damaged.
        """
        if not self.has_document_frequencies:
            raise ValueError(
                f"{self.folder} has no document frequencies, which CIDEr-D needs: it was prepared "
                "without a train split. Run prepare again with --document_frequency FILE, or use "
                "data with a train split."
            )
        return load_document_frequencies(self.folder)

    def shard_paths(self, split: str) -> list[str]:
        """Returns the paths of the shards, in the order of the index."""
        return [os.path.join(self.folder, s["file"]) for s in self.split(split)["shards"]]

    def examples(self, split: str, indices: tf.data.Dataset) -> tf.data.Dataset:
        """Reads records at the given positions.

        Args:
          split: name of the split.
          indices: dataset of int64 [], positions in the split's index.

        Returns:
          dataset of serialized examples, string [], in the order of ``indices``.
        """
        index = self.index(split)
        paths = tf.constant(self.shard_paths(split), tf.string)
        shards, offsets = tf.constant(index.shard), tf.constant(index.offset)

        @tf.autograph.experimental.do_not_convert
        def read(position: tf.Tensor) -> tf.data.Dataset:
            # The public TFRecordDataset cannot start inside a file, the operation under it can.
            # No buffer, because only one record is read.
            variant = tf.raw_ops.TFRecordDatasetV2(
                filenames=tf.gather(paths, tf.gather(shards, [position])),
                compression_type="",
                buffer_size=0,
                byte_offsets=tf.gather(offsets, [position]),
            )
            spec = tf.TensorSpec([], tf.string)
            return tf.data.experimental.from_variant(variant, spec).take(1)

        records = indices.interleave(
            read, cycle_length=8, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        return without_tuning(records)

    def parse(
        self, serialized: tf.Tensor, max_regions: int | None = None, pad_regions: int | None = None
    ) -> dict[str, tf.Tensor]:
        """Reads a batch of serialized records as `record.parse` does, with the data's widths."""
        return parse(serialized, self.feature_dim, max_regions, pad_regions, self.image_dim)

    def read(
        self, split: str, ids: Sequence[int], max_regions: int | None = None
    ) -> dict[str, tf.Tensor]:
        """Reads some images at once, with their boxes: what `record.parse` returns, B = len(ids).

        Args:
          split: name of the split.
          ids: image ids, in any order, at least one.
          max_regions: further regions of an image are cut off; None keeps all.

        Raises:
          ValueError: an image that is not in the split, or a damaged record.
        """
        places = {int(image): place for place, image in enumerate(self.index(split).id)}
        if missing := [image for image in ids if int(image) not in places]:
            raise ValueError(
                f"ids must be images of split {split} of {self.folder}. Received: {missing[0]}."
            )
        rows = np.array([places[int(image)] for image in ids], np.int64)
        indices = tf.data.Dataset.from_tensor_slices(rows)
        with self.readable_errors():
            (serialized,) = self.examples(split, indices).batch(len(rows))
            return self.parse(serialized, max_regions)

    @contextlib.contextmanager
    def readable_errors(self) -> Iterator[None]:
        """Turns TensorFlow's errors about bad records inside the block into ValueErrors.

        Other errors pass unchanged: the program or the machine causes them, not the data.
        """
        try:
            yield
        except tf.errors.OpError as error:
            missing = isinstance(error, tf.errors.NotFoundError) and ".tfrecord" in str(error)
            if missing or isinstance(error, tf.errors.DataLossError) or FAULT in str(error):
                raise ValueError(describe_error(error, self)) from error
            raise


def without_tuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset without the thread that tunes buffers while it is read.

    The thread sleeps for up to a minute, and freeing the iterator waits for the thread: TensorFlow
    wakes it before the iterator is marked as cancelled. Datasets made from the result lack it, too.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def _check_size(path: str, expected: int) -> None:
    try:
        size = storage.size(path)
    except OSError as error:
        raise ValueError(
            f"Cannot read shard {path}: {error.strerror}. Run prepare again, which writes only "
            "this shard."
        ) from None
    if size != expected:
        raise ValueError(
            f"Shard {path} must have {expected} bytes. Received: {size}; it was cut or changed. "
            "Delete it and run prepare again, which writes only this shard."
        )


def describe_error(error: tf.errors.OpError, data: PreparedData | None = None) -> str:
    """Returns one readable line for an error that happened while reading records.

    Args:
      error: an error that was caught from an iterator, a training loop or an evaluation.
      data: the data that was read; with it the line names the damaged file.
    """
    message = str(error)
    # In a graph `[bad record: ...] [12]`, outside of one `b'bad record: ...' 12`.
    fault = re.search(re.escape(FAULT) + r"([^\]']*)[\]']\s*\[?([-\d ]+)", message)
    if fault:
        remedy = "Run prepare again, which refuses such images."
        if "no captions" in fault[1]:
            remedy = "Train on a split whose images all have captions."
        return f"Bad record: {fault[1]} {fault[2].strip()}. {remedy}"
    if isinstance(error, tf.errors.DataLossError):
        offset = re.search(r"record at (\d+)", message)
        damaged = _damaged_records(data, int(offset[1])) if data and offset else []
        where = "; ".join(damaged) or "a shard"
        return f"Damaged record in {where}. Delete that file and run prepare again."
    if isinstance(error, tf.errors.NotFoundError):
        return f"A shard is missing: {message.splitlines()[0]}. Run prepare again."
    return " ".join(message.split())


def _damaged_records(data: PreparedData, byte: int) -> list[str]:
    """Reads the record at a byte of every shard; returns descriptions of the damaged ones.

    TensorFlow reports the byte where reading failed but not the file.
    """
    damaged = []
    for split in data.fingerprint["splits"]:
        index, paths = data.index(split), data.shard_paths(split)
        for shard, path in enumerate(paths):
            position = np.flatnonzero((index.shard == shard) & (index.offset <= byte))[-1]
            one = tf.data.Dataset.from_tensors(np.int64(position))
            try:
                list(data.examples(split, one))
            except tf.errors.OpError:
                at = index.offset[position]
                damaged.append(f"{path} (image {index.id[position]}, record at byte {at})")
    return damaged
