"""Checkpoints of another vocabulary or size, and damaged ones."""

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
from helpers import events
from helpers.run_files import EXPERIMENT, OTHER_WORDS, weights

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
            allowed = word in (*SPECIALS, *OTHER_WORDS)
            expected = new[[*SPECIALS, *OTHER_WORDS].index(word)] if allowed else old[number]
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


def test_a_checkpoint_that_was_not_saved_completely_does_not_count(run, params, data):
    """TensorFlow renames the index last, and names the checkpoint in a file after that."""
    for name in ("checkpoint", "ckpt-6.index"):
        os.remove(run / name)
    assert runs.begin(run, EXPERIMENT, params, data) == 4
    os.remove(run / "ckpt-4.index")
    shutil.rmtree(run / "best_ckpt")
    assert runs.begin(run, EXPERIMENT, params, data) == 0


@pytest.mark.parametrize("part", ["index", "data-00000-of-00001"])
def test_a_damaged_checkpoint_is_named(run, params, data, part):
    content = (run / f"ckpt-6.{part}").read_bytes()
    (run / f"ckpt-6.{part}").write_bytes(content[: len(content) // 20])
    with pytest.raises(ValueError, match="ckpt-6 is damaged: .*Remove its files"):
        runs.load(run, "latest")
    with pytest.raises(ValueError, match="ckpt-6 is damaged: .*Remove its files"):
        events.run(params.as_dict(), run)
    for path in run.glob("ckpt-6.*"):
        path.unlink()
    assert runs.begin(run, EXPERIMENT, params, data) == 4


def test_a_checkpoint_of_another_size_is_refused(run, params, data):
    other = runs.build_model(
        params.replace(task={"model": {"attention_lstm": {"width": 8}}}).task,
        len(data.vocab),
        data.fingerprint["features"],
    )
    with pytest.raises(ValueError, match="ckpt-6 does not fit this model"):
        checkpoints.restore_weights(other, str(run))
    fewer = models.build("show_tell", len(data.vocab), 12, data.feature_dim, width=16)
    with pytest.raises(ValueError, match="has the weight attention/.*, which show_tell lacks"):
        checkpoints.restore_weights(fewer, str(run))


def test_without_a_state_file_the_highest_step_is_the_newest_and_not_the_last_name(tmp_path):
    for step in (2, 10, 9):
        tf.train.Checkpoint(step=tf.Variable(step)).write(str(tmp_path / f"ckpt-{step}"))
    assert checkpoints.newest_checkpoint(str(tmp_path)) == str(tmp_path / "ckpt-10")
