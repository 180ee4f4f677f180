"""Describes in one word what a model was trained for, to be quoted beside a score."""

from tfcap import __version__, configs
from tfcap.objectives import rewards

CROSS_ENTROPY = "cross-entropy"


def signature(task: configs.Task, hook: bool = False) -> str:
    """Names self-critical training in the form of SacreEOS (Hu et al. 2023), or cross-entropy.

    The name says whether the end mark counts, and gives the reward, the baseline with the samples
    per image, and the version. `hook`: whether a reward of the user's own is added.
    """
    if task.objective == "xe":
        return CROSS_ENTROPY
    options = task.self_critical
    baseline = {"greedy": "greedy", "others": "average"}[options.baseline]
    weights = options.reward.as_dict() | ({"hook": 1.0} if hook else {})
    reward = rewards.signature(**weights)
    return f"{reward}+{baseline}[nspi{options.samples}]+tfcap-{__version__}"
