"""Records on disk: what is written is read, and what is damaged is named."""

import json
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tfcap.data import tokens
from tfcap.data.document_frequency import (
    DOCUMENT_FREQUENCY,
    document_frequencies,
    load_document_frequencies,
    write_document_frequencies,
)
from tfcap.data.fingerprint import FINGERPRINT, VOCABULARY, write_fingerprint
from tfcap.data.prepared import PreparedData, describe_error
from tfcap.data.record import Record, parse, serialize
from tfcap.data.references import write_references
from tfcap.preparing.shards import scan_shard, shard_name, write_index, write_shard

WIDTH = 6
SHARD = "train-00001-of-00002.tfrecord"


def make_record(number: int, regions: int = 3, captions=("A dog .", "one Cat")) -> Record:
    values = np.random.default_rng(number).normal(size=[regions, WIDTH]).astype(np.float32)
    boxes = np.linspace(0, 1, regions * 4).reshape(regions, 4) if number % 2 else None
    return Record(10 + number, f"{number}.jpg", values, boxes, list(captions))


def write_directory(folder: str) -> list[Record]:
    """A prepared directory of seven images in two shards, through the public writers."""
    made = [make_record(i, regions=1 + i % 3) for i in range(7)]
    shards = [
        write_shard(os.path.join(folder, shard_name("train", i, 2)), part)
        for i, part in enumerate((made[:4], made[4:]))
    ]
    write_index(folder, "train", shards)
    count = write_references(folder, "train", [(r.image_id, r.file_name, r.captions) for r in made])
    words = tokens.tokenize_all([caption for record in made for caption in record.captions])
    vocab = tokens.Vocab.build(words, 1)
    vocab.save(os.path.join(folder, VOCABULARY))
    per_image = [[vocab.ids(words[2 * i]), vocab.ids(words[2 * i + 1])] for i in range(7)]
    write_document_frequencies(folder, document_frequencies(per_image))
    split = {"images": 7, "captions": count, "shards": [shard.entry for shard in shards]}
    write_fingerprint(
        folder,
        {
            "name": "small",
            "tokenizer": tokens.TOKENIZER,
            "min_count": 1,
            "vocab_size": len(vocab),
            "vocab_sha256": vocab.sha256,
            "splits": {"train": split},
            "features": {"dim": WIDTH, "max_regions": 3},
            "images": None,
        },
    )
    return made


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


def test_parse_cuts_and_pads_regions(original):
    data = PreparedData.load(original[0])
    serialized = tf.constant(read_all(data, [2, 0]))  # three regions and one
    whole = parse(serialized, WIDTH)["features"].numpy()
    cut = parse(serialized, WIDTH, max_regions=2)
    np.testing.assert_array_equal(cut["features"], whole[:, :2])
    assert cut["mask"].numpy().tolist() == [[True, True], [True, False]]
    wide = parse(serialized, WIDTH, pad_regions=5)
    np.testing.assert_array_equal(wide["features"][:, :3], whole)
    assert not wide["features"][:, 3:].numpy().any() and wide["mask"].numpy().sum() == 4


def test_some_images_are_read(original):
    folder, made = original
    data = PreparedData.load(folder)
    found = data.read("train", [15, 11], max_regions=2)
    assert found["id"].numpy().tolist() == [15, 11] and found["boxes"].shape == (2, 2, 4)
    np.testing.assert_array_equal(found["boxes"][1], made[1].boxes[:2])
    np.testing.assert_array_equal(found["features"][0], made[5].features[:2])
    with pytest.raises(ValueError, match="split train has no image 99"):
        data.read("train", [15, 99])


def test_prepared_data_says_what_it_holds(original):
    folder, made = original
    data = PreparedData.load(folder)
    assert (data.feature_dim, data.max_regions, data.images) == (WIDTH, 3, None)
    assert data.references("train") == {r.image_id: r.captions for r in made}
    assert data.file_names("train") == {r.image_id: r.file_name for r in made}
    assert data.index("train").id.tolist() == [r.image_id for r in made]
    assert sorted(data.vocab.words[4:]) == ["a", "cat", "dog", "one"]
    with pytest.raises(ValueError, match="no split 'val'.*choose from train"):
        data.references("val")
    assert not [name for name in os.listdir(folder) if name.startswith(".tmp")]


