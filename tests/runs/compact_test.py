"""A small run directory: its files, its weights, and that it captions but does not train on."""

import dataclasses
import json
import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from helpers.run_files import EXPERIMENT, stored_weights, weights

from tfcap import configs, runs
from tfcap.data.prepared import PreparedData
from tfcap.runs import checkpoints, compact

FILES = ["checkpoint", "ckpt-0.data-00000-of-00001", "ckpt-0.index", "dataset.json", "info.json"]


@pytest.fixture(scope="module")
def small_run(trained, tmp_path_factory):
    out = tmp_path_factory.mktemp("small") / "run"
    path = compact.write(runs.load(trained), str(out), decoding="no_repeat_ngram=3", beam=5)
    assert path == str(out / "ckpt-0")
    return out


def test_it_holds_one_checkpoint_and_nothing_of_the_data(small_run, trained):
    assert sorted(os.listdir(small_run)) == [*FILES, "params.yaml", "vocab.txt"]
    assert PreparedData.load(runs.load(trained).data_dir).folder  # the data is there
    text = "".join((small_run / name).read_text() for name in ("params.yaml", "dataset.json"))
    assert "shards" not in text and ".tfrecord" not in text and os.path.dirname(trained) not in text
    kept = json.loads((small_run / "dataset.json").read_text())["splits"]["train"]
    assert kept["images"] == 64 and kept["captions"] == 320
    [best] = [p for p in os.listdir(f"{trained}/best_ckpt") if ".data-" in p]
    data = os.path.getsize(small_run / FILES[1])
    assert (
        data < os.path.getsize(f"{trained}/best_ckpt/{best}") / 5
    )  # two slots in float32, and half


def test_it_does_not_name_the_run_that_it_was_trained_from(trained, tmp_path):
    run = runs.load(trained)
    origin = {"init_checkpoint": "/home/me/first/best_ckpt", "remap_vocab": True}
    run.params = run.params.replace(task=origin)
    compact.write(run, str(tmp_path / "run"))
    task = runs.load(str(tmp_path / "run")).params.task
    assert (task.init_checkpoint, task.remap_vocab) == ("", False)


def test_it_names_no_row_of_the_caption_files():
    rows = [{"place": "/home/me/captions.csv: line 7", "reason": "no caption"}]
    assert compact._without_data({"skipped_rows": rows, "skipped": [], "splits": {}}) == {
        "splits": {}
    }


def test_a_converted_run_can_be_exported(trained, tmp_path):
    """Its dataset.json has no splits, because no data was prepared."""
    run = runs.load(trained)
    known = {key: value for key, value in run.fingerprint.items() if key != "splits"}
    compact.write(dataclasses.replace(run, fingerprint=known), str(tmp_path / "run"))
    assert runs.load(str(tmp_path / "run")).fingerprint["splits"] == {}


def test_the_weights_are_those_of_the_best_checkpoint_in_float16(small_run, trained):
    stored, best = stored_weights(str(small_run / "ckpt-0")), runs.load(trained)
    loaded = weights(runs.load(small_run).model)
    assert stored.keys() == loaded.keys() == weights(best.model).keys()
    for name, value in weights(best.model).items():
        assert stored[name].dtype == np.float16 and loaded[name].dtype == np.float32
        np.testing.assert_array_equal(loaded[name], value.astype(np.float16), err_msg=name)


def test_it_keeps_the_signature_the_scores_and_the_new_decoding(small_run, trained):
    run, best = runs.load(small_run), runs.load(trained)
    assert run.signature == best.signature == "cross-entropy"
    scores = runs.read_best(f"{trained}/best_ckpt")
    kept = {name: scores[name] for name in ("loss", "perplexity")}
    assert runs.read_best(small_run) == kept  # the others are those of another search
    assert run.params.task.decoding.beam == 5 and run.params.task.decoding.no_repeat_ngram == 3
    changed = {"decoding": best.params.task.decoding.as_dict(), "data_dir": best.data_dir}
    assert run.params.replace(task=changed).as_dict() == best.params.as_dict()


