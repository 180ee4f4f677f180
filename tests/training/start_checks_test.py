"""What is wrong before the first step is told before anything is built, with the remedy."""

import contextlib
import dataclasses
import io
import json
import pathlib
import shutil

import pytest
import tensorflow as tf
from helpers import commands, events
from helpers.prepared import with_other_vocabulary

from tfcap import configs, train
from tfcap.data.prepared import PreparedData
from tfcap.files import file_sha256
from tfcap.metrics import results
from tfcap.runs import checkpoints
from tfcap.training.self_critical import SelfCriticalTask
from tfcap.training.start import (
    begin,
    check_splits,
    collapse_note,
    other_features,
    rows_of_words,
    sizes_of,
    unused_options,
)
from tfcap.training.task import CaptionTask


@pytest.fixture(scope="module")
def data(shapes):
    return PreparedData.load(shapes)


def resolve(small, extra=None, experiment="attention_lstm"):
    return configs.resolve(experiment, override=json.dumps(events.merged(small, extra or {})))


def without(data, *names):
    """The data without some splits."""
    splits = {k: v for k, v in data.fingerprint["splits"].items() if k not in names}
    return dataclasses.replace(data, fingerprint={**data.fingerprint, "splits": splits})


def test_a_missing_split_is_refused_with_a_remedy(small, data):
    task = resolve(small).task
    check_splits(task, data, "train_and_eval")
    alone = without(data, "val", "test")
    check_splits(task, alone, "train")
    message = "validation_data.split=val: .* has only train..*--mode=train"
    for mode in ("train_and_eval", "eval", "continuous_eval"):
        with pytest.raises(ValueError, match=message):
            check_splits(task, alone, mode)
    check_splits(task, without(data, "train"), "eval")
    with pytest.raises(ValueError, match="task.train_data.split=train: .* has only"):
        check_splits(task, without(data, "train"), "train")
    wrong = resolve(small, {"task": {"validation_data": {"split": "tset"}}}).task
    with pytest.raises(ValueError, match="split=tset: .*Did you mean 'test'"):
        check_splits(wrong, data, "train_and_eval")


def test_too_few_training_images_name_the_key(small, data):
    many = resolve(small, {"task": {"train_data": {"global_batch_size": 65}}}).task
    with pytest.raises(
        ValueError, match="task.train_data.global_batch_size=65 is more than the 64"
    ):
        check_splits(many, data, "train")
    check_splits(many, data, "eval")


def test_a_limit_to_images_without_captions_is_refused(small, shapes, tmp_path):
    folder = shutil.copytree(shapes, tmp_path / "data")
    path = folder / "references_val.json"
    content = json.loads(path.read_text())
    first = content["images"][0]["id"]
    kept = [one for one in content["annotations"] if one["image_id"] != first]
    path.write_text(json.dumps({**content, "annotations": kept}))
    fingerprint = json.loads((folder / "dataset.json").read_text())
    fingerprint["splits"]["val"]["references_sha256"] = file_sha256(path)
    (folder / "dataset.json").write_text(json.dumps(fingerprint))
    changed = PreparedData.load(folder)
    for limit in (0, 2):
        check_splits(resolve(small, _limit(limit)).task, changed, "eval")
    with pytest.raises(ValueError, match="limit=1. of .* have no captions"):
        check_splits(resolve(small, _limit(1)).task, changed, "eval")


def _limit(number):
    return {"task": {"validation_data": {"limit": number}}}


def test_a_comparison_in_the_wrong_direction_is_told(small):
    assert unused_options(resolve(small), "train") == []
    worst = resolve(small, {"trainer": {"best_checkpoint_eval_metric": "perplexity"}})
    assert "a lower perplexity is better" in unused_options(worst, "train_and_eval")[0]
    assert unused_options(worst, "eval") == []
    worst = resolve(small, {"trainer": {"best_checkpoint_metric_comp": "lower"}})
    assert "a higher CIDEr is better" in unused_options(worst, "train_and_eval")[0]


def test_nothing_is_said_about_the_direction_of_a_metric_of_the_user(small, monkeypatch):
    monkeypatch.setitem(results.FURTHER, "WER", lambda references, captions: [0.0])
    own = {"best_checkpoint_eval_metric": "WER", "best_checkpoint_metric_comp": "lower"}
    params = resolve(small).replace(trainer=own)
    assert unused_options(params, "train_and_eval") == []


def test_a_best_score_that_was_measured_otherwise_is_warned_of(small, trained, tmp_path):
    """Also after a start with the new options, which are then in params.yaml."""
    run = str(shutil.copytree(trained, tmp_path / "run"))
    info = pathlib.Path(run, "best_ckpt", "info.json")
    data = PreparedData.load(small["task"]["data_dir"])
    other = {"decoding": {"beam": 3}, "validation_data": {"limit": 8}}

    def said(extra, mode="train_and_eval"):
        params, printed = resolve(small, extra), io.StringIO()
        with contextlib.ExitStack() as lock, contextlib.redirect_stderr(printed):
            begin(lock, run, "attention_lstm", params, data, mode)
        return printed.getvalue()

    assert said({}) == "" == said({"task": other}, "eval") == said({"trainer": {"train_steps": 9}})
    text = said({"task": other}, "continuous_eval")
    assert text.startswith(f"warning: the best score of {run} was measured otherwise (")
    for key, then, now in (("decoding.beam", 2, 3), ("validation_data.limit", 0, 8)):
        assert f"task.{key}={then} then, {now} now" in text
    assert said({"task": other}) == text and "task.decoding.search" not in text
    assert said({"task": other}) == text
    assert said({"task": other}, "train") == ""
    few = said({"trainer": {"validation_steps": 1}})
    assert "trainer.validation_steps=-1 then, 1 now" in few
    info.unlink()
    assert said({}) == ""


