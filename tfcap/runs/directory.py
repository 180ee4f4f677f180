"""The directory of a training run: begins a run, resumes a run, or writes a new one.

The directory holds everything that resuming, evaluation and serving need:

params.yaml            the resolved configuration and the experiment's name
params_until_step_N.yaml    the configuration of the steps before N, if it was changed there
vocab.txt              the vocabulary of the data that the run was trained on
dataset.json           the fingerprint of that data
backbone.weights.h5    the backbone of that data, if it has weights; a trained one is in ckpt-N
backbone.preset/       the backbone of that data, if it is a preset of keras-hub or a detector
document_frequency.npz the document frequencies of that data, for decoding by consensus
ckpt-N.*, checkpoint   the state of training after step N, and the name of the newest checkpoint
best_ckpt/             the best checkpoint by the validation metric, and info.json
train/, validation/    curves for TensorBoard
"""

import logging
import os
import shutil
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfcap import configs, files
from tfcap.backbones import saved
from tfcap.backbones.backbone import Backbone
from tfcap.backbones.detector import Detector
from tfcap.data.document_frequency import DOCUMENT_FREQUENCY
from tfcap.data.prepared import FINGERPRINT, VOCABULARY, PreparedData
from tfcap.data.tokens import Vocab
from tfcap.models.captioner import Captioner
from tfcap.runs.checkpoints import (
    converted,
    has_half_weights,
    newest_checkpoint,
    saved_steps,
    step_of,
)
from tfcap.runs.fingerprint import check_data, read_fingerprint
from tfcap.runs.info import PARAMS, best_directory, read_best, read_info

_log = logging.getLogger(__name__)

# What must stay when a run goes on, and why: keys of params.yaml, or groups of them.
_SCORE = "it decides which checkpoint is the best"
MUST_STAY = {
    "task.model": "the saved weights belong to it",
    "task.backbone.trainable": "it decides which weights are saved",
    "task.max_length": "the model was built for this length",
    "task.seed": "the order of the batches follows from it",
    "task.train_data.global_batch_size": "steps are counted in such batches",
    "trainer.best_checkpoint_eval_metric": _SCORE,
    "trainer.best_checkpoint_metric_comp": _SCORE,
    "trainer.optimizer_config.name": "checkpoints have the state of the optimizer (a new run with "
    "task.init_checkpoint takes over the weights only)",
    "runtime.mixed_precision_dtype": "with float16, checkpoints have a loss scale (a new run with "
    "task.init_checkpoint takes over the weights only)",
}
# Of these keys one value does not go with the saved state of the others: Adam and RAdam have the
# same state, and SGD has none.
_APART = {"trainer.optimizer_config.name": "sgd", "runtime.mixed_precision_dtype": "float16"}
# Keys that say where something is, and change no number.
_LOCATIONS = ("task.data_dir", "task.init_checkpoint", "task.remap_vocab", "runtime.task_index")


# ---- begin and go on -----------------------------------------------------------------------------


def begin(
    directory: str,
    experiment: str,
    params: configs.Experiment,
    data: PreparedData,
    train: bool = True,
) -> int:
    """Starts a training run in a directory, or resumes the run that is there.

    Args:
      directory: directory of the run.
      experiment: name of the experiment, the configuration from which `params` was made.
      params: configuration for the next steps.
      data: prepared data for the next steps.
      train: whether training follows. If False, the directory must have a checkpoint, and nothing
        is written into the directory, because another process may be training there.

    Returns:
      The number of training steps that are done, 0 for a new run.

    Raises:
      ValueError: the directory holds a run that cannot go on with this configuration or data, the
        directory is not local, or it has no checkpoint and `train` is False.
    """
    _check_local(directory)
    if train:
        files.make_directory(directory)
    if not train or any(name.startswith("ckpt-") for name in os.listdir(directory)):
        _check_same(directory, experiment, params, data, train)
    newest = newest_checkpoint(directory)
    step = step_of(newest)
    if newest and has_half_weights(newest):
        raise ValueError(
            f"Training cannot continue from {newest}: its weights are float16. Start a new run "
            f"from them with `params_override=task.init_checkpoint={newest}`."
        )
    if not train:
        if not newest:
            raise ValueError(f"{directory} has no checkpoint yet: wait until training saves one.")
        return step
    if newest:  # also the first weights of an averaged or converted run, at step 0
        params = _continue(directory, params, step)
    else:
        _remove_best(best_directory(directory, params))
    _copy_from_data(data, directory)
    if params.task.data_dir:  # a relative path would be lost in another directory
        params = params.replace(task={"data_dir": files.absolute(data.folder)})
    configs.save(params, experiment, os.path.join(directory, PARAMS))
    return step


def _check_same(
    directory: str, experiment: str, params: configs.Experiment, data: PreparedData, train: bool
) -> None:
    """Raises ValueError unless a run can be continued with a configuration and data."""
    trained_as, old = configs.resume(os.path.join(directory, PARAMS))
    if trained_as != experiment:
        raise ValueError(
            f"{directory} is a run of the experiment {trained_as}, not of {experiment}. Choose "
            "another `model_dir`."
        )
    has_state = train and max(saved_steps(directory), default=0) > 0
    has_scores = train and bool(read_info(best_directory(directory, params)))
    for key, (before, now) in differing(old, params, MUST_STAY).items():
        reason = next(reason for group, reason in MUST_STAY.items() if key.startswith(group))
        if reason == _SCORE and not has_scores:
            continue
        if key in _APART and not (has_state and _APART[key] in (before, now)):
            continue
        raise ValueError(
            f"{key} must stay {before!r} in {directory}, not become {now!r}: {reason}. Keep the "
            "value, or choose another `model_dir`."
        )
    check_data(
        data.fingerprint,
        data.folder,
        of_run=read_fingerprint(directory),
        directory=directory,
        task=params.task,
    )


