"""Finds checkpoints, and restores weights by name."""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import tensorflow as tf

from tfcap import pretrained
from tfcap.models.captioner import Captioner
from tfcap.models.end_to_end import PREFIX

_REMEDY = (
    "The options of task.model must be those in the params.yaml of the run of the checkpoint. A "
    "stage that `then` of tfcap.train names takes the options of the stage before it. After the "
    "experiment finetune, train finetune_scst."
)


def newest_checkpoint(directory: str) -> str | None:
    """Returns the path of the newest checkpoint in a directory; None if there is none.

    The path has no file ending, for example RUN/ckpt-1000. The file `checkpoint` in the directory
    names the newest checkpoint. Without this file, the checkpoint with the largest number of steps
    in its name counts as the newest.

    Args:
      directory: the directory.
    """
    path = tf.train.latest_checkpoint(directory)
    if path or not os.path.isdir(directory):
        return path
    matches = [re.fullmatch(r"(.+-(\d+))\.index", name) for name in os.listdir(directory)]
    newest = max((match for match in matches if match), key=lambda m: int(m[2]), default=None)
    return os.path.join(directory, newest[1]) if newest else None


def find(name: str) -> str:
    """Returns the path of the checkpoint that a user names.

    Args:
      name: path of a checkpoint, path of a directory, name of a pretrained model, or
        `hf://OWNER/NAME`. In a directory or a model, the newest checkpoint is found.

    Raises:
      ValueError: there is no such checkpoint.
    """
    return path_of(pretrained.directory_of(name))


def path_of(checkpoint: str) -> str:
    """Returns the path of a checkpoint, without a file ending.

    Args:
      checkpoint: path of a checkpoint; or a directory, whose newest checkpoint is taken.

    Raises:
      ValueError: there is no such checkpoint.
    """
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
    """Sets all weights of a model to the weights in a checkpoint.

    If training kept a moving average of the weights (`ema_decay`), the average is taken.

    Args:
      model: the captioner.
      checkpoint: path of the checkpoint, or of a directory, whose newest checkpoint is taken.
      rows: None if the checkpoint and `model` have the same vocabulary. Otherwise the id in the
        checkpoint of each of the model's V words, int [V]. It is -1 for words that the checkpoint
        does not know; the weights of these words do not change.
      start: whether the weights are the start of another run. In this case the checkpoint may lack
        the weights of a backbone, which then keeps its weights; and the checkpoint and `model` may
        each lack the weights of a phase of training, see `Captioner.phase_weights`.

    Returns:
      The path of the checkpoint, without a file ending.

    Raises:
      ValueError: there is no such checkpoint, it is damaged, or the names or shapes of its weights
        are not those of `model`.
    """
    path = path_of(checkpoint)
    weights = model.checkpoint_items["weights"]
    axes = {} if rows is None else model.vocabulary_axes
    # Weights are read by name: tf.train.Checkpoint would print a warning for each tensor of the
    # checkpoint after a failed read.
    with damage_named(path):
        reader = tf.train.load_checkpoint(path)
        shapes = reader.get_variable_to_shape_map()
        group = _group(reader)
        for part in (PREFIX, *model.on_features().phase_weights) if start else ():
            tensors = [key for key in shapes if key.startswith(_tensor_start(part, group))]
            if not tensors:
                weights = {n: weight for n, weight in weights.items() if not n.startswith(part)}
            elif part != PREFIX and not any(name.startswith(part) for name in weights):
                shapes = {key: shape for key, shape in shapes.items() if key not in tensors}
        _check_none_left(model.name, weights, path, shapes, group)
        for name, variable in weights.items():
            shape = shapes.get(_tensor_name(name, group))
            expected = variable.shape.as_list()
            if rows is not None and name in axes and shape and rows.max() < shape[axes[name]]:
                expected[axes[name]] = shape[axes[name]]
            if shape is None:
                raise ValueError(f"{path} lacks the weight {name} of {model.name}. {_REMEDY}")
            if shape != expected:
                raise ValueError(
                    f"{path} does not fit this model ({model.name}): {name} has the shape "
                    f"{shape}, not {variable.shape.as_list()}. {_REMEDY}"
                )
        keys = [_tensor_name(name, group) for name in weights]
        stored = reader.get_variable_to_dtype_map()
        # The reader would return arrays, which TensorFlow copies.
        tensors = tf.raw_ops.RestoreV2(
            prefix=path,
            tensor_names=keys,
            shape_and_slices=[""] * len(keys),
            dtypes=[stored[key] for key in keys],
        )
        values = dict(zip(weights, tensors, strict=True))
    for name, variable in weights.items():
        value = values[name]
        if rows is not None and name in axes:
            value = _with_rows(variable.numpy(), value.numpy(), rows, axes[name])
        variable.assign(tf.cast(value, variable.dtype))  # a small run has float16
    return path


def _group(reader) -> str:
    """Returns the name before the weights to restore: `average` if the checkpoint has one.

    Args:
      reader: the result of `tf.train.load_checkpoint`.
    """
    started = "average_started/.ATTRIBUTES/VARIABLE_VALUE"
    return "average" if reader.has_tensor(started) and reader.get_tensor(started) else "weights"


