"""Every record is read: damaged, changed and misplaced ones are named, the others are counted."""

import numpy as np
import pytest
import tensorflow as tf
from helpers.findings import flip
from helpers.prepared import WIDTH

from tfcap.data.prepared import PreparedData
from tfcap.files import read_json, write_json
from tfcap.health.features import FeatureStatistics
from tfcap.health.records import Reader

FIRST, SECOND = "train-00000-of-00002.tfrecord", "train-00001-of-00002.tfrecord"


def read(folder, batch=64):
    """The finding over all records, and the ids of the images whose features were read."""
    statistics = FeatureStatistics(WIDTH)
    reader = Reader(PreparedData.load(folder), "train", statistics)
    reader.batch = batch
    return reader.read(), sorted(statistics.ids)


def rewrite(path, change):
    """Writes the records of a shard again after `change(position, example)`, checksums included."""
    raw = list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
    examples = [tf.train.Example.FromString(content) for content in raw]
    for position, example in enumerate(examples):
        change(position, example.features.feature)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for example in examples:
            writer.write(example.SerializeToString(deterministic=True))


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_good_records_are_all_read(original, batch):
    finding, ids = read(original, batch)
    assert finding.status == "ok" and finding.text == "all 7 records in 2 shards can be read"
    assert ids == [10, 11, 12, 13, 14, 15, 16]


@pytest.mark.parametrize("position", [4, 5, 6])
def test_a_flipped_bit_names_its_image_and_the_others_are_read(folder, position):
    offset = int(PreparedData.load(folder).index("train").offset[position])
    flip(folder / SECOND, offset + 60)
    finding, ids = read(folder)
    assert finding.status == "problem" and finding.text.startswith("6 of 7 records are good.")
    assert f"Image {10 + position} is damaged (record at byte {offset} of {SECOND})" in finding.text
    assert ids == [i for i in range(10, 17) if i != 10 + position]


def test_two_damaged_records_of_a_shard_are_both_named(folder):
    offsets = PreparedData.load(folder).index("train").offset
    for position in (1, 3):
        flip(folder / FIRST, int(offsets[position]) + 60)
    finding, ids = read(folder)
    assert finding.text.startswith("5 of 7 records are good. Image 11 is damaged")
    assert "Image 13 is damaged" in finding.text and ids == [10, 12, 14, 15, 16]


def test_nan_is_found_under_a_correct_checksum(folder):
    def change(position, feature):
        if position == 1:
            data = np.frombuffer(feature["features/data"].bytes_list.value[0], "<f2").copy()
            data[3] = np.nan
            feature["features/data"].bytes_list.value[0] = data.tobytes()

    rewrite(folder / FIRST, change)
    finding, ids = read(folder)
    fault = "Bad record: NaN or infinite features in image 11 (train-00000-of-00002.tfrecord)"
    assert finding.text.startswith(f"6 of 7 records are good. {fault}")
    assert 11 not in ids and len(ids) == 6


def test_another_image_than_the_index_has_is_found(folder):
    def change(position, feature):
        if position == 2:
            feature["image/id"].int64_list.value[0] = 77

    rewrite(folder / FIRST, change)
    finding = read(folder)[0]
    fault = "Image 77 is where the index has image 12"
    assert finding.text.startswith(f"6 of 7 records are good. {fault}")


def test_captions_that_are_not_the_references_are_found(folder):
    path = folder / "references_train.json"
    value = read_json(path, "")
    value["annotations"][2]["caption"] = "another one"
    write_json(path, value)
    finding = read(folder)[0]
    fault = "The captions of image 11 are not those of the references"
    assert finding.status == "problem"
    assert finding.text == f"6 of 7 records are good. {fault}."


def test_images_without_references_are_found(folder):
    path = folder / "references_train.json"
    value = read_json(path, "")
    value["images"].append({"id": 99, "file_name": "99.jpg"})
    write_json(path, value)
    assert "references_train.json has other images than the index" in read(folder)[0].text


@pytest.mark.parametrize("position", [0, 3, 6])
def test_a_wrong_place_in_the_index_is_found_and_the_next_place_is_right(folder, position):
    arrays = dict(np.load(folder / "train.index.npz"))
    arrays["offset"][position] += 1
    np.savez(folder / "train.index.npz", **arrays)
    fault = f"The index has a wrong place for image {10 + position}"
    assert read(folder)[0].text == f"6 of 7 records are good. {fault}."


def test_records_that_the_index_lacks_are_counted(folder):
    raw = list(tf.data.TFRecordDataset(str(folder / FIRST)).as_numpy_iterator())
    with tf.io.TFRecordWriter(str(folder / FIRST)) as writer:
        for content in [*raw, raw[0]]:
            writer.write(content)
    value = read_json(folder / "dataset.json", "")
    value["splits"]["train"]["shards"][0]["bytes"] = (folder / FIRST).stat().st_size
    write_json(folder / "dataset.json", value)
    assert read(folder)[0].text == f"7 of 7 records are good. {FIRST} has 5 records, not 4."
