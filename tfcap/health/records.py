"""Reads every record of a split and compares it with the index and the references.

Letters: B images of a batch.
"""

import os
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tfcap import cli
from tfcap.data.picture_data import has_pictures
from tfcap.data.prepared import PreparedData
from tfcap.data.record import FRAMING, parse_pictures
from tfcap.health.features import FeatureStatistics
from tfcap.health.finding import Finding, count, ok, one_line, problem, some

_BATCH_BYTES = 64 * 2**20  # of float32 features
# Positions in the split int64 [B], serialized records string [B], and the byte of the shard where
# each record begins int64 [B].
_Batch = tuple[np.ndarray, tf.Tensor, np.ndarray]
_REMEDY = "Delete the shards that are named here and run prepare again, which writes only them."


class Reader:
    """Reads the records of one split and collects their faults.

    Args:
      data: the prepared directory.
      split: name of the split; `PreparedData.check_split` accepts it.
      statistics: gets the features of every record that can be parsed.
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
        """Reads all records; features that can be parsed are added to the statistics."""
        total = len(self.index.id)
        for _ in cli.progress(self._each(), total, f"records of {self.split}", "record"):
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
        for positions, records, places in self._batches():
            self._check(positions, records, places)
            yield from positions.tolist()

    def _batches(self) -> Iterator[_Batch]:
        """Yields positions, serialized records and their places, shard by shard."""
        for shard, path in enumerate(self.paths):
            positions = np.flatnonzero(self.index.shard == shard)
            done = end = 0
            try:
                for records in tf.data.TFRecordDataset(path).batch(self.batch).prefetch(1):
                    size = len(records)
                    ends = end + np.cumsum(tf.strings.length(records).numpy() + FRAMING)
                    places = np.concatenate([[end], ends[:-1]])
                    listed = positions[done : done + size]  # fewer if the index lacks some
                    yield listed, records[: len(listed)], places[: len(listed)]
                    done, end = done + size, ends[-1]
            except tf.errors.OpError:  # no record behind a damaged one is found without the index
                for start in range(done, len(positions), self.batch):
                    yield from self._by_index(positions[start : start + self.batch], path)
                done = len(positions)
            if done != len(positions):
                name = os.path.basename(path)
                self.faults.append(f"{name} has {done} records, not {len(positions)}")

    def _by_index(self, positions, path) -> Iterator[_Batch]:
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
            yield positions, records, self.index.offset[positions]

    def _check(self, positions: np.ndarray, records: tf.Tensor, places: np.ndarray) -> None:
        """Parses records and compares them with the index and the references."""
        if not len(positions):
            return
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
                for one in range(len(positions)):
                    part = slice(one, one + 1)
                    self._check(positions[part], records[part], places[part])
            return
        ids = parsed["id"].numpy()
        self.good += self._compare(positions, places, ids, parsed["captions"])
        self.statistics.add(self.split, ids, parsed["features"].numpy(), parsed["mask"].numpy())

    def _compare(self, positions, places, ids, captions) -> int:
        """Compares the ids, the places and the captions of records; returns how many are good."""
        before = len(self.faults)
        texts = captions.to_list()
        for at, place, image, own in zip(positions, places, ids.tolist(), texts, strict=True):
            wanted = self.index.id[at]
            if image != wanted:
                self.faults.append(f"Image {image} is where the index has image {wanted}")
            elif place != self.index.offset[at]:
                self.faults.append(f"The index has a wrong place for image {image}")
            elif not self._are_references(image, own):
                self.faults.append(f"The captions of image {image} are not those of the references")
        return len(ids) - (len(self.faults) - before)  # a record has at most one fault

    def _are_references(self, image: int, texts: list[bytes]) -> bool:
        """Returns whether the captions of a record belong to the references of its image."""
        references = self.references.get(image)
        if references is not None and self.data.fingerprint.get("tokens") == "given":
            # The record has the words of the caption file, and the references have the raw texts.
            return len(texts) == len(references)
        return [text.decode("utf-8", "replace") for text in texts] == references
