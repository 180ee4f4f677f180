"""Small runs: the mean of the last checkpoints, and a run directory without training state."""

import math
import os
import pathlib

import numpy as np

from tfcap import configs, files
from tfcap.backbones import networks, saved
from tfcap.backbones.backbone import Backbone
from tfcap.data.document_frequency import DOCUMENT_FREQUENCY
from tfcap.files import write_json
from tfcap.runs.checkpoints import restore_weights, saved_steps
from tfcap.runs.directory import INFO, PARAMS, create
from tfcap.runs.run import Run, load


def load_mean(model_dir: str, last: int) -> Run:
    """Loads a run with the mean of the weights of its `last` newest training checkpoints.

    The mean is computed in float64. If the run has `ema_decay`, it is the mean of the moving
    averages.
    """
    run = load(model_dir, "latest")
    steps = saved_steps(run.directory)
    if len(steps) < last:
        raise ValueError(
            f"{run.directory} has {len(steps)} checkpoints, fewer than --last={last}. To keep "
            f"more, train with trainer.max_to_keep={last}."
        )
    weights = run.whole.checkpoint_items["weights"]
    sums = {name: np.zeros(weight.shape) for name, weight in weights.items()}
    for step in steps[-last:]:
        restore_weights(run.whole, os.path.join(run.directory, f"ckpt-{step}"))
        for name, weight in weights.items():
            sums[name] += weight.numpy()
    for name, weight in weights.items():
        weight.assign((sums[name] / last).astype(weight.dtype.as_numpy_dtype))
    return run


def write(run: Run, out: str, weights: str = "float16") -> str:
    """Writes a small run directory, which every command accepts; returns its checkpoint.

    The directory has no optimizer state, no curves and no file names of the data. It has document
    frequencies only if decoding uses them (`order=consensus`). If a pip package contains the
    weights of the backbone, their SHA-256 is stored instead.

    Args:
      run: the run, from `load`.
      out: the directory to write; it must be new or empty.
      weights: `float16` or `float32`, how weights are stored. They are float32 again when the run
        is loaded.
    """
    options, data_dir = run.params.task.decoding, run.params.task.data_dir
    if os.path.isabs(data_dir) and not files.is_remote(data_dir):
        # data/coco of /home/me/project/data/coco
        data_dir = os.path.join(*pathlib.Path(data_dir).parts[1:][-2:])
    # The words of the run are those of its own checkpoint: nothing is left to map.
    task = {"init_checkpoint": "", "remap_vocab": False, "data_dir": data_dir}
    # dataset.json without names of files: shards, skipped pictures, the folder.
    paths = ("images", "skipped", "skipped_rows")
    fingerprint = {key: value for key, value in run.fingerprint.items() if key not in paths}
    fingerprint["splits"] = {
        name: {key: value for key, value in split.items() if key != "shards"}
        for name, split in fingerprint.get("splits", {}).items()  # a converted run has none
    }
    copied = []
    if made_by := run.fingerprint["backbone"]:
        digest = None
        if made_by["name"] == networks.LITE:
            backbone = Backbone.from_fingerprint(run.fingerprint, run.directory)
            digest = networks.wheel_sha256(backbone.model)
        if digest:
            fingerprint["backbone"] = {**made_by, saved.WHEEL_SHA256: digest}
        elif made_by["weights"]:
            copied.append(os.path.join(run.directory, os.path.basename(made_by["weights"])))
    if options.search == "sample" and options.order == "consensus":
        copied.append(os.path.join(run.frequencies_folder(), DOCUMENT_FREQUENCY))
    path = create(
        out,
        configs.resume(os.path.join(run.directory, PARAMS))[0],
        run.params.replace(task=task),
        run.vocab,
        fingerprint,
        run.whole,
        [file for file in copied if files.exists(file)],
        dtype=weights,
    )
    # The perplexity of a model that diverged is infinite, which JSON does not have.
    scores = {name: value for name, value in run.scores.items() if math.isfinite(value)}
    write_json(os.path.join(out, INFO), {**scores, "signature": run.signature})
    return path
