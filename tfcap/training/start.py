"""What training reads at its start, and checks: the data, the teacher, the first checkpoint.

Checks of a resumed run are in `runs.begin`.
"""

import logging
import os

import numpy as np

from tfcap import configs, files, runs
from tfcap.data.prepared import (
    CLIPS_DIRECTORY,
    DEFAULT_DIRECTORY,
    FINGERPRINT,
    VOCABULARY,
    PreparedData,
)
from tfcap.data.tokens import Vocab
from tfcap.errors import did_you_mean
from tfcap.models.captioner import Captioner
from tfcap.models.ensemble import Ensemble
from tfcap.runs.checkpoints import find

_log = logging.getLogger(__name__)


def data_directory(configured: str) -> str:
    """Returns the directory of the prepared data; prepares the built-in data on first use.

    Args:
      configured: the value of `task.data_dir`; empty means the built-in shapes.

    Raises:
      ValueError: the directory holds no prepared data, and is none of the built-in data.
    """
    directory = configured or DEFAULT_DIRECTORY
    if not files.exists(os.path.join(directory, FINGERPRINT)):
        source = {"": "shapes", CLIPS_DIRECTORY: "moving_shapes"}.get(configured)
        if source is None:
            raise ValueError(
                f"task.data_dir={directory} is no prepared data set: it has no {FINGERPRINT}. "
                "Prepare the data with tfcap.prepare, or name the directory of prepared data: "
                "`params_override=task.data_dir=DIRECTORY`."
            )
        from tfcap.preparing.build import prepare
        from tfcap.preparing.settings import Settings

        prepare(Settings(directory, source=source))
    return directory


def load_teacher(params: configs.Experiment, data: PreparedData) -> Captioner | None:
    """Loads the runs of `task.teacher` as one captioner, in the precision of training.

    Args:
      params: the configuration.
      data: the prepared data, whose features and words the teacher will read.

    Returns:
      the ensemble of the runs; None if the configuration names none.

    Raises:
      ValueError: a run cannot be loaded, or it does not fit the data: it has another vocabulary,
        other features, a backbone of its own or a smaller `max_length`.
    """
    task = params.task
    dtype = params.runtime.mixed_precision_dtype or "float32"
    teachers = [runs.load(name, dtype=dtype) for name in task.teacher.model_dir]
    for teacher in teachers:
        runs.check_vocabulary(teacher, data)
        reason = ""
        if teacher.backbone is not None:
            reason = f"has a backbone of its own, and cannot read the features of {data.folder}"
        elif (longest := teacher.model.max_length) < task.max_length:
            reason = f"has task.max_length={longest}, below the {task.max_length} of this training"
        if reason:
            remedy = "Choose another run for task.teacher.model_dir."
            raise ValueError(f"{teacher.directory} {reason}. {remedy}")
        _log.info(f"teacher: {teacher.described}")
    return Ensemble([teacher.model for teacher in teachers]) if teachers else None


def check_splits(task: configs.Task, data: PreparedData, mode: str) -> None:
    """Checks that the data has the splits, captions and pictures that a run needs.

    The training split must also have at least as many images as a batch.

    Args:
      task: the configuration of the task.
      data: the prepared data set.
      mode: what the run does, one of `training.MODES`.

    Raises:
      ValueError: the data lacks one of them, or has too few training images.
    """
    splits = data.fingerprint["splits"]
    for part, key in (("train", "train_data"), ("eval", "validation_data")):
        split = getattr(task, key).split
        if part in mode and split not in splits:
            remedy = " To train without validation: `mode=train`." * (part == "eval")
            raise ValueError(
                f"task.{key}.split={split}: {data.folder} has only the splits {', '.join(splits)}. "
                f"Choose one of them.{did_you_mean(split, splits)}{remedy}"
            )
    if task.backbone.trainable:
        data.require_pictures()
    size = task.train_data.global_batch_size
    config = task.validation_data
    if "train" in mode and size > (images := splits[task.train_data.split]["images"]):
        raise ValueError(
            f"task.train_data.global_batch_size={size} is more than the {images} images of the "
            f"split {task.train_data.split} of {data.folder}. Set it to at most {images}."
        )
    references = list(data.references(config.split).values()) if "eval" in mode else [True]
    if not any(references[: config.limit or None]):
        raise ValueError(
            f"The validation images of {data.folder} (split={config.split}, limit={config.limit}) "
            "have no captions. Set another split or limit of task.validation_data, or train "
            "without validation: `mode=train`."
        )


# ---- the checkpoint that a run starts from ------------------------------------------------------


