"""Run directories: starting, resuming, refusing what does not fit, and damaged files."""

import glob
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
from helpers.prepared import with_other_vocabulary
from helpers.run_files import EXPERIMENT, OTHER_WORDS, contents, stored_weights, weights

from tfcap import configs, runs
from tfcap.data.prepared import PreparedData
from tfcap.files import write_json
from tfcap.layers import precision
from tfcap.training.task import CaptionTask


def test_a_run_starts_and_resumes(tmp_path, run, params, data):
    folder = str(tmp_path / "new" / "run")
    assert runs.begin(folder, EXPERIMENT, params, data) == 0
    files = ["dataset.json", "document_frequency.npz", "params.yaml", "vocab.txt"]
    assert sorted(os.listdir(folder)) == files
    assert configs.load(f"{folder}/params.yaml").as_dict() == params.as_dict()
    assert runs.read_fingerprint(folder) == data.fingerprint
    assert runs.begin(folder, EXPERIMENT, params, data) == 0
    before = contents(run)
    assert runs.begin(run, EXPERIMENT, params, data) == 6
    assert contents(run) == before


def test_the_best_checkpoint_of_an_abandoned_start_is_not_taken(tmp_path, params, data):
    folder = tmp_path / "run"
    runs.begin(str(folder), EXPERIMENT, params, data)
    best = folder / "best_ckpt"

    def export(step):
        best.mkdir(exist_ok=True)
        write_json(best / "info.json", {"CIDEr": 99.0, "best_ckpt_global_step": float(step)})

    export(4)  # of the same configuration: this start will reach the same score
    assert runs.begin(str(folder), EXPERIMENT, params, data) == 0 and best.exists()
    longer = params.replace(trainer={"train_steps": 99}, task={"decoding": {"beam": 5}})
    assert runs.begin(str(folder), EXPERIMENT, longer, data) == 0 and best.exists()
    other = params.replace(task={"label_smoothing": 0.2})
    with pytest.raises(ValueError, match="must belong to this run. .*label_smoothing=0.1"):
        runs.begin(str(folder), EXPERIMENT, other, data)
    export(0)  # before the first step of self-critical training
    assert runs.begin(str(folder), EXPERIMENT, other, data) == 0 and not best.exists()


def test_decoding_and_length_of_training_may_change(run, params, data):
    longer = params.replace(trainer={"train_steps": 9}, task={"decoding": {"beam": 4}})
    assert runs.begin(run, EXPERIMENT, longer, data) == 6
    assert configs.load(f"{run}/params.yaml").trainer.train_steps == 9


def test_a_run_that_goes_on_keeps_the_checkpoint_that_it_started_from(
    run, params, data, tmp_path, capsys
):
    """Another one is not read after the first step, and params.yaml would name a false origin."""
    origin = configs.load(f"{run}/params.yaml").task.init_checkpoint
    assert runs.begin(run, EXPERIMENT, params, data) == 6 and capsys.readouterr().out == ""
    other = params.replace(task={"init_checkpoint": "runs/other/best_ckpt", "remap_vocab": True})
    assert runs.begin(run, EXPERIMENT, other, data) == 6
    said = capsys.readouterr().out
    assert "note: task.init_checkpoint=runs/other/best_ckpt is not read, because" in said
    assert "goes on from step 6" in said
    task = configs.load(f"{run}/params.yaml").task
    assert (task.init_checkpoint, task.remap_vocab) == (origin, False) and origin == ""
    folder = str(tmp_path / "new")
    for _ in range(2):  # the second start has saved no checkpoint either
        assert runs.begin(folder, EXPERIMENT, other, data) == 0
        task = configs.load(f"{folder}/params.yaml").task
        assert (task.init_checkpoint, task.remap_vocab) == ("runs/other/best_ckpt", True)
    assert capsys.readouterr().out == ""


def test_evaluation_only_reads(run, params, data, tmp_path):
    (run / "ckpt-9_temp").mkdir()  # another process is saving
    before = contents(run)
    assert runs.begin(run, EXPERIMENT, params, data, train=False) == 6
    assert contents(run) == before and (run / "ckpt-9_temp").is_dir()
    with pytest.raises(ValueError, match="holds no run to evaluate"):
        runs.begin(tmp_path / "mistyped", EXPERIMENT, params, data, train=False)
    assert not (tmp_path / "mistyped").exists()


