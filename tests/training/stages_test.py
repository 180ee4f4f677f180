"""The stages of one training command, resolved before the first one runs."""

import pytest

from tfcap import cli
from tfcap.training import run

SMALL = "task.max_length=9,task.model.mrnn.width=24,runtime.mixed_precision_dtype=bfloat16"


def resolved(*then, files=(), override="", first=SMALL):
    """The stages after m-RNN in the directory `run`."""
    later = run.later_stages(then, files, override)
    return run.resolve_stages("train_and_eval", ("mrnn", "run", [], first), later)


def test_fine_tuning_needs_data():
    with pytest.raises(cli.UsageError, match="--experiment=finetune needs photographs"):
        run.resolve_stages("train_and_eval", ("finetune", "", [], ""), [])


def test_each_stage_continues_the_one_before_it_with_its_own_files(tmp_path):
    """Three stages: a file changes the width of the second, which the third one keeps."""
    (tmp_path / "slow.yaml").write_text(
        "task: {model: {mrnn: {width: 16}}}\ntrainer: {train_steps: 7, validation_interval: 7}\n"
    )
    plain, slow, scst = resolved(f"mrnn:{tmp_path}/slow.yaml", "mrnn_scst", override="task.seed=5")
    assert [stage[1:] for stage in (plain, slow, scst)] == [
        ("mrnn", "run"),
        ("mrnn", "run/mrnn"),
        ("mrnn_scst", "run/mrnn/mrnn_scst"),
    ]
    tasks = [params.task for params, *_ in (plain, slow, scst)]
    assert [task.init_checkpoint for task in tasks] == [
        "",
        "run/best_ckpt",
        "run/mrnn/best_ckpt",
    ]
    assert [task.model.mrnn.width for task in tasks] == [24, 16, 16]
    assert [task.max_length for task in tasks] == [9, 9, 9]
    assert [task.objective for task in tasks] == ["xe", "xe", "scst"]
    assert [task.seed for task in tasks] == [tasks[0].seed, 5, 5] and tasks[0].seed != 5
    assert slow[0].trainer.train_steps == 7 != scst[0].trainer.train_steps
    assert scst[0].runtime.mixed_precision_dtype == "bfloat16"


def test_the_images_and_the_decoding_of_a_stage_are_those_of_the_one_before():
    first = f"{SMALL},task.decoding.beam=7,task.train_data.split=restval"
    first += ",task.train_data.max_regions=5,task.train_data.global_batch_size=64"
    plain, scst = resolved("mrnn_scst", first=first)
    task = scst[0].task
    assert task.decoding.beam == 7
    assert (task.train_data.split, task.train_data.max_regions) == ("restval", 5)
    batches = (plain[0].task.train_data.global_batch_size, task.train_data.global_batch_size)
    assert batches[0] == 64 != batches[1]
    _, other = resolved("mrnn_scst", first=first, override="task.decoding.beam=2")
    assert other[0].task.decoding.beam == 2


def test_files_of_every_later_stage_come_after_its_own(tmp_path):
    for name, steps in (("own", 500), ("common", 600)):
        (tmp_path / f"{name}.yaml").write_text(f"trainer: {{train_steps: {steps}}}\n")
    own, common = (f"{tmp_path}/{name}.yaml" for name in ("own", "common"))
    assert run.later_stages("a", [], "x=1") == [("a", [], "x=1")]
    assert run.later_stages(["a:b, c,", "", "d"], ["e"], "") == [
        ("a", ["b", "c", "e"], ""),
        ("d", ["e"], ""),
    ]
    _, *later = resolved(f"mrnn:{own}", "mrnn_scst", files=[common])
    assert [params.trainer.train_steps for params, *_ in later] == [600, 600]


@pytest.mark.parametrize("form", ["task.{}=other", "task: {{{}: other}}"])
@pytest.mark.parametrize("key", ["data_dir", "init_checkpoint"])
def test_what_follows_from_the_stage_before_cannot_be_overridden(key, form):
    """It was ignored without a word."""
    message = f"--then_override cannot set task.{key}: .*Received: 'other'. Leave it out"
    with pytest.raises(cli.UsageError, match=message):
        resolved("mrnn_scst", override=form.format(key))


def test_the_metrics_of_the_stage_before_need_a_score_that_chooses():
    """The error names the stage and the flag for it."""
    first = f"{SMALL},task.metrics=[BLEU],trainer.best_checkpoint_eval_metric=BLEU-4"
    message = "^--then=mrnn_scst: trainer.best_checkpoint_eval_metric must be one of BLEU-1.*'CIDEr"
    with pytest.raises(cli.UsageError, match=f"{message}.*in --then_override$"):
        resolved("mrnn_scst", first=first)
    override = "trainer.best_checkpoint_eval_metric=BLEU-4"
    _, later = resolved("mrnn_scst", first=first, override=override)
    assert later[0].trainer.best_checkpoint_eval_metric == "BLEU-4"


@pytest.mark.parametrize(
    ("then", "message"),
    [
        (["mrnn_scts"], "mrnn_scst"),
        (["mrnn", "mrnn_scst:no.yaml"], "no.yaml: the file does not exist"),
    ],
)
def test_a_stage_that_cannot_follow_is_an_error_before_training(then, message):
    with pytest.raises(cli.UsageError, match=message):
        resolved(*then)
