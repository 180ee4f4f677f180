"""The trainer, its controller, the exporter of the best checkpoint, and the average of weights."""

import json
import os

import numpy as np
import orbit
import tensorflow as tf
from official.core import base_trainer, train_utils

from tfcap import configs, files
from tfcap.models.captioner import Captioner
from tfcap.training import keras3, schedules


class Average:
    """The exponential moving average of a model's weights.

    After every step average += (1 - decay) (weights - average). The average starts as the weights
    after the first step that it sees, so it has no bias to correct, also where training goes on
    from a checkpoint without an average. Keras' own average (`use_ema`) is not used: the optimizer
    keeps it in a numbered list before its other variables, and a run that is resumed with another
    setting would restore each variable from its neighbour. Here each average has the name of its
    weight.

    Attributes:
      values: the average of each weight, by name.
      started: a boolean variable, whether the average has seen a step.
    """

    def __init__(self, model: Captioner, decay: float):
        self.weights = model.checkpoint_items["weights"]
        self.decay = decay
        self.values = {
            name: tf.Variable(tf.zeros_like(weight), trainable=False, name="average")
            for name, weight in self.weights.items()
        }
        self.started = tf.Variable(False, trainable=False, name="average_started")
        self._kept: dict[str, np.ndarray] = {}

    def update(self, strategy: tf.distribute.Strategy) -> None:
        """Updates the average on every replica; call it outside of replica context."""
        strategy.run(self._update)
        self.started.assign(True)

    def _update(self):
        rate = tf.where(self.started, 1.0 - self.decay, 1.0)
        for name, value in self.values.items():
            value.assign_add(tf.cast(rate, value.dtype) * (self.weights[name] - value))

    def enter(self) -> None:
        """Gives the model the average as its weights, if the average has started."""
        if self.started.numpy():
            self._kept = {name: weight.numpy() for name, weight in self.weights.items()}
            for name, weight in self.weights.items():
                weight.assign(self.values[name])

    def leave(self) -> None:
        """Gives the model the weights that it had before `enter`."""
        for name, weight in self._kept.items():
            self.weights[name].assign(weight)
        self._kept = {}


class BestExporter(train_utils.BestCheckpointExporter):
    """Exports the best checkpoint, and after it the scores in `info.json`.

    official.core writes the scores first. A run that is killed in between would then keep an older
    checkpoint under the new scores: when it validates again, the same scores are not better.

    Attributes:
      signature: describes how the run is trained; `info.json` holds it beside the scores.
    """

    signature = ""

    def maybe_export_checkpoint(self, checkpoint, eval_logs, global_step, write_logs=True):
        """See base class."""
        exported = super().maybe_export_checkpoint(checkpoint, eval_logs, global_step, False)
        if exported and write_logs:
            self.export_best_eval_metric(eval_logs, global_step)
        return exported

    def export_best_eval_metric(self, eval_logs, global_step):
        """See base class."""
        scores = {name: float(value) for name, value in eval_logs.items()}
        scores["best_ckpt_global_step"] = float(global_step)
        # Not `files.write_json`: the perplexity of a model that diverges is infinite.
        with files.replacing(self.best_ckpt_logs_path) as temporary:
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(scores | {"signature": self.signature}, file, indent=4)


def best_exporter(
    params: configs.Experiment, model_dir: str, signature: str
) -> BestExporter | None:
    """Makes the exporter that `configs.Trainer` describes; None if it names no directory."""
    trainer = params.trainer
    if not trainer.best_checkpoint_export_subdir:
        return None
    exporter = BestExporter(
        os.path.join(model_dir, trainer.best_checkpoint_export_subdir),
        trainer.best_checkpoint_eval_metric,
        trainer.best_checkpoint_metric_comp,
    )
    exporter.signature = signature
    return exporter


class Trainer(base_trainer.Trainer):
    """The trainer of official.core with these additions.

    * Each replica has its own dropout.
    * The checkpoint also holds the states of `plateau` and `patience`, and `validated`, the step of
      the last validation.
    * With `ema_decay` the checkpoint also holds the average of the weights. Validation uses the
      average, and the best checkpoint holds it as the weights.
    """

    def __init__(self, *args, plateau: schedules.Plateau, patience: schedules.Patience, **kwargs):
        super().__init__(*args, **kwargs)
        self.patience = self.checkpoint.patience = patience
        self.validated = tf.Variable(0, dtype=tf.int64, trainable=False, name="validated")
        self.checkpoint.plateau = plateau
        self.checkpoint.validated = self.validated
        decay = self.config.trainer.optimizer_config.ema_decay
        self.average = Average(self.model, decay) if decay else None
        if self.average:
            self.checkpoint.average = self.average.values
            self.checkpoint.average_started = self.average.started

    def train_loop_begin(self):
        """Runs before every loop of `steps_per_loop` steps, and so after every restore."""
        super().train_loop_begin()
        keras3.spread_seeds(self.model)

    def train_step(self, iterator):
        """See base class."""
        super().train_step(iterator)
        if self.average:
            self.average.update(self.strategy)

    def eval_begin(self):
        """See base class."""
        super().eval_begin()
        if self.average:
            self.average.enter()

    def eval_end(self, aggregated_logs=None):
        """See base class; the base class exports the best checkpoint here."""
        logs = super().eval_end(aggregated_logs)
        if self.average:
            self.average.leave()
        return logs


class Controller(orbit.Controller):
    """The controller of orbit: a resumed run validates at the steps of an uninterrupted run.

    It also validates before the first step if the task checks its start. It ends training after
    `trainer.patience` validations without a better score.
    """

    def train_and_evaluate(self, train_steps, eval_steps=-1, eval_interval=None):
        """See base class."""
        if self.trainer.patience.over:
            return None
        step = int(self.global_step.numpy())
        past = step % eval_interval if eval_interval else 0
        output = None
        if past and step < train_steps:
            self.train(min(step - past + eval_interval, train_steps), False)
            output = self.evaluate(eval_steps)
        elif step != int(self.trainer.validated.numpy()):  # interrupted while it validated
            output = self.evaluate(eval_steps)
        elif step == 0 and self.trainer.task.validates_start:
            output = self.evaluate(eval_steps)
        if not self.trainer.patience.active:
            return super().train_and_evaluate(train_steps, eval_steps, eval_interval) or output
        while not self.trainer.patience.over and self.global_step.numpy() < train_steps:
            goal = min(int(self.global_step.numpy()) + eval_interval, train_steps)
            output = super().train_and_evaluate(goal, eval_steps, eval_interval)
        return output

    def evaluate(self, steps=-1):
        """See base class."""
        output = super().evaluate(steps)
        self.evaluator.validated.assign(self.global_step)
        return output
