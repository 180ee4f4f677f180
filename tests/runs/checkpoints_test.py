"""Checkpoints of another vocabulary or size, and damaged ones."""

import glob
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
from helpers.run_files import EXPERIMENT, OTHER_WORDS, contents, weights

from tfcap import models, runs
from tfcap.data.tokens import SPECIALS
from tfcap.runs import checkpoints
from tfcap.training.task import CaptionTask


def task(params, data, **changes):
    params = params.replace(task=changes)
    return CaptionTask(params.task, data, params.trainer.optimizer_config)


@pytest.mark.slow
def test_remapping_keeps_the_weights_of_shared_words(other, data, params, capsys):
    folder, model = other
    assert {"red", "circle", "a"} < set(data.vocab.words) and "zebra" not in data.vocab.words
    one = task(params, data, init_checkpoint=folder, remap_vocab=True)
    mine = one.build_model()
    before = weights(mine)
    one.initialize(mine)
    after, theirs = weights(mine), weights(model)
    total = len(data.vocab)
    assert f"ckpt-0: 7 of {total} words keep their rows, {total - 7} are new" in (
        capsys.readouterr().out
    )
    for name, value in after.items():
        if name not in mine.vocabulary_axes:
            np.testing.assert_array_equal(value, theirs[name])
            continue
        value, old, new = (
            np.moveaxis(v[name], mine.vocabulary_axes[name], 0) for v in (after, before, theirs)
        )
        for number, word in enumerate(data.vocab.words):
            known = word in (*SPECIALS, *OTHER_WORDS)
            expected = new[[*SPECIALS, *OTHER_WORDS].index(word)] if known else old[number]
            np.testing.assert_array_equal(value[number], expected)


def test_another_vocabulary_is_noticed(other, data, params):
    one = task(params, data, init_checkpoint=other[0])
    with pytest.raises(ValueError, match="has another vocabulary.*task.remap_vocab=true"):
        one.initialize(one.build_model())


def test_the_same_vocabulary_needs_no_remapping(trained, data, params):
    one = task(params, data, init_checkpoint=f"{trained}/best_ckpt", remap_vocab=True)
    model = one.build_model()
    one.initialize(model)
    path = checkpoints.find(f"{trained}/best_ckpt")
    again = one.build_model()
    checkpoints.restore_weights(again, path)
    for name, value in weights(model).items():
        np.testing.assert_array_equal(value, weights(again)[name])


DATA = "ckpt-6.data-00000-of-00001"


def _cut(run):
    os.truncate(run / DATA, os.path.getsize(run / DATA) // 2)


def _no_index(run):
    os.remove(run / "ckpt-6.index")


@pytest.mark.parametrize("damage", [_cut, _no_index])
def test_a_damaged_newest_checkpoint_is_skipped(run, params, data, damage, capsys, monkeypatch):
    damage(run)
    monkeypatch.chdir(run.parent)  # a relative --model_dir is the common one
    assert runs.begin("run", EXPERIMENT, params, data) == 4
    assert "warning: run/ckpt-6 is damaged and skipped" in capsys.readouterr().err
    # What training restores is TensorFlow's choice, by its own file.
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(), "run", max_to_keep=2)
    assert manager.latest_checkpoint == "run/ckpt-4"
    assert runs.step_of(checkpoints.repair_checkpoints("run")) == 4
    assert checkpoints.newest_checkpoint("run") == "run/ckpt-4"


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe\x00", b'model_checkpoint_path: "ckpt-99"\n', None],
)
def test_a_damaged_state_file_is_repaired(run, params, data, content, capsys):
    state = run / "checkpoint"
    os.remove(state)
    if content is not None:
        state.write_bytes(content)
        assert checkpoints.newest_checkpoint(str(run)) == str(run / "ckpt-6")
    assert runs.begin(str(run), EXPERIMENT, params, data) == 6
    assert tf.train.latest_checkpoint(str(run)) == str(run / "ckpt-6")
    assert " is damaged" not in capsys.readouterr().err
    moved = shutil.move(run, run.parent / "moved")  # names in it are relative
    assert tf.train.latest_checkpoint(str(moved)) == str(moved / "ckpt-6")


def test_a_run_with_damaged_checkpoints_only_is_refused(run, params, data):
    for path in glob.glob(str(run / "ckpt-*.data-*")):
        os.remove(path)
    for _ in range(2):  # it must not start over at the second try either
        with pytest.raises(ValueError, match="None of the 2 checkpoints in .* can be read"):
            runs.begin(str(run), EXPERIMENT, params, data)


def test_a_run_killed_in_its_first_save_starts_again(tmp_path, params, data, capsys):
    folder = tmp_path / "run"
    runs.begin(str(folder), EXPERIMENT, params, data)
    (folder / "ckpt-2.data-00000-of-00001").write_bytes(b"half")
    assert runs.begin(str(folder), EXPERIMENT, params, data) == 0
    assert "ckpt-2 is damaged" in capsys.readouterr().err


def test_files_of_a_killed_save_are_removed(run, params, data):
    before = contents(run)
    (run / "ckpt-8_temp").mkdir()
    (run / "ckpt-8_temp" / "part-00000-of-00001.data-00000-of-00001").write_bytes(b"half")
    assert runs.begin(str(run), EXPERIMENT, params, data) == 6
    assert contents(run) == before and not (run / "ckpt-8_temp").exists()


def test_a_checkpoint_of_another_size_is_refused(run, params, data):
    other = runs.build_model(
        params.replace(task={"model": {"attention_lstm": {"width": 8}}}).task,
        len(data.vocab),
        data.feature_dim,
    )
    with pytest.raises(ValueError, match="ckpt-6 does not fit this model"):
        checkpoints.restore_weights(other, str(run))
    fewer = models.build("show_tell", len(data.vocab), 12, data.feature_dim, width=16)
    with pytest.raises(ValueError, match="has no weight attention/"):
        checkpoints.restore_weights(fewer, str(run))


def test_a_damaged_checkpoint_is_not_loaded(run):
    content = bytearray((run / DATA).read_bytes())
    content[::100] = bytes(byte ^ 1 for byte in content[::100])  # some of it hits the weights
    (run / DATA).write_bytes(content)
    with pytest.raises(ValueError, match="ckpt-6 .*damaged"):
        runs.load(run, "latest")


def test_without_a_state_file_the_highest_step_is_the_newest_and_not_the_last_name(tmp_path):
    for step in (2, 10, 9):
        tf.train.Checkpoint(step=tf.Variable(step)).write(str(tmp_path / f"ckpt-{step}"))
    assert checkpoints.newest_checkpoint(str(tmp_path)) == str(tmp_path / "ckpt-10")
