"""Run directories: starting, going on, refusing what does not belong, surviving damage."""

import glob
import json
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
from helpers.prepared import with_other_vocabulary

from tfcap import configs, runs
from tfcap.data.prepared import PreparedData
from tfcap.runs import checkpoints
from tfcap.training.task import CaptionTask

EXPERIMENT = "xtransformer"
DATA = "ckpt-6.data-00000-of-00001"


@pytest.fixture(scope="module")
def data(shapes):
    return PreparedData.load(shapes)


@pytest.fixture(scope="module")
def params(small):
    return configs.resolve(EXPERIMENT, override=json.dumps(small))


@pytest.fixture
def run(trained, tmp_path):
    """A copy of a finished run of 6 steps with checkpoints at steps 4 and 6."""
    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture(scope="module")
def other_vocabulary(shapes, tmp_path_factory):
    """The same data, prepared with one word less."""
    folder = tmp_path_factory.mktemp("other") / "shapes"
    return PreparedData.load(with_other_vocabulary(shapes, folder))


def _files(folder):
    """Content of everything in a directory."""
    names = glob.glob("**", root_dir=folder, recursive=True, include_hidden=True)
    paths = {name: os.path.join(folder, name) for name in names}
    return {n: open(p, "rb").read() for n, p in paths.items() if os.path.isfile(p)}


def _weights(model):
    return {n: v.numpy() for n, v in model.checkpoint_items["weights"].items()}


def _stored(checkpoint):
    """The weights in a checkpoint, by name."""
    reader = tf.train.load_checkpoint(checkpoint)
    found = {}
    for key in reader.get_variable_to_shape_map():
        if key.startswith("weights/") and key.endswith("/.ATTRIBUTES/VARIABLE_VALUE"):
            name = key.removeprefix("weights/").removesuffix("/.ATTRIBUTES/VARIABLE_VALUE")
            found[name.replace(".S", "/")] = reader.get_tensor(key)
    return found


def test_starting_and_going_on(tmp_path, run, params, data):
    folder = str(tmp_path / "new" / "run")
    assert runs.begin(folder, EXPERIMENT, params, data) == 0
    files = ["dataset.json", "document_frequency.npz", "params.yaml", "vocab.txt"]
    assert sorted(os.listdir(folder)) == files
    assert configs.load(f"{folder}/params.yaml").as_dict() == params.as_dict()
    assert runs.read_fingerprint(folder) == data.fingerprint
    assert runs.begin(folder, EXPERIMENT, params, data) == 0
    before = _files(run)
    assert runs.begin(run, EXPERIMENT, params, data) == 6
    assert _files(run) == before


def test_what_may_change_between_runs(run, params, data):
    longer = params.replace(trainer={"train_steps": 9}, task={"decoding": {"beam": 4}})
    assert runs.begin(run, EXPERIMENT, longer, data) == 6
    assert configs.load(f"{run}/params.yaml").trainer.train_steps == 9


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"model": {"xtransformer": {"width": 32}}}, ["task.model.xtransformer.width=16", "32"]),
        ({"max_length": 13}, ["task.max_length=12", "13"]),
        ({"seed": 2}, ["task.seed=1", "2"]),
        ({"train_data": {"global_batch_size": 4}}, ["train_data.global_batch_size=8", "4"]),
    ],
)
def test_what_may_not(run, params, data, change, parts):
    before = _files(run)
    with pytest.raises(ValueError) as caught:
        runs.begin(run, EXPERIMENT, params.replace(task=change), data)
    assert all(part in str(caught.value) for part in [str(run), *parts])
    assert _files(run) == before


def test_another_experiment_or_other_data(run, params, data, other_vocabulary):
    before = _files(run)
    with pytest.raises(ValueError, match="another experiment.*'xtransformer_scst'.*--model_dir"):
        runs.begin(run, "xtransformer_scst", params, data)
    with pytest.raises(ValueError, match="another vocabulary"):
        runs.begin(run, EXPERIMENT, params, other_vocabulary)
    wider = {**data.fingerprint, "features": {**data.fingerprint["features"], "dim": 7}}
    with pytest.raises(ValueError, match="feature width .194. than .* .7."):
        runs.begin(run, EXPERIMENT, params, PreparedData(data.folder, wider, data.vocab))
    made_by = {**data.fingerprint["backbone"], "grid": 4}
    pooled = {**data.fingerprint, "backbone": made_by}
    with pytest.raises(ValueError, match="another backbone .pixels, grid 6 .* .pixels, grid 4 "):
        runs.begin(run, EXPERIMENT, params, PreparedData(data.folder, pooled, data.vocab))
    assert _files(run) == before


