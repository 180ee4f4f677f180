"""Checks what training starts from: the splits of the data, a checkpoint, and the first score."""

import contextlib
import itertools
import os
import sys

import numpy as np

from tfcap import configs, files, runs
from tfcap.cli import did_you_mean
from tfcap.data.prepared import (
    CLIPS_DIRECTORY,
    DEFAULT_DIRECTORY,
    FINGERPRINT,
    VOCABULARY,
    PreparedData,
)
from tfcap.data.tokens import Vocab
from tfcap.files import read_json
from tfcap.metrics.results import FURTHER, LOWER
from tfcap.runs.best import INFO
from tfcap.runs.checkpoints import find

COLLAPSED = 10.0  # percent of distinct captions; fewer mean that the pictures hardly matter


def begin(
    lock: contextlib.ExitStack,
    model_dir: str,
    experiment: str,
    params: configs.Experiment,
    data: PreparedData,
    mode: str,
) -> int:
    """Starts or resumes the run in `model_dir`, see `runs.begin`; returns its step.

    Args:
      lock: while it is open, no other process can train in `model_dir`.
      model_dir, experiment, params, data: as in `runs.begin`.
      mode: one of `training.MODES`; without `train` no file is changed.

    Raises:
      ValueError: another process trains in `model_dir`, or as `runs.begin`.
    """
    trains = "train" in mode
    doubt = ""
    if trains:
        files.make_directory(model_dir)
        lock.enter_context(files.lock(model_dir, "train", "choose another --model_dir"))
    if mode in ("train_and_eval", "continuous_eval"):  # the others choose no best checkpoint
        doubt = other_measures(model_dir, params)  # before the old configuration is replaced
    step = runs.begin(model_dir, experiment, params, data, train=trains)
    if doubt and os.path.exists(os.path.join(runs.best_directory(model_dir, params), INFO)):
        print(f"warning: {doubt}", file=sys.stderr, flush=True)
    return step


def other_measures(model_dir: str, params: configs.Experiment) -> str:
    """Returns a sentence about a best score that this start measures otherwise; else ''."""
    mine = runs.measured(params)
    try:
        before = runs.best_measured(model_dir, params)
    except ValueError:
        return ""  # `runs.begin` tells what is damaged
    changed = {key: old for key, old in before.items() if mine.get(key, old) != old}
    if not changed:
        return ""
    then, now = (", ".join(f"{key}={values[key]}" for key in changed) for values in (changed, mine))
    return (
        f"the best score of {model_dir} was measured with {then}, and this start validates with "
        f"{now}. These scores cannot be compared, so best_ckpt may not hold the best checkpoint. "
        "Continue with the old values, or choose another --model_dir."
    )


def data_directory(configured: str) -> str:
    """Returns the prepared directory; prepares the built-in data on first use."""
    folder = configured or DEFAULT_DIRECTORY
    source = {"": "shapes", CLIPS_DIRECTORY: "moving_shapes"}.get(configured)
    if source is not None and not os.path.exists(os.path.join(folder, FINGERPRINT)):
        from tfcap.preparing.run import prepare_built_in

        prepare_built_in(source, folder)
    return folder


def check_splits(task: configs.Task, data: PreparedData, mode: str) -> None:
    """Checks, before anything is built, that the data has the splits and the pictures of a run.

    Raises:
      ValueError: a split does not exist, the images of validation have no captions, or the backbone
        is to be trained and the data has no pictures.
    """
    splits = data.fingerprint["splits"]
    for part, config in (("train", task.train_data), ("eval", task.validation_data)):
        if part not in mode or config.split in splits:
            continue
        key, remedy = "task.train_data.split", "Prepare the data with images of this split."
        if part == "eval":
            key = "task.validation_data.split"
            remedy = (
                f"Prepare the data with images of the split {config.split!r}, or train without "
                "validation: --mode=train."
            )
        raise ValueError(
            f"{key} must be a split of {data.folder}: {', '.join(splits)}. Received: "
            f"{config.split!r}.{did_you_mean(config.split, splits)} {remedy}"
        )
    if task.backbone.trainable:
        data.require_pictures()
    if "train" in mode:
        size, images = task.train_data.global_batch_size, splits[task.train_data.split]["images"]
        if images < size:
            raise ValueError(
                f"task.train_data.global_batch_size must be at most the {images} images of the "
                f"split {task.train_data.split!r} of {data.folder}. Received: {size}."
            )
    if "eval" in mode:
        _check_validation(task.validation_data, data)


