"""Reads and writes the directory of a training run (`--model_dir`).

It holds all that is needed to resume training, to evaluate and to serve:

params.yaml            the resolved configuration and the experiment's name
params_until_step_N.yaml    the one of the steps before N, if it was changed there
vocab.txt              the vocabulary of the data it was trained on
dataset.json           the fingerprint of that data
backbone.weights.h5    the backbone of that data, if it has weights; a trained one is in ckpt-N
backbone.preset/       the backbone of that data, if it is a preset of keras-hub
document_frequency.npz the document frequencies of that data, for decoding by consensus
ckpt-N.*, checkpoint   the state of training after step N, and the name of the newest one
best_ckpt/             the best checkpoint by the validation metric, and info.json
train/, validation/    curves for TensorBoard
"""

import dataclasses
import os
import secrets
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfcap import cli, configs, files, pretrained
from tfcap.data.document_frequency import DOCUMENT_FREQUENCY
from tfcap.data.prepared import FINGERPRINT, VOCABULARY, PreparedData, load_vocabulary
from tfcap.data.tokens import Vocab
from tfcap.files import arrays_sha256, write_json
from tfcap.layers import precision
from tfcap.models.captioner import Captioner
from tfcap.models.end_to_end import EndToEnd
from tfcap.preparing.features import saved
from tfcap.runs.best import best_directory, read_best, read_signature
from tfcap.runs.build import build_model, width_of, with_backbone
from tfcap.runs.checkpoints import (
    check_resumable,
    converted,
    has_half_weights,
    newest_checkpoint,
    repair_checkpoints,
    restore_weights,
    step_of,
    write_state,
)
from tfcap.runs.compatibility import (
    PARAMS,
    check_optimizer,
    check_same,
    check_score,
    check_vocabulary,
    keep_old,
    read_fingerprint,
)
from tfcap.runs.places import data_of

OPTIONAL = (*saved.SAVED, DOCUMENT_FREQUENCY)  # copied if the data has them
# Keys of `task` that may change between two starts, as they may when a run is resumed.
_MAY_CHANGE = ("task.data_dir", "task.decoding.", "task.validation_data.")
RESTORE_VOCABULARY = f"Copy {VOCABULARY} from the prepared data that the run was trained on."


@dataclasses.dataclass(repr=False)
class Run:
    """A trained captioner with its configuration, vocabulary and origin.

    Attributes:
      params: the configuration.
      model: the captioner with restored weights.
      vocab: the vocabulary of the captioner.
      fingerprint: the fingerprint of the data that it was trained on.
      directory: the `--model_dir`.
      checkpoint: the path that the weights were read from.
      signature: the objective that the weights were trained for, see `signature.signature`.
      backbone: the backbone that was trained with the captioner; None if the captioner reads the
        features of the prepared data.
    """

    params: Any
    model: Captioner
    vocab: Vocab
    fingerprint: dict
    directory: str
    checkpoint: str
    signature: str
    backbone: Any = None

    def __repr__(self) -> str:
        return f"<Run {self.directory}: {self.params.task.model.type}, {self.checkpoint}>"

    @property
    def described(self) -> str:
        """The checkpoint with its step: the number in the name of the best one is no step."""
        paths = self.checkpoint.split(", ")  # an ensemble has several
        steps = [step_of(path) for path in paths]  # 0 for weights without a training
        return ", ".join(
            f"{path} (step {step})" if step else path
            for path, step in zip(paths, steps, strict=True)
        )

    @property
    def whole(self) -> Captioner:
        """The model that a checkpoint holds: the captioner, and its backbone if it was trained."""
        return self.model if self.backbone is None else EndToEnd(self.model, self.backbone)

    def view(self, data: PreparedData) -> PreparedData:
        """Returns prepared data as the model reads it: with the features of its own backbone.

        Raises:
          ValueError: the backbone was trained, and the data has no pictures.
        """
        if self.backbone is None:
            return data
        networks = [each.model for each in getattr(self.backbone, "members", [self.backbone])]
        variables = [v for network in networks if network is not None for v in network.variables]
        weights = {str(place): variable.numpy() for place, variable in enumerate(variables)}
        return data.with_backbone(self.backbone, arrays_sha256(weights))

    @property
    def max_regions(self) -> int | None:
        """The largest number of regions that the model reads of an image; None reads all."""
        return self.params.task.validation_data.region_limit

    @property
    def data_dir(self) -> str:
        """The prepared directory that the run was trained on, see `places.data_of`."""
        words = self.fingerprint["vocab_sha256"]
        return data_of(self.directory, self.params.task.data_dir, words)


