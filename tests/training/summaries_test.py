"""Actions around training: progress line, scores, TensorBoard summaries."""

import re
import subprocess
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import events, seeds
from PIL import Image

from tfcap import configs, models, visualize
from tfcap.data.prepared import PreparedData
from tfcap.training import summaries


@pytest.fixture
def step():
    return tf.Variable(3, dtype=tf.int64)


@pytest.fixture
def task(shapes):
    """The parts of a task that the actions read, after a validation of nine images."""
    data = PreparedData.load(shapes)
    captions = {image: f"scene {image}" for image in sorted(data.references("val"))[:9]}
    captions[min(captions)] = "a | pipe\nand a line"
    config = configs.Data(split="val")
    split = types.SimpleNamespace(validation_data=config)
    return types.SimpleNamespace(data=data, task_config=split, captions=captions, notes=[])


@pytest.fixture(scope="module")
def model(shapes):
    """A tiny X-LAN for `shapes`."""
    data = PreparedData.load(shapes)
    seeds.set_seed(3)
    sizes = dict(width=16, heads=2, encoder_layers=1)
    return models.build("xlan", len(data.vocab), 12, data.feature_dim, **sizes)


@pytest.fixture
def loop(model):
    return types.SimpleNamespace(model=model, average=None)


def writer_of(folder, step):
    return summaries.Summaries(str(folder), step, "scores")


@pytest.fixture
def writer(tmp_path, step):
    return writer_of(tmp_path, step)


def test_scores_are_one_line_and_notes_are_printed_once(capsys, step):
    task = types.SimpleNamespace(notes=["METEOR is left out: no Java"])
    scores = summaries.Scores(step, task)
    for _ in range(2):
        scores({"loss": tf.constant(2.0), "perplexity": 7.5, "CIDEr": 41.234, "BLEU-1": 3.0})
    line = "step 3: loss 2.00, perplexity 7.50, CIDEr 41.23"
    said = capsys.readouterr().out.splitlines()
    assert said == [line, "note: METEOR is left out: no Java", line]


def test_scalars_have_groups(tmp_path, writer):
    writer.write({"loss": 1.5, "CIDEr": 2.0})
    assert [(s, tag, float(v)) for s, tag, v in sum(events.files(tmp_path), [])] == [
        (3, "loss/loss", 1.5),
        (3, "scores/CIDEr", 2.0),
    ]


def rows_of(tmp_path, task, writer, loop):
    loop.task = task
    summaries.Samples(loop, writer)({})
    rows = sum(events.files(tmp_path), [])
    assert {number for number, _, _ in rows} == {3}
    return {tag: value for _, tag, value in rows}


@pytest.mark.slow
def test_samples_are_written_with_pictures_and_references(tmp_path, task, writer, loop):
    rows = rows_of(tmp_path, task, writer, loop)
    pictures = {f"{name}/{index}" for name in ("samples", "attention") for index in range(8)}
    assert set(rows) == {"captions"} | pictures
    table = rows["captions"].item().decode().splitlines()
    assert table[:2] == ["| image | caption | references |", "|---|---|---|"] and len(table) == 10
    references, files = task.data.references("val"), task.data.file_names("val")
    for line, image in zip(table[2:], sorted(task.captions), strict=False):
        assert re.findall(r" ?\| ?", line) == ["| ", " | ", " | ", " |"]  # three cells
        assert files[image] in line and all(text in line for text in references[image])
    assert "**a / pipe and a line**" in table[2]
    picture = tf.io.decode_image(rows["samples/0"][2]).numpy()
    source = summaries.read_picture(task.data.images, files[min(task.captions)])
    np.testing.assert_array_equal(picture, source)


def test_sample_pictures_are_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 20), "red").save(tmp_path / "a.jpg", exif=exif)
    assert summaries.read_picture(str(tmp_path), "a.jpg").shape == (40, 20, 3)
    (tmp_path / "b.jpg").write_bytes((tmp_path / "a.jpg").read_bytes()[:-40])
    assert summaries.read_picture(str(tmp_path), "b.jpg") is None


def test_samples_are_written_without_pictures_too(tmp_path, task, writer, loop):
    task.data.fingerprint["images"] = None
    assert task.data.images is None
    assert set(rows_of(tmp_path, task, writer, loop)) == {"captions"}


