"""Prints the scores of runs that differ in their seed: the mean and the spread."""

import os
import statistics
from collections.abc import Mapping

from tfcap import configs, runs


def directory(model_dir: str, seed: int) -> str:
    """Returns the directory of the run of one seed."""
    return os.path.join(model_dir, f"seed_{seed}")


def table(model_dirs: Mapping[int, str]) -> str:
    """Returns the best validation scores of several runs as text.

    Args:
      model_dirs: the directory of the run of each seed.

    Returns:
      A line for each score that all runs have: mean, standard deviation with n - 1, and the values
      in the order of the seeds. Empty if the runs have no scores.
    """
    best = {}
    for seed, folder in model_dirs.items():
        params = configs.load(os.path.join(folder, runs.PARAMS))
        best[seed] = runs.read_best(runs.best_directory(folder, params))
    first, *others = best.values()
    names = [name for name in first if all(name in other for other in others)]
    lines = []
    for name in names:
        values = [scores[name] for scores in best.values()]
        if name == "best_ckpt_global_step":
            continue
        spread = f" ± {statistics.stdev(values):.2f}" if others else ""
        each = ", ".join(f"{value:.2f}" for value in values)
        lines.append(f"  {name:18} {statistics.mean(values):.2f}{spread}   ({each})")
    if not lines:
        return ""
    title = f"best validations of the seeds {', '.join(map(str, best))}: mean ± standard deviation"
    return "\n".join([title, *lines])