def test_training_that_goes_on_in_it_does_not_claim_another_start(
    trained, shapes, tmp_path, capsys
):
    """Its first checkpoint, at step 0, is the start, and not a checkpoint that is given now."""
    out, data = str(tmp_path / "run"), PreparedData.load(shapes)
    compact.write(runs.load(trained), out, "float32")
    given = runs.load(out).params.replace(task={"init_checkpoint": "runs/no/such/best_ckpt"})
    assert runs.begin(out, EXPERIMENT, given, data) == 0
    said = capsys.readouterr().out
    assert (
        "init_checkpoint=runs/no/such/best_ckpt is not read, because the run goes on from" in said
    )
    assert configs.load(f"{out}/params.yaml").task.init_checkpoint == ""


def test_its_scores_are_not_those_of_weights_that_training_adds(trained, tmp_path):
    out = tmp_path / "run"
    compact.write(runs.load(trained), str(out), "float32")
    assert runs.validated(runs.load(str(out))) == runs.read_best(f"{trained}/best_ckpt")
    newest = checkpoints.newest_checkpoint(trained)
    for part in pathlib.Path(trained).glob(os.path.basename(newest) + ".*"):
        shutil.copy(part, out)
    info = json.loads((out / "info.json").read_text())
    (out / "info.json").write_text(json.dumps(info | {"signature": "EARLIER"}))
    later = runs.load(str(out), os.path.join(out, os.path.basename(newest)))
    assert runs.validated(later) == {} and later.signature == "cross-entropy"
    assert runs.load(str(out), str(out / "ckpt-0")).signature == "EARLIER"


def test_a_score_that_is_infinite_is_left_out(trained, tmp_path):
    """JSON has no infinity; the perplexity of a model that diverges is infinite."""
    copy = shutil.copytree(trained, tmp_path / "run")
    info = json.loads((copy / "best_ckpt" / "info.json").read_text())
    (copy / "best_ckpt" / "info.json").write_text(json.dumps(info | {"perplexity": float("inf")}))
    compact.write(runs.load(str(copy)), str(tmp_path / "small"))
    scores = runs.read_best(str(tmp_path / "small"))
    assert "perplexity" not in scores and "CIDEr" in scores


def test_training_starts_from_it_and_does_not_continue_in_it(small_run, trained, shapes):
    data, run = PreparedData.load(shapes), runs.load(small_run)
    with pytest.raises(ValueError, match="its weights are float16. Start a new run .*init_check"):
        runs.begin(str(small_run), EXPERIMENT, run.params, data)
    with pytest.raises(ValueError, match="float16 .*python -m tfcap.evaluate --model_dir"):
        runs.begin(str(small_run), EXPERIMENT, run.params, data, train=False)
    model = runs.load(trained, "latest").model
    assert checkpoints.restore_weights(model, str(small_run), start=True) == run.checkpoint
    for name, value in weights(run.model).items():
        np.testing.assert_array_equal(weights(model)[name], value)


def test_a_table_of_frequencies_is_kept_only_where_captions_need_it(trained, tmp_path):
    run = runs.load(trained)
    compact.write(run, str(tmp_path / "run"), "float32", "search=sample,order=consensus")
    assert sorted(os.listdir(tmp_path / "run")) == sorted(
        [*FILES, "document_frequency.npz", "params.yaml", "vocab.txt"]
    )
    for name, value in stored_weights(str(tmp_path / "run" / "ckpt-0")).items():
        np.testing.assert_array_equal(value, weights(run.model)[name])
    with pytest.raises(ValueError, match="is not empty"):
        compact.write(run, str(tmp_path / "run"))
    copy = shutil.copytree(trained, tmp_path / "copy")
    (copy / "document_frequency.npz").unlink()
    loaded, table = runs.load(str(copy)), "search=sample,order=consensus"
    compact.write(loaded, str(tmp_path / "of_data"), "float32", table)  # its data has one
    assert (tmp_path / "of_data" / "document_frequency.npz").exists()
    loaded.params = loaded.params.replace(task={"data_dir": str(tmp_path)})
    with pytest.raises(ValueError, match="order=consensus needs document_frequency.npz"):
        compact.write(loaded, str(tmp_path / "none"), "float32", table)


def test_a_weight_that_float16_cannot_hold_is_refused():
    large = {"a": tf.Variable([1.0]), "head/kernel": tf.Variable([[7e4, -1e5]])}
    with pytest.raises(ValueError, match="head/kernel must be at most 65504.* Received: 1e.05"):
        checkpoints.converted(large, "float16")
    assert checkpoints.converted(large, "float32")["head/kernel"].numpy().max() == 7e4
