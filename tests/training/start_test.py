"""Self-critical training as a run: its start, its end, both stages in a row, its curves."""

import contextlib
import dataclasses
import glob
import io
import json
import os
import shutil

import keras
import numpy as np
import pytest
from helpers import commands, events

from tfcap import configs, files, runs
from tfcap import train as command
from tfcap.data.prepared import PreparedData
from tfcap.data.tokens import Vocab
from tfcap.prepare import prepare
from tfcap.runs import checkpoints
from tfcap.training import self_critical
from tfcap.training.stages import summarize, train
from tfcap.training.start import check_splits, check_start
from tfcap.training.task import CaptionTask

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("module_without_java")]

# Two steps, traced by nobody.
SHORT = {
    "task": {"self_critical": {"samples": 3, "start_tolerance": 1e-3}},
    "trainer": {
        "train_steps": 2,
        "steps_per_loop": 1,
        "validation_interval": 2,
        "checkpoint_interval": 2,
        "shown_images": 0,
        "train_tf_while_loop": False,
        "train_tf_function": False,
        "eval_tf_function": False,
    },
}


@pytest.fixture(autouse=True)
def float32():
    yield
    keras.mixed_precision.set_global_policy("float32")


def start(small, folder, init, extra=None, **kwargs):
    overrides = events.merged(events.merged(small, SHORT), {"task": {"init_checkpoint": str(init)}})
    overrides = events.merged(overrides, extra or {})
    params = configs.resolve("attention_lstm_scst", override=json.dumps(overrides))
    return train(params, "attention_lstm_scst", str(folder), **kwargs)


def test_a_missing_first_stage_is_told_with_its_key(small, tmp_path):
    """The default of the experiment names a run that is not there."""
    with pytest.raises(ValueError, match="^task.init_checkpoint=nowhere: .* `then=NAME_scst`"):
        start(small, tmp_path, "nowhere")


def test_random_weights_are_no_first_stage(small, tmp_path, capfd):
    start(small, tmp_path, "", {"trainer": {"train_steps": 1}}, mode="train")
    assert "warning: self-critical training starts from random weights" in capfd.readouterr().err


