"""The command lines of jobs: their flags and keys exist, and rows differ in the model alone."""

import copy
import functools
import json

import pytest
from helpers import commands as command_lines

from tfcap import configs, evaluate, train
from tfcap.measure.quality import commands, jobs, rows

OPTIONS = jobs.Options("data", rows.KEYS, width=64, examples=60_000, scst_examples=6_000)


@functools.cache
def resolved(job):
    """The experiment and the configuration of a run, as `tfcap.train` resolves them."""
    first, second = commands.command_lines(job, OPTIONS, "out", half=500)
    assert first[1:3] == ["-m", "tfcap.train"] and second[1:3] == ["-m", "tfcap.evaluate"]
    flags = command_lines.parse(train, *first[3:])
    directory = flags.model_dir
    assert command_lines.parse(evaluate, *second[3:]).model_dir == [directory]
    return flags.experiment, configs.resolve(flags.experiment, [], flags.params_override)


@pytest.mark.parametrize("key", rows.KEYS)
def test_rows_differ_in_the_model_alone(key):
    experiment, params = resolved(jobs.Job(key, "xe", 0.002, 0.1))
    _, first = resolved(jobs.Job("show_tell", "xe", 0.002, 0.1))
    assert experiment == rows.ROWS[key].experiment == params.task.model.type
    model = params.task.model.get().as_dict()
    assert {v for name, v in model.items() if name.endswith("_dropout")} == {0.1}
    assert model["width"] == 64 and model.items() >= rows.ROWS[key].options.items()
    mine, its = copy.deepcopy(params.as_dict()), copy.deepcopy(first.as_dict())
    for each in (mine, its):
        del each["task"]["model"]
    assert mine == its


def test_a_run_sees_the_examples_and_chooses_with_half_of_val():
    _, params = resolved(jobs.Job("xlan", "xe", 0.002, 0.1, (7,)))
    train = params.task.train_data
    steps = params.trainer.train_steps
    assert steps * train.global_batch_size * train.captions_per_image == 60_000
    assert params.task.validation_data.limit == 500 and params.task.seed == 7
    assert params.trainer.best_checkpoint_eval_metric == "CIDEr" and params.trainer.patience == 2
    optimizer = params.trainer.optimizer_config
    assert optimizer.schedule.learning_rate == 0.002 and optimizer.ema_decay == pytest.approx(
        1 - 1 / 60, abs=1e-5
    )
    assert steps == 6 * params.trainer.validation_interval


def test_a_self_critical_run_starts_from_the_same_options_and_seed():
    job = jobs.Job("xlan", "scst", 0.002, 0.1, (7,))
    experiment, params = resolved(job)
    assert (experiment, params.task.objective) == ("xlan_scst", "scst")
    assert params.trainer.patience == 0  # the score of beam search falls first
    assert params.task.init_checkpoint == f"{commands.run_of('out', job.first_stage)}/best_ckpt"
    assert params.task.init_checkpoint.startswith("out/runs/xlan_xe_lr0.002_dropout0.1_seed7/")
    assert params.trainer.optimizer_config.schedule.learning_rate == pytest.approx(0.0002)
    assert params.task.self_critical.samples * params.task.train_data.global_batch_size == 50
    assert params.trainer.train_steps == 120


def test_an_ensemble_only_captions():
    job = jobs.Job("xlan", "xe", 0.002, 0.1, (1, 2))
    (line,) = commands.command_lines(job, OPTIONS, "out", half=500)
    given = command_lines.parse(evaluate, *line[3:])
    assert given.model_dir == [commands.run_of("out", member) for member in job.members]
    assert (given.split, given.output) == ("val", commands.captions_of("out", job))
    assert commands.settings(job, OPTIONS, 500)["members"] == [j.name for j in job.members]


def test_settings_are_json_with_all_that_a_result_depends_on():
    job = jobs.Job("expansionnet", "xe", 0.002, 0.1)
    mine = commands.settings(job, OPTIONS, 500)
    assert json.loads(json.dumps(mine)) == mine
    assert not {"data_dir", "init_checkpoint"} & set(mine["changes"]["task"])  # paths differ
    assert commands.settings(job, OPTIONS, 400) != mine
