"""The trainer, the exporter of the best checkpoint, and the average of weights."""

import json
import os
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf
from official.core import base_trainer, train_utils

from tfcap import cli, configs, files, runs
from tfcap.metrics import bootstrap
from tfcap.models.captioner import Captioner
from tfcap.training import interrupts, keras3, schedules


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
    """Exports the best checkpoint, and then writes its scores to `info.json`.

    official.core writes the scores first. A run that is killed in between would then keep an older
    checkpoint under the new scores: when it validates again, the same scores are not better.

    Attributes:
      signature: describes how the run is trained; `info.json` holds it beside the scores.
      measured: how the scores are measured, see `runs.measured`; `info.json` holds it, too.
      task: the task, which has the scores of each image; None writes no intervals.
    """

    task: Any = None
    signature = ""
    measured: Mapping[str, Any] = MappingProxyType({})

    def maybe_export_checkpoint(self, checkpoint, eval_logs, global_step, write_logs=True):
        """See base class; without the score that chooses, nothing is exported."""
        if (metric := self._metric_name[-1]) not in eval_logs:  # Java is broken, for example
            print(
                f"warning: this validation has no {metric} (trainer.best_checkpoint_eval_metric), "
                f"so its checkpoint is not exported. It has {', '.join(sorted(eval_logs))}.",
                file=sys.stderr,
                flush=True,
            )
            return False
        exported = super().maybe_export_checkpoint(checkpoint, eval_logs, global_step, False)
        if exported and write_logs:
            self.export_best_eval_metric(eval_logs, global_step)
        return exported

    @property
    def best_ckpt_logs(self):
        """See base class; before the first export the score that chooses is NaN."""
        return self._best_ckpt_logs or {self._metric_name[-1]: float("nan")}

    def export_best_eval_metric(self, eval_logs, global_step):
        """See base class."""
        scores = {name: float(value) for name, value in eval_logs.items()}
        scores["best_ckpt_global_step"] = float(global_step)
        # Not `files.write_json`: the perplexity of a model that diverges is infinite.
        with files.replacing(self.best_ckpt_logs_path) as temporary:
            with open(temporary, "w", encoding="utf-8") as file:
                about = {"signature": self.signature, "measured": dict(self.measured)}
                about |= self._intervals()
                json.dump(scores | about, file, indent=4)

    def _intervals(self) -> dict[str, Any]:
        """Returns the number of validated images, and the 95 % interval of each score."""
        scores = self.task and self.task.scores
        if not scores or len(scores.per_image) < 2:
            return {}
        found = bootstrap.intervals(scores)
        intervals = {name: [one.low, one.high] for name, one in found.items()}
        return {"images": len(scores.per_image), "intervals": intervals}


