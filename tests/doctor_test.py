"""The command: what is well is ok, and each damage is a problem with exit code 3."""

import os
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from helpers import commands
from helpers.prepared import write_directory

from tfcap import doctor, runs

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


@pytest.mark.parametrize(
    ("damage", "check", "word"),
    [
        (lambda f: flip(f / SHARD, 80), "records of train", "is damaged"),
        (lambda f: cut(f / "train-00001-of-00002.tfrecord"), "data", "it was cut or changed"),
        (lambda f: rewrite(f / SHARD, lose_a_caption), "records of train", "does not agree with"),
    ],
)
def test_damaged_data(folder, damage, check, word):
    assert not problems(data_dir=folder)
    damage(folder)
    result = problems(data_dir=folder)
    assert list(result) == [check] and word in result[check]


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