def test_evaluation_only_reads(run, params, data, tmp_path):
    (run / "ckpt-9_temp").mkdir()  # another process is saving
    before = _files(run)
    assert runs.begin(run, EXPERIMENT, params, data, train=False) == 6
    assert _files(run) == before and (run / "ckpt-9_temp").is_dir()
    with pytest.raises(ValueError, match="holds no run to evaluate"):
        runs.begin(tmp_path / "mistyped", EXPERIMENT, params, data, train=False)
    assert not (tmp_path / "mistyped").exists()


def test_checkpoints_without_a_configuration(run, params, data):
    os.remove(run / "params.yaml")
    before = _files(run)
    with pytest.raises(ValueError, match="holds checkpoints but no params.yaml"):
        runs.begin(run, EXPERIMENT, params, data)
    assert _files(run) == before
    (run / "params.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="another experiment"):
        runs.begin(run, EXPERIMENT, params, data)


@pytest.mark.parametrize("name", ["params.yaml", "vocab.txt", "dataset.json"])
def test_missing_file(run, name):
    os.remove(run / name)
    with pytest.raises(ValueError, match=name):
        runs.load(run)


def test_edited_vocabulary(run):
    path = run / "vocab.txt"
    words = path.read_text().split("\n")
    words[7], words[8] = words[8], words[7]  # every sentence would read well and be wrong
    path.write_text("\n".join(words))
    with pytest.raises(ValueError, match="vocab.txt is not the vocabulary that this model was"):
        runs.load(run)


def test_loading(run, data):
    best, latest = runs.load(run), runs.load(run, "latest")
    assert best.checkpoint == tf.train.latest_checkpoint(run / "best_ckpt")
    assert latest.checkpoint == str(run / "ckpt-6")
    assert best.vocab.words == data.vocab.words and best.fingerprint == data.fingerprint
    stored = _stored(latest.checkpoint)
    assert stored.keys() == _weights(latest.model).keys()
    for name, value in _weights(latest.model).items():
        np.testing.assert_array_equal(value, stored[name])
    earlier = _stored(str(run / "ckpt-4"))
    assert (earlier["head/kernel"] != stored["head/kernel"]).any()


def test_which_checkpoint_is_loaded(run):
    best = tf.train.latest_checkpoint(run / "best_ckpt")
    (run / "best_ckpt" / "checkpoint").write_text("garbage")
    assert runs.load(run).checkpoint == best
    shutil.rmtree(run / "best_ckpt")
    assert runs.load(run).checkpoint == str(run / "ckpt-6")
    for name in glob.glob(str(run / "ckpt-*")):
        os.remove(name)
    with pytest.raises(ValueError, match="there is no checkpoint in"):
        runs.load(run)


def _cut(run):
    os.truncate(run / DATA, os.path.getsize(run / DATA) // 2)


def _empty(run):
    os.truncate(run / DATA, 0)


def _flip(run):
    content = bytearray((run / DATA).read_bytes())
    content[len(content) // 3] ^= 0x10
    (run / DATA).write_bytes(content)


def _cut_index(run):
    os.truncate(run / "ckpt-6.index", 1000)


def _no_index(run):
    os.remove(run / "ckpt-6.index")


def _no_data(run):
    os.remove(run / DATA)


@pytest.mark.parametrize("damage", [_cut, _empty, _flip, _cut_index, _no_index, _no_data])
def test_damaged_newest_checkpoint(run, params, data, damage, capsys, monkeypatch):
    damage(run)
    monkeypatch.chdir(run.parent)  # a relative --model_dir is the common one
    assert runs.begin("run", EXPERIMENT, params, data) == 4
    assert "warning: run/ckpt-6 is damaged, passed over" in capsys.readouterr().err
    # What training restores is TensorFlow's choice, by its own file.
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(), "run", max_to_keep=2)
    assert manager.latest_checkpoint == "run/ckpt-4"
    assert runs.step_of(runs.repair_checkpoints("run")) == 4
    assert checkpoints.newest_checkpoint("run") == "run/ckpt-4"


@pytest.mark.parametrize(
    "content",
    [
        b"garbage",
        b"",
        b"\xff\xfe\x00",
        b'model_checkpoint_path: "ckpt-99"\n',
        b'model_checkpoint_path: "ckpt-4"\n',
        None,
    ],
)
def test_damaged_state_file(run, params, data, content, capsys):
    state = run / "checkpoint"
    os.remove(state)
    if content is not None:
        state.write_bytes(content)
        weights = checkpoints.newest_checkpoint(str(run))
        assert weights == str(run / ("ckpt-4" if b"ckpt-4" in content else "ckpt-6"))
    assert runs.begin(str(run), EXPERIMENT, params, data) == 6
    assert tf.train.latest_checkpoint(str(run)) == str(run / "ckpt-6")
    assert "damaged" not in capsys.readouterr().err
    moved = shutil.move(run, run.parent / "moved")  # names in it are relative
    assert tf.train.latest_checkpoint(str(moved)) == str(moved / "ckpt-6")


@pytest.mark.parametrize("pattern", ["ckpt-*.data-*", "ckpt-*.index"])
def test_all_checkpoints_damaged(run, params, data, pattern):
    for path in glob.glob(str(run / pattern)):
        os.remove(path)
    for _ in range(2):  # it must not start over at the second try either
        with pytest.raises(ValueError, match="none of the 2 checkpoints in .* can be read"):
            runs.begin(str(run), EXPERIMENT, params, data)


def test_killed_in_its_very_first_save(tmp_path, params, data, capsys):
    folder = tmp_path / "run"
    runs.begin(str(folder), EXPERIMENT, params, data)
    (folder / "ckpt-2.data-00000-of-00001").write_bytes(b"half")
    assert runs.begin(str(folder), EXPERIMENT, params, data) == 0
    assert "ckpt-2 is damaged" in capsys.readouterr().err


def test_what_a_killed_save_left_is_swept(run, params, data):
    before = _files(run)
    (run / "ckpt-8_temp").mkdir()
    (run / "ckpt-8_temp" / "part-00000-of-00001.data-00000-of-00001").write_bytes(b"half")
    assert runs.begin(str(run), EXPERIMENT, params, data) == 6
    assert _files(run) == before and not (run / "ckpt-8_temp").exists()


def test_checkpoint_of_another_size(run, params, data):
    other = runs.build_model(
        params.replace(task={"model": {"xtransformer": {"width": 8}}}).task,
        len(data.vocab),
        data.feature_dim,
    )
    with pytest.raises(ValueError, match="ckpt-6 does not fit this model"):
        checkpoints.restore_weights(other, str(run))
    deeper = runs.build_model(
        params.replace(task={"model": {"xtransformer": {"decoder_layers": 2}}}).task,
        len(data.vocab),
        data.feature_dim,
    )
    with pytest.raises(ValueError, match="ckpt-6 does not fit this model"):
        checkpoints.restore_weights(deeper, str(run))


def test_damaged_checkpoint_is_not_loaded(run):
    content = bytearray((run / DATA).read_bytes())
    content[::100] = bytes(byte ^ 1 for byte in content[::100])  # some of it hits the weights
    (run / DATA).write_bytes(content)
    with pytest.raises(ValueError, match="ckpt-6 .*damaged"):
        runs.load(run, "latest")


def test_init_checkpoint(run, params, data):
    """Weights, of a directory or a path, and nothing else."""
    for source, expected in ((run, "ckpt-6"), (run / "ckpt-4", "ckpt-4")):
        config = params.replace(task={"seed": 9, "init_checkpoint": str(source)}).task
        task = CaptionTask(config, data, params.trainer.optimizer_config)
        model = task.build_model()
        seeds = {n: v.numpy() for n, v in model.checkpoint_items["seeds"].items()}
        assert seeds
        task.initialize(model)
        stored = _stored(str(run / expected))
        for name, value in _weights(model).items():
            np.testing.assert_array_equal(value, stored[name])
        for name, value in model.checkpoint_items["seeds"].items():
            np.testing.assert_array_equal(value.numpy(), seeds[name])
    config = params.replace(task={"init_checkpoint": str(run / "train")}).task
    task = CaptionTask(config, data, params.trainer.optimizer_config)
    with pytest.raises(ValueError, match="there is no checkpoint in .*train"):
        task.initialize(model)


def test_data_of_another_vocabulary(run, data, other_vocabulary):
    loaded = runs.load(run)
    runs.check_vocabulary(loaded, data)
    with pytest.raises(ValueError, match="vocabulary of .* is not the one that .* trained with"):
        runs.check_vocabulary(loaded, other_vocabulary)
