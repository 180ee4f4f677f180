"""A prepared directory is read as it was written, and damage is named."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from helpers.prepared import WIDTH, write_directory

from tfcap.data.prepared import (
    FINGERPRINT,
    PreparedData,
    stored_captions,
    write_references,
)
from tfcap.data.record import parse
from tfcap.files import file_sha256

SHARD = "train-00001-of-00002.tfrecord"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    return folder, write_directory(str(folder))


@pytest.fixture
def folder(original, tmp_path):
    """A copy to be damaged."""
    return shutil.copytree(original[0], tmp_path / "data")


def read_all(data: PreparedData, order=range(7)) -> list[bytes]:
    indices = tf.data.Dataset.from_tensor_slices(np.array(order, np.int64))
    return list(data.examples("train", indices).as_numpy_iterator())


def test_what_is_written_is_read(original):
    folder, made = original
    data = PreparedData.load(folder)
    order = [6, 0, 3, 3, 5, 1, 4, 2]
    parsed = parse(tf.constant(read_all(data, order)), WIDTH)
    assert parsed["id"].numpy().tolist() == [10 + i for i in order]
    assert parsed["features"].shape == [8, 3, WIDTH] and parsed["boxes"].shape == [8, 3, 4]
    for row, number in enumerate(order):
        record = made[number]
        regions = len(record.features)
        assert parsed["mask"][row].numpy().tolist() == [i < regions for i in range(3)]
        np.testing.assert_array_equal(
            parsed["features"][row, :regions], record.features.astype(np.float32)
        )
        assert not parsed["features"][row, regions:].numpy().any()
        boxes = np.zeros([regions, 4]) if record.boxes is None else record.boxes
        np.testing.assert_array_equal(parsed["boxes"][row, :regions], boxes)
        assert parsed["captions"][row].numpy().tolist() == [b"A dog .", b"one Cat"]
        assert parsed["file_name"][row] == record.file_name.encode()


def test_some_images_are_read(original):
    folder, made = original
    data = PreparedData.load(folder)
    result = data.read("train", [15, 11], max_regions=2)
    assert result["id"].numpy().tolist() == [15, 11] and result["boxes"].shape == (2, 2, 4)
    np.testing.assert_array_equal(result["boxes"][1], made[1].boxes[:2])
    np.testing.assert_array_equal(result["features"][0], made[5].features[:2])
    with pytest.raises(ValueError, match="Split train .* has no image 99"):
        data.read("train", [15, 99])


@pytest.mark.parametrize("kind", ["cut inside a record", "cut between records", "missing"])
def test_a_shard_that_is_missing_or_cut_is_named_when_it_is_read(folder, kind):
    data, shard = PreparedData.load(folder), folder / SHARD
    if kind == "missing":
        shard.unlink()
    else:
        end = -5 if kind == "cut inside a record" else data.index("train").offset[-1]
        shard.write_bytes(shard.read_bytes()[:end])
    data = PreparedData.load(folder)
    for read in (lambda: read_all(data), lambda: data.read("train", [10])):
        with pytest.raises(ValueError, match=f"hard .*{SHARD}.*Run prepare again") as caught:
            read()
        assert "\n" not in str(caught.value)


def _edit(folder, **changes):
    content = json.loads((folder / FINGERPRINT).read_text())
    (folder / FINGERPRINT).write_text(json.dumps(content | changes))


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda folder: (folder / FINGERPRINT).unlink(), "has no dataset.json"),
        (lambda folder: (folder / FINGERPRINT).write_text("{"), "dataset.json is not valid JSON"),
        (lambda folder: _edit(folder, format=2), "has format 2"),
        (lambda folder: _edit(folder, tokenizer="other"), "has tokenizer 'other'"),
        (
            lambda folder: (folder / "vocab.txt").write_text("<pad>\n<bos>\n<eos>\n<unk>\nextra\n"),
            "vocab.txt is not the vocabulary of the dataset.json beside it",
        ),
    ],
)
def test_a_directory_that_does_not_fit_is_refused(folder, damage, message):
    damage(folder)
    with pytest.raises(ValueError, match=message) as caught:
        PreparedData.load(folder)
    assert "prepare" in str(caught.value)


def test_changed_references_are_refused(shapes, folder):
    """Their scores would be compared with those of the others."""
    entry = PreparedData.load(shapes).split("val")
    assert entry["references_sha256"] == file_sha256(f"{shapes}/references_val.json")
    _edit(folder, splits={"train": {**PreparedData.load(folder).split("train"), **entry}})
    with pytest.raises(ValueError, match="references_train.json was changed after prepare"):
        PreparedData.load(folder).references("train")


def test_a_flipped_bit_is_found_when_its_record_is_read(folder):
    data = PreparedData.load(folder)
    offset = int(data.index("train").offset[5])
    content = bytearray((folder / SHARD).read_bytes())
    content[offset + 60] ^= 4
    (folder / SHARD).write_bytes(content)
    assert len(read_all(data, [0, 1, 2, 3, 4, 6])) == 6
    with pytest.raises(ValueError, match=f"A record of {folder} is damaged"):
        with data.readable_errors():
            read_all(data)


def test_the_words_of_a_caption_file_come_from_the_records(tmp_path):
    made = write_directory(str(tmp_path))
    raw = {record.image_id: ["A dog's.", "One cat!"] for record in made}
    rows = [(image, f"{image}.jpg", texts) for image, texts in raw.items()]
    write_references(tmp_path, "train", rows)
    data = PreparedData.load(tmp_path)
    assert stored_captions(data, "train") == data.references("train") == raw
    fingerprint = json.loads((tmp_path / "dataset.json").read_text())
    (tmp_path / "dataset.json").write_text(json.dumps(fingerprint | {"tokens": "given"}))
    data = PreparedData.load(tmp_path)
    assert stored_captions(data, "train") == {image: ["A dog .", "one Cat"] for image in raw}
    assert list(stored_captions(data, "train")) == list(raw)
