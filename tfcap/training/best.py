"""The best checkpoint of a run by the score of its validations."""

import json
import math
import os
import sys
from typing import Any

import tensorflow as tf

from tfcap import cli, configs, files, runs
from tfcap.metrics import bootstrap
from tfcap.metrics.results import Scores


class BestCheckpoint:
    """Keeps the checkpoint with the best score, and its scores in `info.json` beside it.

    Attributes:
      metric: the score that decides which checkpoint is best.
      value: the best score, NaN before the first validation.
    """

    def __init__(
        self,
        checkpoint: tf.train.Checkpoint,
        model_dir: str,
        params: configs.Experiment,
        signature: str,
    ):
        self.checkpoint, self.signature = checkpoint, signature
        self.directory = runs.best_directory(model_dir, params)
        self.metric = params.trainer.best_checkpoint_eval_metric
        self.higher = params.trainer.best_checkpoint_metric_comp == "higher"
        self.value = runs.read_best(self.directory).get(self.metric, math.nan)

    def keep(self, scores: dict[str, float], step: int, details: Scores | None) -> None:
        """Saves the checkpoint if its score is the best; `details` has the score of each image.

        The scores are written after the checkpoint. If the run is killed between the two, it
        validates again and must not find scores of a checkpoint that was not saved.
        """
        if self.metric not in scores:  # Java is broken, for example
            text = "(trainer.best_checkpoint_eval_metric), so its checkpoint cannot be the best one"
            cli.say(f"warning: this validation has no {self.metric} {text}", sys.stderr)
            return
        value = scores[self.metric]
        better = value > self.value if self.higher else value < self.value
        if not (better or math.isnan(self.value)):
            return
        tf.train.CheckpointManager(
            self.checkpoint, self.directory, max_to_keep=1, checkpoint_name="best_ckpt"
        ).save()
        info: dict[str, Any] = {name: float(score) for name, score in scores.items()}
        info |= {"best_ckpt_global_step": float(step), "signature": self.signature}
        if details and len(details.per_image) > 1:
            found = bootstrap.intervals(details)  # 95 %
            info["images"] = len(details.per_image)
            info["intervals"] = {name: [item.low, item.high] for name, item in found.items()}
        # Not `files.write_json`: the perplexity of a model that diverges is infinite.
        with files.replacing(os.path.join(self.directory, runs.INFO)) as temporary:
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(info, file, indent=4)
        self.value = value

    def worse(self, step: int, interval: int) -> str:
        """Returns a warning if the last two validations were not better than the best, else ""."""
        best = int(runs.read_best(self.directory).get("best_ckpt_global_step", step))
        if step - best <= interval:
            return ""
        return (
            f"two validations in a row were no better ({self.metric}); the best is step {best}. "
            "trainer.patience=2 would end training here"
        )
