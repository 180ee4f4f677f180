"""Writes sharded TFRecord files and the index of their records."""

import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfcap.data.record import FRAMING, Record, serialize
from tfcap.files import replacing, write_npz
from tfcap.preparing.sources import SPLITS, Entry


class ShardInfo(NamedTuple):
    """A finished shard; ``entry`` is its entry in dataset.json."""

    file: str
    records: int
    bytes: int
    offsets: np.ndarray  # int64 [records], where each record starts
    ids: np.ndarray  # int64 [records], image ids

    @property
    def entry(self) -> dict[str, Any]:
        """Returns file name, number of records and number of bytes, for dataset.json."""
        return {"file": self.file, "records": self.records, "bytes": self.bytes}


def shard_name(split: str, number: int, total: int) -> str:
    """Returns the file name of a shard: ``train-00000-of-00004.tfrecord``."""
    return f"{split}-{number:05d}-of-{total:05d}.tfrecord"


def write_shard(path: str | os.PathLike, examples: Iterable[Record]) -> ShardInfo:
    """Writes one shard atomically.

    Raises:
      ValueError: no records. Errors of ``examples`` are raised unchanged; no file is left behind.
    """
    offsets, ids, end = [], [], 0
    with replacing(path) as temporary:
        with tf.io.TFRecordWriter(temporary) as writer:
            for record in examples:
                data = serialize(record)
                writer.write(data)
                offsets.append(end)
                ids.append(record.image_id)
                end += len(data) + FRAMING
        if not ids:
            raise ValueError(f"{path}: a shard needs at least one record. Received: none.")
    name = os.path.basename(os.fspath(path))
    return ShardInfo(name, len(ids), end, np.array(offsets, np.int64), np.array(ids, np.int64))


def write_index(folder: str | os.PathLike, split: str, shards: Sequence[ShardInfo]) -> None:
    """Writes <split>.index.npz from the split's shards, in their order.

    Raises:
      ValueError: a repeated image id.
    """
    ids = np.concatenate([np.zeros([0], np.int64), *(shard.ids for shard in shards)])
    values, counts = np.unique(ids, return_counts=True)
    if len(values) < len(ids):
        raise ValueError(
            f"Split {split}: image ids must be unique. Received: "
            f"{values[counts > 1][:3].tolist()} more than once."
        )
    write_npz(
        os.path.join(folder, f"{split}.index.npz"),
        shard=np.repeat(np.arange(len(shards), dtype=np.int32), [s.records for s in shards]),
        offset=np.concatenate([np.zeros([0], np.int64), *(shard.offsets for shard in shards)]),
        id=ids,
    )


def plan(entries: Sequence[Entry], size: int) -> list[tuple[str, list[Entry]]]:
    """Returns names and images of all shards of at most `size` images.

    The result depends only on the caption file. Unusable images count too, so that later runs plan
    the same shards.

    Raises:
      ValueError: the name of a split cannot be part of a file name.
    """
    by_split: dict[str, list[Entry]] = {}
    for entry in entries:
        by_split.setdefault(entry.split or "", []).append(entry)
    shards = []
    usual = [split for split in SPLITS if split in by_split]
    for split in usual + [split for split in by_split if split not in SPLITS]:
        if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9_-]{0,63}", split):
            raise ValueError(
                f"The split {split!r:.80} cannot be part of a file name. Use letters, digits, _ "
                "and -, as in test2014."
            )
        members = by_split[split]
        total = -(-len(members) // size)
        for number in range(total):
            name = shard_name(split, number, total)
            shards.append((name, members[number * size : (number + 1) * size]))
    return shards
