"""Checks of the directory of a run: configuration, vocabulary, checkpoints, weights and data."""

import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from tfcap import configs, pretrained, runs, storage
from tfcap.data.captions import losses
from tfcap.data.fingerprint import load_vocabulary
from tfcap.data.picture_data import has_pictures
from tfcap.data.prepared import DEFAULT_DIRECTORY, PreparedData
from tfcap.health.finding import Finding, count, examine, ok, one_line, problem, some, warning
from tfcap.preparing.features.backbone import checked_weights
from tfcap.runs import checkpoints
from tfcap.runs.best import INFO
from tfcap.runs.run import RESTORE_VOCABULARY


class _Origin(NamedTuple):
    """What `runs.check_vocabulary` reads of a run."""

    directory: str
    fingerprint: dict
    params: Any


_RESTORE = "Restore the file from a backup, or train again in another --model_dir."


def findings(directory: str, data_dir: str | None = None) -> Iterator[Finding]:
    """Checks a run.

    Args:
      directory: the `--model_dir`.
      data_dir: prepared data to compare it with; None takes the data that the run names.

    Yields:
      One finding per check.
    """
    directory = pretrained.place(directory)
    if not os.path.isdir(directory):
        yield examine("run", "directory", _missing, directory)
        return
    results: dict = {}
    yield examine("run", "configuration", _configuration, directory, results, remedy=_RESTORE)
    params = results.get("params")
    yield examine("run", "vocabulary", _vocabulary, directory)
    yield examine("run", "backbone", _backbone, directory, params)
    best = runs.best_directory(directory, params) if params else None
    damaged: set[str] = set()
    for path in _checkpoints(directory, best):
        yield examine("run", f"checkpoint {_number(path)}", _checkpoint, path, damaged)
    yield examine("run", "newest", _newest, directory, damaged)
    if params is None:
        return  # the model, its best checkpoint and its data follow from the configuration
    yield examine("run", "best", _best, best, directory)
    yield examine("run", "weights fit", _model, directory, remedy=_RESTORE)
    yield examine("run", "data", _data, directory, data_dir, params)


def _missing(directory: str) -> Finding:
    return problem(
        f"{directory} is not a directory.", "Give --model_dir the directory of a training run."
    )


def _configuration(directory: str, results: dict) -> Finding:
    params = configs.load(os.path.join(directory, runs.PARAMS))
    results["params"] = params
    return ok(f"{directory} trains {params.task.model.type} for {params.trainer.train_steps} steps")


def _vocabulary(directory: str) -> Finding:
    fingerprint = runs.read_fingerprint(directory)
    vocab = load_vocabulary(directory, fingerprint, RESTORE_VOCABULARY)
    return ok(f"{len(vocab)} words, those that the model was trained with")


def _backbone(directory: str, params: Any) -> Finding:
    made_by = runs.read_fingerprint(directory)["backbone"]
    if made_by is None:
        return ok("none: the run was trained on ready-made features and cannot read pictures")
    path = checked_weights(made_by, directory)
    text = f"weights {path} unchanged" if path else "without weights"
    if params is not None and params.task.backbone.trainable:
        text += "; the checkpoints hold the weights that were trained from these"
    return ok(f"{made_by['name']}, {text}")


def _checkpoints(directory: str, best: str | None) -> list[str]:
    """Lists the paths of the training checkpoints, and then of the best one."""
    paths = [os.path.join(directory, f"ckpt-{step}") for step in checkpoints.saved_steps(directory)]
    if best and best != directory and (newest := checkpoints.newest_checkpoint(best)):
        paths.append(newest)
    return paths


def _number(path: str) -> str:
    """Returns how a finding calls a checkpoint: its step, or `best`."""
    name = os.path.basename(path)
    return name.removeprefix("ckpt-") if name.startswith("ckpt-") else "best"


def _checkpoint(path: str, damaged: set[str]) -> Finding:
    """Reads every tensor of a checkpoint and looks for numbers that are not finite.

    A checkpoint that cannot be read is added to `damaged`.
    """
    remedy = f"Restore {path}.* from a backup, or remove them."
    if os.path.basename(path).startswith("ckpt-"):
        remedy = f"The next start of the training skips it. {remedy}"
    tensors = weights = 0
    bad: list[str] = []
    try:
        for name, value in checkpoints.tensors(path):
            tensors += 1
            value = np.asarray(value)
            if not np.issubdtype(value.dtype, np.number) and value.dtype.name != "bfloat16":
                continue  # the graph of objects is text
            in_model = checkpoints.is_weight(name)
            weights += value.size if in_model else 0
            # A state like "no score yet" may be infinite; a weight and its moments may not.
            wrong = np.isnan(value) if not in_model else ~np.isfinite(value)
            if wrong.any():
                bad.append(f"{checkpoints.readable_name(name)} ({wrong.sum()} of {value.size})")
    except ValueError as error:
        damaged.add(path)
        return problem(f"{path} is damaged: {one_line(error)}.", remedy)
    if bad:
        return problem(
            f"{path} holds NaN or infinity in {some(bad)}.",
            "Go back to an older checkpoint: remove this one and those after it, lower "
            "trainer.optimizer_config.schedule.learning_rate, and train on.",
        )
    return ok(f"{path}: {tensors} tensors can be read, all {weights} weights are finite")