def test_checkpoints_without_a_configuration_are_refused(run, params, data):
    os.remove(run / "params.yaml")
    before = contents(run)
    with pytest.raises(ValueError, match="holds checkpoints but no params.yaml"):
        runs.begin(run, EXPERIMENT, params, data)
    assert contents(run) == before
    (run / "params.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="run of this experiment"):
        runs.begin(run, EXPERIMENT, params, data)


@pytest.mark.parametrize("name", ["params.yaml", "vocab.txt", "dataset.json"])
def test_a_missing_file_is_an_error(run, name):
    os.remove(run / name)
    with pytest.raises(ValueError, match=name):
        runs.load(run)


def test_an_edited_vocabulary_is_refused(run):
    path = run / "vocab.txt"
    words = path.read_text().split("\n")
    words[7], words[8] = words[8], words[7]  # every sentence would read well and be wrong
    path.write_text("\n".join(words))
    remedy = "Copy vocab.txt from the prepared data that the run was trained on"
    with pytest.raises(ValueError, match=f"vocab.txt is not the vocabulary .*{remedy}"):
        runs.load(run)


def test_loading_gives_the_best_or_the_latest_weights(run, data):
    best, latest = runs.load(run), runs.load(run, "latest")
    assert best.checkpoint == tf.train.latest_checkpoint(run / "best_ckpt")
    assert latest.checkpoint == str(run / "ckpt-6")
    assert best.vocab.words == data.vocab.words and best.fingerprint == data.fingerprint
    stored = stored_weights(latest.checkpoint)
    assert stored.keys() == weights(latest.model).keys()
    for name, value in weights(latest.model).items():
        np.testing.assert_array_equal(value, stored[name])
    earlier = stored_weights(str(run / "ckpt-4"))
    assert (earlier["head/kernel"] != stored["head/kernel"]).any()


def test_a_run_is_shown_in_a_line(run):
    loaded = runs.load(run)
    system = loaded.params.task.model.type
    assert repr(loaded) == f"<Run {run}: {system}, {loaded.checkpoint}>"


def test_a_run_is_loaded_in_the_given_precision(run):
    model = runs.load(run, dtype="bfloat16").model
    assert precision.of_products(model.lstm) == "bfloat16"
    assert precision.of_products(runs.load(run).model.lstm) == "float32"


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


def test_init_checkpoint_gives_only_weights(run, params, data):
    """Weights are read from a directory or a path, and nothing else is restored."""
    for source, expected in ((run, "ckpt-6"), (run / "ckpt-4", "ckpt-4")):
        config = params.replace(task={"seed": 9, "init_checkpoint": str(source)}).task
        task = CaptionTask(config, data, params.trainer.optimizer_config)
        model = task.build_model()
        seeds = {n: v.numpy() for n, v in model.checkpoint_items["seeds"].items()}
        assert seeds
        task.initialize(model)
        stored = stored_weights(str(run / expected))
        for name, value in weights(model).items():
            np.testing.assert_array_equal(value, stored[name])
        for name, value in model.checkpoint_items["seeds"].items():
            np.testing.assert_array_equal(value.numpy(), seeds[name])
    config = params.replace(task={"init_checkpoint": str(run / "train")}).task
    task = CaptionTask(config, data, params.trainer.optimizer_config)
    with pytest.raises(ValueError, match="There is no checkpoint in .*train"):
        task.initialize(model)


def _fails(*_):
    raise OSError("no room")


def test_a_run_is_created_completely_or_not_at_all(other, data, params, tmp_path, monkeypatch):
    folder, model = other
    run = runs.load(folder)
    assert run.checkpoint == f"{folder}/ckpt-0" and run.vocab.words[4:] == OTHER_WORDS
    assert runs.step_of(run.checkpoint) == 0
    for name, value in weights(run.model).items():
        np.testing.assert_array_equal(value, weights(model)[name])
    rest = (run.params, run.vocab, run.fingerprint, run.model)
    with pytest.raises(ValueError, match="is not empty: name a new"):
        runs.create(folder, "attention_lstm", *rest)
    target, table = tmp_path / "empty", tmp_path.parent / "document_frequency.npz"
    table.touch()  # any file will do
    target.mkdir()
    runs.create(f"{target}/", "attention_lstm", *rest, [table])
    assert sorted(os.listdir(target)) == sorted([*os.listdir(folder), table.name])
    (tmp_path / f"again.tmp-{os.getpid()}").mkdir()  # of a killed process with this number
    runs.create(str(tmp_path / "again"), "attention_lstm", *rest)
    shutil.rmtree(tmp_path / "again")
    (tmp_path / f"again.tmp-{os.getpid()}").rmdir()
    with pytest.raises(ValueError, match="must be on a disk. Received: gs://bucket/run"):
        runs.create("gs://bucket/run", "attention_lstm", *rest)
    with pytest.raises(ValueError, match="must be on a disk. Received: ram://bucket/run"):
        runs.begin("ram://bucket/run", "attention_lstm", params, data)
    monkeypatch.setattr(configs, "save", _fails)
    with pytest.raises(OSError, match="no room"):
        runs.create(str(tmp_path / "new"), "attention_lstm", *rest)
    assert os.listdir(tmp_path) == ["empty"]


def test_training_starts_from_a_created_run(other, params, shapes, tmp_path):
    """`begin` resumes it at step 0 with its own data and refuses other data."""
    words = PreparedData.load(with_other_vocabulary(shapes, tmp_path / "shapes"))
    with pytest.raises(ValueError, match="The vocabulary must stay the one"):
        runs.begin(other[0], "attention_lstm", params, words)
    model = runs.build_model(params.task, len(words.vocab), words.feature_dim)
    folder = str(tmp_path / "run")
    runs.create(folder, "attention_lstm", params, words.vocab, words.fingerprint, model)
    assert runs.begin(folder, "attention_lstm", params, words) == 0
    name, loaded = configs.resume(f"{folder}/params.yaml", (), "task.decoding.beam=4")
    assert name == "attention_lstm" and loaded.task.decoding.beam == 4
    assert runs.begin(folder, name, loaded, words) == 0
