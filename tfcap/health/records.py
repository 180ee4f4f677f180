"""Reads every record of a split and compares it with the index and the references.

Letters: B images of a batch.
"""

import os
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tfcap import console
from tfcap.data.picture_data import has_pictures
from tfcap.data.prepared import PreparedData
from tfcap.data.record import FRAMING, parse_pictures
from tfcap.health.features import FeatureStatistics
from tfcap.health.finding import Finding, count, ok, one_line, problem, some

_BATCH_BYTES = 64 * 2**20  # of float32 features
_REMEDY = "Delete the shards that are named here and run prepare again, which writes only them."


class Reader:
    """Reads the records of one split and collects their faults.

    Args:
      data: the prepared directory.
      split: name of the split; `PreparedData.check_split` accepts it.
      statistics: gets the features of every good record.
    """

    def __init__(self, data: PreparedData, split: str, statistics: FeatureStatistics):
        self.data, self.split, self.statistics = data, split, statistics
        self.index = data.index(split)
        self.paths = data.shard_paths(split)
        self.references = data.references(split)
        self.faults: list[str] = []
        self.good = 0
        bytes_ = 4 * data.feature_dim * data.max_regions
        self.batch = int(np.clip(_BATCH_BYTES // bytes_, 1, 64))

    def read(self) -> Finding:
        """Reads all records; the features of good ones are added to the statistics."""
        total = len(self.index.id)
        for _ in console.progress(self._each(), total, f"records of {self.split}"):
            pass
        if self.references.keys() != set(self.index.id.tolist()):
            self.faults.append(f"references_{self.split}.json has other images than the index")
        if self.faults:
            return problem(
                f"{self.good} of {total} records are good. {some(self.faults)}.", _REMEDY
            )
        shards = count(len(self.paths), "shard")
        return ok(f"all {total} records in {shards} can be read")

    def _each(self) -> Iterator[int]:
        """Checks all records; yields the position of each after its check."""
        for positions, records in self._batches():
            self._check(positions, records)
            yield from positions.tolist()

    def _batches(self) -> Iterator[tuple[np.ndarray, tf.Tensor]]:
        """Yields positions int64 [B] and serialized records string [B], shard by shard."""
        for shard, path in enumerate(self.paths):
            positions = np.flatnonzero(self.index.shard == shard)
            done = 0
            try:
                for records in tf.data.TFRecordDataset(path).batch(self.batch).prefetch(1):
                    size = len(records)
                    yield positions[done : done + size], records
                    done += size
            except tf.errors.OpError:  # no record behind a damaged one is found without the index
                for start in range(done, len(positions), self.batch):
                    yield from self._by_index(positions[start : start + self.batch], path)
                done = len(positions)
            if done != len(positions):
                name = os.path.basename(path)
                self.faults.append(f"{name} has {done} records, not {len(positions)}")

    def _by_index(self, positions, path) -> Iterator[tuple[np.ndarray, tf.Tensor]]:
        """Yields records of a damaged shard by their places; halves them until one is left."""
        places = tf.data.Dataset.from_tensor_slices(positions)
        try:
            (records,) = self.data.examples(self.split, places).batch(len(positions))
            if len(records) < len(positions):
                raise ValueError("The shard ends before the last place.")
        except (tf.errors.OpError, ValueError):
            if len(positions) > 1:
                for half in np.array_split(positions, 2):
                    yield from self._by_index(half, path)
                return
            at, image = self.index.offset[positions[0]], self.index.id[positions[0]]
            name = os.path.basename(path)
            self.faults.append(f"Image {image} is damaged (record at byte {at} of {name})")
        else:
            yield positions, records

    def _check(self, positions: np.ndarray, records: tf.Tensor) -> None:
        """Parses records and compares them with the index and the references."""
        try:
            with self.data.readable_errors():
                parsed = self.data.parse(records)
                if has_pictures(self.data):
                    parse_pictures(records, self.data.max_regions)
        except (ValueError, tf.errors.OpError) as error:
            if len(positions) == 1:
                name = os.path.basename(self.paths[self.index.shard[positions[0]]])
                self.faults.append(f"{one_line(error).partition('. ')[0]} ({name})")
            else:
                for place in range(len(positions)):
                    self._check(positions[place : place + 1], records[place : place + 1])
            return
        ids = parsed["id"].numpy()
        faults = len(self.faults)
        self._compare(positions, records, ids, parsed["captions"])
        self.good += len(ids) if len(self.faults) == faults else 0
        self.statistics.add(self.split, ids, parsed["features"].numpy(), parsed["mask"].numpy())

    def _compare(self, positions, records, ids, captions) -> None:
        """Compares the ids, the places and the captions of a batch of records."""
        lengths = tf.strings.length(records).numpy() + FRAMING
        offsets = self.index.offset[positions]
        for place, (image, texts) in enumerate(zip(ids.tolist(), captions.to_list(), strict=True)):
            wanted = self.index.id[positions[place]]
            if image != wanted:
                self.faults.append(f"Image {image} is where the index has image {wanted}")
            elif place and offsets[place] != offsets[place - 1] + lengths[place - 1]:
                self.faults.append(f"The index has a wrong place for image {image}")
            elif not self._are_references(image, texts):
                self.faults.append(f"The captions of image {image} are not those of the references")

    def _are_references(self, image: int, texts: list[bytes]) -> bool:
        """Returns whether the captions of a record belong to the references of its image."""
        references = self.references.get(image)
        if references is not None and self.data.fingerprint.get("tokens") == "given":
            # The record has the words of the caption file, and the references have the raw texts.
            return len(texts) == len(references)
        return [text.decode("utf-8", "replace") for text in texts] == references
