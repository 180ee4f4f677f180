"""What a start must match: the run in its directory, its data, and the checkpoint it starts from.

What a run that goes on must match is `runs.begin`.
"""

import contextlib
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
from tfcap.metrics.results import FURTHER, LOWER
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
    """
    trains = "train" in mode
    if trains:
        files.make_directory(model_dir)
        lock.enter_context(files.lock(model_dir, "train", "choose another --model_dir"))
    step = runs.begin(model_dir, experiment, params, data, train=trains)
    if mode in ("train_and_eval", "continuous_eval"):  # the others choose no best checkpoint
        best = runs.read_info(runs.best_directory(model_dir, params))
        then, now = best.get("measured", {}), runs.measured(params)
        changed = [
            f"{k}={old} then, {now[k]} now" for k, old in then.items() if now.get(k, old) != old
        ]
        if changed:
            print(
                f"warning: the best score of {model_dir} was measured otherwise "
                f"({'; '.join(changed)}), so best_ckpt may not hold the best checkpoint. Continue "
                "with the old values, or choose another --model_dir.",
                file=sys.stderr,
                flush=True,
            )
    return step


def data_directory(configured: str) -> str:
    """Returns the prepared directory; prepares the built-in data on first use."""
    folder = configured or DEFAULT_DIRECTORY
    if not files.exists(os.path.join(folder, FINGERPRINT)):
        source = {"": "shapes", CLIPS_DIRECTORY: "moving_shapes"}.get(configured)
        if source is None:
            raise ValueError(
                f"{folder} has no {FINGERPRINT}. Prepare the data, or name the directory: "
                "--params_override=task.data_dir=DIRECTORY"
            )
        from tfcap.preparing.run import prepare_built_in

        prepare_built_in(source, folder)
    return folder


def check_splits(task: configs.Task, data: PreparedData, mode: str) -> None:
    """Raises ValueError, before anything is built, unless the data has what a run reads of it."""
    splits = data.fingerprint["splits"]
    for part, key in (("train", "train_data"), ("eval", "validation_data")):
        split = getattr(task, key).split
        if part in mode and split not in splits:
            remedy = " To train without validation: --mode=train." * (part == "eval")
            raise ValueError(
                f"task.{key}.split={split}: {data.folder} has only {', '.join(splits)}."
                f"{did_you_mean(split, splits)}{remedy}"
            )
    if task.backbone.trainable:
        data.require_pictures()
    if "train" in mode:
        size, images = task.train_data.global_batch_size, splits[task.train_data.split]["images"]
        if images < size:
            raise ValueError(
                f"task.train_data.global_batch_size={size} is more than the {images} images of the "
                f"split {task.train_data.split} of {data.folder}."
            )
    if "eval" in mode:
        config = task.validation_data
        references = list(data.references(config.split).values())
        if not any(references[: config.limit or None]):
            raise ValueError(
                f"The validation images (task.validation_data: split={config.split}, "
                f"limit={config.limit}) of {data.folder} have no captions. Choose others, or train "
                "without validation: --mode=train."
            )


def unused_options(params: configs.Experiment, mode: str) -> list[str]:
    """Returns a sentence if the worst checkpoint would count as the best one."""
    trainer = params.trainer
    metric, comparison = trainer.best_checkpoint_eval_metric, trainer.best_checkpoint_metric_comp
    right = "lower" if metric in LOWER else "higher"
    # A metric of the user's own may be either.
    if mode == "eval" or comparison == right or (metric in FURTHER and metric not in LOWER):
        return []
    return [
        f"a {right} {metric} is better, but trainer.best_checkpoint_metric_comp is {comparison}: "
        f"the worst checkpoint counts as the best one. Set it to {right}."
    ]


# ---- the checkpoint that a run starts from ------------------------------------------------------


def rows_of_words(path: str, data: PreparedData, remap: bool) -> np.ndarray | None:
    """Finds the row that each word of `data` has in the tables of the checkpoint `path`.

    Returns:
      int [V], -1 for a word that the checkpoint does not know; None if both vocabularies are equal.

    Raises:
      ValueError: the vocabularies differ without `remap`, or the words of `path` are not known.
    """
    words = os.path.join(_run_of(path), VOCABULARY)
    if not os.path.exists(words):
        if remap:
            raise ValueError(
                f"task.remap_vocab needs {words}: copy it from the run of the checkpoint."
            )
        return None
    other = Vocab.load(words)
    if other.sha256 == data.vocab.sha256:
        return None
    if not remap:
        raise ValueError(
            f"{path} has another vocabulary than {data.folder}. Set task.remap_vocab=true to keep "
            "the rows of the words that both share, or prepare the data with the words of the "
            f"checkpoint: python -m tfcap.prepare --vocab {words} ..."
        )
    ids = {word: number for number, word in enumerate(other.words)}
    rows = np.array([ids.get(word, -1) for word in data.vocab.words])
    print(
        f"{path}: {(rows >= 0).sum()} of {len(rows)} words keep their rows, "
        f"{(rows < 0).sum()} are new",
        flush=True,
    )
    return rows


def other_features(path: str, data: PreparedData) -> str:
    """Returns a warning if a checkpoint was trained on features of another network, else ''."""
    folder = _run_of(path)
    if not os.path.exists(os.path.join(folder, FINGERPRINT)):
        return ""  # a checkpoint without its run
    theirs = runs.source_of_features(runs.read_fingerprint(folder))
    mine = runs.source_of_features(data.fingerprint)
    if mine == theirs:
        return ""
    return (
        f"warning: the checkpoint {path} was trained on other features ({theirs}) than those of "
        f"{data.folder} ({mine}). To use what it has learned of them, prepare the data with the "
        "network of the checkpoint."
    )


def sizes_of(path: str, task: configs.Task) -> str:
    """Returns a sentence about the options in which the run of a checkpoint differs from `task`.

    It is empty if the configuration of the checkpoint is not known or is the same.
    """
    params = os.path.join(_run_of(path), runs.PARAMS)
    if not os.path.exists(params):
        return ""
    theirs = configs.load(params).task
    kind = theirs.model.type
    if kind != task.model.type:
        return f" {params} describes the model {kind}, not {task.model.type}."
    found = runs.differing(theirs, task, (f"model.{kind}.", "max_length"))
    # Rates of dropout change no weight.
    changes = [f"task.{k}={old}" for k, (old, _) in found.items() if not k.endswith("_dropout")]
    if not changes:
        return ""
    return f" To build the model of the checkpoint: --params_override={','.join(changes)}"


def _run_of(path: str) -> str:
    """Returns the run directory of a checkpoint, which may be in `best_ckpt`."""
    folder = os.path.dirname(path)
    outer = os.path.dirname(folder)
    has_words = [f for f in (folder, outer) if os.path.exists(os.path.join(f, VOCABULARY))]
    return has_words[0] if has_words else folder


# ---- the first score of self-critical training --------------------------------------------------


def collapse_note(distinct: float, images: int) -> str:
    """Returns a warning if nearly all captions before the first step are the same; else ''.

    Args:
      distinct: share of distinct captions of the validation images, percent.
      images: number of these images.
    """
    if images < 2 or round(distinct * images / 100) > max(1, COLLAPSED * images / 100):
        return ""
    return (
        f"only {distinct:.1f} % of the {images} validation captions before the first step are "
        "distinct: the model hardly uses the pictures, and self-critical training makes that "
        "worse. Train the first stage longer, or with a lower learning rate"
    )


def check_start(task: configs.Task, data: PreparedData, score: float, images: int) -> str:
    """Compares the greedy score before the first step with the score of `init_checkpoint`.

    This finds words and features that moved, which no shape shows.

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
    info = runs.read_info(os.path.dirname(path))
    if why := _not_comparable(path, info, task, data, images):
        return (
            f"the score of the start cannot be compared with the score of {path}: {why}. Compare "
            "the CIDEr of step 0 with the one that tfcap.evaluate prints for that checkpoint"
        )
    expected = info["greedy_CIDEr-D"]
    if abs(score - expected) > task.self_critical.start_tolerance:
        raise ValueError(
            f"The start has greedy_CIDEr-D {score:.2f}, and {path} was saved with {expected:.2f} "
            "on the same images. Most likely this run has another vocabulary, other features or "
            "other model options than the checkpoint. task.self_critical.start_tolerance accepts "
            "a larger difference."
        )
    return (
        f"the start reaches greedy_CIDEr-D {score:.2f}, and {path} was saved with {expected:.2f}: "
        "the weights were loaded correctly"
    )


def _not_comparable(
    path: str, info: dict, task: configs.Task, data: PreparedData, images: int
) -> str:
    """Explains why the score in `info` is not that of the images of this run; empty if it is."""
    if "greedy_CIDEr-D" not in info:
        return "it has no info.json with greedy_CIDEr-D"
    if runs.step_of(path) != (step := int(info["best_ckpt_global_step"])):
        return f"its info.json is of step {step}"
    folder = _run_of(path)
    if os.path.exists(params := os.path.join(folder, runs.PARAMS)):
        keys = ["max_length", *(f"validation_data.{k}" for k in ("split", "limit", "max_regions"))]
        for key, (theirs, _) in runs.differing(configs.load(params).task, task, keys).items():
            return f"it was validated with {key} {theirs!r}"
        split, theirs = task.validation_data.split, runs.read_fingerprint(folder)["splits"]
        if data.fingerprint["splits"].get(split) != theirs.get(split):
            return "it was validated on other data"
    count = info.get("images", images)
    return "" if count == images else f"it was validated on {count} images"
