"""Checks that a run fits a configuration and prepared data."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

from tfcap import configs
from tfcap.data.prepared import FINGERPRINT, VOCABULARY, PreparedData
from tfcap.data.tokens import Vocab
from tfcap.files import read_json
from tfcap.runs.best import INFO, PARAMS, best_directory, measured, read_measured
from tfcap.runs.build import reads_image

# The keys that must stay the same when a run is continued.
FIXED = (
    "task.model",
    "task.backbone.trainable",
    "task.max_length",
    "task.seed",
    "task.train_data.global_batch_size",
)
# They say where something is, and change no number.
_OF_PLACE = ("task.data_dir", "task.init_checkpoint", "task.remap_vocab", "runtime.task_index")
# How scores are compared: it must stay the same as soon as there is a best one.
_COMPARED = ("trainer.best_checkpoint_eval_metric", "trainer.best_checkpoint_metric_comp")


def read_fingerprint(directory: str) -> dict:
    """Reads the fingerprint of the data that a run was trained on."""
    return read_json(os.path.join(directory, FINGERPRINT), "Give the directory of a training run.")


def check_vocabulary(run: Any, data: PreparedData) -> None:
    """Checks that data has the vocabulary and the features of a `Run`.

    Raises:
      ValueError: `data` was prepared with another vocabulary or other features.
    """
    known = run.fingerprint
    vectors = reads_image(run.params.task)
    for name, got, wanted in differences(data.vocab, data.fingerprint, known, vectors):
        raise ValueError(
            f"The {name} must be the one that {run.directory} was trained with, {wanted}. "
            f"Received: {got} in {data.folder}. Use the data that the run was trained on"
            f"{_or_its_words(name, run.directory)}."
        )


def differences(
    vocab: Vocab, mine: dict, fingerprint: dict, vectors: bool
) -> Iterator[tuple[str, Any, Any]]:
    """Yields each difference of two fingerprints that matters to a model.

    A difference is a name, the value of `mine`, and that of `fingerprint`.

    Args:
      vocab: my vocabulary.
      mine: my fingerprint.
      fingerprint: the fingerprint of the run.
      vectors: whether the model reads vectors of whole images.
    """

    def frames(of: dict) -> int | str:
        return of.get("frames") or "none"

    def vector(of: dict) -> str:
        return str(of["features"].get("image_dim", "none")) if vectors else ""

    pairs = (
        ("vocabulary", vocab.sha256[:12], fingerprint["vocab_sha256"][:12]),
        ("feature width", mine["features"]["dim"], fingerprint["features"]["dim"]),
        ("width of the images' vectors", vector(mine), vector(fingerprint)),
        ("backbone", source_of_features(mine), source_of_features(fingerprint)),
        ("number of frames", frames(mine), frames(fingerprint)),
    )
    yield from (pair for pair in pairs if pair[1] != pair[2])


def source_of_features(fingerprint: dict) -> str:
    """Describes the network that made the features of prepared data, with grid and weights."""
    made_by = fingerprint["backbone"]
    if made_by is None:
        return "ready features"
    weights = (made_by["weights_sha256"] or "none")[:12]
    size = f"grid {made_by['grid']} of {made_by['image_size']} pixels"
    size += ", 10 crops" if made_by.get("crops", 1) > 1 else ""
    size += ", one vector" if made_by.get("vector") else ""
    size += f", scaled as in {made_by['scaling']}" if made_by.get("scaling") else ""
    return f"{made_by['name']}, {size}, weights {weights}"


def check_same(
    directory: str, experiment: str, params: configs.Experiment, data: PreparedData
) -> None:
    """Checks that a run can be continued with a configuration and data.

    Raises:
      ValueError: the experiment, a key of `FIXED` or the data differ.
    """
    with open(os.path.join(directory, PARAMS), encoding="utf-8", errors="replace") as file:
        first = file.readline().strip()
    if first != f"experiment: {experiment}":
        raise ValueError(
            f"--model_dir must be new or a run of this experiment. Received: {directory}, which "
            f"belongs to {first!r}, for {experiment!r}. Choose another --model_dir."
        )
    old = configs.values(configs.load(f"{directory}/{PARAMS}"))
    for key, value in configs.values(params).items():
        if key.startswith(FIXED) and value != old[key]:
            raise ValueError(
                f"{key} must stay {old[key]!r}, the value that {directory} was started with. "
                f"Received: {value!r}. Choose another --model_dir, or continue with the old value."
            )
    recorded, vectors = read_fingerprint(directory), reads_image(params.task)
    for name, got, wanted in differences(data.vocab, data.fingerprint, recorded, vectors):
        raise ValueError(
            f"The {name} must stay the one that {directory} was started with, {wanted}. Received: "
            f"{got} in {data.folder}. Choose another --model_dir, or the data of that "
            f"run{_or_its_words(name, directory)}."
        )


def check_score(directory: str, best: str, params: configs.Experiment) -> None:
    """Checks that the scores of a run that goes on are compared as the best one so far.

    Args:
      directory: the `--model_dir`.
      best: the directory of its best checkpoint.
      params: the configuration of this start.

    Raises:
      ValueError: there is a best score, and it is one of another metric or comparison.
    """
    if not os.path.exists(os.path.join(best, INFO)):
        return
    old = configs.values(configs.load(f"{directory}/{PARAMS}"))
    for key, value in configs.values(params).items():
        if key in _COMPARED and value != old[key]:
            raise ValueError(
                f"{key} must stay {old[key]!r}, by which {best} was chosen. Received: {value!r}. "
                "Choose another --model_dir, or continue with the old value."
            )


def best_measured(directory: str, params: configs.Experiment) -> dict[str, Any]:
    """Returns how the best scores of a run were measured, as `best.measured` does.

    Args:
      directory: the `--model_dir`.
      params: the configuration of this start, which names the folder of the best checkpoint.

    Returns:
      What the folder says, else what the configuration in `directory` says; empty if there are no
      scores.
    """
    best, path = best_directory(directory, params), os.path.join(directory, PARAMS)
    if not os.path.exists(os.path.join(best, INFO)):
        return {}
    if found := read_measured(best):
        return found
    return measured(configs.load(path)) if os.path.exists(path) else {}


def check_optimizer(directory: str, params: configs.Experiment) -> None:
    """Checks that the state of the optimizer, which a run has saved, fits a configuration.

    Adam and RAdam have the same state. SGD has none, so the moments would start at zero while their
    bias correction counts the steps before. The optimizer of float16 also saves its loss scale.

    Args:
      directory: the `--model_dir`.
      params: the configuration of this start.

    Raises:
      ValueError: the state does not fit.
    """
    old = configs.values(configs.load(f"{directory}/{PARAMS}"))
    new = configs.values(params)
    for key, apart in (
        ("trainer.optimizer_config.name", "sgd"),
        ("runtime.mixed_precision_dtype", "float16"),
    ):
        if (old[key] == apart) != (new[key] == apart):
            raise ValueError(
                f"{key} must stay {old[key]!r}, because {directory} has saved the state of its "
                f"optimizer. Received: {new[key]!r}. Continue with the old value, or choose "
                "another --model_dir and give task.init_checkpoint, which takes the weights alone."
            )


def keep_old(directory: str, params: configs.Experiment, step: int) -> None:
    """Prints which keys of a run that goes on have changed, and keeps a copy of its old values.

    Args:
      directory: the `--model_dir`; its configuration is that of the steps so far.
      params: the configuration of this start.
      step: the step from which it goes on.
    """
    path = os.path.join(directory, PARAMS)
    old = configs.values(configs.load(path))
    new = configs.values(params)
    changed = [key for key in new if key not in _OF_PLACE and new[key] != old.get(key, new[key])]
    for key in changed:
        print(f"note: {key} {old[key]} -> {new[key]} from step {step}", flush=True)
    copy = os.path.join(directory, f"params_until_step_{step}.yaml")
    if changed and not os.path.exists(copy):
        shutil.copyfile(path, copy)
        print(f"note: {copy} keeps the old values", flush=True)


def _or_its_words(name: str, directory: str) -> str:
    """Returns the remedy for another vocabulary; nothing for another difference."""
    if name != "vocabulary":
        return ""
    words = os.path.join(directory, VOCABULARY)
    return (
        ", or prepare this data with the words of the run: python -m tfcap.prepare --vocab "
        f"{words}, with the other flags as they were"
    )