def _check_validation(config: configs.Data, data: PreparedData) -> None:
    """Raises ValueError unless one of the images of validation has a caption."""
    every = data.references(config.split).values()
    if any(itertools.islice(every, config.limit or None)):
        return
    none, remedy = "which has none", "Choose another split"
    if config.limit and any(data.references(config.split).values()):
        none = f"of which the first {config.limit} images have none"
        remedy += " or a higher task.validation_data.limit"
    raise ValueError(
        f"task.validation_data.split must have captions. Received: {config.split!r} of "
        f"{data.folder}, {none}. {remedy}, or train without validation: --mode=train."
    )


def unused_options(params: configs.Experiment, mode: str) -> list[str]:
    """Returns a sentence for each option of the trainer that does not do what it seems to.

    Args:
      params: the configuration.
      mode: one of `training.MODES`.
    """
    trainer, found = params.trainer, []
    metric = trainer.best_checkpoint_eval_metric
    right, given = "lower" if metric in LOWER else "higher", trainer.best_checkpoint_metric_comp
    known = metric in LOWER or metric not in FURTHER  # a metric of the user's own may be either
    if mode != "eval" and known and given != right:
        found.append(
            f"a {right} {metric} is better, but trainer.best_checkpoint_metric_comp is {given}: "
            f"the worst checkpoint counts as the best one. Set it to {right}. If this run has a "
            "best checkpoint already, start a new one."
        )
    if mode == "train" and (trainer.patience or trainer.optimizer_config.schedule.plateau_patience):
        found.append(
            "--mode=train validates nothing, so trainer.patience and "
            "trainer.optimizer_config.schedule.plateau_patience do nothing. "
            "--mode=train_and_eval uses them."
        )
    return found


def sizes_of(path: str, task: configs.Task) -> str:
    """Returns a sentence about the options in which the run of a checkpoint differs from `task`.

    Args:
      path: the checkpoint; its run directory is the one that holds it or `best_ckpt`.
      task: the configuration of the run that starts.

    Returns:
      The keys, and how to set them; empty if the configuration of the checkpoint is not known or
      is the same.
    """
    place = _beside(path, runs.PARAMS)
    if not os.path.exists(place):
        return ""
    try:
        theirs = configs.load(place).task
    except ValueError:
        return ""
    if theirs.model.type != task.model.type:
        return f" {place} describes the model {theirs.model.type}, not {task.model.type}."
    group = f"task.model.{task.model.type}."
    old = {f"{group}{key}": value for key, value in theirs.model.get().as_dict().items()}
    mine = {f"{group}{key}": value for key, value in task.model.get().as_dict().items()}
    for options, config in ((old, theirs), (mine, task)):
        options["task.max_length"] = config.max_length
    # Rates of dropout change no weight.
    keys = [k for k in old if not k.endswith("_dropout") and mine.get(k, old[k]) != old[k]]
    if not keys:
        return ""
    changes = ",".join(f"{key}={old[key]}" for key in keys)
    return f" To build the model of the checkpoint, add to --params_override: {changes}"


def rows_of_words(path: str, data: PreparedData, remap: bool) -> np.ndarray | None:
    """Finds the row that each word of `data` has in the tables of the checkpoint `path`.

    Returns:
      int [V], -1 for a word that the checkpoint does not know; None if both vocabularies are equal.

    Raises:
      ValueError: the vocabularies differ without `remap`, or the words of `path` are not known.
    """
    place, mine = _beside(path, VOCABULARY), data.vocab
    known = os.path.exists(place)
    if not known and remap:
        raise ValueError(
            f"task.remap_vocab needs the vocabulary of {path}. Received: no file {place}. "
            "Copy vocab.txt from the run directory of the checkpoint."
        )
    other = Vocab.load(place) if known else mine
    if other.sha256 == mine.sha256:
        return None
    if not remap:
        raise ValueError(
            f"task.init_checkpoint must have the vocabulary of {data.folder}. Received: {path}, "
            f"which has another vocabulary ({place}). Set task.remap_vocab=true to keep the rows "
            "of the words that both share, or prepare the data with the words of the checkpoint: "
            f"python -m tfcap.prepare --vocab {place} ..."
        )
    ids = {word: number for number, word in enumerate(other.words)}
    rows = np.array([ids.get(word, -1) for word in mine.words])
    print(
        f"{path}: {(rows >= 0).sum()} of {len(mine)} words keep their rows, "
        f"{(rows < 0).sum()} are new",
        flush=True,
    )
    return rows