def _newest(directory: str, damaged: set[str]) -> Finding:
    """Finds the checkpoint from which training goes on: the newest one that can be read."""
    steps = checkpoints.saved_steps(directory)
    if not steps:
        return problem(
            f"There is no checkpoint in {directory}.",
            "Wait until training has saved one, or train: python -m tfcap.train --model_dir "
            f"{directory}",
        )
    sound = [step for step in steps if os.path.join(directory, f"ckpt-{step}") not in damaged]
    if not sound:
        return problem(
            f"None of the {count(len(steps), 'checkpoint')} in {directory} can be read.",
            "Restore one from a backup, or start again in another --model_dir.",
        )
    named = checkpoints.newest_checkpoint(directory)
    newest, last = f"ckpt-{sound[-1]}", f"ckpt-{steps[-1]}"
    if named is None or os.path.basename(named) not in (newest, last):
        return warning(
            f"The newest checkpoint is {newest}, but the file {checkpoints.STATE} names "
            f"{named or 'none'}.",
            "The next start of the training repairs it; until then give --checkpoint "
            f"{os.path.join(directory, newest)}.",
        )
    if steps == [0] and checkpoints.has_half_weights(named):
        return ok("1 checkpoint with float16 weights; a new run can start from it")
    why = f", because {last} is damaged" if newest != last else ""
    return ok(f"{count(len(steps), 'checkpoint')}; training goes on from step {sound[-1]}{why}")


def _best(best: str, directory: str) -> Finding:
    """Compares info.json with the best checkpoint."""
    path = checkpoints.newest_checkpoint(best)
    if path is None:
        newest = checkpoints.newest_checkpoint(directory)
        if newest and (scores := runs.read_scores(newest)):  # as export --format=run writes it
            return ok(f"the weights were validated{_shown(scores)}")
        return ok("no validation yet; commands take the latest checkpoint")
    info, scores = os.path.join(best, INFO), runs.read_best(best)
    if not scores:
        return warning(
            f"{info} is missing: the scores of the best checkpoint are unknown.",
            "python -m tfcap.evaluate --model_dir computes them.",
        )
    if bad := [name for name, value in scores.items() if not np.isfinite(value)]:
        return problem(
            f"{info} has scores that are not finite: {some(bad)}.",
            "Train on with a lower learning rate, from an older checkpoint.",
        )
    step, recorded = runs.step_of(path), scores.get("best_ckpt_global_step")
    if recorded is not None and int(recorded) != step:
        return problem(
            f"{info} is of step {int(recorded)}, but {path} is of step {step}.",
            f"Remove {info}: the scores beside the checkpoint are then unknown.",
        )
    return ok(f"step {step}{_shown(scores)}")


def _shown(scores: Mapping[str, float]) -> str:
    text = ", ".join(f"{key} {scores[key]:.1f}" for key in ("CIDEr", "BLEU-4") if key in scores)
    return f" with {text}" if text else ""


def _model(directory: str) -> Finding:
    run = runs.load(directory)
    return ok(f"{run.checkpoint} fits the model of {runs.count_parameters(run.model)} parameters")


def _data(directory: str, data_dir: str | None, params: Any) -> Finding:
    """Compares the run with its data: `data_dir`, or what the run names."""
    if data_dir and not storage.is_directory(data_dir):
        words = runs.read_fingerprint(directory)["vocab_sha256"]
        place = runs.data_of(directory, params.task.data_dir, words)
        return warning(
            f"--data_dir {data_dir} is not a directory.",
            f"Correct it, or leave it out to compare the run with {place}.",
        )
    named = data_dir or params.task.data_dir  # empty for the default directory
    folder = named or DEFAULT_DIRECTORY
    if not storage.is_directory(folder):
        folder = runs.data_of(directory, named, runs.read_fingerprint(directory)["vocab_sha256"])
    if not storage.is_directory(folder):
        if folder == DEFAULT_DIRECTORY:
            return ok(f"{folder} does not exist yet; the next training makes it")
        return warning(
            f"{folder}, which the run was trained on, does not exist. Captions can be made; "
            "training and evaluation need the data.",
            "Move the data back, or give --data_dir to the command.",
        )
    # The weights may be damaged, so the run itself may not have been loaded.
    run = _Origin(directory, runs.read_fingerprint(directory), params)
    data = PreparedData.load(folder)
    try:
        runs.check_vocabulary(run, data)
    except ValueError as error:
        if named:
            raise
        return warning(  # a converted run, for example, does not know its data
            f"The run names no data, and the default is other data. {one_line(error)}",
            "Give --data_dir to commands that need data.",
        )
    if params.task.backbone.trainable and not has_pictures(data):
        return warning(
            f"{folder} has no pictures, which the trained backbone of the run reads.",
            "Prepare the data again with --keep_pictures to evaluate the run.",
        )
    task, split = params.task, params.task.train_data.split
    lost = []
    if split in data.fingerprint["splits"]:
        lost = losses(data, split, task.max_length, task.train_data.max_regions)
    fits = f"{folder} has the vocabulary and the features of the run"
    return ok(". ".join([fits, *lost]).removesuffix("."))