def begin(
    directory: str, experiment: str, params: configs.Experiment, data: PreparedData, train=True
) -> int:
    """Starts a run in `directory`, or resumes the run that is there.

    Args:
      directory: the `--model_dir`.
      experiment: the registered name that `params` belong to.
      params: the configuration of this start.
      data: the prepared data of this start.
      train: False only reads the run and changes no file, because another process may be training
        in the directory.

    Returns:
      The step from which training resumes; 0 for a new run.

    Raises:
      ValueError: if the directory holds a run with another model, data or experiment, or none of
        its checkpoints can be read.
    """
    _check_local(directory)
    path = os.path.join(directory, PARAMS)
    if not train:
        if not os.path.exists(path):
            raise ValueError(f"{directory} holds no run to evaluate: {PARAMS} is missing")
        check_same(directory, experiment, params, data)
        if not (newest := newest_checkpoint(directory)):
            raise ValueError(
                f"{directory} has no checkpoint yet: wait until training has saved one"
            )
        if has_half_weights(newest):
            raise ValueError(
                f"--mode must be train_and_eval or train with new weights. Received: {newest}, "
                "whose weights are float16 and cannot be restored for training. To score them: "
                f"python -m tfcap.evaluate --model_dir {directory}"
            )
        return step_of(newest)
    files.make_directory(directory)
    if any(name.startswith("ckpt-") for name in os.listdir(directory)):
        if not os.path.exists(path):
            raise ValueError(
                f"{directory} holds checkpoints but no {PARAMS}: choose another --model_dir"
            )
        check_same(directory, experiment, params, data)
        check_score(directory, best_directory(directory, params), params)
    newest = repair_checkpoints(directory)
    check_resumable(newest)
    step = step_of(newest)
    if step:
        check_optimizer(directory, params)
        keep_old(directory, params, step)
    if newest:  # also the first weights of an averaged or converted run, at step 0
        params = _with_origin(params, configs.load(path), step)
    else:
        _forget_best(directory, params)
    for name in (VOCABULARY, FINGERPRINT, *OPTIONAL):
        source, target = os.path.join(data.folder, name), os.path.join(directory, name)
        if files.exists(source):
            saved.copy(source, target)
        else:  # it may be left by an earlier start that never saved a checkpoint
            files.remove(target)
    if params.task.data_dir:  # a relative path would be lost in another directory
        params = params.replace(task={"data_dir": files.absolute(data.folder)})
    configs.save(params, experiment, path)
    return step


def _with_origin(
    params: configs.Experiment, old: configs.Experiment, step: int
) -> configs.Experiment:
    """Returns `params` with the checkpoint that the run, which goes on from `step`, started from.

    `init_checkpoint` is read only where there is no checkpoint yet. With another one, params.yaml
    would name a false origin of the weights.
    """
    mine, task = params.task.init_checkpoint, old.task
    if mine not in ("", task.init_checkpoint):
        print(
            f"note: task.init_checkpoint={mine} is not read, because the run goes on from step "
            f"{step}. To start from it, choose another --model_dir.",
            flush=True,
        )
    origin = {"init_checkpoint": task.init_checkpoint, "remap_vocab": task.remap_vocab}
    return params.replace(task=origin)


def _check_local(directory: str) -> None:
    if files.is_remote(directory):
        raise ValueError(f"A run must be on a disk. Received: {directory}. Copy it afterwards.")


def _forget_best(directory: str, params: configs.Experiment) -> None:
    """Checks the best checkpoint of an earlier start that saved no other checkpoint.

    It is removed if it was kept before the first step, as self-critical training does. A trained
    one is never removed: a start with the same training reaches the same score.

    Raises:
      ValueError: the earlier start trained in another way, so its score is not one of this run.
    """
    best, path = best_directory(directory, params), os.path.join(directory, PARAMS)
    scores = read_best(best)
    if scores.get("best_ckpt_global_step") == 0:
        shutil.rmtree(best)
    elif scores:
        old = {}
        if os.path.exists(path):
            old = configs.values(configs.load(path))
        for key, value in configs.values(params).items():
            trains = key.startswith(("task.", "trainer.optimizer_config."))
            if trains and not key.startswith(_MAY_CHANGE) and old.get(key) != value:
                raise ValueError(
                    f"{best} must belong to this run. Received: a checkpoint of a start with "
                    f"{key}={old.get(key)!r} in place of {value!r}, and no checkpoint to continue "
                    "from. Choose another --model_dir, or move it away."
                )


