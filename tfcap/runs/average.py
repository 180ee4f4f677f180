"""Averages the weights of the last checkpoints of a run."""

import os
import re

import numpy as np

from tfcap.models.captioner import Captioner
from tfcap.runs import run as runs
from tfcap.runs.checkpoints import restore_weights


def last_checkpoints(directory: str, count: int) -> list[str]:
    """Lists the `count` newest training checkpoints of a run, oldest first.

    Raises:
      ValueError: if there are fewer than `count`.
    """
    matches = [re.fullmatch(r"ckpt-(\d+)\.index", name) for name in os.listdir(directory)]
    steps = sorted(int(match[1]) for match in matches if match)
    if len(steps) < count:
        raise ValueError(
            f"--last must be at most {len(steps)}, the number of checkpoints in {directory}. "
            f"Received: {count}. To keep more, train with trainer.max_to_keep={count}."
        )
    return [os.path.join(directory, f"ckpt-{step}") for step in steps[-count:]]


def average(model: Captioner, paths: list[str]) -> None:
    """Assigns to `model` the mean of the weights of several checkpoints, summed in float64.

    If the run has `ema_decay`, the moving averages of the checkpoints are averaged, because each
    checkpoint is evaluated with its moving average.

    Args:
      model: the captioner; its weights change.
      paths: the checkpoints.

    Raises:
      ValueError: if a checkpoint is damaged, or a weight is missing or has another shape.
    """
    weights = model.checkpoint_items["weights"]
    sums = {name: np.zeros(weight.shape) for name, weight in weights.items()}
    for path in paths:
        restore_weights(model, path)
        for name, weight in weights.items():
            sums[name] += weight.numpy()
    for name, weight in weights.items():
        weight.assign((sums[name] / len(paths)).astype(weight.dtype.as_numpy_dtype))


def load(model_dir: str, last: int) -> runs.Run:
    """Loads a run with the mean of the weights of its `last` newest checkpoints.

    Raises:
      ValueError: if there are fewer checkpoints or one is damaged, or `model_dir` holds no run.
    """
    run = runs.load(model_dir, "latest")
    average(run.whole, last_checkpoints(run.directory, last))
    return run
