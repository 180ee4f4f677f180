"""The command: what is well is ok, and each damage is a problem with exit code 3."""

import dataclasses
import os
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from helpers import commands
from helpers.prepared import make_record, write_directory, write_splits
from PIL import Image

from tfcap import doctor, runs
from tfcap.data.tokens import Vocab

SHARD = "train-00000-of-00002.tfrecord"
LINE = re.compile(r"(ok|warning|problem) +\S.*: \S.*")


@pytest.fixture
def folder(tmp_path):
    """A prepared directory of seven images in the split train."""
    (tmp_path / "data").mkdir()
    write_directory(str(tmp_path / "data"))
    return tmp_path / "data"


def problems(**directories) -> dict[str, str]:
    """The text of each check of these directories that finds a problem."""
    values = {name: str(path) for name, path in directories.items()}
    result = [f for f in doctor.findings(**values) if f.status == doctor.PROBLEM]
    assert all(LINE.fullmatch(str(finding)) for finding in result)
    return {finding.check: finding.text for finding in result}


def cut(path, share: float = 0.5) -> None:
    """Cuts off the end of a file."""
    os.truncate(path, int(os.path.getsize(path) * share))


def flip(path, place: int) -> None:
    """Flips one bit of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


def rewrite(path, change) -> None:
    """Writes the records of a shard again after `change(features)`, checksums included."""
    raw = list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
    with tf.io.TFRecordWriter(str(path)) as writer:
        for content in raw:
            example = tf.train.Example.FromString(content)
            change(example.features.feature)
            writer.write(example.SerializeToString(deterministic=True))


def lose_a_caption(features) -> None:
    """Joins the first two captions; the record keeps its size."""
    first, *_ = features["captions"].bytes_list.value
    features["captions"].bytes_list.value[:] = [first + b"  one Cat"]


def shift(path) -> None:
    """Says in an index that the third record begins a byte later."""
    arrays = dict(np.load(path))
    arrays["offset"][2] += 1
    np.savez(path, **arrays)


@pytest.mark.parametrize(
    ("damage", "check", "word"),
    [
        (lambda f: flip(f / SHARD, 80), "records of train", "is damaged"),
        (lambda f: cut(f / "train-00001-of-00002.tfrecord"), "data", "it was cut or changed"),
        (lambda f: rewrite(f / SHARD, lose_a_caption), "records of train", "does not agree with"),
        (lambda f: shift(f / "train.index.npz"), "records of train", "does not agree with"),
    ],
)
def test_damaged_data(folder, damage, check, word):
    assert not problems(data_dir=folder)
    damage(folder)
    result = problems(data_dir=folder)
    assert list(result) == [check] and word in result[check]


def photo(path, seed: int, size=(160, 120)) -> None:
    """Writes a picture with patches of colour; the seed draws them."""
    patches = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), np.uint8)
    Image.fromarray(patches).resize((160, 120), Image.Resampling.BICUBIC).resize(size).save(path)


@pytest.fixture
def splits(tmp_path):
    """A prepared directory of 7 images in train and 5 in val; val/1.jpg is a copy of train/4.jpg.

    It has the pictures of val/0.jpg to val/3.jpg only. The features of val/3.jpg are those of
    train/6.jpg.
    """
    for split, numbers in (("train", range(7)), ("val", range(4))):
        (tmp_path / "images" / split).mkdir(parents=True)
        for i in numbers:
            photo(tmp_path / "images" / split / f"{i}.jpg", i if split == "train" else 20 + i)
    photo(tmp_path / "images" / "val" / "1.jpg", 4, (80, 60))
    made = {}
    for split, count, first in (("train", 7, 0), ("val", 5, 30)):
        made[split] = [
            dataclasses.replace(
                make_record(first + i, captions=(f"{split} number {i}.", "A dog .")),
                file_name=f"{split}/{i}.jpg",
            )
            for i in range(count)
        ]
    made["val"][3] = dataclasses.replace(made["val"][3], features=made["train"][6].features)

    def write(made=made, **entries):
        vocab = Vocab(["<pad>", "<bos>", "<eos>", "<unk>", "a", "dog"])
        entries = {"images": str(tmp_path / "images"), "document_frequency": None} | entries
        features = {"dim": 6, "max_regions": 3}
        (tmp_path / "data").mkdir()
        write_splits(str(tmp_path / "data"), made, vocab, name="leak", features=features, **entries)
        return tmp_path / "data"

    return made, write


def texts_of(folder, check: str) -> list[tuple[str, str]]:
    """The status and the text of the findings of a check of prepared data."""
    found = list(doctor.findings(data_dir=str(folder)))
    assert not [f for f in found if f.status == doctor.PROBLEM], found
    return [(f.status, f.text) for f in found if f.check == check]


def test_a_copy_of_a_picture_in_another_split_is_named(splits):
    (found,) = texts_of(splits[1](), "same pictures")
    assert found[0] == doctor.WARNING
    assert found[1].startswith("1 of 5 images of val are nearly the same as images of train")
    assert "; 1 of them are missing in " in found[1]
    assert ": val/1.jpg and train/4.jpg. Leave them out of train" in found[1]


def test_features_are_compared_where_no_picture_is_there(splits):
    (found,) = texts_of(splits[1](images=None), "same pictures")
    assert found[0] == doctor.WARNING and "val/3.jpg and train/6.jpg." in found[1]
    assert "by their features, because no picture file is there" in found[1]


def test_pictures_in_the_records_are_compared(splits, tmp_path):
    made, write = splits
    for split, records in made.items():
        for i, record in enumerate(records):
            path = tmp_path / "images" / split / f"{i}.jpg"
            picture = path.read_bytes() if path.exists() else b"damaged"
            records[i] = dataclasses.replace(record, picture=picture)
    (found,) = texts_of(write(images=None, pictures={}), "same pictures")
    assert found[0] == doctor.WARNING and "val/1.jpg and train/4.jpg." in found[1]


def test_different_pictures_are_well(splits, tmp_path):
    photo(tmp_path / "images" / "val" / "1.jpg", 99)
    (found,) = texts_of(splits[1](), "same pictures")
    assert found[0] == doctor.OK and found[1].startswith("none in two splits (compared by their ")


def test_captions_in_two_splits_are_counted(splits):
    made, write = splits
    found = texts_of(write(), "same captions")
    text = (
        "5 of 10 captions of val stand in train as well, 50.0 %: 'a dog'. A model that has learnt"
    )
    assert [status for status, _ in found] == [doctor.WARNING] and found[0][1].startswith(text)


def test_sentences_of_reports_are_counted(splits):
    made, write = splits
    for split, records in made.items():
        for i, record in enumerate(records):
            text = f"No edema. {split} {i} is seen" + ". The heart is normal." * (i < 2)
            records[i] = dataclasses.replace(record, captions=[text])
    found = texts_of(write(), "same captions")
    assert found == [
        (doctor.OK, "0 of 5 captions of val stand in train as well"),
        (
            doctor.OK,
            "16 of 28 sentences stand in several captions, 57.1 %: 'no edema' in 12, 'the heart is "
            "normal' in 4",
        ),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "checks"),
    [
        (lambda f: cut(f / "ckpt-6.data-00000-of-00001"), ["latest checkpoint"]),
        (lambda f: (f / "vocab.txt").unlink(), ["run", "latest checkpoint"]),
    ],
    ids=["latest", "words"],
)
def test_a_damaged_run(trained, tmp_path, damage, checks):
    run = shutil.copytree(trained, tmp_path / "run")
    damage(run)
    assert list(problems(model_dir=run)) == checks


@pytest.mark.slow
def test_a_weight_that_is_not_finite_is_named(trained, tmp_path):
    run = runs.load(trained)
    weight = run.model.checkpoint_items["weights"]["head/bias"]
    weight.assign(np.where(np.arange(weight.shape[0]) == 5, np.nan, weight))
    kind = "attention_lstm"
    runs.create(str(tmp_path), kind, run.params, run.vocab, run.fingerprint, run.model)
    result = problems(model_dir=tmp_path)
    assert {"run", "latest checkpoint", "caption"} == set(result)
    assert "NaN" in result["run"] and "head" in result["run"]


@pytest.mark.slow
def test_an_export(exported, tmp_path):
    assert not problems(export_dir=exported)
    copy = shutil.copytree(exported, tmp_path / "served")
    cut(copy / "1" / "variables" / "variables.data-00000-of-00001", 0.1)
    assert "Export again" in problems(export_dir=copy)["export"]


@pytest.mark.slow
def test_the_command_prints_a_line_for_each_check_and_nothing_else(trained, shapes, tmp_path):
    done = commands.run_command("tfcap.doctor", "--model_dir", trained, "--data_dir", shapes)
    *lines, last = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "") and last.endswith(" 0 with a problem")
    assert all(LINE.fullmatch(line) for line in lines) and last.startswith(f"{len(lines)} checks")
    assert " for a drawn picture, score " in done.stdout
    done = commands.run_command("tfcap.doctor", "--export_dir", tmp_path)
    assert done.returncode == 3 and "has no version" in done.stdout