def _check_none_left(
    model: str, weights: Iterable[str], path: str, tensors: Iterable[str], group: str
) -> None:
    """Raises ValueError if a checkpoint has a weight that the model does not have."""
    expected = {_tensor_name(name, group) for name in weights}
    for key in sorted(tensors):
        if key.startswith(f"{group}/") and key not in expected:
            weight = readable_name(key)
            raise ValueError(f"{path} has the weight {weight}, which {model} lacks. {_REMEDY}")


def _with_rows(value: np.ndarray, stored: np.ndarray, rows: np.ndarray, axis: int) -> np.ndarray:
    """Returns a weight with the rows of words that a checkpoint of another vocabulary has.

    Args:
      value: the weight of the model; its axis `axis` counts its words.
      stored: the weight in the checkpoint.
      rows: as in `restore_weights`.
      axis: the axis of the words.
    """
    result = value.copy()
    shared = np.moveaxis(stored, axis, 0)[rows[rows >= 0]]
    np.moveaxis(result, axis, 0)[rows >= 0] = shared  # a view of `result`
    return result


def converted(weights: Mapping[str, tf.Variable], dtype: str) -> dict[str, tf.Variable]:
    """Returns copies of weights in another dtype, by name.

    Args:
      weights: the weights by name.
      dtype: name of the new dtype; for "" the weights themselves are returned.

    Raises:
      ValueError: a finite number becomes infinite in the new dtype.
    """
    if not dtype:
        return dict(weights)
    with np.errstate(over="ignore"):
        values = {name: weight.numpy().astype(dtype) for name, weight in weights.items()}
    for name, value in values.items():
        if (np.isinf(value) & np.isfinite(weights[name].numpy())).any():
            raise ValueError(
                f"A number of the weight {name} is too large for {dtype}. Store the weights with "
                "`weights=float32`."
            )
    return {name: tf.Variable(value) for name, value in values.items()}


def has_half_weights(checkpoint: str) -> bool:
    """Returns whether a checkpoint stores weights as float16, as `compact.write` does.

    Args:
      checkpoint: path of the checkpoint.
    """
    dtypes = tf.train.load_checkpoint(checkpoint).get_variable_to_dtype_map()
    return any(is_weight(name) and dtype == tf.float16 for name, dtype in dtypes.items())


def _tensor_start(name: str, group: str) -> str:
    """Returns how the keys of the weights begin whose names begin with `name`; see below."""
    return f"{group}/{name.replace('.', '..').replace('/', '.S')}"


def _tensor_name(name: str, group: str) -> str:
    """Returns the key under which TensorFlow stores a weight of a dictionary in a checkpoint."""
    return f"{_tensor_start(name, group)}/.ATTRIBUTES/VARIABLE_VALUE"


def is_weight(tensor: str) -> bool:
    """Returns whether an entry of a checkpoint is a weight of the model, not a state of training.

    Args:
      tensor: the key under which the checkpoint stores the entry.
    """
    return tensor.startswith(("weights/", "average/"))


def readable_name(tensor: str) -> str:
    """Returns the name that a weight of a checkpoint has in the model, such as `decoder/kernel`.

    Args:
      tensor: the key under which the checkpoint stores the weight, such as
        `weights/decoder.Skernel/.ATTRIBUTES/VARIABLE_VALUE`.
    """
    group, _, rest = tensor.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE").partition("/")
    rest = re.sub(r"\.([.S])", lambda match: "." if match[1] == "." else "/", rest)
    return rest if is_weight(tensor) else "/".join(filter(None, [group, rest]))


def saved_steps(directory: str) -> list[int]:
    """Returns the steps at which the checkpoints in a directory were saved, ascending.

    Args:
      directory: the directory, with checkpoints named ckpt-STEP.
    """
    matches = [re.fullmatch(r"ckpt-(\d+)\.index", name) for name in os.listdir(directory)]
    return sorted(int(match[1]) for match in matches if match)


def step_of(checkpoint: str | None) -> int:
    """Returns the number of training steps that were done when a checkpoint was saved.

    Args:
      checkpoint: path of the checkpoint; for None the result is 0.
    """
    if checkpoint is None:
        return 0
    with damage_named(checkpoint):
        reader = tf.train.load_checkpoint(checkpoint)
        return int(reader.get_tensor("global_step/.ATTRIBUTES/VARIABLE_VALUE"))


@contextlib.contextmanager
def damage_named(checkpoint: str) -> Iterator[None]:
    """Context manager that turns TensorFlow's errors about a damaged checkpoint into ValueErrors.

    The ValueErrors name the checkpoint and say what to do. Other errors pass unchanged.

    Args:
      checkpoint: path of the checkpoint that the block reads.
    """
    try:
        yield
    except (tf.errors.OpError, RuntimeError, IndexError) as error:
        raise ValueError(
            f"{checkpoint} is damaged: {str(error).splitlines()[0]}. Remove its files: "
            "then the checkpoint before it is used."
        ) from error
