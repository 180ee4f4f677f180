"""info.json, the file beside a checkpoint: its scores, and the objective it was trained for."""

import os
from collections.abc import Mapping
from typing import Any

from tfcap import __version__, configs
from tfcap.files import read_json
from tfcap.objectives import rewards
from tfcap.runs.checkpoints import step_of

PARAMS = "params.yaml"  # the configuration, in the directory of a run
INFO = "info.json"
CROSS_ENTROPY = "cross-entropy"
UNKNOWN = "unknown (converted or averaged)"  # the signature of weights that were not trained here


def best_directory(directory: str, params: configs.Experiment) -> str:
    """Returns the directory of the best checkpoint of a run."""
    return os.path.join(directory, params.trainer.best_checkpoint_export_subdir or "best_ckpt")


def read_info(best: str) -> dict[str, Any]:
    """Reads info.json in the directory of the best checkpoint; empty if there is none yet.

    The file has the scores by name, `best_ckpt_global_step`, `signature`, `images` (the number of
    validated images) and `intervals` (low and high of each score, 95 %).
    """
    path = os.path.join(best, INFO)
    remedy = "Remove it: the scores beside the checkpoint are then unknown."
    return read_json(path, remedy) if os.path.exists(path) else {}


def read_best(best: str) -> dict[str, float]:
    """Reads the scores of the best checkpoint; empty if there is none yet."""
    return scores_in(read_info(best))


def scores_in(info: Mapping[str, Any]) -> dict[str, float]:
    """Returns the scores in the content of info.json, by name."""
    return {name: value for name, value in info.items() if isinstance(value, float)}


def info_of(checkpoint: str) -> dict[str, Any]:
    """Reads the info.json that describes a checkpoint; empty if there is none."""
    directory = os.path.dirname(checkpoint)
    # The file in a small run describes its own checkpoint, of step 0, and not those that training
    # adds.
    is_added = os.path.exists(os.path.join(directory, PARAMS)) and step_of(checkpoint)
    return {} if is_added else read_info(directory)


def signature_of(checkpoint: str, task: configs.Task | None) -> str:
    """Returns what a checkpoint was trained for, as `signature` writes it.

    Args:
      checkpoint: path of the checkpoint.
      task: the configuration of its run; None if there is no run.
    """
    if stored := info_of(checkpoint).get("signature"):
        return stored
    return signature(task) if task and step_of(checkpoint) else UNKNOWN


def signature(task: configs.Task, hook: bool = False) -> str:
    """Describes the training objective in one line.

    Self-critical training is described as SacreEOS does it (Hu et al. 2023): whether the end mark
    counts, the reward, the baseline with the number of samples of an image, and the version.

    Args:
      task: the configuration.
      hook: whether a reward that the user defined is added.
    """
    if task.objective == "xe":
        return CROSS_ENTROPY
    options = task.self_critical
    baseline = {"greedy": "greedy", "others": "average"}[options.baseline]
    weights = options.reward.as_dict() | ({"hook": 1.0} if hook else {})
    reward = rewards.signature(**weights)
    return f"{reward}+{baseline}[nspi{options.samples}]+tfcap-{__version__}"
