"""What a run shows: the line of scores, and TensorBoard's scalars, captions and pictures."""

import re
import types

import numpy as np
import pytest
import tensorflow as tf
from helpers import events
from helpers.picture_bytes import claiming
from PIL import Image

from tfcap import configs
from tfcap.data.prepared import PreparedData
from tfcap.training import summaries


@pytest.fixture
def task(shapes):
    """The parts of a task that are shown, after a validation of nine images."""
    data = PreparedData.load(shapes)
    captions = {image: f"scene {image}" for image in sorted(data.references("val"))[:9]}
    captions[min(captions)] = "a | pipe\nand a line"
    split = types.SimpleNamespace(validation_data=configs.Data(split="val"))
    return types.SimpleNamespace(data=data, task_config=split, captions=captions)


def writer_of(folder):
    step = tf.Variable(3, dtype=tf.int64)
    return summaries.Summaries(str(folder), "validation", step, "scores")


def rows_of(folder, task):
    summaries.write_samples(writer_of(folder), task, 8)
    rows = sum(events.files(folder / "validation"), [])
    assert {number for number, _, _ in rows} == {3}
    return {tag: value for _, tag, value in rows}


def test_scalars_have_groups(tmp_path):
    writer_of(tmp_path).write({"loss": 1.5, "CIDEr": 2.0})
    rows = sum(events.files(tmp_path / "validation"), [])
    assert [(step, tag, float(value)) for step, tag, value in rows] == [
        (3, "loss/loss", 1.5),
        (3, "scores/CIDEr", 2.0),
    ]


def test_samples_are_written_with_pictures_and_references(tmp_path, task):
    rows = rows_of(tmp_path, task)
    assert set(rows) == {"captions"} | {f"samples/{index}" for index in range(8)}
    table = rows["captions"].item().decode().splitlines()
    assert table[:2] == ["| image | caption | references |", "|---|---|---|"] and len(table) == 10
    data, references = task.data, task.data.references("val")
    names = data.file_names("val")
    for line, image in zip(table[2:], sorted(task.captions), strict=False):
        assert re.findall(r" ?\| ?", line) == ["| ", " | ", " | ", " |"]  # three cells
        assert names[image] in line and all(text in line for text in references[image])
    name = names[sorted(task.captions)[3]]
    picture = summaries.read_picture(data.images, name)
    np.testing.assert_array_equal(tf.io.decode_image(rows["samples/3"][2]), picture)
    data.fingerprint["images"] = None  # data without pictures
    assert set(rows_of(tmp_path / "none", task)) == {"captions"}


def test_pictures_are_upright_and_torn_ones_are_left_out(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 20), "red").save(tmp_path / "a.jpg", exif=exif)
    Image.new("L", (4, 3)).save(tmp_path / "grey.png")
    (tmp_path / "torn.jpg").write_bytes((tmp_path / "a.jpg").read_bytes()[:-40])
    for name, shape in (("a.jpg", (40, 20, 3)), ("grey.png", (3, 4, 3))):
        assert summaries.read_picture(str(tmp_path), name).shape == shape
    (tmp_path / "bomb.png").write_bytes(claiming("PNG", 20_000, 20_000))
    for name in ("torn.jpg", "missing.png", "bomb.png"):
        assert summaries.read_picture(str(tmp_path), name) is None
    assert summaries.read_picture(None, "grey.png") is None