def load(directory: str, checkpoint: str = "best", dtype: str = "float32") -> Run:
    """Loads the captioner of a run.

    Args:
      directory: the `--model_dir`, or the name of a pretrained model, see `pretrained.place`.
      checkpoint: `best`, `latest`, or the path of a checkpoint. `best` takes the latest one
        if there was no validation yet.
      dtype: `float32` or `bfloat16`, the precision as in `runtime.mixed_precision_dtype`.

    Raises:
      ValueError: if a file is missing, the vocabulary is not that of the training, or the
        checkpoint does not fit the model.
    """
    directory = pretrained.place(directory)
    if not os.path.isdir(directory):
        raise ValueError(
            f"--model_dir must be the directory of a training run. Received: {directory}, which is "
            f"no directory. {pretrained.hint()}"
        )
    params = configs.load(os.path.join(directory, PARAMS))
    fingerprint = read_fingerprint(directory)
    vocab = load_vocabulary(directory, fingerprint, RESTORE_VOCABULARY)
    width = width_of(params.task, fingerprint["features"])
    with precision.scope(dtype):
        model = build_model(params.task, len(vocab), width)
    whole = with_backbone(model, params.task, fingerprint, directory)
    best = best_directory(directory, params)
    if checkpoint == "best":
        checkpoint = best if newest_checkpoint(best) else directory
    elif checkpoint == "latest":
        checkpoint = directory
    path = restore_weights(whole, checkpoint)
    signed = read_signature(path, params)
    return Run(params, model, vocab, fingerprint, directory, path, signed, whole.backbone)


def create(
    directory: str,
    experiment: str,
    params: configs.Experiment,
    vocab: Vocab,
    fingerprint: dict,
    model: Captioner,
    files: Sequence[str] = (),
    dtype: str = "",
) -> str:
    """Writes a new run directory for a model with given weights, completely or not at all.

    The checkpoint holds the weights and step 0. Every command that reads a trained run accepts the
    directory, and training in it starts from these weights.

    Args:
      directory: path of the new directory; it may exist if it is empty.
      experiment: the registered name that `params` belong to.
      params: the configuration that `model` was built from.
      vocab: the vocabulary of `model`.
      fingerprint: the fingerprint of the data, as `prepare` writes it, with at least the keys that
        `load` and `begin` compare.
      model: the captioner.
      files: other files and directories to copy into it: weights of the backbone, document
        frequencies.
      dtype: how the weights are stored; empty keeps their own dtype.

    Returns:
      The path of the checkpoint.

    Raises:
      ValueError: if `directory` is remote or not empty, or a weight is too large for `dtype`.
    """
    _check_local(directory)
    directory = os.path.normpath(directory)
    if os.path.exists(directory) and (not os.path.isdir(directory) or os.listdir(directory)):
        raise ValueError(
            f"{directory} is not empty: name a new directory, or remove this one first"
        )
    # Numbers of processes repeat in containers, where a killed process may have left one.
    temporary = f"{directory}.tmp-{os.getpid()}-{secrets.token_hex(4)}"
    os.makedirs(temporary)
    try:
        configs.save(params, experiment, os.path.join(temporary, PARAMS))
        vocab.save(os.path.join(temporary, VOCABULARY))
        write_json(os.path.join(temporary, FINGERPRINT), fingerprint)
        for file in files:
            saved.copy(file, os.path.join(temporary, os.path.basename(file)))
        step = tf.Variable(0, dtype=tf.int64, trainable=False)
        weights = converted(model.checkpoint_items["weights"], dtype)
        tf.train.Checkpoint(global_step=step, weights=weights).write(f"{temporary}/ckpt-0")
        write_state(temporary, ["ckpt-0"])
        os.replace(temporary, directory)  # this replaces an empty directory
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return os.path.join(directory, "ckpt-0")


def count_parameters(model: Captioner) -> int:
    """Counts the trainable parameters of a model."""
    return int(sum(np.prod(v.shape) for v in model.trainable_variables))


def load_data(run: Run, folder: str | None) -> PreparedData:
    """Loads the prepared data of `--data_dir`, or of the run if the flag is empty.

    Raises:
      ValueError: the data is missing, the model was trained with other words or features, or the
        backbone was trained, too, and the data has no pictures.
    """
    data = PreparedData.load(folder or run.data_dir)
    check_vocabulary(run, data)
    return run.view(data)


def load_refined(run: Run | None, data: PreparedData, folder: str) -> tuple[Captioner, str]:
    """Loads the m-RNN whose refined features are the vectors of images, and names its checkpoint.

    Args:
      run: the run that the command is about; None for captions from a file.
      data: the prepared data.
      folder: the directory of the run of the m-RNN.

    Raises:
      UsageError: one of the two runs trained its backbone.
      ValueError: as `load`.
    """
    other = load(folder)
    check_vocabulary(other, data)
    if (run and run.backbone is not None) or other.backbone is not None:
        raise cli.UsageError(
            f"The refined features of {folder} cannot be used: it or the run trained its backbone, "
            "so the two models read different features."
        )
    return other.model, other.checkpoint
