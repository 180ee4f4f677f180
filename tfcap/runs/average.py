"""Averages the weights of the last checkpoints of a run and writes them as a new run."""

import os
import re

import numpy as np

from tfcap import configs
from tfcap.models.captioner import Captioner
from tfcap.runs import run as runs
from tfcap.runs.checkpoints import restore_weights
from tfcap.runs.compatibility import PARAMS


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


def write(model_dir: str, last: int, out: str) -> list[str]:
    """Writes a new run with the mean of the last checkpoints of another run.

    Args:
      model_dir: the directory of the other run.
      last: number of checkpoints to average.
      out: the directory of the new run.

    Returns:
      The paths of the averaged checkpoints, oldest first.

    Raises:
      ValueError: if there are fewer checkpoints or one is damaged, `model_dir` holds no run, or
        `out` is not empty.
    """
    run = runs.load(model_dir, "latest")
    paths = last_checkpoints(run.directory, last)
    model = run.whole
    average(model, paths)
    experiment, _ = configs.resume(os.path.join(run.directory, PARAMS))
    files = [os.path.join(run.directory, name) for name in runs.OPTIONAL]
    # The mean is the start now. Training in the new run must not be compared with an older one.
    params = run.params.replace(task={"init_checkpoint": "", "remap_vocab": False})
    runs.create(
        out,
        experiment,
        params,
        run.vocab,
        run.fingerprint,
        model,
        [file for file in files if os.path.exists(file)],
    )
    return paths
