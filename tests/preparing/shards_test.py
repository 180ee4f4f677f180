"""Shards and their index are written whole, and offsets point to records."""

import os

import numpy as np
import pytest
from helpers.prepared import make_record

from tfcap.preparing.shards import plan, scan_shard, write_index, write_shard
from tfcap.preparing.sources import ImageEntry


def test_scanning_a_shard_tells_what_its_writer_told(tmp_path):
    written = write_shard(tmp_path / "a.tfrecord", [make_record(i) for i in range(3)])
    scanned = scan_shard(tmp_path / "a.tfrecord")
    assert scanned.entry == written.entry
    assert scanned.entry["bytes"] == os.path.getsize(tmp_path / "a.tfrecord")
    np.testing.assert_array_equal(scanned.offsets, written.offsets)
    np.testing.assert_array_equal(scanned.ids, written.ids)
    with open(tmp_path / "a.tfrecord", "r+b") as file:
        file.truncate(written.bytes - 3)
    with pytest.raises(ValueError, match=f"record 2 at byte {written.offsets[2]} is damaged"):
        scan_shard(tmp_path / "a.tfrecord")


def test_failed_shard_leaves_no_file(tmp_path):
    def broken():
        yield make_record(0)
        raise ValueError("stop here")

    with pytest.raises(ValueError, match="stop here"):
        write_shard(tmp_path / "a.tfrecord", broken())
    with pytest.raises(ValueError, match="at least one record"):
        write_shard(tmp_path / "a.tfrecord", [])
    assert not list(tmp_path.iterdir())


def test_image_twice_in_a_split(tmp_path):
    shard = write_shard(tmp_path / "a.tfrecord", [make_record(0), make_record(0)])
    with pytest.raises(ValueError, match=r"unique. Received: \[10\]"):
        write_index(tmp_path, "train", [shard])


def test_shards_are_cut_by_split_and_do_not_depend_on_bad_images():
    entries = [ImageEntry(i, f"{i}.jpg", "val" if i % 3 else "train", ()) for i in range(8)]
    cut = [(name, [entry.id for entry in members]) for name, members in plan(entries, 2)]
    assert cut == [
        ("train-00000-of-00002.tfrecord", [0, 3]),
        ("train-00001-of-00002.tfrecord", [6]),
        ("val-00000-of-00003.tfrecord", [1, 2]),
        ("val-00001-of-00003.tfrecord", [4, 5]),
        ("val-00002-of-00003.tfrecord", [7]),
    ]
