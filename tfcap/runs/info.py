"""Reads info.json, the file beside a checkpoint: its scores and the objective of its training."""

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
    """Returns the path of the directory that has the best checkpoint of a run.

    Args:
      directory: directory of the run.
      params: configuration of the run. `trainer.best_checkpoint_export_subdir` names the directory
        inside `directory`; if it is empty, the name is best_ckpt.
    """
    return os.path.join(directory, params.trainer.best_checkpoint_export_subdir or "best_ckpt")


def read_info(best: str) -> dict[str, Any]:
    """Reads the info.json beside the best checkpoint of a run.

    Args:
      best: the directory of the best checkpoint, see `best_directory`.

    Returns:
      The content, which is empty if there is no such file yet. It has the scores by name, and the
      entries

      * `best_ckpt_global_step`: the step of the checkpoint;
      * `signature`: the objective of training;
      * `images`: the number of validated images;
      * `intervals`: the low and the high end of the 95 % interval of each score.
    """
    path = os.path.join(best, INFO)
    remedy = "Remove it: the scores beside the checkpoint are then unknown."
    return read_json(path, remedy) if os.path.exists(path) else {}


def read_best(best: str) -> dict[str, float]:
    """Returns the scores of the best checkpoint by name, and its step.

    The step has the name `best_ckpt_global_step`. The dictionary is empty if there is no best
    checkpoint yet.

    Args:
      best: the directory of the best checkpoint, see `best_directory`.
    """
    return scores_in(read_info(best))


def scores_in(info: Mapping[str, Any]) -> dict[str, float]:
    """Returns only the scores and `best_ckpt_global_step` in the content of an info.json.

    Args:
      info: the content, as `read_info` returns it.
    """
    return {name: value for name, value in info.items() if isinstance(value, float)}


def info_of(checkpoint: str) -> dict[str, Any]:
    """Reads the info.json in the directory of a checkpoint, if it describes this checkpoint.

    Args:
      checkpoint: path of the checkpoint.

    Returns:
      The content of the file, as in `read_info`; empty if no file describes the checkpoint.
    """
    directory = os.path.dirname(checkpoint)
    # The file in a small run describes its own checkpoint, of step 0, and not those that training
    # adds.
    is_added = os.path.exists(os.path.join(directory, PARAMS)) and step_of(checkpoint)
    return {} if is_added else read_info(directory)


def signature_of(checkpoint: str, task: configs.Task | None) -> str:
    """Returns in one line the objective that a checkpoint was trained for, see `signature`.

    The objective stored beside the checkpoint is taken first, then that of `task`. The line is
    "unknown (converted or averaged)" if no objective is stored and the checkpoint was not saved by
    training, or `task` is None.

    Args:
      checkpoint: path of the checkpoint.
      task: configuration of its run; None if there is no run.
    """
    if stored := info_of(checkpoint).get("signature"):
        return stored
    return signature(task) if task and step_of(checkpoint) else UNKNOWN


def signature(task: configs.Task, hook: bool = False) -> str:
    """Describes the objective of training in one line, for tables of results.

    For training with cross-entropy the line is "cross-entropy", and with `task.teacher` it is
    "cross-entropy with a teacher". For self-critical training it is a
    signature in the form of SacreEOS (Hu et al. 2023): whether the end mark counts, the reward, the
    baseline, the number of samples of an image, and the version of this package.

    Args:
      task: the configuration.
      hook: whether a reward that the user defined is added. Then the signature names it, too.
    """
    if task.objective == "xe":
        return CROSS_ENTROPY + " with a teacher" * bool(task.teacher.model_dir)
    options = task.self_critical
    baseline = {"greedy": "greedy", "others": "average"}[options.baseline]
    weights = options.reward.as_dict() | ({"hook": 1.0} if hook else {})
    reward = rewards.signature(**weights)
    return f"{reward}+{baseline}[nspi{options.samples}]+tfcap-{__version__}"
