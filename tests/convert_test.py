"""Conversion of released checkpoints, made from the fixtures, to run directories."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf
from helpers import commands, parity, photos
from helpers.released_files import JDAI, checkpoint

from tfcap import convert as convert_command
from tfcap import prepare as prepare_command
from tfcap import runs, train
from tfcap.data.prepared import PreparedData
from tfcap.export import export
from tfcap.ids import UNK
from tfcap.importers.convert import convert
from tfcap.inference.decode import decode_split

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """The run directory of a converted Up-Down."""
    folder = tmp_path_factory.mktemp("updown")
    convert(*checkpoint(folder, "updown"), str(folder / "run"))
    return str(folder / "run")


def released_texts(rows):
    """Returns the captions that the released code prints for its ids."""
    result = []
    for row in map(list, rows):
        row = row[: row.index(0)] if 0 in row else row
        result.append(" ".join([".", *JDAI][i].replace("\n", "\\n") for i in row))
    return result


def test_a_converted_model_gives_the_released_captions(converted):
    """`tests/models/parity_test.py` compares captions without a beam, and of other widths."""
    run, arrays = runs.load(converted), parity.read("updown")
    options = run.params.task.decoding
    assert (run.params.task.max_length, options.finished, options.beam) == (17, "hold", 3)
    mask = tf.ones(arrays["in/mask"].shape, tf.bool)  # the released code does not look at it
    context = run.model.encode({"features": arrays["in/feats"], "mask": mask})
    # Many eager steps take several times as long.
    tokens = tf.function(lambda: run.search()(run.model, context)[0], autograph=False)()
    result = [text.decode() for text in run.vocab.detokenize(tokens[:, 0]).numpy()]
    result = [text.replace(run.vocab.words[UNK], "UNK") for text in result]
    assert result == released_texts(arrays["out/beam3"])


@pytest.fixture(scope="module")
def data(converted, tmp_path_factory):
    """Fifteen images with ready features, prepared with the vocabulary of the converted Up-Down."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "features").mkdir()
    rng = np.random.default_rng(4)
    entries = []
    for number in range(15):
        np.savez(folder / "features" / f"{10 + number}.npz", feat=rng.normal(size=(4, 32)))
        words = [" ".join(rng.choice(JDAI[:20], 5)) + " unheardof" for _ in range(2)]
        entry = {"filename": f"{number}.jpg", "split": "train" if number < 12 else "val"}
        entries.append({**entry, "sentences": [{"raw": caption} for caption in words]})
    captions = photos.write_captions(folder, entries)
    vocab = os.path.join(converted, "vocab.txt")
    values = {
        "captions": captions,
        "features": str(folder / "features"),
        "out": str(folder / "out"),
    }
    asked = [f"--{key}={value}" for key, value in values.items()]
    commands.run_here(prepare_command, *asked, "--vocab", vocab)
    return values["out"]


EAGER = {"train_tf_function": False, "train_tf_while_loop": False, "eval_tf_function": False}


def further(data, **task):
    """Returns overrides for one training step on `data` with label smoothing."""
    trainer = {**EAGER, "train_steps": 1, "steps_per_loop": 1, "summary_interval": 1}
    trainer["shown_images"] = 0
    task = {
        "data_dir": data,
        "label_smoothing": 0.1,
        "metrics": ["BLEU", "CIDEr"],
        "decoding": {"beam": 1},
        **task,
    }
    return json.dumps({"task": task, "trainer": {**trainer, "validation_interval": 1}})


def test_train_continues_from_converted_weights(data, tmp_path, capsys):
    """`tfcap.train --model_dir` needs no other flag and starts at step 0 with the weights."""
    folder, source = tmp_path / "run", tmp_path / "source"
    source.mkdir()
    convert(*checkpoint(source, "updown"), str(folder))
    before = tf.train.load_checkpoint(str(folder / "ckpt-0"))
    commands.run_here(train, "--model_dir", folder, f"--params_override={further(data)}")
    shown = capsys.readouterr().out
    assert ", 109,678 parameters, " in shown and "from the beginning to step 1" in shown
    after = tf.train.load_checkpoint(str(folder / "ckpt-1"))
    moved = []
    for key in before.get_variable_to_shape_map():
        if key.startswith("weights/"):
            old, new = before.get_tensor(key), after.get_tensor(key)
            assert np.isfinite(new).all() and np.abs(new - old).max() < 1e-3, key
            moved.append((new != old).any())
    assert all(moved)


def test_the_command_converts_a_checkpoint(data, tmp_path, capsys):
    source = checkpoint(tmp_path, "updown")
    out = tmp_path / "deep" / "run"
    asked = ("--from", source[0], source[1], "--vocab", source[2], "--model_dir", out)
    commands.run_here(convert_command, *asked, "--max_length", "9")
    wanted = "updown, 109,678 parameters, 62 words, features 32 wide, at most 9"
    assert wanted in capsys.readouterr().out
    with pytest.raises(ValueError, match="run is not empty: name a new directory"):
        convert(*source, str(out))
    run = runs.load(str(out))
    result = decode_split(run, PreparedData.load(data), "val", 2).captions
    assert set(result) == {22, 23, 24}
    assert all(len(texts[0].split()) <= 9 for texts in result.values())


def test_a_converted_run_without_a_number_of_regions_has_no_portable_export(tmp_path):
    run = str(tmp_path / "run")
    convert(*checkpoint(tmp_path, "updown"), run)
    with pytest.raises(ValueError, match="number of regions"):
        export(model_dir=run, export_dir=str(tmp_path / "portable"), format="litert")