def best_exporter(
    params: configs.Experiment, model_dir: str, signature: str, task: Any = None
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
    exporter.signature, exporter.task = signature, task
    exporter.measured = runs.measured(params)
    return exporter


class Trainer(base_trainer.Trainer):
    """The trainer of official.core with these additions.

    * Each replica has its own dropout.
    * The checkpoint also holds the states of `plateau` and `patience`, and `validated`, the step of
      the last validation.
    * With `ema_decay` the checkpoint also holds the average of the weights. Validation uses the
      average, and the best checkpoint holds it as the weights.
    * The loop over steps ends early, and raises `interrupts.Stop`, if `signals` received one.
    * One replica on a processor reads its batches without TensorFlow's iterator over devices.
    * Of several workers, only the chief exports the best checkpoint; all end at the same step.

    Attributes:
      images: the number of images of a validation.
      stream: where the progress of a validation is shown; None for standard error.
    """

    def __init__(
        self,
        *args,
        plateau: schedules.Plateau,
        patience: schedules.Patience,
        signals: interrupts.Signals | None = None,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        self.signals = signals or interrupts.Signals()
        self.workers = self.task.workers
        self._spread = False  # whether the replicas of this worker have their own dropout
        self.images, self.stream = 0, None
        self._bar: cli.Bar | None = None  # inside a validation
        self.patience = self.checkpoint.patience = patience
        self.validated = tf.Variable(0, dtype=tf.int64, trainable=False, name="validated")
        self.plateau = self.checkpoint.plateau = plateau
        self.checkpoint.validated = self.validated
        decay = self.config.trainer.optimizer_config.ema_decay
        self.average = Average(self.model, decay) if decay else None
        if self.average:
            self.checkpoint.average = self.average.values
            self.checkpoint.average_started = self.average.started

    def distribute_dataset(self, dataset_or_fn, *args, **kwargs):
        """Returns the dataset of the replicas, as `official.core` does.

        TensorFlow's iterator over devices has a thread that tunes its buffers and sleeps for up to
        a minute. Freeing the iterator waits for the thread, because the cancellation wakes the
        thread before the iterator is marked as cancelled. One replica on a processor needs no
        such iterator.
        """
        kinds = [
            tf.DeviceSpec.from_string(name).device_type
            for name in self.strategy.extended.worker_devices
        ]
        if kinds == ["CPU"] and self.strategy.num_replicas_in_sync == 1:
            return dataset_or_fn(*args, **kwargs, input_context=tf.distribute.InputContext())
        return super().distribute_dataset(dataset_or_fn, *args, **kwargs)

    def train_loop_begin(self):
        """Runs before every loop of `steps_per_loop` steps, and so after every restore."""
        super().train_loop_begin()
        if self.workers.count == 1 or not self._spread:  # only one worker may do it twice
            keras3.spread_seeds(self.model, self.workers.index)
            self._spread = True

    def train_step(self, iterator):
        """See base class."""
        super().train_step(iterator)
        if self.average:
            self.average.update(self.strategy)
        self.agree()

    def agree(self) -> None:
        """Tells all workers whether one of them has received a signal; all must call it."""
        if self.workers.count > 1 and self.signals.stop is not None:
            self.signals.agree(self.workers.total)

    def create_train_loop_fn(self):
        """See base class."""
        options = self.config.trainer
        if self.signals.stop is None:
            return super().create_train_loop_fn()
        loop = (
            self._loop_in_graph(self.signals.agreed)
            if options.train_tf_while_loop
            else self._loop()
        )

        def interruptible(iterator, num_steps):
            goal = int(self.global_step.numpy()) + int(num_steps)
            try:
                # Without a graph a signal could divide a step: it waits until the step is over.
                alone = self.workers.count == 1
                with self.signals.deferred(not options.train_tf_function or not alone):
                    loop(iterator, num_steps)
                self.signals.check(alone)
            except interrupts.Stop:
                if int(self.global_step.numpy()) < goal:
                    raise

        return interruptible

    def _loop_in_graph(self, stop: tf.Variable):
        """Makes a loop that reads `stop` before each step."""

        @tf.function(autograph=False)
        def loop(iterator, num_steps):
            def body(done):
                with tf.name_scope(""):  # as in orbit: names without "while/"
                    self.train_step(iterator)
                return done + 1

            going_on = lambda done: (done < num_steps) & tf.logical_not(stop)  # noqa: E731
            tf.while_loop(going_on, body, [tf.constant(0)])

        return loop

    def _loop(self):
        """Makes a loop in Python."""
        step = self.train_step
        if self.config.trainer.train_tf_function:
            step = tf.function(step, autograph=False)

        def loop(iterator, num_steps):
            alone = self.workers.count == 1
            for _ in range(int(num_steps)):
                if not (self.signals.received if alone else self.signals.agreed.numpy()):
                    step(iterator)

        return loop

    def evaluate(self, num_steps):
        """See base class; a signal ends it before its scores have changed anything.

        If the run keeps an average of the weights, the average is validated and exported as the
        best checkpoint. After that the model has its trained weights again.
        """
        try:
            # Several workers go on: one that ends its validation early leaves the others waiting.
            with (
                self.signals.deferred(self.workers.count > 1),
                cli.Bar(self.images, "validation", "image", stream=self.stream) as self._bar,
            ):
                return super().evaluate(num_steps)
        finally:
            self._bar = None
            if self.average:
                self.average.leave()

    @tf.autograph.experimental.do_not_convert  # nothing in it needs AutoGraph, which is slow
    def eval_step(self, iterator):
        """See base class."""
        return super().eval_step(iterator)

    def eval_reduce(self, state=None, step_outputs=None):
        """See base class."""
        state = super().eval_reduce(state, step_outputs)
        if self._bar:
            self._bar.update(len(state) - self._bar.done)
        return state

    def eval_begin(self):
        """See base class."""
        super().eval_begin()
        if self.average:
            self.average.enter()
