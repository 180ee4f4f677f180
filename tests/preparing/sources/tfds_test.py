"""coco_captions as TensorFlow Datasets prepares it."""

import json
import struct

import pytest
from helpers import source_files

from tfcap.preparing.sources.tfds import recognises, tfds


@pytest.fixture
def made(tmp_path):
    return source_files.tfds(tmp_path)


def change(path, **values):
    """Changes dataset_info.json."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def shard(made, split="test"):
    return next(path for path in made.files if f"-{split}." in path.name)


def test_records_are_read_and_restval_joins_train(made):
    folder = made.files[0].parent
    for path in (made.captions[0], folder.parent, folder):
        assert recognises(path)
        entries = sorted(tfds(made._replace(captions=[path]).given()))
        assert [entry.id for entry in entries] == list(range(500, 506))
        splits = ["train", "test", "train", "train", "train", "val"]  # the first is restval
        assert [entry.split for entry in entries] == splits
        assert entries[0].captions == ("A dog.", "Café.")
        assert entries[5].file_name == "COCO_val2014_000000000005.jpg"
        assert [entry.content.read() for entry in entries] == [
            source_files.jpeg(number) for number in range(6)
        ]


def test_a_flipped_byte_is_found_by_the_checksum(made):
    content = bytearray(shard(made).read_bytes())
    content[len(content) // 2] ^= 1
    shard(made).write_bytes(content)
    with pytest.raises(ValueError, match="-test.*is damaged"):
        tfds(made.given())


def test_a_record_of_10_gigabytes_is_refused_within_little_memory(made):
    content = bytearray(shard(made).read_bytes())
    content[:8] = struct.pack("<Q", 10 << 30)
    shard(made).write_bytes(content)
    with open(shard(made), "r+b") as file:
        file.truncate(11 << 30)  # a hole
    with pytest.raises(ValueError, match="record 0: its length must be at most .*10737418240"):
        tfds(made.given())


def test_files_that_are_missing_or_cut_are_named(made):
    shard(made).write_bytes(shard(made).read_bytes()[:-1])
    with pytest.raises(ValueError, match="-test.tfrecord-00000-of-00001: record 0: its length"):
        tfds(made.given())
    shard(made).write_bytes(b"")
    with pytest.raises(ValueError, match="must have 1 records. Received: 0"):
        tfds(made.given())
    shard(made).unlink()
    with pytest.raises(ValueError, match="Cannot read .*-test.tfrecord-00000-of-00001"):
        tfds(made.given())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"fileFormat": "array_record"},
            "the file format must be tfrecord.*--file_format=tfrecord",
        ),
        ({"splits": []}, "must have splits"),
        ({"splits": None}, "object is not iterable"),
        ({"splits": [{"name": "train"}]}, "no 'shardLengths'"),
        ({"splits": [{"name": "moon", "shardLengths": ["1"]}]}, "the split must be one of"),
        ({"splits": [{"name": "../train", "shardLengths": ["1"]}]}, "a split must have files"),
        ({"splits": [{"name": "train", "shardLengths": ["-1"]}]}, "a split must have files"),
        ({"splits": [{"name": "train", "shardLengths": []}]}, "a split must have files"),
        ({"name": "/etc/passwd"}, "a split must have files"),
    ],
)
def test_a_wrong_dataset_info_is_named(made, values, message):
    change(made.files[0], **values)
    with pytest.raises(ValueError, match=f"dataset_info.json.*{message}"):
        tfds(made.given())


def test_records_of_other_data_and_repeated_ids_are_refused(made):
    import tensorflow as tf

    for content, message in (
        (b"", "must have the features image, image/filename"),
        (b"\xff\xff\xff", "must be a tf.train.Example"),
        (source_files._example(0).SerializeToString(), "ids must be unique. Received: 500"),
    ):
        with tf.io.TFRecordWriter(str(shard(made))) as writer:
            writer.write(content)
        with pytest.raises(ValueError, match=message):
            tfds(made.given())


def test_several_versions_must_be_told_apart(made):
    folder = made.files[0].parent
    (folder.parent / "1.2.0").mkdir()
    (folder.parent / "1.2.0" / "dataset_info.json").write_text("{}")
    with pytest.raises(ValueError, match="Give the directory of one version"):
        tfds(made.given())
    assert not recognises(made.files[0])
