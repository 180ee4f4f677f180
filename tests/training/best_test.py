"""The best checkpoint of a run: which validation is the best one, and what is written."""

import glob
import json

import pytest
import tensorflow as tf

from tfcap import configs, runs
from tfcap.metrics.results import Scores
from tfcap.training.best import BestCheckpoint


def test_best_checkpoint_killed_while_it_is_written(tmp_path, monkeypatch):
    """`info.json` must not claim a checkpoint that is not there: the next start saves it."""
    variable = tf.Variable(1.0)
    checkpoint, params = tf.train.Checkpoint(variable=variable), configs.resolve("show_tell")
    folder = tmp_path / "best_ckpt"

    def kept(score):
        best = BestCheckpoint(checkpoint, str(tmp_path), params, "XE")
        before = folder.exists() and (folder / "info.json").read_text()
        best.keep({"CIDEr": score, "loss": 2.0}, 3, None)
        assert best.value == max(score, best.value)
        return before != (folder / "info.json").read_text()

    assert kept(40.0) and not kept(40.0) and not kept(39.0)
    variable.assign(2.0)
    with monkeypatch.context() as patch:
        patch.setattr(tf.train.CheckpointManager, "save", _die)
        with pytest.raises(KeyboardInterrupt):
            kept(50.0)
    assert kept(50.0) and not kept(50.0)
    latest = tf.train.latest_checkpoint(str(folder))
    assert tf.train.load_variable(latest, "variable/.ATTRIBUTES/VARIABLE_VALUE") == 2.0
    assert len(glob.glob(str(folder / "best_ckpt-*.index"))) == 1
    saved = json.loads((folder / "info.json").read_text())
    expected = {"CIDEr": 50.0, "loss": 2.0, "best_ckpt_global_step": 3.0, "signature": "XE"}
    assert saved == expected and not list(folder.glob("*tmp*"))


def _die(*args, **kwargs):
    raise KeyboardInterrupt


def test_two_validations_that_are_no_better_are_told(tmp_path):
    params = configs.resolve("updown", override="trainer.best_checkpoint_eval_metric=CIDEr")
    best = BestCheckpoint(tf.train.Checkpoint(), str(tmp_path), params, "XE")
    told = []
    for step, score in ((500, 41.0), (1000, 42.7), (1500, 42.0), (2000, 42.1)):
        best.keep({"CIDEr": score}, step, None)
        told.append(best.worse(step, 500))
    assert told[:3] == ["", "", ""] and "(CIDEr); the best is step 1000. trainer.patien" in told[3]


# ---- the start ----------------------------------------------------------------------------------


def details(score, images, spread):
    """Scores of images, half of them `spread` above and half below the mean `score`."""
    each = {i: {"CIDEr": score + (spread if i % 2 else -spread)} for i in range(images)}
    return Scores({"CIDEr": score}, each)


def best_step(folder, validations, images=10, spread=10.0, objective="xe"):
    """The best step of validations at 0, 100, ..., each (CIDEr, perplexity)."""
    params = configs.resolve("updown", override=f"task.objective={objective}")
    for number, (score, perplexity) in enumerate(validations):
        best = BestCheckpoint(tf.train.Checkpoint(), str(folder), params, "signature")
        scores = {"CIDEr": score, "perplexity": perplexity}
        best.keep(scores, 100 * number, details(score, images, spread))
    info = runs.read_info(best.directory)
    assert info["CIDEr"] == best.value and info["perplexity"] in dict(validations).values()
    return int(info["best_ckpt_global_step"])


# Random weights in a new language, on few pictures: a score by chance.
CHANCE = [(15.8, 90.3), (8.1, 29.0), (14.7, 18.5)]


@pytest.mark.parametrize(
    "validations, images, spread, step",
    [
        (CHANCE, 10, 10.0, 200),
        (CHANCE[:2], 10, 10.0, 100),
        (CHANCE[:2], 10, 0.5, 100),  # few images: their interval says little
        ([(50.0, 40.0), (48.0, 16.0)], 100, 15.0, 100),  # 50 +- 3, and a much better perplexity
        ([(50.0, 13.3), (48.0, 10.1)], 100, 15.0, 0),  # the start knows the words
        ([(50.0, 13.3), (48.0, 10.1)], 10, 15.0, 0),
        ([(50.0, 40.0), (40.0, 16.0)], 100, 15.0, 0),  # clearly worse than 50 +- 3
        ([(15.8, 90.3), (14.0, 95.0)], 10, 10.0, 0),
        ([(15.8, 90.3), (20.0, 29.0), (19.0, 18.5)], 10, 10.0, 100),  # only the start is doubtful
    ],
)
def test_the_start_is_not_the_best_by_chance(validations, images, spread, step, tmp_path, capsys):
    assert best_step(tmp_path, validations, images, spread) == step
    told = "note: the best checkpoint is now step 100, and not the start: the perplexity fell from"
    passed = step and validations[1][0] < validations[0][0]
    assert (told in capsys.readouterr().out) == bool(passed)


def test_the_start_of_self_critical_training_is_a_good_model(tmp_path):
    assert best_step(tmp_path, [(80.0, 9.0), (79.0, 4.0)], objective="scst") == 0


def test_a_lower_score_can_be_the_better_one(tmp_path):
    """The start is past if its score is not clearly lower; the gain is a share of the best."""
    override = "trainer.best_checkpoint_eval_metric=CIDEr,trainer.best_checkpoint_metric_comp=lower"
    params = configs.resolve("updown", override=override)
    best, steps, gains = BestCheckpoint(tf.train.Checkpoint(), str(tmp_path), params, "XE"), [], []
    for step, score, perplexity in (
        (0, 50.0, 40.0),
        (1, 60.0, 16.0),
        (2, 52.0, 15.0),
        (3, 39.0, 9),
    ):
        best.keep({"CIDEr": score, "perplexity": perplexity}, step, details(score, 100, 15.0))
        steps.append(runs.read_best(best.directory)["best_ckpt_global_step"])
        gains.append(best.gain)
    assert steps == [0, 0, 2, 3] and gains[1:] == pytest.approx([-0.2, -0.04, 0.25])
