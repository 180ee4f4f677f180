"""Run directories: beginning, going on, refusing what does not fit, creating."""

import os
import shutil

import numpy as np
import pytest
from helpers.run_files import EXPERIMENT, OTHER_WORDS, contents, weights

from tfcap import configs, runs
from tfcap.data.prepared import PreparedData
from tfcap.files import write_json


def test_a_run_starts_and_goes_on(tmp_path, run, params, data):
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


def test_the_path_of_the_data_works_from_every_directory(
    tmp_path, params, shapes, data, monkeypatch
):
    shutil.copytree(shapes, tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    for configured, stored in (("data", str(tmp_path / "data")), ("", "")):  # "": built-in shapes
        mine = params.replace(task={"data_dir": configured})
        runs.begin(f"run{configured}", EXPERIMENT, mine, PreparedData.load("data"))
        assert configs.load(f"run{configured}/params.yaml").task.data_dir == stored


def test_the_best_checkpoint_of_an_abandoned_start_is_not_taken(tmp_path, params, data):
    folder = tmp_path / "run"
    runs.begin(str(folder), EXPERIMENT, params, data)
    best = folder / "best_ckpt"

    def export(step):
        best.mkdir(exist_ok=True)
        write_json(best / "info.json", {"CIDEr": 99.0, "best_ckpt_global_step": float(step)})

    export(4)
    with pytest.raises(ValueError, match="from a training whose checkpoints were deleted"):
        runs.begin(str(folder), EXPERIMENT, params, data)
    export(0)  # before the first step of self-critical training
    assert runs.begin(str(folder), EXPERIMENT, params, data) == 0 and not best.exists()


def test_changed_settings_are_told_and_the_old_ones_kept(run, params, data, capsys):
    old = (run / "params.yaml").read_bytes()
    runs.begin(run, EXPERIMENT, params, data)
    assert "->" not in capsys.readouterr().out and not list(run.glob("params_until*"))
    rate = {"optimizer_config": {"schedule": {"learning_rate": 0.0005}}, "train_steps": 9}
    runs.begin(run, EXPERIMENT, params.replace(trainer=rate), data, train=False)
    assert "->" not in capsys.readouterr().out  # a validation changes nothing
    runs.begin(run, EXPERIMENT, params.replace(trainer=rate), data)
    said = capsys.readouterr().out
    assert said.count("->") == 2 and said.count("trainer.train_steps 6 -> 9 from step 6") == 1
    assert "schedule.learning_rate 0.003 -> 0.0005 from step 6" in said
    runs.begin(run, EXPERIMENT, params.replace(trainer=rate | {"train_steps": 10}), data)
    assert "trainer.train_steps 9 -> 10 from step 6" in capsys.readouterr().out
    assert (run / "params_until_step_6.yaml").read_bytes() == old


def test_a_run_keeps_the_checkpoint_that_it_started_from(run, params, data, tmp_path, capsys):
    """Another one is not read after the first step, and params.yaml would name a false origin."""
    other = params.replace(task={"init_checkpoint": "runs/other/best_ckpt", "remap_vocab": True})
    assert runs.begin(run, EXPERIMENT, other, data) == 6
    said = capsys.readouterr().out
    assert "task.init_checkpoint=runs/other/best_ckpt is not read" in said
    task = configs.load(f"{run}/params.yaml").task
    assert (task.init_checkpoint, task.remap_vocab) == ("", False)
    folder = str(tmp_path / "new")
    for _ in range(2):  # the second start has saved no checkpoint either
        assert runs.begin(folder, EXPERIMENT, other, data) == 0
        task = configs.load(f"{folder}/params.yaml").task
        assert (task.init_checkpoint, task.remap_vocab) == ("runs/other/best_ckpt", True)


def test_evaluation_only_reads(run, params, data, tmp_path):
    (run / "ckpt-9_temp").mkdir()  # another process is saving
    before = contents(run)
    assert runs.begin(run, EXPERIMENT, params, data, train=False) == 6
    assert contents(run) == before and (run / "ckpt-9_temp").is_dir()
    with pytest.raises(ValueError, match="params.yaml is missing"):
        runs.begin(tmp_path / "mistyped", EXPERIMENT, params, data, train=False)
    assert not (tmp_path / "mistyped").exists()


# What a run that goes on refuses: the change, and the key that the error names.
REFUSED = [
    ({"task": {"model": {"attention_lstm": {"width": 32}}}}, "attention_lstm.width"),
    ({"task": {"train_data": {"global_batch_size": 4}}}, "global_batch_size"),
    ({"trainer": {"best_checkpoint_eval_metric": "perplexity"}}, "best_checkpoint_eval_metric"),
    ({"trainer": {"optimizer_config": {"name": "sgd"}}}, "optimizer_config.name"),
    ({"runtime": {"mixed_precision_dtype": "float16"}}, "mixed_precision_dtype"),
]


@pytest.mark.parametrize(("change", "key"), REFUSED)
def test_what_must_stay_in_a_run(run, params, data, change, key):
    before = contents(run)
    with pytest.raises(ValueError, match=f"{key} must stay"):
        runs.begin(run, EXPERIMENT, params.replace(**change), data)
    assert contents(run) == before


def test_what_may_change_in_a_run(run, params, data, tmp_path):
    longer = params.replace(trainer={"train_steps": 9}, task={"decoding": {"beam": 4}})
    assert runs.begin(run, EXPERIMENT, longer, data) == 6
    adam = params.replace(trainer={"optimizer_config": {"name": "adam"}})  # its state is RAdam's
    assert runs.begin(run, EXPERIMENT, adam, data) == 6
    lower = params.replace(trainer={"best_checkpoint_metric_comp": "lower"})
    runs.begin(run, EXPERIMENT, lower, data, train=False)
    (run / "best_ckpt" / "info.json").unlink()  # no validation has had the score
    assert runs.begin(run, EXPERIMENT, lower, data) == 6
    # The first checkpoint of a converted run has weights alone.
    loaded, folder = runs.load(run), str(tmp_path / "converted")
    parts = (params, loaded.vocab, loaded.fingerprint, loaded.model)
    runs.create(folder, EXPERIMENT, *parts)
    half = params.replace(runtime={"mixed_precision_dtype": "float16"})
    assert runs.begin(folder, EXPERIMENT, half, data) == 0


def test_a_run_refuses_another_experiment_and_other_data(run, params, data, other_vocabulary):
    before, loaded = contents(run), runs.load(run)
    with pytest.raises(ValueError, match=f"of the experiment {EXPERIMENT}, not of"):
        runs.begin(run, "attention_lstm_scst", params, data)
    wider = {**data.fingerprint, "features": {**data.fingerprint["features"], "dim": 7}}
    pooled = {**data.fingerprint, "backbone": {**data.fingerprint["backbone"], "grid": 4}}
    for other, what in (
        (other_vocabulary, f"another vocabulary .*`vocab={run}/vocab.txt`"),
        (PreparedData(data.folder, wider, data.vocab), "feature width .7. than .* .194"),
        (PreparedData(data.folder, pooled, data.vocab), "backbone .pixels, grid 4 .*, grid 6"),
    ):
        with pytest.raises(ValueError, match=what):
            runs.begin(run, EXPERIMENT, params, other)
        with pytest.raises(ValueError, match=what):
            runs.check_vocabulary(loaded, other)
    runs.check_vocabulary(loaded, data)
    assert contents(run) == before


def test_a_created_run_is_loaded_and_never_replaced(other, data, params):
    folder, model = other
    run = runs.load(folder)
    assert run.checkpoint == f"{folder}/ckpt-0" and run.vocab.words[4:] == OTHER_WORDS
    assert runs.step_of(run.checkpoint) == 0
    for name, value in weights(run.model).items():
        np.testing.assert_array_equal(value, weights(model)[name])
    rest = (run.params, run.vocab, run.fingerprint, run.model)
    with pytest.raises(ValueError, match="is not empty"):
        runs.create(folder, "attention_lstm", *rest)
    for write in (runs.create, lambda *a: runs.begin(a[0], a[1], params, data)):
        with pytest.raises(ValueError, match="gs://bucket/run is not a local path"):
            write("gs://bucket/run", "attention_lstm", *rest)
