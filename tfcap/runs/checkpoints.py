"""Checkpoints as files: finding the newest, passing over damaged ones, reading weights by name."""

import os
import re
import shutil
import sys

import numpy as np
import tensorflow as tf

from tfcap.files import replacing
from tfcap.models.captioner import Captioner

STATE = "checkpoint"  # TensorFlow's note of which checkpoint is the newest


def newest_checkpoint(directory: str) -> str | None:
    """The checkpoint that TensorFlow's file `checkpoint` names, the newest one if it names none.

    That file may be damaged while the checkpoints are whole: then TensorFlow finds nothing, or
    raises, depending on the damage.
    """
    try:
        path = tf.train.latest_checkpoint(directory)
    except ValueError:  # it is empty or not text
        path = None
    if path or not os.path.isdir(directory):
        return path
    found = [re.fullmatch(r"(.+-(\d+))\.index", name) for name in os.listdir(directory)]
    newest = max((match for match in found if match), key=lambda m: int(m[2]), default=None)
    return os.path.join(directory, newest[1]) if newest else None


def find(checkpoint: str) -> str:
    """The path of a checkpoint, given it or a directory of checkpoints, then the latest.

    Raises:
      ValueError: if there is none.
    """
    path = newest_checkpoint(checkpoint) if os.path.isdir(checkpoint) else checkpoint
    if not path or not tf.io.gfile.exists(path + ".index"):
        raise ValueError(f"there is no checkpoint in {checkpoint}")
    return path


def restore_weights(model: Captioner, checkpoint: str, rows: np.ndarray | None = None) -> str:
    """Restores every weight of `model` from a checkpoint, or the latest one of a directory.

    Where training kept an average of the weights (`ema_decay`), they are the average.

    Args:
      model: the captioner.
      checkpoint: its path, or a directory.
      rows: for a checkpoint of another vocabulary, int [V]: the id there of each word, or -1 for
        words that it lacks, whose weights stay as they are.

    Returns:
      The path of the checkpoint that was read.

    Raises:
      ValueError: if there is none, it is damaged, or its weights are not those of the model, in
        name or shape.
    """
    path = find(checkpoint)
    axes = {} if rows is None else model.vocabulary_axes
    weights = model.checkpoint_items["weights"]
    # Read by name and not by tf.train.Checkpoint, whose failed reads leave a warning for every
    # tensor of the checkpoint.
    try:
        reader = tf.train.load_checkpoint(path)
        shapes = reader.get_variable_to_shape_map()
        kind = _kind(reader)
        _refuse_unknown_weights(path, shapes, kind, model)
        for name, variable in weights.items():
            shape, wanted = shapes.get(_key(name, kind)), variable.shape.as_list()
            if name in axes and shape is not None and rows.max() < shape[axes[name]]:
                wanted[axes[name]] = shape[axes[name]]
            if shape != wanted:
                found = "not there" if shape is None else f"{shape} there"
                raise ValueError(
                    f"{path} does not fit this model ({model.name}, {len(weights)} weights): "
                    f"{name} is {variable.shape.as_list()} here and {found}"
                )
        values = {name: reader.get_tensor(_key(name, kind)) for name in weights}
    except (tf.errors.OpError, RuntimeError, IndexError) as error:
        raise ValueError(f"{path} is damaged: {str(error).splitlines()[0]}") from error
    for name, variable in weights.items():
        value = values[name]
        if name in axes:
            value = _merged(variable.numpy(), value, axes[name], rows)
        variable.assign(value)
    return path


def check_weights(model: Captioner, checkpoint: str) -> None:
    """Checks that training can go on from a checkpoint: the model must have all of its weights.

    The optimizer keeps its variables by number. With a weight less, each would be restored from the
    variable of another weight, where the shapes agree.

    Raises:
      ValueError: if the checkpoint holds a weight that the model does not have.
    """
    reader = tf.train.load_checkpoint(checkpoint)
    _refuse_unknown_weights(checkpoint, reader.get_variable_to_shape_map(), "weights", model)


