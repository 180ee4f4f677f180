"""Run directories: beginning, going on, refusing what does not fit, loading, searching."""

import glob
import json
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
from helpers import seeds
from helpers.prepared import with_other_vocabulary
from helpers.run_files import EXPERIMENT, OTHER_WORDS, contents, stored_weights, weights

import tfcap
from tfcap import configs, runs
from tfcap.data.prepared import PreparedData
from tfcap.data.tokens import FUNCTION_WORDS
from tfcap.files import write_json
from tfcap.inference.decode import decode_split
from tfcap.layers import precision


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
    with pytest.raises(ValueError, match=f"of the experiment {EXPERIMENT}: choose another"):
        runs.begin(run, "attention_lstm_scst", params, data)
    wider = {**data.fingerprint, "features": {**data.fingerprint["features"], "dim": 7}}
    pooled = {**data.fingerprint, "backbone": {**data.fingerprint["backbone"], "grid": 4}}
    for other, what in (
        (other_vocabulary, f"another vocabulary .*--vocab {run}/vocab.txt"),
        (PreparedData(data.folder, wider, data.vocab), "feature width .7. than .* .194"),
        (PreparedData(data.folder, pooled, data.vocab), "backbone .pixels, grid 4 .*, grid 6"),
    ):
        with pytest.raises(ValueError, match=what):
            runs.begin(run, EXPERIMENT, params, other)
        with pytest.raises(ValueError, match=what):
            runs.check_vocabulary(loaded, other)
    runs.check_vocabulary(loaded, data)
    assert contents(run) == before


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
        with pytest.raises(ValueError, match="gs://bucket/run is not on a disk"):
            write("gs://bucket/run", "attention_lstm", *rest)


# ---- ensembles ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def together(trained, shapes, tmp_path_factory):
    """A trained run and one of another system on the same data, with random weights."""
    data = PreparedData.load(shapes)
    override = {"task": {"data_dir": shapes, "max_length": 12, "model": {"updown": {"width": 16}}}}
    params = configs.resolve("updown", override=json.dumps(override))
    seeds.set_seed(5)
    model = runs.build_model(params.task, len(data.vocab), data.feature_dim)
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
    found = [str(caption) for caption in tfcap.load(together)(paths)]
    assert found == [texts[0] for texts in captions.values()]
    assert found != [str(caption) for caption in captioner(paths)]  # of the first run alone


def test_runs_that_do_not_go_together_are_refused(together, tmp_path):
    assert runs.load_together(together[:1]).model.name == "attention_lstm"
    first = runs.load(together[1])
    fingerprint = first.fingerprint
    grid = fingerprint | {"backbone": fingerprint["backbone"] | {"grid": 3}}
    fewer = first.params.replace(task={"validation_data": {"max_regions": 7}})
    for name, params, known, word in (
        ("grid", first.params, grid, "backbone"),
        ("regions", fewer, fingerprint, "max_regions"),
    ):
        folder = str(tmp_path / name)
        runs.create(folder, "updown", params, first.vocab, known, first.model)
        with pytest.raises(ValueError, match=word):
            runs.load_together([together[0], folder])


# ---- the best checkpoint, its signature ---------------------------------------------------------


def test_a_signature_names_reward_baseline_and_samples(run):
    assert runs.load(run, "latest").signature == "cross-entropy"
    assert runs.signature(configs.Task()) == "cross-entropy"
    task = configs.Task(objective="scst")
    found = runs.signature(task)
    assert found.startswith("STANDARD_wInit+Cider-D[n4,s6.0]+average[nspi5]+tfcap-")
    task.override({"self_critical": {"baseline": "greedy", "reward": {"count_eos": False}}})
    assert runs.signature(task).startswith("NO<EOS>_wInit+Cider-D[n4,s6.0]+greedy[nspi5]")
    assert "+hook+" in runs.signature(task, hook=True)
    info = run / "best_ckpt" / "info.json"
    for saved, shown in (("XE", "cross-entropy"), ("STANDARD_wInit+Cider-D", None)):
        info.write_text(json.dumps({"signature": saved}))
        assert runs.load(run).signature == (shown or saved)


# ---- search -------------------------------------------------------------------------------------


def test_words_become_ids(trained):
    run = runs.load(trained)
    words = run.vocab.words
    changed = run.with_decoding("suppress=red blue,prefix=A Red,bad_endings=of")
    found = changed.search().options
    assert [words[i] for i in found.suppress] == ["red", "blue"]
    assert [words[i] for i in found.prefix] == ["a", "red"]
    assert [words[i] for i in found.bad_endings] == ["of"]
    found = run.with_decoding("bad_endings=default").search().options
    endings = [words[i] for i in found.bad_endings]
    assert endings == [word for word in FUNCTION_WORDS if word in words] and len(endings) > 3
    for changes, message in (
        ("suppress=quux red quuz", "suppress: quux, quuz is not in the vocabulary"),
        ("max_length=2,prefix=a red", "shorter than the longest caption .2 words"),
    ):
        with pytest.raises(ValueError, match=message):
            run.with_decoding(changes).search()
    wide = run.with_decoding("min_length=2", beam=4)
    narrow = wide.with_decoding("beam=3")
    found = [(options.beam, options.min_length) for options in map(_options, (run, wide, narrow))]
    assert found == [(2, 0), (4, 2), (3, 2)]
    assert run.with_decoding("beam=2") is run and run.scores["CIDEr"] > 0
    assert narrow.scores.keys() == {"loss", "perplexity"}  # the others are those of other captions


def _options(run):
    return run.search().options


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