@pytest.mark.slow
def test_samples_show_attention(tmp_path, step, task, writer, loop):
    """The figure of an image, as `visualize` makes it; another one when the weights change."""
    rows = rows_of(tmp_path / "first", task, writer_of(tmp_path / "first", step), loop)
    data, image = task.data, sorted(task.captions)[3]
    batch = data.read("val", [image])
    (seen,) = visualize.attended(
        loop.model, data.vocab, batch, batch["boxes"], [task.captions[image]]
    )
    picture = summaries.read_picture(data.images, data.file_names("val")[image]).numpy()
    expected = visualize.figure(picture, seen, **summaries.FIGURE)
    found = tf.io.decode_image(rows["attention/3"][2])
    np.testing.assert_array_equal(found, tf.io.decode_image(expected))
    loop.average = Average(loop.model)
    other = rows_of(tmp_path / "other", task, writer_of(tmp_path / "other", step), loop)
    assert np.abs(tf.io.decode_image(other["attention/3"][2]) - found).max() > 0
    assert loop.average.calls == ["enter", "leave"]


class Average:
    """Other weights, which the captions come from."""

    def __init__(self, model):
        self.weights, self.calls = model.trainable_variables, []
        self.before = [weight.numpy() for weight in self.weights]

    def enter(self):
        self.calls.append("enter")
        for weight in self.weights:
            weight.assign(weight * 3)

    def leave(self):
        self.calls.append("leave")
        for weight, value in zip(self.weights, self.before, strict=True):
            weight.assign(value)


def test_samples_whose_regions_have_no_boxes(tmp_path, task, writer, loop, monkeypatch):
    """Data may mix features with boxes and without: the others are shown."""
    read = PreparedData.read

    def without(self, *arguments):
        batch = read(self, *arguments)
        places = tf.constant([False] + [True] * 3 + [False] * 4)[:, None, None]
        return batch | {"boxes": tf.where(places, batch["boxes"], 0.0)}

    monkeypatch.setattr(PreparedData, "read", without)
    rows = rows_of(tmp_path, task, writer, loop)
    shown = {f"attention/{index}" for index in (1, 2, 3)}
    assert set(rows) == {"captions"} | {f"samples/{index}" for index in range(8)} | shown


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_attention_of_two_replicas(tmp_path, step, task, policy):
    """A model of two replicas, in lower precision too; one without attention."""
    data = task.data
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    try:
        keras.mixed_precision.set_global_policy(policy)
        with strategy.scope():
            model = models.build("mrnn", len(data.vocab), 12, data.feature_dim, width=8)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    loop = types.SimpleNamespace(model=model, average=None)
    rows = rows_of(tmp_path, task, writer_of(tmp_path, step), loop)
    figures = [tf.io.decode_image(rows[f"attention/{i}"][2]).numpy() for i in range(8)]
    assert all(figure.shape[1] > 3 * 100 for figure in figures)


def test_read_picture(tmp_path):
    grey = tf.zeros((3, 4, 1), tf.uint8)
    tf.io.write_file(str(tmp_path / "grey.png"), tf.io.encode_png(grey))
    tf.io.write_file(str(tmp_path / "grey.jpg"), tf.io.encode_jpeg(grey))
    tf.io.write_file(str(tmp_path / "torn.jpg"), tf.io.encode_jpeg(grey).numpy()[:40])
    (tmp_path / "empty.png").write_bytes(b"")
    for name in ("grey.png", "grey.jpg"):
        picture = summaries.read_picture(str(tmp_path), name)
        assert picture.shape == (3, 4, 3) and picture.dtype == tf.uint8
    for name in ("torn.jpg", "empty.png", "missing.png", ""):
        assert summaries.read_picture(str(tmp_path), name) is None
    assert summaries.read_picture(None, "grey.png") is None


@pytest.mark.slow
def test_tensorboard_starts():
    """TensorBoard needs a setuptools that the newest one is not."""
    shown = subprocess.run(
        [sys.executable, "-m", "tensorboard.main", "--version"], capture_output=True, text=True
    )
    assert shown.returncode == 0 and shown.stdout.strip().startswith("2."), shown.stderr


def test_two_validations_without_a_better_score_are_told_once(step, tmp_path, capsys):
    params = configs.resolve("updown", override="trainer.validation_interval=500")
    (tmp_path / "best_ckpt").mkdir()
    info = tmp_path / "best_ckpt" / "info.json"
    told = summaries.Worse(step, params, str(tmp_path), "train_and_eval")
    patient = params.replace(trainer={"patience": 2})
    others = [
        summaries.Worse(step, patient, str(tmp_path), "train_and_eval"),
        summaries.Worse(step, params, str(tmp_path), "eval"),
    ]
    for now in (0, 500, 1000, 1500, 2000):
        step.assign(now)
        if now == 500:
            info.write_text('{"CIDEr": 42.7, "best_ckpt_global_step": 500.0}')
        for action in (told, *others):
            action({})
        said = capsys.readouterr().out
        assert (
            "no better, twice in a row (CIDEr); the best is step 500. trainer.patience=2" in said
        ) is (now == 1500)
        assert said.count("note") == (now == 1500)
