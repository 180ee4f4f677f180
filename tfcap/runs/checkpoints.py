"""Finds and repairs checkpoint files, and restores weights from them by name."""

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf

from tfcap import pretrained
from tfcap.files import replacing
from tfcap.models.captioner import Captioner
from tfcap.models.end_to_end import PREFIX

STATE = "checkpoint"  # the file in which TensorFlow names the newest checkpoint


def newest_checkpoint(directory: str) -> str | None:
    """Finds the path, without ending, of the newest checkpoint; None if there is none.

    It is the one that the file `checkpoint` names, otherwise the one of the highest step.
    """
    path = _named(directory)
    if path or not os.path.isdir(directory):
        return path
    matches = [re.fullmatch(r"(.+-(\d+))\.index", name) for name in os.listdir(directory)]
    newest = max((match for match in matches if match), key=lambda m: int(m[2]), default=None)
    return os.path.join(directory, newest[1]) if newest else None


def _named(directory: str) -> str | None:
    """Returns the checkpoint that TensorFlow itself would load; None if it finds none."""
    try:
        return tf.train.latest_checkpoint(directory)
    except ValueError:  # the file is empty or not text
        return None


def find(checkpoint: str) -> str:
    """Finds a checkpoint by its path, its directory or the name of a pretrained model.

    Returns:
      The path without its ending; of a directory, that of the newest checkpoint.
    """
    checkpoint = pretrained.place(checkpoint)
    path = newest_checkpoint(checkpoint) if os.path.isdir(checkpoint) else checkpoint
    if not path or not tf.io.gfile.exists(path + ".index"):
        raise ValueError(
            f"There is no checkpoint in {checkpoint}. Give a directory that has one, or the path "
            "of a checkpoint without its ending, for example RUN/ckpt-1000."
        )
    return path


def restore_weights(
    model: Captioner, checkpoint: str, rows: np.ndarray | None = None, start: bool = False
) -> str:
    """Restores all weights of `model` from a checkpoint.

    If training kept a moving average of the weights (`ema_decay`), the average is restored.

    Args:
      model: the captioner.
      checkpoint: as in `find`.
      rows: for a checkpoint of another vocabulary: int [V], for each word of the model its id in
        the checkpoint, or -1 if it has no such word. The weights of such words keep their values.
      start: whether another run starts from the checkpoint. If that checkpoint has no backbone, the
        backbone of `model` keeps the weights of the prepared data.

    Returns:
      The path of the checkpoint that was read.
    """
    path = find(checkpoint)
    weights = model.checkpoint_items["weights"]
    axes = {} if rows is None else model.vocabulary_axes
    # Weights are read by name: tf.train.Checkpoint would print a warning for each tensor of the
    # checkpoint after a failed read.
    try:
        reader = tf.train.load_checkpoint(path)
        shapes = reader.get_variable_to_shape_map()
        started = "average_started/.ATTRIBUTES/VARIABLE_VALUE"
        averaged = reader.has_tensor(started) and bool(reader.get_tensor(started))
        group = "average" if averaged else "weights"
        check_weights(model, path, group)
        backbone = [name for name in weights if name.startswith(PREFIX)]
        if start and not any(_tensor_name(name, group) in shapes for name in backbone):
            weights = {n: weight for n, weight in weights.items() if n not in backbone}
        for name, variable in weights.items():
            shape, wanted = shapes.get(_tensor_name(name, group)), variable.shape.as_list()
            if rows is not None and name in axes and shape and rows.max() < shape[axes[name]]:
                wanted[axes[name]] = shape[axes[name]]
            if shape is None:
                raise ValueError(
                    f"{path} does not fit this model ({model.name}): it has no weight {name}"
                )
            if shape != wanted:
                raise ValueError(
                    f"{path} does not fit this model ({model.name}): {name} has the shape "
                    f"{variable.shape.as_list()} here and {shape} there"
                )
        values = {name: reader.get_tensor(_tensor_name(name, group)) for name in weights}
    except (tf.errors.OpError, RuntimeError, IndexError) as error:
        raise ValueError(f"{path} is damaged: {str(error).splitlines()[0]}") from error
    for name, variable in weights.items():
        value = values[name]
        if rows is not None and name in axes:
            known = np.moveaxis(value, axes[name], 0)[rows[rows >= 0]]
            value = variable.numpy().copy()
            np.moveaxis(value, axes[name], 0)[rows >= 0] = known  # a view of `value`
        variable.assign(value)  # TensorFlow converts the float16 of a small run
    return path


def converted(weights: Mapping[str, tf.Variable], dtype: str) -> dict[str, tf.Variable]:
    """Returns copies of weights, by their names, in another precision; empty keeps the weights."""
    if not dtype:
        return dict(weights)
    with np.errstate(over="ignore"):
        values = {name: weight.numpy().astype(dtype) for name, weight in weights.items()}
    for name, value in values.items():
        if (np.isinf(value) & np.isfinite(weights[name].numpy())).any():
            raise ValueError(f"{name} is too large for {dtype}. Store the weights as float32.")
    return {name: tf.Variable(value) for name, value in values.items()}


