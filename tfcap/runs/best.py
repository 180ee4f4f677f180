"""The best checkpoint of a run: its folder, its scores and its signature."""

import os
from typing import Any

from tfcap import configs
from tfcap.files import read_json
from tfcap.runs.checkpoints import step_of
from tfcap.runs.signature import CROSS_ENTROPY, signature

PARAMS = "params.yaml"  # in the directory of a run: its configuration
INFO = "info.json"  # beside the best checkpoint: its scores, step and signature
# What the scores of a validation depend on beside the weights. All of it may change in a run.
_MEASURED = (
    "task.decoding.",
    "task.validation_data.split",
    "task.validation_data.limit",
    "task.validation_data.max_regions",
    "trainer.validation_steps",
)
# It decides how many images are validated, if `validation_steps` does not validate all.
_BATCH = "task.validation_data.global_batch_size"
_DAMAGED = "Remove it: the scores beside the checkpoint are then unknown."


def best_directory(directory: str, params: configs.Experiment) -> str:
    """Returns the folder in which a run keeps its best checkpoint."""
    return os.path.join(directory, params.trainer.best_checkpoint_export_subdir or "best_ckpt")


def read_best(best: str) -> dict[str, float]:
    """Reads the scores of the best checkpoint from its folder; empty if there is none yet."""
    path = os.path.join(best, INFO)
    if not os.path.exists(path):
        return {}
    content = _read_info(path)
    return {name: value for name, value in content.items() if isinstance(value, float)}


def read_intervals(best: str) -> tuple[int, dict[str, tuple[float, float]]]:
    """Reads of how many images the scores of the best checkpoint are, and their 95 % intervals.

    Returns:
      The number, 0 if it is not known; and (low, high) by the name of the score.
    """
    path = os.path.join(best, INFO)
    content = _read_info(path) if os.path.exists(path) else {}
    return content.get("images", 0), content.get("intervals", {})


def read_scores(checkpoint: str) -> dict[str, float]:
    """Reads the scores beside a checkpoint; empty if there are none, or if they are of another.

    A small run has the scores of its first checkpoint, number 0. Training may add others.
    """
    folder = os.path.dirname(checkpoint)
    return read_best(folder) if _describes(folder, checkpoint) else {}


def _describes(folder: str, checkpoint: str) -> bool:
    """Returns whether the scores in the folder of a checkpoint, if there are any, are its own."""
    is_run = os.path.exists(os.path.join(folder, PARAMS))
    return not is_run or not step_of(checkpoint)


def measured(params: configs.Experiment) -> dict[str, Any]:
    """Returns the keys, with their values, that decide how a validation is scored."""
    keys = (*_MEASURED, _BATCH) if params.trainer.validation_steps > 0 else _MEASURED
    return {key: value for key, value in configs.values(params).items() if key.startswith(keys)}


def read_measured(best: str) -> dict[str, Any]:
    """Reads how the scores of the best checkpoint were measured; empty if its folder does not say.

    Earlier versions did not write it.
    """
    path = os.path.join(best, INFO)
    return dict(_read_info(path).get("measured") or {}) if os.path.exists(path) else {}


def read_signature(path: str, params: configs.Experiment) -> str:
    """Reads the signature saved with a checkpoint; without one it follows from `params`."""
    folder = os.path.dirname(path)
    info = os.path.join(folder, INFO)
    if os.path.exists(info) and _describes(folder, path):
        if saved := _read_info(info).get("signature"):
            # Earlier versions wrote XE.
            return CROSS_ENTROPY if saved == "XE" else str(saved)
    return signature(params.task) if step_of(path) else "unknown (converted or averaged)"


def _read_info(path: str) -> dict[str, Any]:
    """Reads the file beside the best checkpoint. Raises ValueError if it is damaged."""
    content = read_json(path, _DAMAGED)
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise ValueError(f"{path} must hold a JSON object. Received: {kind}. {_DAMAGED}")
    return content
