"""The directory of a training run (`--model_dir`): everything needed to go on, evaluate or serve.

params.yaml            the resolved configuration and the experiment's name
vocab.txt              the vocabulary of the data it was trained on
dataset.json           that data's fingerprint
backbone.weights.h5    that data's backbone, if it has weights
document_frequency.npz that data's n-grams, for sentences chosen by consensus
ckpt-N.*, checkpoint   training state
best_ckpt/             the best checkpoint by the validation metric, and info.json
train/, validation/    TensorBoard
"""

import dataclasses
import os
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfcap import configs
from tfcap.data.document_frequency import DOCUMENT_FREQUENCY
from tfcap.data.fingerprint import FINGERPRINT, VOCABULARY
from tfcap.data.prepared import DEFAULT_DIRECTORY, PreparedData
from tfcap.data.tokens import Vocab
from tfcap.files import read_json, replacing, write_json
from tfcap.models.captioner import Captioner
from tfcap.runs.build import build_model
from tfcap.runs.checkpoints import (
    newest_checkpoint,
    repair_checkpoints,
    restore_weights,
    write_state,
)
from tfcap.runs.compatibility import PARAMS, check_same, read_fingerprint
from tfcap.runs.signature import signature

BACKBONE = "backbone.weights.h5"
OPTIONAL = (BACKBONE, DOCUMENT_FREQUENCY)  # where the data has them
INFO = "info.json"  # beside the best checkpoint: its scores, its step and its signature
_DAMAGED = "Remove it: the scores beside the checkpoint are then unknown."


@dataclasses.dataclass
class Run:
    """A trained captioner with what belongs to it.

    Attributes:
      params: the configuration.
      model: the captioner, weights restored.
      vocab: its words.
      fingerprint: of the data that it was trained on.
      directory: the `--model_dir`.
      checkpoint: the path that the weights came from.
      signature: how they were trained.
    """

    params: Any
    model: Captioner
    vocab: Vocab
    fingerprint: dict
    directory: str
    checkpoint: str
    signature: str

    @property
    def max_regions(self) -> int | None:
        """The number of regions that the model sees of each image; None sees all of them."""
        return self.params.task.validation_data.max_regions or None

    @property
    def data_dir(self) -> str:
        """The prepared directory that the run was configured with."""
        return self.params.task.data_dir or DEFAULT_DIRECTORY


def begin(
    directory: str, experiment: str, params: configs.Experiment, data: PreparedData, train=True
) -> int:
    """Starts a run in `directory`, or goes on with the one that is there.

    With `train` False the run is only read: nothing in the directory changes, since another
    process may be training there.

    Returns:
      The step to go on from; 0 for a new run.

    Raises:
      ValueError: if the directory holds a run that differs in model, data or experiment, or it
        holds checkpoints of which none can be read.
    """
    path = os.path.join(directory, PARAMS)
    if not train:
        if not os.path.exists(path):
            raise ValueError(f"{directory} holds no run to evaluate: {PARAMS} is missing")
        check_same(directory, experiment, params, data)
        if not (newest := newest_checkpoint(directory)):
            raise ValueError(
                f"{directory} has no checkpoint yet: wait until training has saved one"
            )
        return step_of(newest)
    os.makedirs(directory, exist_ok=True)
    if any(name.startswith("ckpt-") for name in os.listdir(directory)):
        if not os.path.exists(path):
            raise ValueError(f"{directory} holds checkpoints but no {PARAMS}: choose another one")
        check_same(directory, experiment, params, data)
    for name in (VOCABULARY, FINGERPRINT, *OPTIONAL):
        source, target = os.path.join(data.folder, name), os.path.join(directory, name)
        if os.path.exists(source):
            with replacing(target) as temporary:
                shutil.copyfile(source, temporary)
        elif os.path.exists(target):  # of an earlier start that never saved a checkpoint
            os.remove(target)
    configs.save(params, experiment, path)
    return step_of(repair_checkpoints(directory))


