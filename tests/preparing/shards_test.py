"""Shards and their index are written whole, and offsets point to records."""

import pytest
import tensorflow as tf
from helpers.prepared import make_record

from tfcap.preparing.shards import plan, write_shard
from tfcap.preparing.sources.entry import Entry


def test_the_offsets_of_a_shard_point_to_its_records(tmp_path):
    """A TFRecord is its length in eight bytes, a checksum, the content, and a checksum."""
    written = write_shard(tmp_path / "a.tfrecord", [make_record(i) for i in range(3)])
    content = (tmp_path / "a.tfrecord").read_bytes()
    end, ids = 0, []
    for offset in written.offsets:
        assert offset == end
        length = int.from_bytes(content[offset : offset + 8], "little")
        example = tf.train.Example.FromString(content[offset + 12 : offset + 12 + length])
        ids += example.features.feature["image/id"].int64_list.value
        end = offset + 12 + length + 4
    assert ids == written.ids == [10, 11, 12]
    assert end == len(content) == written.entry["bytes"] and written.entry["records"] == 3


def test_shards_are_cut_by_split_and_further_splits_come_after_the_usual_ones():
    splits = ["test2014", "val", "test2014", "train", "train", "train"]
    entries = [Entry(i, f"{i}.jpg", split, ()) for i, split in enumerate(splits)]
    cut = [(name, [entry.id for entry in members]) for name, members in plan(entries, 2).items()]
    assert cut == [
        ("train-00000-of-00002.tfrecord", [3, 4]),
        ("train-00001-of-00002.tfrecord", [5]),
        ("val-00000-of-00001.tfrecord", [1]),
        ("test2014-00000-of-00001.tfrecord", [0, 2]),
    ]
    with pytest.raises(ValueError, match="cannot be part of a file name"):
        plan([Entry(0, "0.jpg", "../test", ())], 5)