@pytest.fixture(scope="module")
def both(small, tmp_path_factory):
    """The directories of two stages, and what one command for both printed.

    The first stage was trained before, as if the command had ended between the stages.
    """
    folder = tmp_path_factory.mktemp("both") / "run"
    first = events.merged(small, {"trainer": SHORT["trainer"]})
    few = {"validation_data": {"global_batch_size": 4, "limit": 4}, "max_length": 8}
    first = events.merged(first, {"task": {"metrics": ["CIDEr"], **few}})
    kept = ("train_data", "validation_data", "metrics", "max_length")
    second = {key: first["task"][key] for key in kept}
    second = {"task": second | SHORT["task"], "trainer": first["trainer"]}
    flags = [
        "--experiment=attention_lstm",
        f"--params_override={json.dumps(first)}",
        f"--model_dir={folder}",
    ]
    then = ["--then=attention_lstm_scst", f"--then_override={json.dumps(second)}"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        commands.run_here(command, *flags)
        stamp = os.path.getmtime(folder / "ckpt-2.index")
        commands.run_here(command, *flags, *then)
    assert os.path.getmtime(folder / "ckpt-2.index") == stamp
    keras.mixed_precision.set_global_policy("float32")
    return str(folder), str(folder / "attention_lstm_scst"), printed.getvalue()


@pytest.fixture(scope="module")
def alone(trained, tmp_path_factory):
    """The best weights of the first stage in a directory that is no run."""
    return shutil.copytree(
        f"{trained}/best_ckpt", tmp_path_factory.mktemp("deep") / "inside" / "alone"
    )


def test_the_second_stage_continues_the_first(both):
    """Curves, signature, and a first validation that is the last one of the first stage.

    The command for both finds the first stage finished, and starts from its best weights.
    """
    trained, folder, printed = both
    began = [line for line in printed.splitlines() if " parameters, " in line]
    assert len(began) == 2 and all("from the beginning to step 2" in line for line in began)
    assert f"{trained} is finished: 2 of 2 steps" in printed
    assert "the weights were loaded correctly" in printed
    assert configs.load(f"{folder}/params.yaml").task.init_checkpoint == f"{trained}/best_ckpt"
    tags = {tag.rpartition("/")[2] for _, tag, _ in events.files(f"{folder}/train")[0]}
    assert set(self_critical.METRICS) <= tags
    validation = events.files(f"{folder}/validation")[0]
    wanted = ("scores/CIDEr", "scores/greedy_CIDEr-D", "loss/perplexity")
    first = {
        tag.rpartition("/")[2]: float(value)
        for step, tag, value in validation
        if step == 0 and value.size == 1 and tag in wanted
    }
    assert len(first) == 3
    best = runs.read_best(f"{trained}/best_ckpt")
    assert first == pytest.approx({name: best[name] for name in first}, rel=1e-4)
    assert {step for step, *_ in validation} == {0, 2}
    info = json.loads(open(f"{folder}/best_ckpt/info.json").read())
    assert info["signature"] == "cross-entropy" and info["best_ckpt_global_step"] == 0
    assert "cross-entropy, 4 images\n  the second stage did not help: no validation was" in printed
    signed = runs.load(folder, "latest").signature
    assert signed.startswith("STANDARD_wInit+Cider-D[n4,s6.0]+average[nspi3]")
    saved = json.loads(open(f"{trained}/best_ckpt/info.json").read())
    assert saved["signature"] == "cross-entropy"
    weights = [runs.load(place, "latest").model.get_weights() for place in (folder, trained)]
    assert any(np.abs(a - b).max() > 1e-4 for a, b in zip(*weights, strict=True))


def test_another_vocabulary_is_refused_by_its_score(small, trained, alone, tmp_path):
    """Weights without their run directory: nothing but the score tells that the words moved.

    The next test starts from the same weights with their own words.
    """
    words_file = tmp_path / "words.txt"
    words = Vocab.load(f"{trained}/vocab.txt").words
    Vocab([*words[:4], *reversed(words[4:])]).save(words_file)
    data = prepare(
        tmp_path / "data", source="shapes", train=64, val=12, test=8, vocab=str(words_file)
    )
    moved = {"task": {"data_dir": str(data)}}
    with pytest.raises(
        ValueError, match="greedy_CIDEr-D .* was saved with .* Most likely .* another voc"
    ):
        start(small, tmp_path / "run", alone, moved)
    assert not glob.glob(f"{tmp_path}/run/**/*ckpt-*", recursive=True)
    with pytest.raises(ValueError, match="has another vocabulary"):
        start(small, tmp_path / "run", f"{trained}/best_ckpt", moved)


@pytest.fixture(scope="module")
def hooked(small, alone, tmp_path_factory):
    """A run without progress whose hook rewards long captions, which is then started again.

    Returns its directory, its first task, what the hook was given, what was printed, and the files
    in the directory before it was started again.
    """
    folder, calls = tmp_path_factory.mktemp("hooked"), []

    def hook(ids, captions):
        calls.append((ids, captions))
        return [[10.0 * len(caption.split()) for caption in image] for image in captions]

    extra = {
        "task": {
            "validation_data": {"limit": 2, "global_batch_size": 2},
            "self_critical": {"start_tolerance": 100.0},  # it validated other images
            "max_length": 6,
            "decoding": {"beam": 1},
        },
        "trainer": {
            "train_steps": 40,
            "validation_interval": 1,
            "checkpoint_interval": 1,
            "patience": 2,
            "optimizer_config": {"schedule": {"learning_rate": 0.0000001}},
        },
    }
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        task = start(small, folder, alone, extra, hook=hook)
        before = set(os.listdir(folder))
        start(small, folder, alone, extra, hook=hook)
    return folder, task, calls, printed.getvalue(), before


def test_a_hook_adds_a_reward_of_the_user_and_patience_ends_training(hooked):
    """The hook rewards long captions; the same command then ends at once."""
    folder, task, calls, printed, before = hooked
    assert task.captions
    info = json.loads((folder / "best_ckpt" / "info.json").read_text())
    assert info["best_ckpt_global_step"] == 0 and info["signature"] == "cross-entropy"
    assert runs.load(str(folder)).signature == "cross-entropy"
    assert runs.load(str(folder), "latest").signature.startswith("STANDARD_wInit+Cider-D")
    ids, captions = calls[0]
    assert len(calls) == 2 and len(ids) == len(captions) == 8 and len(captions[0]) == 3
    rows = dict((tag, value) for _, tag, value in events.files(f"{folder}/train")[0])
    assert rows["train/reward"] > 10 and rows["train/length"] > 1
    assert runs.step_of(checkpoints.newest_checkpoint(str(folder))) == 2
    assert set(os.listdir(folder)) == before
    assert printed.count("2 validations without a better CIDEr: training ends") == 2
    assert f"{folder} is finished: 2 of 40 steps. A larger trainer.patience trains on" in printed


@pytest.mark.parametrize(
    "info, why",
    [
        ({}, "it has no info.json"),
        ({"greedy_CIDEr-D": 1.0, "best_ckpt_global_step": 5.0}, "its info.json is of step 5"),
        (None, "it was validated with validation_data.limit 0"),
    ],
)
def test_a_start_that_cannot_be_compared_prints_the_reason(info, why, small, trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "first")
    if info is not None:
        (run / "best_ckpt" / "info.json").write_text(json.dumps(info))
    limit = {"validation_data": {"limit": 8 if info is None else 0}}
    changes = {"task": {"init_checkpoint": f"{run}/best_ckpt", **limit}}
    overrides = events.merged(small, changes)
    params = configs.resolve("attention_lstm_scst", override=json.dumps(overrides))
    data = PreparedData.load(small["task"]["data_dir"])
    note = check_start(params.task, data, 50.0, data.fingerprint["splits"]["val"]["images"])
    assert f"cannot be compared with the score of {run}" in note and why in note


def test_two_trainings_in_one_directory_are_refused(small, tmp_path):
    with files.lock(tmp_path, "train", ""):
        with pytest.raises(ValueError, match="is writing to .*another `model_dir`"):
            events.run(small, tmp_path)


def test_a_run_whose_score_cannot_be_computed_goes_on(small, tmp_path, capsys):
    """METEOR needs Java, which is not there: no checkpoint is the best one."""
    extra = {
        "task": {"metrics": ["BLEU", "METEOR"], "validation_data": {"limit": 2}},
        "trainer": {"best_checkpoint_eval_metric": "METEOR"},
    }
    overrides = events.merged(events.merged(small, {"trainer": SHORT["trainer"]}), extra)
    params = configs.resolve("attention_lstm", override=json.dumps(overrides))
    train(params, "attention_lstm", str(tmp_path / "run"))
    said = capsys.readouterr().err
    assert "warning: this validation has no METEOR (trainer.best_checkpoint_eval_metric)" in said
    assert (tmp_path / "run" / "ckpt-2.index").exists()
    assert runs.load(str(tmp_path / "run")).checkpoint.endswith("ckpt-2")


# A start that training cannot improve, then one that it does.
STILL = {
    "task": {"validation_data": {"limit": 4, "global_batch_size": 4}, "decoding": {"beam": 1}},
    "trainer": SHORT["trainer"]
    | {
        "train_steps": 40,
        "validation_interval": 1,
        "checkpoint_interval": 1,
        "patience": 1,
        "optimizer_config": {"schedule": {"learning_rate": 1e-9}},
    },
}


def test_patience_does_not_count_the_start_and_a_start_that_stays_is_told(
    small, trained, tmp_path, capsys
):
    """The first validation after the start is the first that counts; then one is no better."""
    changes = {"task": {"init_checkpoint": f"{trained}/best_ckpt"}}
    overrides = events.merged(events.merged(small, STILL), changes)
    params = configs.resolve("attention_lstm", override=json.dumps(overrides))
    task = train(params, "attention_lstm", str(tmp_path))
    summarize(task, params, str(tmp_path), "attention_lstm")
    said, warned = capsys.readouterr()
    assert "1 validations without a better CIDEr: training ends at step 2 (trainer.pat" in said
    assert "best validation: step 0, cross-entropy, 4 images\n  nothing was learnt: no val" in said
    assert "warning: 4 validation images are too few to choose the best checkpoint" in warned
    assert "still" not in said


def test_a_score_that_still_rises_at_the_last_step_is_told(small, tmp_path, capsys):
    changes = {
        "trainer": {
            "train_steps": 2,
            "patience": 0,
            "best_checkpoint_eval_metric": "perplexity",
            "best_checkpoint_metric_comp": "lower",
            "optimizer_config": {"name": "adam", "schedule": {"learning_rate": 0.01}},
        },
    }
    overrides = events.merged(events.merged(small, STILL), changes)
    events.run(overrides, tmp_path)
    said = capsys.readouterr().out
    assert "at step 2 perplexity was still falling: a larger trainer.train_steps trains on" in said
    assert runs.read_best(f"{tmp_path}/best_ckpt")["best_ckpt_global_step"] == 2


# ---- what is wrong before the first step --------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "mode", "word"),
    [
        ({"validation_data": {"split": "tset"}}, "eval", "split=tset: .*Did you mean 'test'"),
        ({"train_data": {"split": "none"}}, "train", "task.train_data.split=none: .* has only"),
        ({"train_data": {"global_batch_size": 65}}, "train", "global_batch_size=65 is more than"),
        ({"backbone": {"trainable": True}}, "train", "`keep_pictures`"),
    ],
)
def test_data_that_a_run_cannot_read(change, mode, word, small):
    data = PreparedData.load(small["task"]["data_dir"])
    params = configs.resolve("attention_lstm", override=json.dumps(small))
    check_splits(params.task, data, "train_and_eval")
    with pytest.raises(ValueError, match=word):
        check_splits(params.replace(task=change).task, data, mode)


@pytest.mark.parametrize("changed", [{}, {"name": "resnet50"}])
def test_a_checkpoint_of_other_features_is_told(small, trained, capsys, changed):
    """The weights fit, so training starts; what differs stands in the warning."""
    data = PreparedData.load(small["task"]["data_dir"])
    made_by = {**data.fingerprint["backbone"], **changed}
    mine = dataclasses.replace(data, fingerprint={**data.fingerprint, "backbone": made_by})
    extra = {"task": {"init_checkpoint": f"{trained}/best_ckpt"}}
    params = configs.resolve("attention_lstm", override=json.dumps(events.merged(small, extra)))
    task = CaptionTask(params.task, mine, params.trainer.optimizer_config)
    task.initialize(task.build_model())
    assert ("than those of" in capsys.readouterr().err) is bool(changed)