def load(directory: str, checkpoint: str = "best") -> Run:
    """Loads the captioner of a run.

    Args:
      directory: the `--model_dir`.
      checkpoint: `best`, `latest`, or the path of a checkpoint. Without a best one (no validation
        yet) the latest is taken.

    Raises:
      ValueError: if a file is missing, the vocabulary is not the one it was trained with, or the
        checkpoint does not fit.
    """
    params = configs.load(os.path.join(directory, PARAMS))
    fingerprint = read_fingerprint(directory)
    vocab = Vocab.load(os.path.join(directory, VOCABULARY))
    if vocab.sha256 != fingerprint["vocab_sha256"]:
        raise ValueError(
            f"{directory}/{VOCABULARY} is not the vocabulary that this model was trained with "
            f"(sha256 {vocab.sha256[:12]}, trained with {fingerprint['vocab_sha256'][:12]})"
        )
    model = build_model(params.task, len(vocab), fingerprint["features"]["dim"])
    best = best_directory(directory, params)
    if checkpoint == "best":
        checkpoint = best if newest_checkpoint(best) else directory
    elif checkpoint == "latest":
        checkpoint = directory
    path = restore_weights(model, checkpoint)
    return Run(params, model, vocab, fingerprint, directory, path, _signature(path, params))


def create(
    directory: str,
    experiment: str,
    params: configs.Experiment,
    vocab: Vocab,
    fingerprint: dict,
    model: Captioner,
    files: Sequence[str] = (),
) -> str:
    """Writes a new run directory around a model with weights, whole or not at all.

    Its checkpoint holds the weights and step 0: everything that takes a trained run takes it, and
    training begins there with them.

    Args:
      directory: to be written.
      experiment: the registered name that `params` belong to.
      params: the configuration that `model` was built from.
      vocab: its words.
      fingerprint: as `prepare` writes it, at least what `load` and `begin` compare.
      model: the captioner.
      files: others to be copied into it: the backbone's weights, the document frequencies.

    Returns:
      The path of the checkpoint.

    Raises:
      ValueError: if there is something in `directory` already.
    """
    directory = os.path.normpath(directory)
    if os.path.exists(directory) and (not os.path.isdir(directory) or os.listdir(directory)):
        raise ValueError(f"{directory} is not empty: choose a new --model_dir, or remove it first")
    temporary = f"{directory}.tmp-{os.getpid()}"
    os.makedirs(temporary)
    try:
        configs.save(params, experiment, os.path.join(temporary, PARAMS))
        vocab.save(os.path.join(temporary, VOCABULARY))
        write_json(os.path.join(temporary, FINGERPRINT), fingerprint)
        for file in files:
            shutil.copyfile(file, os.path.join(temporary, os.path.basename(file)))
        step = tf.Variable(0, dtype=tf.int64, trainable=False)
        weights = model.checkpoint_items["weights"]
        tf.train.Checkpoint(global_step=step, weights=weights).write(f"{temporary}/ckpt-0")
        write_state(temporary, ["ckpt-0"])
        os.replace(temporary, directory)  # an empty directory gives way
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return os.path.join(directory, "ckpt-0")


def _signature(path: str, params: configs.Experiment) -> str:
    """What stands beside the scores of a checkpoint, else what its run is configured for."""
    info = os.path.join(os.path.dirname(path), INFO)
    if os.path.exists(info) and (saved := read_json(info, _DAMAGED).get("signature")):
        return saved
    return signature(params.task) if step_of(path) else "unknown (converted or averaged)"


def step_of(checkpoint: str | None) -> int:
    """The global step that a training checkpoint holds; 0 for None."""
    if checkpoint is None:
        return 0
    reader = tf.train.load_checkpoint(checkpoint)
    return int(reader.get_tensor("global_step/.ATTRIBUTES/VARIABLE_VALUE"))


def count_parameters(model: Captioner) -> int:
    """Trainable numbers."""
    return int(sum(np.prod(v.shape) for v in model.trainable_variables))


def best_directory(directory: str, params: configs.Experiment) -> str:
    """Where a run keeps its best checkpoint."""
    return os.path.join(directory, params.trainer.best_checkpoint_export_subdir or "best_ckpt")


def read_best(best: str) -> dict[str, float]:
    """The scores of the best checkpoint, as the exporter wrote them; empty before any."""
    path = os.path.join(best, INFO)
    if not os.path.exists(path):
        return {}
    content = read_json(path, _DAMAGED)
    return {name: value for name, value in content.items() if isinstance(value, float)}