def rows_of_words(path: str, data: PreparedData, remap: bool) -> np.ndarray | None:
    """Finds the words of the data in the vocabulary of a checkpoint.

    That vocabulary is a file in the run of the checkpoint.

    Args:
      path: the checkpoint.
      data: the prepared data set, with a vocabulary of V words.
      remap: true allows that the two vocabularies differ.

    Returns:
      for each word of the data its id in the checkpoint, int [V]; -1 for a word that the checkpoint
      does not know. None if the vocabularies are equal, or if the run of the checkpoint has no
      vocabulary.

    Raises:
      ValueError: `remap` is false and the vocabularies differ, or `remap` is true and the run of
        the checkpoint has no vocabulary.
    """
    words = os.path.join(_run_of(path), VOCABULARY)
    if not os.path.exists(words):
        if remap:
            raise ValueError(
                f"task.remap_vocab=true needs the words of the checkpoint: {words} is missing. "
                "Copy it from the run of the checkpoint."
            )
        return None
    other = Vocab.load(words)
    if other.sha256 == data.vocab.sha256:
        return None
    if not remap:
        raise ValueError(
            f"{path} has another vocabulary than {data.folder}. Set task.remap_vocab=true to keep "
            "the weights of the words that both have, or prepare the data with the words of the "
            f"checkpoint: `vocab={words}` of tfcap.prepare."
        )
    ids = {word: number for number, word in enumerate(other.words)}
    rows = np.array([ids.get(word, -1) for word in data.vocab.words])
    _log.info(
        f"{path}: {(rows >= 0).sum()} of {len(rows)} words keep their rows, "
        f"{(rows < 0).sum()} are new"
    )
    return rows


def other_features(path: str, data: PreparedData) -> str:
    """Returns a warning if a checkpoint was trained on features of another network, else "".

    Args:
      path: the checkpoint.
      data: the prepared data set, with the features of this run.
    """
    run = _run_of(path)
    mine = runs.source_of_features(data.fingerprint)
    if not os.path.exists(os.path.join(run, FINGERPRINT)):
        return ""  # a checkpoint without its run
    if mine == (theirs := runs.source_of_features(runs.read_fingerprint(run))):
        return ""
    return (
        f"warning: the checkpoint {path} was trained on other features ({theirs}) than those of "
        f"{data.folder} ({mine}). To use what it has learned of them, prepare the data with the "
        "network of the checkpoint."
    )


def _run_of(path: str) -> str:
    """Returns the run directory of a checkpoint, which may be in `best_ckpt`."""
    directory = os.path.dirname(path)
    outer = os.path.dirname(directory)
    in_best = not os.path.exists(os.path.join(directory, VOCABULARY))
    return outer if in_best and os.path.exists(os.path.join(outer, VOCABULARY)) else directory


def signature_of_start(task: configs.Task) -> str:
    """Says in a line of text how the weights of `init_checkpoint` were trained.

    Args:
      task: the configuration. If its `init_checkpoint` is empty, the text is `runs.UNKNOWN`.
    """
    if not task.init_checkpoint:  # a converted run, whose checkpoint of step 0 was restored
        return runs.UNKNOWN
    path = find(task.init_checkpoint)
    params = os.path.join(_run_of(path), runs.PARAMS)
    return runs.signature_of(path, configs.load(params).task if os.path.exists(params) else None)


# ---- the first score of self-critical training --------------------------------------------------


def check_start(task: configs.Task, data: PreparedData, score: float, images: int) -> str:
    """Compares the score of greedy decoding before the first step with that of `init_checkpoint`.

    If the words or features of the data have another order than those of the checkpoint, the
    weights of the checkpoint can still be loaded, because the shapes are equal. The score then
    shows the mistake.

    Args:
      task: the configuration of the task.
      data: the prepared data set.
      score: the CIDEr-D of greedy decoding before the first step (`greedy_CIDEr-D`), times 100.
      images: the number of validation images with this score.

    Returns:
      a note to print: the two scores, or why they cannot be compared.

    Raises:
      ValueError: the scores differ by more than `task.self_critical.start_tolerance`.
    """
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
            f"Before its first step this run has greedy_CIDEr-D {score:.2f}, but its checkpoint "
            f"{path} was saved with {expected:.2f} on the same images. Most likely the run has "
            "another vocabulary, other features or other model options than the checkpoint: use "
            "those of the checkpoint. A larger task.self_critical.start_tolerance accepts the "
            "difference."
        )
    return (
        f"the start reaches greedy_CIDEr-D {score:.2f}, and {path} was saved with {expected:.2f}: "
        "the weights were loaded correctly"
    )


def _not_comparable(
    path: str, info: dict, task: configs.Task, data: PreparedData, images: int
) -> str:
    """Returns why the score in `info` cannot be compared with the score of this run, or ''."""
    if "greedy_CIDEr-D" not in info:
        return "it has no info.json with greedy_CIDEr-D"
    if runs.step_of(path) != (step := int(info["best_ckpt_global_step"])):
        return f"its info.json is of step {step}"
    run = _run_of(path)
    same_images = info.get("images", images) == images
    if os.path.exists(params := os.path.join(run, runs.PARAMS)):
        keys = ["max_length", *(f"validation_data.{k}" for k in ("split", "limit", "max_regions"))]
        for key, (theirs, _) in runs.differing(configs.load(params).task, task, keys).items():
            return f"it was validated with {key} {theirs!r}"
        split = task.validation_data.split
        theirs = runs.read_fingerprint(run)["splits"].get(split)
        same_images = same_images and data.fingerprint["splits"].get(split) == theirs
    return "" if same_images else "it was validated on other images"