def _refuse_unknown_weights(path, shapes, kind, model) -> None:
    """Raises ValueError for a weight of the group `kind` that `model` does not have."""
    known = {_key(name, kind) for name in model.checkpoint_items["weights"]}
    unknown = sorted(key for key in shapes if key.startswith(f"{kind}/") and key not in known)
    if unknown:
        name = unknown[0].split("/")[1].replace(".S", "/").replace("..", ".")
        raise ValueError(
            f"{path} does not fit this model ({model.name}): it holds {len(unknown)} weights that "
            f"the model does not have, such as {name}. It was trained with other model options, or "
            "by a version of tfcap that defined this system differently: train again"
        )


def _merged(mine: np.ndarray, other: np.ndarray, axis: int, rows: np.ndarray) -> np.ndarray:
    """`mine` with the entries of `other` for the words that it has."""
    known = rows >= 0
    result = np.moveaxis(mine.copy(), axis, 0)
    result[known] = np.moveaxis(other, axis, 0)[rows[known]]
    return np.moveaxis(result, 0, axis)


def _kind(reader) -> str:
    """The group of a checkpoint that holds what is validated: `trainer.Average`'s or `weights`."""
    started = "average_started/.ATTRIBUTES/VARIABLE_VALUE"
    averaged = reader.has_tensor(started) and bool(reader.get_tensor(started))
    return "average" if averaged else "weights"


def _key(name: str, kind: str) -> str:
    """Where a checkpoint keeps the item `name` of the group `kind`."""
    escaped = name.replace(".", "..").replace("/", ".S")
    return f"{kind}/{escaped}/.ATTRIBUTES/VARIABLE_VALUE"


def repair_checkpoints(directory: str) -> str | None:
    """Finds the newest checkpoint that can be read, and makes TensorFlow find the same one.

    TensorFlow goes by the small file `checkpoint`: damaged, it makes a run start over without a
    word, and a damaged newest checkpoint is never passed over. Left-over temporary files of a
    killed save are removed.

    Returns:
      The path of that checkpoint; None if there is none at all.

    Raises:
      ValueError: if there are checkpoints and none can be read.
    """
    names = os.listdir(directory)
    for name in names:
        if re.fullmatch(r"ckpt-\d+_temp", name):
            shutil.rmtree(os.path.join(directory, name), ignore_errors=True)
    found = [re.fullmatch(r"ckpt-(\d+)\.(index|data-\d+-of-\d+)", name) for name in names]
    # TensorFlow writes the index after the data and `checkpoint` last of all: data alone may be
    # the very first save, killed.
    saved = STATE in names or any(match[2] == "index" for match in found if match)
    seen = sorted({int(match[1]) for match in found if match})
    good = [f"ckpt-{step}" for step in seen]
    while good and (why := _damage(os.path.join(directory, good[-1]))):
        print(f"warning: {directory}/{good[-1]} is damaged, passed over: {why}", file=sys.stderr)
        good.pop()
    if good:
        newest = os.path.join(directory, good[-1])
        if len(good) < len(seen) or _named(directory) != newest:
            write_state(directory, good)
        return newest
    if saved:
        raise ValueError(
            f"none of the {len(seen)} checkpoints in {directory} can be read: restore one from a "
            "backup, or start over in another --model_dir"
        )
    return None


def _named(directory: str) -> str | None:
    """The checkpoint that TensorFlow would take."""
    try:
        return tf.train.latest_checkpoint(directory)
    except ValueError:  # the file is empty or not text
        return None


def write_state(directory: str, names: list[str]) -> None:
    """Writes `checkpoint`, the newest last: names alone, so that the directory can be moved."""
    lines = [f'model_checkpoint_path: "{names[-1]}"']
    lines += [f'all_model_checkpoint_paths: "{name}"' for name in names]
    path = os.path.join(directory, STATE)
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def _damage(path: str) -> str:
    """Why a checkpoint cannot be read, or nothing. Reads every tensor: their checksums count."""
    if not os.path.exists(path + ".index"):
        return "its index is missing"
    try:
        reader = tf.train.load_checkpoint(path)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except Exception as error:  # TensorFlow raises four unrelated types here
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    return ""
