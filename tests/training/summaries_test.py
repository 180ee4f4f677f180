"""What a run shows: the line of scores, and TensorBoard's scalars, captions and pictures."""

import re
import types

import numpy as np
import pytest
import tensorflow as tf
from helpers import events, seeds
from helpers.picture_bytes import claiming
from PIL import Image

from tfcap import configs, models
from tfcap.data.prepared import PreparedData
from tfcap.training import summaries
from tfcap.visualize import figures
from tfcap.visualize.attention import attend


@pytest.fixture
def task(shapes):
    """The parts of a task that are shown, after a validation of nine images."""
    data = PreparedData.load(shapes)
    captions = {image: f"scene {image}" for image in sorted(data.references("val"))[:9]}
    captions[min(captions)] = "a | pipe\nand a line"
    split = types.SimpleNamespace(validation_data=configs.Data(split="val"))
    return types.SimpleNamespace(data=data, task_config=split, captions=captions)


@pytest.fixture(scope="module")
def model(shapes):
    """A tiny X-LAN for `shapes`."""
    data = PreparedData.load(shapes)
    seeds.set_seed(3)
    sizes = dict(width=16, heads=2, encoder_layers=1)
    return models.build("xlan", len(data.vocab), 12, data.feature_dim, **sizes)


def writer_of(folder):
    step = tf.Variable(3, dtype=tf.int64)
    return summaries.Summaries(str(folder), "validation", step, "scores")


def rows_of(folder, task, model):
    summaries.write_samples(writer_of(folder), task, model, 8)
    rows = sum(events.files(folder / "validation"), [])
    assert {number for number, _, _ in rows} == {3}
    return {tag: value for _, tag, value in rows}


def test_scores_are_one_line(capsys):
    scores = {"loss": tf.constant(2.0), "perplexity": 7.5, "CIDEr": 41.234, "BLEU-1": 3.0}
    summaries.say_scores(3, scores)
    line = "step 3: loss 2.00, perplexity 7.50, CIDEr 41.23\n"
    assert capsys.readouterr().out == line


def test_scalars_have_groups(tmp_path):
    writer_of(tmp_path).write({"loss": 1.5, "CIDEr": 2.0})
    rows = sum(events.files(tmp_path / "validation"), [])
    assert [(step, tag, float(value)) for step, tag, value in rows] == [
        (3, "loss/loss", 1.5),
        (3, "scores/CIDEr", 2.0),
    ]


@pytest.mark.slow
def test_samples_are_written_with_pictures_references_and_attention(tmp_path, task, model):
    rows = rows_of(tmp_path, task, model)
    pictures = {f"{name}/{index}" for name in ("samples", "attention") for index in range(8)}
    assert set(rows) == {"captions"} | pictures
    table = rows["captions"].item().decode().splitlines()
    assert table[:2] == ["| image | caption | references |", "|---|---|---|"] and len(table) == 10
    data, references = task.data, task.data.references("val")
    names = data.file_names("val")
    for line, image in zip(table[2:], sorted(task.captions), strict=False):
        assert re.findall(r" ?\| ?", line) == ["| ", " | ", " | ", " |"]  # three cells
        assert names[image] in line and all(text in line for text in references[image])
    image = sorted(task.captions)[3]
    batch = data.read("val", [image])
    (calls,) = attend(model, data.vocab, batch, batch["boxes"], [task.captions[image]])
    picture = summaries.read_picture(data.images, [names[image]]).numpy()
    np.testing.assert_array_equal(tf.io.decode_image(rows["samples/3"][2]), picture)
    expected = figures.figure(picture, calls, **summaries.FIGURE)
    result = tf.io.decode_image(rows["attention/3"][2])
    np.testing.assert_array_equal(result, tf.io.decode_image(expected))


def test_samples_are_written_without_pictures_too(tmp_path, task, model):
    task.data.fingerprint["images"] = None
    assert set(rows_of(tmp_path, task, model)) == {"captions"}


def test_pictures_are_upright_and_torn_ones_are_left_out(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 20), "red").save(tmp_path / "a.jpg", exif=exif)
    Image.new("L", (4, 3)).save(tmp_path / "grey.png")
    (tmp_path / "torn.jpg").write_bytes((tmp_path / "a.jpg").read_bytes()[:-40])
    for name, shape in (("a.jpg", (40, 20, 3)), ("grey.png", (3, 4, 3))):
        assert summaries.read_picture(str(tmp_path), [name]).shape == shape
    (tmp_path / "bomb.png").write_bytes(claiming("PNG", 20_000, 20_000))
    for name in ("torn.jpg", "missing.png", "bomb.png"):
        assert summaries.read_picture(str(tmp_path), [name]) is None
    assert summaries.read_picture(None, ["grey.png"]) is None


@pytest.mark.parametrize(
    "content, slow",
    [
        ("model name\t: A\nflags\t\t: fpu avx avx2 fma\n", True),
        ("model name\t: B\nflags\t\t: fpu avx avx2 avx512f avx512dq\n", False),
        ("Features\t: fp asimd sve\n", False),  # ARM
        (None, False),  # macOS has no such file
    ],
)
def test_a_slow_processor_is_named(content, slow, tmp_path):
    path = tmp_path / "cpuinfo"
    if content:
        path.write_text(content)
    assert ("AVX-512" in summaries.slow_processor(str(path))) == slow
