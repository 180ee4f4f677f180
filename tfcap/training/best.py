"""The best checkpoint of a run by the score of its validations."""

import json
import logging
import math
import os
from typing import Any

import tensorflow as tf

from tfcap import configs, files, runs
from tfcap.metrics import bootstrap
from tfcap.metrics.results import Scores
from tfcap.training.start import signature_of_start

_log = logging.getLogger(__name__)
FEWEST = 30  # with fewer images, the score of a validation says little
# Of a start that does not know the words of the data, training soon leaves less than this share of
# the perplexity. A captioner that knows them keeps more, and its score says whether training helps.
UNKNOWING = 0.5


class BestCheckpoint:
    """Keeps the best checkpoint of a run on disk, and its scores in `info.json` beside it.

    Call `keep` after each validation. In cross-entropy training, an untrained model can have the
    best score by chance. So a later checkpoint also replaces that of step 0 if its perplexity is
    less than half as high and its score is not clearly worse. A score is clearly worse if it is
    computed on at least 30 images and is worse than the whole 95 % confidence interval of step 0.

    Args:
      checkpoint: the TensorFlow object that saves the model, the optimizer and the counters of the
        run.
      model_dir: the directory of the run.
      params: the configuration of the run.
      signature: a line of text that says how the weights are trained (`runs.signature`);
        `info.json` holds it.

    Attributes:
      metric: the name of the score that decides which checkpoint is best.
      value: the score `metric` of the best checkpoint; NaN if no checkpoint is kept yet.
      gain: how much better the score s of the last validation is than the best score b before it:
        (s - b) / |b|, or (b - s) / |b| if a lower score is better; not divided if b is 0. NaN if
        there is no earlier score.
    """

    def __init__(
        self,
        checkpoint: tf.train.Checkpoint,
        model_dir: str,
        params: configs.Experiment,
        signature: str,
    ):
        self.checkpoint = checkpoint
        self.signature = signature
        self.directory = runs.best_directory(model_dir, params)
        self.metric = params.trainer.best_checkpoint_eval_metric
        self.higher = params.trainer.best_checkpoint_metric_comp == "higher"
        self.value = runs.read_best(self.directory).get(self.metric, math.nan)
        self.gain = math.nan
        self.config = params.task

    def keep(self, scores: dict[str, float], step: int, details: Scores | None) -> None:
        """Saves the checkpoint and its scores if this validation is the best so far.

        If `scores` lacks the score `metric`, a warning is logged and nothing is saved. The
        checkpoint is written before its scores. So `info.json` never has the scores of a checkpoint
        that was not saved.

        Args:
          scores: the scores of the validation, by name.
          step: the number of training steps that are done.
          details: the same scores for each image, from which `info.json` gets 95 % confidence
            intervals; None leaves these out.
        """
        if self.metric not in scores:  # Java is broken, for example
            _log.warning(
                f"warning: this validation has no {self.metric} "
                "(trainer.best_checkpoint_eval_metric), so its checkpoint cannot be the best one"
            )
            return
        value = scores[self.metric]
        rise = (value - self.value) * (1 if self.higher else -1)
        self.gain = rise / abs(self.value) if self.value else rise
        if not (rise > 0 or math.isnan(self.value) or self._start_is_past(scores, step)):
            return
        tf.train.CheckpointManager(
            self.checkpoint, self.directory, max_to_keep=1, checkpoint_name="best_ckpt"
        ).save()
        info: dict[str, Any] = {name: float(score) for name, score in scores.items()}
        signature = self.signature if step else signature_of_start(self.config)
        info |= {"best_ckpt_global_step": float(step), "signature": signature}
        if details and len(details.per_image) > 1:
            intervals = bootstrap.intervals(details)  # 95 %
            info["images"] = len(details.per_image)
            info["intervals"] = {name: [item.low, item.high] for name, item in intervals.items()}
        # Not `files.write_json`: the perplexity of a model that diverges is infinite.
        with files.replacing(os.path.join(self.directory, runs.INFO)) as temporary:
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(info, file, indent=4)
        self.value = value

    def _start_is_past(self, scores: dict[str, float], step: int) -> bool:
        """True if cross-entropy training has outdone the start, which is the best by chance.

        The perplexity has fallen far, and the score cannot tell the two apart: it lies in the
        interval of the start, or the images are too few for an interval.
        """
        info = runs.read_info(self.directory)
        if info.get("best_ckpt_global_step") or self.config.objective != "xe":
            return False
        before = info.get("perplexity", math.nan)
        after = scores.get("perplexity", math.nan)
        low, high = info.get("intervals", {}).get(self.metric, (-math.inf, math.inf))
        images = info.get("images", 1)
        value = scores[self.metric]
        worse = images >= FEWEST and (value < low if self.higher else value > high)
        if worse or not after < UNKNOWING * before:
            return False
        _log.info(
            f"note: the best checkpoint is now step {step}, and not the start: the perplexity fell "
            f"from {before:.1f} to {after:.1f}, and {images} images cannot tell {self.metric} "
            f"{value:.2f} from {self.value:.2f}"
        )
        return True

    def worse(self, step: int, interval: int) -> str:
        """Returns a warning if at least two validations have followed the best one, else "".

        Args:
          step: the step of the last validation.
          interval: number of steps between two validations.
        """
        best = int(runs.read_best(self.directory).get("best_ckpt_global_step", step))
        if step - best <= interval:
            return ""
        return (
            f"two validations in a row were no better ({self.metric}); the best is step {best}. "
            "trainer.patience=2 would end training"
        )
