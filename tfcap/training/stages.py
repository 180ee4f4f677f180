"""Resolves the stages of one training command: `--experiment`, and each `--then` after it."""

import os
from collections.abc import Sequence
from typing import Any

from tfcap import cli, configs, runs
from tfcap.configs.experiments import FINETUNE

_EVAL_METRIC = "trainer.best_checkpoint_eval_metric"


def later_stages(
    then: str | Sequence[str], config_files: Sequence[str], override: str
) -> list[tuple[str, list[str], str]]:
    """Reads the flags of later stages: experiment, YAML files and override of each.

    Args:
      then: the values of `--then`, each `EXPERIMENT` or `EXPERIMENT:FILE,FILE`.
      config_files: YAML files of every later stage.
      override: changes to every later stage.
    """
    stages = []
    for text in filter(None, [then] if isinstance(then, str) else then):
        experiment, _, own = text.partition(":")
        files = [name.strip() for name in own.split(",") if name.strip()]
        stages.append((experiment, [*files, *config_files], override))
    return stages


def resolve(mode: str, first: tuple, later: Sequence[tuple]) -> list[tuple[Any, str, str]]:
    """Resolves all stages before the first one runs.

    Args:
      mode: the mode of training; later stages need `train_and_eval`.
      first: experiment, directory, YAML files and override of the first stage.
      later: what `later_stages` returns.

    Returns:
      Configuration, experiment and directory of each stage.

    Raises:
      cli.UsageError: a configuration is bad, or the stages cannot follow each other.
    """
    experiment, model_dir, *changes = first
    begun = os.path.join(model_dir, runs.PARAMS) if model_dir else ""
    if not experiment and not os.path.exists(begun):
        raise cli.UsageError(
            "--experiment is required where --model_dir holds no run. Received: none. Name one, "
            "for example --experiment=xtransformer."
        )
    try:
        if experiment:
            params = configs.resolve(experiment, *changes)
            if experiment == FINETUNE and not params.task.data_dir:
                raise cli.UsageError(
                    f"--experiment={experiment} needs photographs of your own, prepared with the "
                    "backbone of the packaged captioner: --params_override=task.data_dir=data/mine"
                )
        else:  # continue the run in the directory: a converted model has no other description
            experiment, params = configs.resume(begun, *changes)
            if params.task.data_dir:
                words = runs.read_fingerprint(model_dir)["vocab_sha256"]
                place = runs.data_of(model_dir, params.task.data_dir, words)
                params = params.replace(task={"data_dir": place})
        stages = [(params, experiment, model_dir or os.path.join("runs", experiment))]
        for stage in later:
            before, _, folder = stages[-1]
            stages.append(_after(before, folder, mode, *stage))
    except ValueError as error:
        raise cli.UsageError(str(error)) from error
    return stages


def _after(before, model_dir, mode, experiment, config_files, override):
    """Resolves a stage of `--then` after the stage `before`, which runs in `model_dir`."""
    if mode != "train_and_eval":
        raise cli.UsageError(f"--then needs --mode=train_and_eval. Received: {mode}.")
    _refuse_fixed(override)
    keys = ("model", "backbone", "max_length", "data_dir", "validation_data", "metrics", "decoding")
    known = before.task.as_dict()
    task = {key: known[key] for key in keys}
    # The batches are those of the stage, but not which images and regions they hold.
    of_data = ("split", "max_regions", "pad_to_max")
    task["train_data"] = {key: known["train_data"][key] for key in of_data}
    same = {"task": task, "runtime": before.runtime.as_dict()}
    try:
        params = configs.resolve(experiment, config_files, override, same)
    except ValueError as error:
        remedy = ""
        if str(error).startswith(_EVAL_METRIC):  # it may stand in --params_override alone
            remedy = (
                ". A stage of --then has the task.metrics of the stage before it, but keys of "
                f"trainer of its own: set {_EVAL_METRIC} in --then_override"
            )
        raise cli.UsageError(f"--then={experiment}: {error}{remedy}") from error
    # A recipe of a later stage names the run to start from. Here that run is the stage before.
    best = runs.best_directory(model_dir, before)
    params = params.replace(task={"data_dir": before.task.data_dir, "init_checkpoint": best})
    return params, experiment, os.path.join(model_dir, experiment)


def _refuse_fixed(override):
    """Raises UsageError for keys that a later stage takes from the stage before it."""
    task = configs.given(override).get("task")
    for key in ("data_dir", "init_checkpoint"):
        if isinstance(task, dict) and key in task:
            raise cli.UsageError(
                f"--then_override cannot set task.{key}: a stage of --then reads the data of the "
                f"stage before it and starts from its best checkpoint. Received: {task[key]!r}. "
                "Leave it out, or train this stage with a command of its own."
            )