def differing(
    old: configs.Experiment, new: configs.Experiment, groups: Iterable[str] = ("",)
) -> dict[str, tuple[Any, Any]]:
    """Compares two configurations; returns the old and the new value of each key that differs.

    Args:
      old: the first configuration.
      new: the second configuration.
      groups: beginnings of keys, such as `task.model`. Only keys that begin with one of these are
        compared. The default compares all keys.

    Returns:
      Pairs (old value, new value), by dotted key such as `task.model.type`.
    """
    before = configs.values(old)
    prefixes = tuple(groups)
    return {
        key: (before[key], value)
        for key, value in configs.values(new).items()
        if key.startswith(prefixes) and before.get(key, value) != value
    }


def _continue(directory: str, params: configs.Experiment, step: int) -> configs.Experiment:
    """Returns the configuration of a run that goes on; tells and keeps what changes."""
    old = configs.load(os.path.join(directory, PARAMS))
    if step:
        _note_changes(directory, old, params, step)
    # `init_checkpoint` is read at the first start alone: another one would be a false origin.
    origin = {key: getattr(old.task, key) for key in ("init_checkpoint", "remap_vocab")}
    return params.replace(task=origin)


def _note_changes(
    directory: str, old: configs.Experiment, params: configs.Experiment, step: int
) -> None:
    """Tells the changed keys of a resumed run, and saves a copy of the old configuration."""
    changed = {k: v for k, v in differing(old, params).items() if k not in _LOCATIONS}
    for key, (before, now) in changed.items():
        _log.info(f"note: {key} {before} -> {now} from step {step}")
    source = params.task.init_checkpoint
    if source not in ("", old.task.init_checkpoint):
        _log.info(f"note: the run goes on, so task.init_checkpoint={source} is not read")
    copy = os.path.join(directory, f"params_until_step_{step}.yaml")
    if changed and not os.path.exists(copy):
        shutil.copyfile(os.path.join(directory, PARAMS), copy)
        _log.info(f"note: {copy} keeps the old values")


def _remove_best(best: str) -> None:
    """Removes the best checkpoint of a start that made no step; one of real training is an error.

    Self-critical training saves a best checkpoint before its first step.
    """
    if read_best(best).get("best_ckpt_global_step"):
        raise ValueError(
            f"{best} is left from a training whose checkpoints were deleted. Move it away, or "
            "choose another `model_dir`."
        )
    if os.path.exists(best):
        shutil.rmtree(best)


def _copy_from_data(data: PreparedData, directory: str) -> None:
    """Copies the files of the prepared data that a run keeps."""
    for name in (VOCABULARY, FINGERPRINT, *saved.SAVED, DOCUMENT_FREQUENCY):
        source = os.path.join(data.folder, name)
        target = os.path.join(directory, name)
        if files.exists(source):
            saved.copy(source, target)
        else:  # it may be left by a start with other data that never saved a checkpoint
            files.remove(target)


# ---- create --------------------------------------------------------------------------------------


def create(
    directory: str,
    experiment: str,
    params: configs.Experiment,
    vocab: Vocab,
    fingerprint: dict[str, Any],
    model: Captioner,
    copied: Sequence[str] = (),
    dtype: str = "",
    backbone: Backbone | Detector | None = None,
) -> str:
    """Writes a new run directory with one checkpoint; returns the path of the checkpoint.

    The checkpoint is written last, so a directory with a checkpoint is complete.

    Args:
      directory: path of the directory; it must be new or empty.
      experiment: name of the experiment, the configuration from which `params` was made.
      params: configuration of `model`.
      vocab: vocabulary of `model`.
      fingerprint: the content of dataset.json, which describes the data that `model` was trained
        on.
      model: the captioner, whose weights become the checkpoint of step 0.
      copied: paths of further files and directories to copy into the directory.
      dtype: dtype in which weights are stored; "" stores them as they are.
      backbone: the network that makes the features of pictures. Its weights are written, and it
        becomes the entry `backbone` of `fingerprint`. None leaves this entry as it is.

    Raises:
      ValueError: `directory` is not empty or not local, or a weight is too large for `dtype`.
    """
    _check_local(directory)
    os.makedirs(directory, exist_ok=True)
    if os.listdir(directory):
        raise ValueError(f"{directory} is not empty: name a new directory, or remove this one.")
    weights = converted(model.checkpoint_items["weights"], dtype)
    configs.save(params, experiment, os.path.join(directory, PARAMS))
    vocab.save(os.path.join(directory, VOCABULARY))
    if backbone is not None:
        made = backbone.made_by(*saved.save(backbone.network, directory, None))
        fingerprint = fingerprint | {"backbone": made}
    files.write_json(os.path.join(directory, FINGERPRINT), fingerprint)
    for path in copied:
        saved.copy(path, os.path.join(directory, os.path.basename(path)))
    step = tf.Variable(0, dtype=tf.int64, trainable=False)
    checkpoint = os.path.join(directory, "ckpt-0")
    tf.train.Checkpoint(global_step=step, weights=weights).write(checkpoint)
    with open(os.path.join(directory, "checkpoint"), "w", encoding="utf-8") as file:
        file.write('model_checkpoint_path: "ckpt-0"\nall_model_checkpoint_paths: "ckpt-0"\n')
    return checkpoint


def _check_local(directory: str) -> None:
    if files.is_remote(directory):
        raise ValueError(
            f"{directory} is not a local path. Name a local directory, and copy the run later."
        )