def test_a_run_on_data_without_validation_writes_nothing(small, shapes, tmp_path):
    """The error has one line, and `model_dir` can be used by the corrected command."""
    folder = shutil.copytree(shapes, tmp_path / "data")
    fingerprint = json.loads((folder / "dataset.json").read_text())
    del fingerprint["splits"]["val"]
    (folder / "dataset.json").write_text(json.dumps(fingerprint))
    override = json.dumps(events.merged(small, {"task": {"data_dir": str(folder)}}))
    arguments = ["--experiment=attention_lstm", "--params_override", override]
    with pytest.raises(ValueError, match="task.validation_data.split=val") as caught:
        commands.run_here(train, *arguments, "--model_dir", tmp_path / "run")
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def test_another_vocabulary_names_both_remedies(trained, shapes, tmp_path):
    other = PreparedData.load(with_other_vocabulary(shapes, tmp_path / "other"))
    path = checkpoints.find(f"{trained}/best_ckpt")
    with pytest.raises(ValueError, match="task.remap_vocab=true .* or prepare .*") as caught:
        rows_of_words(path, other, remap=False)
    assert f"python -m tfcap.prepare --vocab {trained}/vocab.txt ..." in str(caught.value)


def test_a_checkpoint_of_other_sizes_tells_how_to_set_them(small, trained, data):
    other = {"model": {"attention_lstm": {"width": 24, "word_dropout": 0.3}}, "max_length": 9}
    params = resolve(small, {"task": {**other, "init_checkpoint": f"{trained}/best_ckpt"}})
    task = CaptionTask(params.task, data, params.trainer.optimizer_config)
    with pytest.raises(ValueError, match="does not fit this model") as caught:
        task.initialize(task.build_model())
    changes = "task.model.attention_lstm.width=16,task.max_length=12"
    assert str(caught.value).endswith(f"--params_override={changes}")
    mended = configs.resolve(
        "attention_lstm", override=changes, changes=json.loads(json.dumps(small))
    )
    assert sizes_of(checkpoints.find(trained), mended.task) == ""


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, None),
        ({"weights_sha256": "0" * 64}, "weights 000000000000"),
        ({"grid": 7}, "grid 7 of"),
        ({"name": "resnet50"}, "resnet50, grid"),
        (None, "(ready features)"),
    ],
)
def test_a_checkpoint_of_other_features_is_told(small, trained, data, capsys, changed, words):
    """The weights fit, so training starts; what differs stands in the warning."""
    made_by = None if changed is None else {**data.fingerprint["backbone"], **changed}
    mine = dataclasses.replace(data, fingerprint={**data.fingerprint, "backbone": made_by})
    params = resolve(small, {"task": {"init_checkpoint": f"{trained}/best_ckpt"}})
    task = CaptionTask(params.task, mine, params.trainer.optimizer_config)
    task.initialize(task.build_model())
    told = capsys.readouterr().err
    if words is None:
        assert told == ""
    else:
        assert told.startswith("warning: the checkpoint") and told.count("\n") == 1
        assert words in told.split("than those of")[1]


def test_a_checkpoint_without_its_run_has_no_warning(trained, data, tmp_path):
    alone = tmp_path / "ckpt-1"
    assert other_features(str(alone), data) == ""


def test_a_checkpoint_of_another_model_is_named(small, trained, tmp_path):
    task = resolve(small, experiment="mrnn").task
    assert sizes_of(checkpoints.find(trained), task).endswith(
        "describes the model attention_lstm, not mrnn."
    )
    assert sizes_of(str(tmp_path / "ckpt-1"), task) == ""


def test_a_collapsed_start_is_told():
    note = collapse_note(1.7, 300)
    assert "only 1.7 % of the 300 validation captions" in note and "first stage longer" in note
    assert collapse_note(100 / 12, 12) and not collapse_note(200 / 12, 12)
    assert not collapse_note(36.0, 200) and not collapse_note(100.0, 1)


@pytest.mark.slow
def test_a_second_stage_warns_of_a_collapsed_start(small, trained, data):
    """The score of the start fits its checkpoint, and yet all captions are the same."""
    extra = {"init_checkpoint": f"{trained}/best_ckpt", "self_critical": {"start_tolerance": 1e3}}
    params = resolve(small, {"task": extra}, "attention_lstm_scst")
    task = SelfCriticalTask(params.task, data, params.trainer.optimizer_config)
    same = {image: ("a red circle", 0.1) for image in data.references("val")}
    task.reduce_aggregated_logs(same, tf.Variable(0))  # it goes on from a checkpoint at step 0
    assert not any("weights were loaded correctly" in note for note in task.notes)
    assert any(note.startswith("only 8.3 % of the 12 validation") for note in task.notes)
    task.initialize(task.build_model())
    task.reduce_aggregated_logs(same, tf.Variable(0))
    assert any("weights were loaded correctly" in note for note in task.notes)
    assert any(note.startswith("only 8.3 % of the 12 validation") for note in task.notes)
    task.reduce_aggregated_logs(same, tf.Variable(2))  # later validations do not repeat it
    assert not any("of the 12 validation" in note for note in task.notes)
