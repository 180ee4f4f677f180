"""A prepared directory is read as it was written, and damage is named."""

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
from helpers.prepared import WIDTH, write_directory

from tfcap.data.document_frequency import DOCUMENT_FREQUENCY, load_document_frequencies
from tfcap.data.fingerprint import FINGERPRINT
from tfcap.data.prepared import PreparedData
from tfcap.data.record import parse
from tfcap.data.references import write_references

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
    found = data.read("train", [15, 11], max_regions=2)
    assert found["id"].numpy().tolist() == [15, 11] and found["boxes"].shape == (2, 2, 4)
    np.testing.assert_array_equal(found["boxes"][1], made[1].boxes[:2])
    np.testing.assert_array_equal(found["features"][0], made[5].features[:2])
    with pytest.raises(ValueError, match="images of split train .*Received: 99"):
        data.read("train", [15, 99])


def test_prepared_data_says_what_it_holds(original):
    folder, made = original
    data = PreparedData.load(folder)
    assert (data.feature_dim, data.max_regions, data.images) == (WIDTH, 3, None)
    assert [data.most_regions(limit) for limit in (None, 2, 9)] == [3, 2, 3]
    assert data.references("train") == {r.image_id: r.captions for r in made}
    assert data.file_names("train") == {r.image_id: r.file_name for r in made}
    assert data.index("train").id.tolist() == [r.image_id for r in made]
    assert sorted(data.vocab.words[4:]) == ["a", "cat", "dog", "one"]
    with pytest.raises(ValueError, match="split must be one of train .*Received: 'val'"):
        data.references("val")
    assert not [name for name in os.listdir(folder) if name.startswith(".tmp")]


def test_no_picture_lies_outside_of_its_directory(folder, tmp_path):
    """Names that lead out of the directory are ignored."""
    inside = tmp_path / "images"
    inside.mkdir()
    for path in (inside / "a.jpg", tmp_path / "b.jpg"):
        path.write_bytes(b"picture")
    names = {10: "a.jpg", 11: "../b.jpg", 12: str(tmp_path / "b.jpg"), 13: "lost.jpg"}
    write_references(folder, "train", [(image, name, []) for image, name in names.items()])
    data = PreparedData.load(folder)
    assert data.picture_paths("train") == {}
    assert data.picture_paths("train", inside) == {10: str(inside / "a.jpg")}


def damage(folder, kind: str) -> None:
    shard = folder / SHARD
    content = shard.read_bytes()
    offsets = np.load(folder / "train.index.npz")["offset"]
    if kind == "cut inside a record":
        shard.write_bytes(content[:-5])
    elif kind == "cut between records":
        shard.write_bytes(content[: offsets[-1]])
    elif kind == "missing":
        shard.unlink()
    elif kind == "empty":
        shard.write_bytes(b"")
    elif kind == "vocabulary":
        (folder / "vocab.txt").write_text((folder / "vocab.txt").read_text() + "extra\n")
    elif kind == "unfinished":
        (folder / FINGERPRINT).unlink()
    elif kind == "no json":
        (folder / FINGERPRINT).write_text("{")
    elif kind == "index missing":
        (folder / "train.index.npz").unlink()
    elif kind == "index short":
        arrays = dict(np.load(folder / "train.index.npz"))
        np.savez(folder / "train.index.npz", **{k: v[:-1] for k, v in arrays.items()})
    elif kind == "index outside":
        arrays = dict(np.load(folder / "train.index.npz"))
        arrays["offset"][0] = 10**9
        np.savez(folder / "train.index.npz", **arrays)


@pytest.mark.parametrize(
    "kind, message",
    [
        ("cut inside a record", f"{SHARD} must have"),
        ("cut between records", f"{SHARD} must have"),
        ("empty", f"{SHARD} must have .* Received: 0"),
        ("missing", f"Cannot read shard .*{SHARD}: No such file"),
        ("vocabulary", "vocab.txt must be the vocabulary of dataset.json"),
        ("unfinished", "has no dataset.json"),
        ("no json", "dataset.json is not valid JSON"),
        ("index missing", "Cannot read .*train.index.npz"),
        ("index short", "train.index.npz does not fit the 7 records"),
        ("index outside", "train.index.npz does not fit the 7 records"),
    ],
)
def test_damaged_directory_is_refused(folder, kind, message):
    PreparedData.load(folder)
    damage(folder, kind)
    with pytest.raises(ValueError, match=message) as caught:
        PreparedData.load(folder)
    assert "\n" not in str(caught.value) and "prepare" in str(caught.value)


@pytest.mark.parametrize("position", [4, 5, 6])
def test_flipped_bit_is_found_when_read_and_the_shard_is_named(folder, position):
    data = PreparedData.load(folder)
    offset = int(data.index("train").offset[position])
    with open(folder / SHARD, "r+b") as file:
        file.seek(offset + 60)
        byte = file.read(1)[0]
        file.seek(offset + 60)
        file.write(bytes([byte ^ 4]))
    data = PreparedData.load(folder)  # same size: only reading can tell
    others = [i for i in range(7) if i != position]
    assert len(read_all(data, others)) == 6
    with pytest.raises(ValueError) as caught, data.readable_errors():
        read_all(data)
    assert f"{SHARD} (image {10 + position}, record at byte {offset})" in str(caught.value)
    assert "\n" not in str(caught.value) and "00000-of" not in str(caught.value)


def test_shard_lost_while_running(folder):
    data = PreparedData.load(folder)
    (folder / SHARD).unlink()
    with pytest.raises(ValueError, match=f"A shard is missing: .*{SHARD}"):
        with data.readable_errors():
            read_all(data)


def test_pickled_npz_is_refused_and_not_run(folder, tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "executed"),))

    for name in ("train.index.npz", DOCUMENT_FREQUENCY):
        arrays = dict(np.load(folder / name))
        key = sorted(arrays)[0]
        arrays[key] = np.array([Evil()], dtype=object)
        np.savez(folder / name, **arrays)
        with pytest.raises(ValueError, match=f"{name} is not a usable npz.*pickled"):
            if name == DOCUMENT_FREQUENCY:
                load_document_frequencies(folder)
            else:
                PreparedData.load(folder)
    assert not (tmp_path / "executed").exists()


def test_no_thread_tunes_a_dataset_of_records(original):
    """The end of a run would wait for it; see `without_tuning`."""
    data = PreparedData.load(original[0])
    rows = data.examples("train", tf.data.Dataset.range(2)).batch(2).prefetch(1)
    assert rows.options().autotune.enabled is False
