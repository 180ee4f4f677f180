"""A training command: its stages, and what is printed at its end."""

import json
import shutil

import pytest
from helpers import commands

from tfcap import configs, errors, train
from tfcap.data.prepared import PreparedData
from tfcap.files import file_sha256
from tfcap.training import stages
from tfcap.training.task import CaptionTask

SMALL = "task.max_length=9,task.model.mrnn.width=24,runtime.mixed_precision_dtype=bfloat16"


# ---- stages -------------------------------------------------------------------------------------


def resolved(*then, files=(), override="", first=SMALL):
    """The stages after m-RNN in the directory `run`."""
    first = "mrnn", "run", [], first
    return stages.resolve_stages("train_and_eval", first, then, files, override)


def test_each_stage_continues_the_one_before_it_with_its_own_files(tmp_path):
    """Three stages: a file changes the width of the second, which the third one keeps."""
    (tmp_path / "slow.yaml").write_text(
        "task: {model: {mrnn: {width: 16}}}\ntrainer: {train_steps: 7, validation_interval: 3}\n"
    )
    first = f"{SMALL},task.decoding.beam=7,task.train_data.max_regions=5"
    (tmp_path / "all.yaml").write_text("task: {label_smoothing: 0.0}\ntrainer: {train_steps: 9}\n")
    then = f"mrnn:{tmp_path}/slow.yaml", "mrnn_scst"
    files = [f"{tmp_path}/all.yaml"]
    plain, slow, scst = resolved(*then, files=files, override="task.seed=5", first=first)
    assert [stage[1:] for stage in (plain, slow, scst)] == [
        ("mrnn", "run"),
        ("mrnn", "run/mrnn"),
        ("mrnn_scst", "run/mrnn/mrnn_scst"),
    ]
    tasks = [params.task for params, *_ in (plain, slow, scst)]
    starts = ["", "run/best_ckpt", "run/mrnn/best_ckpt"]
    assert [task.init_checkpoint for task in tasks] == starts
    assert [task.model.mrnn.width for task in tasks] == [24, 16, 16]
    assert [task.max_length for task in tasks] == [9, 9, 9]
    assert [task.objective for task in tasks] == ["xe", "xe", "scst"]
    assert [task.seed for task in tasks] == [tasks[0].seed, 5, 5] and tasks[0].seed != 5
    assert [task.decoding.beam for task in tasks] == [7, 7, 7]
    assert [task.train_data.max_regions for task in tasks] == [5, 5, 5]
    assert [stage[0].trainer.train_steps for stage in (slow, scst)] == [9, 9]
    assert slow[0].trainer.validation_interval == 3 != scst[0].trainer.validation_interval
    assert scst[0].runtime.mixed_precision_dtype == "bfloat16"


BLEU = f"{SMALL},task.metrics=[BLEU],trainer.best_checkpoint_eval_metric=BLEU-4"


@pytest.mark.parametrize(
    ("then", "given", "word"),
    [
        (["mrnn_scts"], {}, "mrnn_scst"),
        (["mrnn", "mrnn_scst:no.yaml"], {}, "no.yaml"),
        (["mrnn_scst"], {"override": "task.data_dir=other"}, "task.data_dir"),
        (["mrnn_scst"], {"first": BLEU}, "`then=mrnn_scst`: trainer.best_checkpoint_eval_metric"),
    ],
)
def test_a_stage_that_cannot_follow_is_an_error_before_training(then, given, word):
    with pytest.raises(errors.UsageError, match=word):
        resolved(*then, **given)


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--experiment=finetune"], "needs photographs"),
        (["--experiment=finetune_scst"], "needs photographs"),
        (["--model_dir=none"], "--experiment is missing"),
        (
            ["--experiment=mrnn", "--then=mrnn_scst", "--mode=train"],
            "--then needs --mode=train_and_eval",
        ),
        (["--experiment=mrnn", "--then_override=a=1"], "need --then"),
    ],
)
def test_usage_errors(flags, word):
    with pytest.raises(errors.UsageError, match=word):
        commands.run_here(train, *flags)


# ---- the end ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("module_without_java")
def test_the_summary_of_images_with_one_caption_or_none(small, trained, tmp_path, capsys):
    """There is no score of the references against each other, and the command goes on."""
    folder = shutil.copytree(small["task"]["data_dir"], tmp_path / "data")
    path = folder / "references_val.json"
    content = json.loads(path.read_text())
    firsts = {one["image_id"]: one for one in reversed(content["annotations"])}
    first, *others = sorted(firsts)
    del firsts[first]
    for number, image in enumerate(content["images"]):
        image["file_name"] = f"a\nb\t{number}.jpg"  # any name shows in one line
    path.write_text(json.dumps({**content, "annotations": list(firsts.values())}))
    fingerprint = json.loads((folder / "dataset.json").read_text())
    fingerprint["splits"]["val"]["references_sha256"] = file_sha256(path)
    (folder / "dataset.json").write_text(json.dumps(fingerprint))
    params = configs.resolve("attention_lstm", override=json.dumps(small))
    task = CaptionTask(params.task, PreparedData.load(folder), params.trainer.optimizer_config)
    task.captions = dict.fromkeys((first, *others), "a dog")
    stages.summarize(task, params, trained, "attention_lstm")
    said = capsys.readouterr().out
    assert "references against each other" not in said and "(a reference: none)" in said
    assert said.count("a dog   (a reference: ") == 3 and "\n  a\\nb\\t0.jpg: " in said
    stages.summarize(task, params, str(tmp_path / "new"), "attention_lstm")
    new = capsys.readouterr().out
    assert "best checkpoint: none yet" in new and "best validation" not in new