def test_scanning_a_shard_tells_what_its_writer_told(original, tmp_path):
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


@pytest.mark.parametrize(
    "change, message",
    [
        ({"features": np.full([2, 3], np.nan)}, "finite.*nan"),
        ({"features": np.full([2, 3], -np.inf)}, "finite.*inf"),
        ({"features": np.full([2, 3], 1e5)}, "finite, also as float16.*100000"),
        ({"features": np.zeros([0, 3])}, "zero regions"),
        ({"features": np.zeros([3])}, r"Received: float64 \[3\]"),
        ({"features": np.zeros([2, 3], np.int32)}, "floating point.*int32"),
        ({"boxes": np.zeros([3, 4])}, r"boxes must be \[2, 4\]"),
        ({"boxes": np.full([2, 4], 300.0)}, "boxes must be in 0..1"),
        ({"boxes": np.full([2, 4], np.nan)}, "boxes must be in 0..1"),
        ({"captions": []}, "no captions"),
        ({"captions": ["fine", " \n"]}, "empty caption"),
    ],
)
def test_bad_records_are_refused(change, message):
    good = {"features": np.zeros([2, 3]), "boxes": np.zeros([2, 4]), "captions": ["a"]}
    Record(7, "x.jpg", **good)
    with pytest.raises(ValueError, match=message) as caught:
        Record(7, "x.jpg", **{**good, **change})
    assert str(caught.value).startswith("Image 7 (x.jpg)")


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


def spoil(number: int, **features) -> tf.Tensor:
    """A record with some features replaced, behind the back of the checks of the writer."""
    example = tf.train.Example.FromString(serialize(make_record(number)))
    for name, feature in features.items():
        example.features.feature[name.replace("__", "/")].CopyFrom(feature)
    return tf.constant([serialize(make_record(0)), example.SerializeToString()])


def data_feature(values: np.ndarray) -> tf.train.Feature:
    data = values.astype(np.float16).tobytes()
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[data]))


def shape_feature(*shape: int) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=shape))


@pytest.mark.parametrize(
    "features, message",
    [
        ({"features__data": data_feature(np.full([3, WIDTH], np.nan))}, "NaN or infinite features"),
        (
            {"features__data": data_feature(np.where(np.eye(3, WIDTH), -np.inf, 0))},
            "NaN or infinite features",
        ),
        ({"features__shape": shape_feature(0, WIDTH)}, "zero regions"),
        ({"features__shape": shape_feature(3, WIDTH + 1)}, f"feature width is not {WIDTH}"),
        ({"features__shape": shape_feature(10**9, WIDTH)}, "bytes do not match"),
        ({"captions": tf.train.Feature(bytes_list=tf.train.BytesList())}, "no captions"),
    ],
)
def test_bad_records_are_refused_when_read(features, message):
    dataset = tf.data.Dataset.from_tensors(spoil(5, **features))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        list(dataset.map(lambda batch: parse(batch, WIDTH)))
    line = describe_error(caught.value)
    assert line.startswith("Bad record: ") and "\n" not in line
    assert message in line and "image 15." in line  # the good record of the batch is not named


def edit_fingerprint(folder, edit):
    path = folder / FINGERPRINT
    value = json.loads(path.read_text())
    edit(value)
    path.write_text(json.dumps(value))


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
        ("vocabulary", "vocab.txt is not the vocabulary of dataset.json"),
        ("unfinished", "holds no dataset.json"),
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


@pytest.mark.parametrize(
    "edit, message",
    [
        (lambda v: v.update(format=2), "format 1. Received: 2"),
        (lambda v: v.update(tokenizer="other"), "tokenizer 'other'"),
        (lambda v: v.pop("vocab_sha256"), "entry missing or wrong.*vocab_sha256"),
        (lambda v: v["features"].update(dim="6"), "dim must be an integer"),
        (lambda v: v["splits"]["train"].update(images=6), "6 images. Received: 7"),
        (
            lambda v: v["splits"]["train"]["shards"][0].update(file="../../etc/passwd"),
            "plain file name",
        ),
    ],
)
def test_bad_fingerprints_are_refused(folder, edit, message):
    edit_fingerprint(folder, edit)
    with pytest.raises(ValueError, match=message):
        PreparedData.load(folder)


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