def other_features(path: str, data: PreparedData) -> str:
    """Returns a warning if a checkpoint was trained on features of another network.

    Args:
      path: the checkpoint; the `dataset.json` of its run describes the features.
      data: the prepared data of the run that starts.

    Returns:
      The warning; empty if the features are the same, if nothing describes them, or if both are
      ready features, whose network is not known.

    Raises:
      ValueError: the features have another width, so that the weights do not fit.
    """
    place = _beside(path, FINGERPRINT)
    try:
        known = runs.read_fingerprint(os.path.dirname(place))
        theirs = runs.source_of_features(known)
    except (OSError, ValueError, KeyError):
        return ""  # a checkpoint without its run
    mine = runs.source_of_features(data.fingerprint)
    if mine == theirs:
        return ""
    if known["features"]["dim"] != data.feature_dim:
        raise ValueError(
            f"The checkpoint {path} reads other features ({theirs}) than those of {data.folder} "
            f"({mine}). Prepare the data with the network of the checkpoint."
        )
    return (
        f"warning: the checkpoint {path} was trained on other features ({theirs}) than those of "
        f"{data.folder} ({mine}). The captions are worse than with the same features until the "
        "model has learned these. Prepare the data with the network of the checkpoint to avoid it."
    )


def _beside(path: str, name: str) -> str:
    """Returns the path of a file of the run of a checkpoint, which may be in `best_ckpt`."""
    folder = os.path.dirname(path)
    outer = os.path.join(os.path.dirname(folder), name)
    return outer if os.path.exists(outer) else os.path.join(folder, name)


def collapse_note(distinct: float, images: int) -> str:
    """Returns a warning if nearly all captions before the first step are the same; else ''.

    Args:
      distinct: share of distinct captions of the validation images, percent.
      images: number of these images.
    """
    if images < 2 or round(distinct * images / 100) > max(1, COLLAPSED * images / 100):
        return ""
    return (
        f"only {distinct:.1f} % of the {images} validation captions before the first "
        "step are distinct: the model hardly uses the pictures. Self-critical training makes such "
        "a model worse. Train the first stage longer, or with a lower learning rate, before this "
        "stage"
    )


def check_start(task: configs.Task, data: PreparedData, score: float, images: int) -> str:
    """Compares the greedy score before the first step with the score of `init_checkpoint`.

    Args:
      task: the configuration of the run that starts.
      data: its prepared data.
      score: greedy_CIDEr-D times 100 of the model on the validation images.
      images: number of these images.

    Returns:
      A note to print; empty without `init_checkpoint`.

    Raises:
      ValueError: the scores differ by more than `start_tolerance`.
    """
    if not task.init_checkpoint:
        return ""
    path = find(task.init_checkpoint)
    try:
        saved = read_json(os.path.join(os.path.dirname(path), INFO), "")
        expected, step = saved["greedy_CIDEr-D"], int(saved["best_ckpt_global_step"])
        why = "" if runs.step_of(path) == step else f"its info.json is of step {step}"
    except (KeyError, ValueError):  # an earlier version wrote no greedy_CIDEr-D
        why = "it has no info.json with greedy_CIDEr-D"
    why = why or _other_validation(os.path.dirname(os.path.dirname(path)), task, data, images)
    if why:
        return (
            f"the score of the start cannot be compared with the score of {path}: {why}. Compare "
            "the CIDEr of step 0 with the one that tfcap.evaluate prints for that checkpoint"
        )
    if abs(score - expected) > task.self_critical.start_tolerance:
        raise ValueError(
            "Before its first step the model must reach the greedy_CIDEr-D of its checkpoint. "
            f"Received: {score:.2f}; {path} was saved with {expected:.2f} on the same images. "
            "Most likely this run has another vocabulary, features of another backbone, or other "
            "model options than the checkpoint. With few images, another precision alone can make "
            "the difference. Nothing was trained. To accept the difference, raise "
            "task.self_critical.start_tolerance."
        )
    return (
        f"the start reaches greedy_CIDEr-D {score:.2f}, and {path} was saved with {expected:.2f}: "
        "the weights were loaded correctly"
    )


def _other_validation(directory: str, mine: configs.Task, data: PreparedData, images: int) -> str:
    """Explains why the scores of the run in `directory` cannot be compared; empty if they can."""
    try:
        params = configs.load(os.path.join(directory, runs.PARAMS))
        theirs = params.task
        splits = runs.read_fingerprint(directory)["splits"]
    except (OSError, ValueError, KeyError):
        return ""  # the checkpoint stands alone: nothing but its score is known
    for key in ("split", "limit", "max_regions"):
        if getattr(mine.validation_data, key) != (other := getattr(theirs.validation_data, key)):
            return f"it was validated with validation_data.{key} {other!r}"
    if mine.max_length != theirs.max_length:
        return f"it was trained with max_length {theirs.max_length}"
    split = mine.validation_data.split
    if data.fingerprint["splits"].get(split) != splits.get(split):
        return "it was validated on other data"
    count, steps = splits[split]["images"], params.trainer.validation_steps
    count = min(count, theirs.validation_data.limit or count)
    if steps > 0:
        count = min(count, steps * theirs.validation_data.global_batch_size)
    return "" if count == images else f"it was validated on {count} images"
