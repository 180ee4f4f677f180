"""Starts training from a checkpoint: matches the vocabularies, and checks the first score."""

import os

import numpy as np

from tfcap import configs, runs
from tfcap.data.fingerprint import VOCABULARY
from tfcap.data.prepared import PreparedData
from tfcap.data.tokens import Vocab
from tfcap.files import read_json
from tfcap.runs.checkpoints import find
from tfcap.runs.run import INFO


def rows_of_words(path: str, data: PreparedData, remap: bool) -> np.ndarray | None:
    """Finds the row that each word of `data` has in the tables of the checkpoint `path`.

    Returns:
      int [V], -1 for a word that the checkpoint does not know; None if both vocabularies are equal.

    Raises:
      ValueError: the vocabularies differ without `remap`, or the words of `path` are not known.
    """
    folder = os.path.dirname(path)  # of a run, or best_ckpt inside one
    places = [os.path.join(f, VOCABULARY) for f in (folder, os.path.dirname(folder))]
    place = next((place for place in places if os.path.exists(place)), None)
    if place is None and remap:
        raise ValueError(
            f"task.remap_vocab needs the vocabulary of {path}. Received: no {places[0]}. "
            "Copy vocab.txt from the run directory of the checkpoint."
        )
    mine = data.vocab
    other = mine if place is None else Vocab.load(place)
    if other.sha256 == mine.sha256:
        return None
    if not remap:
        raise ValueError(
            f"task.init_checkpoint must have the vocabulary of {data.folder}. Received: {path}, "
            f"which has another vocabulary ({place}). Set task.remap_vocab=true to keep the rows "
            "of the words that both share."
        )
    ids = {word: number for number, word in enumerate(other.words)}
    rows = np.array([ids.get(word, -1) for word in mine.words])
    print(
        f"{path}: {(rows >= 0).sum()} of {len(mine)} words keep their rows, "
        f"{(rows < 0).sum()} are new",
        flush=True,
    )
    return rows


def check_start(task: configs.Task, data: PreparedData, score: float) -> str:
    """Compares the greedy score before the first step with the score of `init_checkpoint`.

    Args:
      task: the configuration of the run that starts.
      data: its prepared data.
      score: greedy_CIDEr-D times 100 of the model on the validation images.

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
    why = why or _other_validation(os.path.dirname(os.path.dirname(path)), task, data)
    if why:
        return (
            f"the score of the start cannot be compared with the score of {path}: {why}. Compare "
            "the CIDEr of step 0 with the one that tfcap.evaluate prints for that checkpoint"
        )
    if abs(score - expected) > task.self_critical.start_tolerance:
        raise ValueError(
            f"The start must reach the greedy_CIDEr-D of its checkpoint. Received: {score:.2f}; "
            f"{path} was saved with {expected:.2f} on the same images. Most likely this run has "
            "another vocabulary, features of another backbone, or other model options than the "
            "checkpoint. With few images, another precision alone can make the difference. Nothing "
            "was trained. If you want the difference, raise task.self_critical.start_tolerance."
        )
    return (
        f"the start reaches greedy_CIDEr-D {score:.2f}, and {path} was saved with {expected:.2f}: "
        "the weights were loaded correctly"
    )


def _other_validation(directory: str, mine: configs.Task, data: PreparedData) -> str:
    """Explains why the scores of the run in `directory` cannot be compared; empty if they can."""
    try:
        theirs = configs.load(os.path.join(directory, runs.PARAMS)).task
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
    return ""
