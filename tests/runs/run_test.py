"""Loading runs and ensembles of runs."""

import glob
import json
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
from helpers import seeds
from helpers.prepared import with_other_vocabulary
from helpers.run_files import stored_weights, weights

import tfcap
from tfcap import configs, runs
from tfcap.data.prepared import PreparedData
from tfcap.inference.decode import decode_split
from tfcap.layers import precision


def test_an_edited_vocabulary_is_refused(run):
    path = run / "vocab.txt"
    words = path.read_text().split("\n")
    words[7], words[8] = words[8], words[7]  # every sentence would read well and be wrong
    path.write_text("\n".join(words))
    with pytest.raises(ValueError, match="vocab.txt is not the vocabulary"):
        runs.load(run)


def test_loading_gives_the_best_or_the_latest_weights(run, data):
    best, latest = runs.load(run), runs.load(run, "latest")
    assert best.checkpoint == tf.train.latest_checkpoint(run / "best_ckpt")
    assert latest.checkpoint == str(run / "ckpt-6")
    assert best.vocab.words == data.vocab.words and best.fingerprint == data.fingerprint
    assert repr(latest) == f"<Run {run}: attention_lstm, {run}/ckpt-6>"
    stored = stored_weights(latest.checkpoint)
    assert stored.keys() == weights(latest.model).keys()
    for name, value in weights(latest.model).items():
        np.testing.assert_array_equal(value, stored[name])
    assert (stored_weights(str(run / "ckpt-4"))["head/kernel"] != stored["head/kernel"]).any()
    rounded = runs.load(run, dtype="bfloat16").model
    assert precision.of_products(rounded.lstm) == "bfloat16"
    assert precision.of_products(latest.model.lstm) == "float32"


def test_best_falls_back_to_the_latest_checkpoint(run):
    best = tf.train.latest_checkpoint(run / "best_ckpt")
    (run / "best_ckpt" / "checkpoint").write_text("garbage")
    assert runs.load(run).checkpoint == best
    shutil.rmtree(run / "best_ckpt")
    assert runs.load(run).checkpoint == str(run / "ckpt-6")
    for name in glob.glob(str(run / "ckpt-*")):
        os.remove(name)
    with pytest.raises(ValueError, match="There is no checkpoint in"):
        runs.load(run)


# ---- ensembles ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def together(trained, shapes, tmp_path_factory):
    """A trained run and one of another system on the same data, with random weights."""
    data = PreparedData.load(shapes)
    override = {"task": {"data_dir": shapes, "max_length": 12, "model": {"updown": {"width": 16}}}}
    params = configs.resolve("updown", override=json.dumps(override))
    seeds.set_seed(5)
    model = runs.build_model(params.task, len(data.vocab), data.fingerprint["features"])
    folder = str(tmp_path_factory.mktemp("other") / "run")
    runs.create(folder, "updown", params, data.vocab, data.fingerprint, model)
    return [trained, folder]


@pytest.mark.slow
def test_runs_are_loaded_as_one(together, captioner, shapes):
    run = runs.load_together(together)
    assert [m.name for m in run.model.members] == ["attention_lstm", "updown"]
    data = PreparedData.load(shapes)
    captions = decode_split(run, data, "val", 6).captions
    assert len(captions) == 12
    names = data.file_names("val")
    paths = [f"{data.images}/{names[image]}" for image in captions]
    result = [str(caption) for caption in tfcap.load(together)(paths)]
    assert result == [texts[0] for texts in captions.values()]
    assert result != [str(caption) for caption in captioner(paths)]  # of the first run alone


def test_runs_that_do_not_go_together_are_refused(together, tmp_path):
    assert runs.load_together(together[:1]).model.name == "attention_lstm"
    first = runs.load(together[1])
    fingerprint = first.fingerprint
    grid = fingerprint | {"backbone": fingerprint["backbone"] | {"grid": 3}}
    sets = fingerprint | {"features": fingerprint["features"] | {"set_widths": [8, 4]}}
    fewer = first.params.replace(task={"validation_data": {"max_regions": 7}})
    for name, params, expected, word in (
        ("grid", first.params, grid, "backbone"),
        ("sets", first.params, sets, "widths of feature sets .8 4. than .* .one set."),
        ("regions", fewer, fingerprint, "max_regions"),
    ):
        folder = str(tmp_path / name)
        runs.create(folder, "updown", params, first.vocab, expected, first.model)
        with pytest.raises(ValueError, match=word):
            runs.load_together([together[0], folder])


def test_consensus_needs_the_document_frequencies_of_its_words(run, shapes, tmp_path):
    """A missing table and a table of another vocabulary are refused."""
    (run / "document_frequency.npz").unlink()
    loaded = runs.load(run).with_decoding("search=sample,order=consensus")
    assert loaded.search().consensus is not None  # of its data
    loaded.params = loaded.params.replace(task={"data_dir": str(tmp_path)})
    other = with_other_vocabulary(shapes, tmp_path / "other")
    for folder in (None, other):
        with pytest.raises(ValueError, match="needs the document_frequency.npz of the run's voc"):
            loaded.search(data_dir=folder)
    assert loaded.search(data_dir=shapes).consensus is not None
