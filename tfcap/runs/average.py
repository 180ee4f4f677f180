"""Averages the weights of a run's last checkpoints and writes them as a new run."""

import os
import re

import numpy as np
import yaml

from tfcap.models.captioner import Captioner
from tfcap.runs import run as runs
from tfcap.runs.checkpoints import restore_weights
from tfcap.runs.compatibility import PARAMS


def last_checkpoints(directory: str, count: int) -> list[str]:
    """Lists the `count` newest training checkpoints of a run, oldest first.

    Raises:
      ValueError: if there are fewer.
    """
    found = [re.fullmatch(r"ckpt-(\d+)\.index", name) for name in os.listdir(directory)]
    steps = sorted(int(match[1]) for match in found if match)
    if len(steps) < count:
        raise ValueError(
            f"--last must be at most {len(steps)}, the number of checkpoints in {directory}. "
            f"Received: {count}; to have more, train with trainer.max_to_keep={count}"
        )
    return [os.path.join(directory, f"ckpt-{step}") for step in steps[-count:]]


def average(model: Captioner, paths: list[str]) -> None:
    """Gives `model` the mean of the weights of checkpoints, added up in float64.

    If the run has `ema_decay`, these are the moving averages, which each of its checkpoints is
    evaluated with.

    Raises:
      ValueError: if one is damaged or lacks or misshapes a weight.
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
    """Writes the run `out` with the mean of the `last` checkpoints of the run `model_dir`.

    Returns:
      The paths of those checkpoints.

    Raises:
      ValueError: if there are fewer or damaged ones, `model_dir` is no run, or `out` is not empty.
    """
    run = runs.load(model_dir, "latest")
    paths = last_checkpoints(model_dir, last)
    average(run.model, paths)
    with open(os.path.join(model_dir, PARAMS), encoding="utf-8") as file:
        experiment = yaml.safe_load(file)["experiment"]
    files = [os.path.join(model_dir, name) for name in runs.OPTIONAL]
    runs.create(
        out,
        experiment,
        run.params,
        run.vocab,
        run.fingerprint,
        run.model,
        [file for file in files if os.path.exists(file)],
    )
    return paths