def has_half_weights(checkpoint: str) -> bool:
    """Returns whether the weights of a checkpoint are float16, as in a small run."""
    dtypes = tf.train.load_checkpoint(checkpoint).get_variable_to_dtype_map()
    return any(is_weight(name) and dtype == tf.float16 for name, dtype in dtypes.items())


def check_weights(model: Captioner, checkpoint: str, group: str = "weights") -> None:
    """Raises ValueError if a checkpoint has a weight that the model does not have.

    Checkpoints number the variables of the optimizer: those of the weights behind a missing one
    would be restored from the wrong ones wherever the shapes agree.
    """
    known = {_tensor_name(name, group) for name in model.checkpoint_items["weights"]}
    for key in sorted(tf.train.load_checkpoint(checkpoint).get_variable_to_shape_map()):
        if key.startswith(f"{group}/") and key not in known:
            raise ValueError(
                f"{checkpoint} does not fit this model ({model.name}), which has no weight "
                f"{readable_name(key)}: it was trained with other model options"
            )


def _tensor_name(name: str, group: str) -> str:
    """Returns the key of a weight in a checkpoint, as TensorFlow writes dictionaries."""
    escaped = name.replace(".", "..").replace("/", ".S")
    return f"{group}/{escaped}/.ATTRIBUTES/VARIABLE_VALUE"


def is_weight(tensor: str) -> bool:
    """Returns whether the tensor of a checkpoint with this name belongs to the model."""
    return tensor.startswith(("weights/", "average/"))


def readable_name(tensor: str) -> str:
    """Returns the name of a tensor of a checkpoint as the model has it: `decoder/kernel`."""
    group, _, rest = tensor.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE").partition("/")
    rest = re.sub(r"\.([.S])", lambda match: "." if match[1] == "." else "/", rest)
    return rest if is_weight(tensor) else "/".join(filter(None, [group, rest]))


def saved_steps(directory: str) -> list[int]:
    """Lists the steps of the checkpoints in a directory, complete or not, in rising order."""
    matches = [
        re.fullmatch(r"ckpt-(\d+)\.(index|data-\d+-of-\d+)", n) for n in os.listdir(directory)
    ]
    return sorted({int(match[1]) for match in matches if match})


def step_of(checkpoint: str | None) -> int:
    """Reads the global step of a training checkpoint; 0 if `checkpoint` is None."""
    if checkpoint is None:
        return 0
    reader = tf.train.load_checkpoint(checkpoint)
    return int(reader.get_tensor("global_step/.ATTRIBUTES/VARIABLE_VALUE"))


def repair_checkpoints(directory: str) -> str | None:
    """Finds the newest readable checkpoint and makes TensorFlow find the same one.

    If the file `checkpoint` is damaged, a run would silently start from step 0; if the newest
    checkpoint is damaged, TensorFlow tries no older one. Files of a killed save are removed.

    Returns:
      The path of the checkpoint; None if there is no checkpoint.
    """
    names = os.listdir(directory)
    for name in names:
        if re.fullmatch(r"ckpt-\d+_temp", name):
            shutil.rmtree(os.path.join(directory, name), ignore_errors=True)
    seen = saved_steps(directory)
    good = [f"ckpt-{step}" for step in seen]
    while good:
        newest = os.path.join(directory, good[-1])
        try:
            for _ in tensors(newest):
                pass
        except ValueError as why:
            print(f"warning: {newest} is damaged and skipped: {why}", file=sys.stderr)
            good.pop()
            continue
        if len(good) < len(seen) or _named(directory) != newest:
            write_state(directory, good)
        return newest
    # TensorFlow writes the data first, then the index, then `checkpoint`. Data alone may come from
    # a first save that was killed.
    if STATE in names or any(re.fullmatch(r"ckpt-\d+\.index", name) for name in names):
        raise ValueError(
            f"None of the {len(seen)} checkpoints in {directory} can be read. Restore one from a "
            "backup, or start again in another --model_dir."
        )
    return None


def write_state(directory: str, names: list[str]) -> None:
    """Writes the file `checkpoint`, so that TensorFlow finds the last of `names`.

    The names, oldest first, are relative, so that the directory can be moved.
    """
    lines = [f'model_checkpoint_path: "{names[-1]}"']
    lines += [f'all_model_checkpoint_paths: "{name}"' for name in names]
    path = os.path.join(directory, STATE)
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def tensors(path: str) -> Iterator[tuple[str, np.ndarray | bytes]]:
    """Yields name and value of every tensor of a checkpoint; ValueError says what is damaged."""
    if not os.path.exists(path + ".index"):
        raise ValueError("its index is missing")
    try:
        reader = tf.train.load_checkpoint(path)
        for name in reader.get_variable_to_shape_map():
            yield name, reader.get_tensor(name)
    except Exception as error:  # TensorFlow raises four unrelated types of errors here
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(reason) from error
