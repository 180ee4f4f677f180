"""The training loop: restore, train, validate, save the best checkpoint, stop.

Configuration and tasks have the form of TF Model Garden. The loop of the Model Garden is not used:
it is written for tf_keras, and to resume bit for bit nearly every method would have to be replaced.
"""

import contextlib
import logging
import math
import sys
import time
from collections.abc import Callable

import tensorflow as tf

from tfcap import configs, errors, progress, runs
from tfcap.runs.checkpoints import damage_named
from tfcap.training import distribution, optim, signals, summaries
from tfcap.training.best import BestCheckpoint
from tfcap.training.task import CaptionTask

_log = logging.getLogger(__name__)


class Loop:
    """Trains and validates a captioner, and keeps the state of the run in a directory.

    Call `restore`, and then `run`. A batch depends only on the seed and the number of the batch,
    and a checkpoint holds everything that changes. So a run that was killed and started again has
    the same numbers as an undisturbed run.

    Args:
      strategy: the distribution strategy.
      task: the task, which makes model, optimizer and batches, and computes the steps.
      params: the configuration of the run.
      model_dir: the directory of the run.
      mode: what `run` does, one of `training.MODES`.
      signature: a line of text that says how the weights are trained (`runs.signature`). It is
        saved with the best checkpoint.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        task: CaptionTask,
        params: configs.Experiment,
        model_dir: str,
        mode: str,
        signature: str,
    ):
        self.strategy = strategy
        self.task = task
        self.params = params
        self.model_dir = model_dir
        self.mode = mode
        self.workers = task.workers
        self.received: list[int] = []  # signals
        options = params.trainer
        # Outside of the scope of the strategy: replicas only read the variables of these two.
        schedule = options.optimizer_config.schedule
        metric = options.best_checkpoint_eval_metric
        higher = options.best_checkpoint_metric_comp == "higher"
        self.plateau = optim.Plateau(
            schedule.plateau_patience, schedule.plateau_factor, metric, higher
        )
        # Self-critical training raises the perplexity, and its start is a good model.
        self.likelihood = params.task.objective == "xe"
        self.patience = optim.Patience(options.patience, metric, higher, settles=self.likelihood)
        with strategy.scope():
            self._build()
        self.checkpoint = self._checkpoint()
        self.manager = None
        if "train" in mode and self.workers.is_chief:
            self.manager = tf.train.CheckpointManager(
                self.checkpoint, model_dir, options.max_to_keep
            )
        # An evaluation alone, maybe with another beam, must not replace the best checkpoint.
        self.best = None
        if mode in ("train_and_eval", "continuous_eval") and self.workers.is_chief:
            if options.best_checkpoint_export_subdir:
                self.best = BestCheckpoint(self.checkpoint, model_dir, params, signature)
        self._saved = (-1, -1)  # step, and step of the last validation, of the newest checkpoint
        self._said: set[str] = set()  # notes about validations
        directory = model_dir if self.workers.is_chief else None
        self.train_summaries = summaries.Summaries(directory, "train", self.step, "train")
        self.validation_summaries = summaries.Summaries(
            directory, options.validation_summary_subdir, self.step, "scores"
        )

    def _build(self) -> None:
        """Makes the model, the optimizer, the counters, and what a step reads and runs."""
        self.model = self.task.build_model()
        self.optimizer = self.task.build_optimizer(self.model, self.plateau)
        self.step = tf.Variable(
            self.task.start_step,
            trainable=False,
            name="global_step",
            dtype=tf.int64,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        self.validated = tf.Variable(0, trainable=False, name="validated", dtype=tf.int64)
        decay = self.params.trainer.optimizer_config.ema_decay
        self.average = optim.Average(self.model, decay) if decay else None
        if "train" in self.mode:
            self.train_metrics = self.task.build_metrics(training=True)
            self.train_batches = self._inputs(self.params.task.train_data)
            self._train_steps = self._training()
        if "eval" in self.mode:
            self.validation_metrics = self.task.build_metrics(training=False)
            self.validation_batches = self._inputs(self.params.task.validation_data)
            self._validation_step = self._validation()

    def _checkpoint(self) -> tf.train.Checkpoint:
        """Returns all that a run has to save to go on with the same numbers."""
        checkpoint = tf.train.Checkpoint(
            global_step=self.step,
            model=self.model,
            optimizer=self.optimizer,
            plateau=self.plateau,
            patience=self.patience,
            validated=self.validated,
            **self.model.checkpoint_items,
            **(self.average.checkpoint_items if self.average else {}),
        )
        # The first save would make this counter: the chief would wait there for the other workers.
        assert checkpoint.save_counter is not None
        return checkpoint

    @property
    def done(self) -> int:
        """The number of training steps that are done."""
        return int(self.step.numpy())

    @property
    def over(self) -> bool:
        """True if no step is left to train: all are done, or `trainer.patience` ends training."""
        return self.done >= self.params.trainer.train_steps or self.patience.over

    # ---- the run --------------------------------------------------------------------------------

    def restore(self, path: str | None = None) -> None:
        """Restores a checkpoint. Without a checkpoint, the task gives the model its first weights.

        Args:
          path: the checkpoint; None takes the newest one in the directory of the run.
        """
        path = path or runs.newest_checkpoint(self.model_dir)
        with self.strategy.scope():
            if path:
                with damage_named(path):
                    self.checkpoint.restore(path)
                self._saved = self.done, int(self.validated.numpy())
            else:
                self.task.initialize(self.model)
        distribution.spread_seeds(self.model, self.workers.index)

    def run(self) -> None:
        """Trains, validates, or does both, as the mode says. Call `restore` first.

        Raises:
          Interrupted: training received SIGTERM or Ctrl-C. The state after the last finished step
            was saved, unless no step was finished.
          ValueError: training diverged: its loss is NaN or above `trainer.loss_upper_bound`.
        """
        options = self.params.trainer
        # The chief shows progress on standard error; the others print nowhere, see `Workers.quiet`.
        self._stream = sys.stderr if self.workers.is_chief else sys.stdout
        self._progress = summaries.Progress(self.step, options.train_steps, self._stream)
        with self.strategy.scope(), self._progress:
            if self.mode == "eval":
                self.validate()
            elif self.mode == "continuous_eval":
                for path in tf.train.checkpoints_iterator(
                    self.model_dir,
                    timeout=options.continuous_eval_timeout,
                    timeout_fn=lambda: self.done >= options.train_steps,
                ):
                    self.restore(path)
                    self.validate()
            else:
                with signals.noted() as self.received:
                    self._train()

    def _train(self) -> None:
        """Trains to the last step, with validations and checkpoints in between.

        If both are due, the checkpoint is saved before the validation: a run that is killed during
        the validation loses no step, and validates first when it resumes.
        """
        batches = iter(self.train_batches)
        interval = self.params.trainer.checkpoint_interval
        loops = 0
        if not self.over:
            _log.info("tracing the training step ...")
        while True:
            self._stop_if_asked()
            if self._validation_is_due():
                self.validate()
                self._stop_if_asked()
            if self.over:
                break
            before = self.done
            rate = self._train_loop(batches)
            loops += 1
            if loops == 1:
                summaries.say_peak_memory()
            elif loops == 2 and not self.over:  # the first one has traced the step
                summaries.say_time_left(self.params.trainer.train_steps - self.done, rate)
            if self.done // interval > before // interval:
                self._save()
        self._save()  # again after the last validation, which the checkpoint has to know of

    def _train_loop(self, batches) -> float:
        """Trains `steps_per_loop` steps, or fewer up to a validation or the end.

        Returns the number of steps in a second.
        """
        options = self.params.trainer
        step = self.done
        goal = min(step + options.steps_per_loop, options.train_steps)
        if self.mode == "train_and_eval":
            past = step % options.validation_interval
            goal = min(goal, step - past + options.validation_interval)
        start = time.monotonic()
        self._train_steps(batches, tf.constant(goal - step))
        values = _results(self.train_metrics)
        loss = values["loss"]
        limit = options.loss_upper_bound if goal >= options.recovery_begin_steps else math.inf
        if options.recovery_max_trials >= 0 and not loss <= limit:
            raise ValueError(
                f"Training diverged: the loss of step {goal} is {loss}. The checkpoints in "
                f"{self.model_dir} are of earlier steps. Lower trainer.optimizer_config.schedule."
                "learning_rate or trainer.optimizer_config.clip_threshold, and train again."
            )
        rate = (goal - step) / (time.monotonic() - start)
        values["learning_rate"] = float(self.optimizer.learning_rate)
        values["steps_per_second"] = rate
        self._progress.loss = f"loss {loss:.3f}"
        interval = options.summary_interval
        if goal // interval > step // interval or goal == options.train_steps:
            self.train_summaries.write(values)
        return rate

    def _validation_is_due(self) -> bool:
        """True at multiples of the interval, at the end, and, if needed, at the start."""
        if self.mode != "train_and_eval":
            return False
        if self.done == 0:
            return self.task.validates_start
        due = self.over or self.done % self.params.trainer.validation_interval == 0
        return due and self.done != int(self.validated.numpy())

    def validate(self) -> None:
        """Scores captions of the validation images, and saves the checkpoint if it is the best.

        The scores are logged and written to TensorBoard. If `ema_decay` is above 0, the moving
        average of the weights is validated and saved in place of the weights. With a single worker,
        SIGTERM or Ctrl-C stops the validation, and its scores are lost. Several workers finish the
        validation first: if one stopped, the others would wait for it.
        """
        if self.workers.is_chief:
            self.task.scorer.start()  # it loads meanwhile
        with self.average.used() if self.average else contextlib.nullcontext():
            captions = self._caption()
            scores = _results(self.validation_metrics)
            if captions is None:
                return
            scores |= self.task.reduce_aggregated_logs(captions, global_step=self.step)
            if self.best:
                self.best.keep(scores, self.done, self.task.scores)
                scores[f"best_{self.best.metric}"] = self.best.value
                if not self.params.trainer.patience:
                    interval = self.params.trainer.validation_interval
                    self.task.notes.append(self.best.worse(self.done, interval))
            if self.workers.is_chief:
                shown = self.params.trainer.shown_images
                summaries.write_samples(self.validation_summaries, self.task, self.model, shown)
        summaries.say_scores(self.done, scores)
        for note in filter(None, self.task.notes):
            if note not in self._said:
                self._said.add(note)
                _log.info(f"note: {note}")
        if self.done or not self.likelihood:  # a high score of such a start can be chance
            self.plateau(scores)
            self.patience(scores)
        self.validation_summaries.write(scores)
        self.validated.assign(self.step)

    def _caption(self) -> dict | None:
        """Captions the validation images of this worker; None after a signal."""
        options = self.params.trainer
        config = self.params.task.validation_data
        images = self.task.data.split(config.split)["images"]
        images = -(-min(images, config.limit or images) // self.workers.count)
        captions: dict = {}
        batches = iter(self.validation_batches)
        number = 0
        with progress.Bar(images, "validation", "image", stream=self._stream) as bar:
            with contextlib.suppress(StopIteration, tf.errors.OutOfRangeError):
                while number != options.validation_steps:
                    captions = self.task.aggregate_logs(captions, self._validation_step(batches))
                    bar.update(len(captions) - bar.done)
                    number += 1
                    if self.received and self.workers.count == 1:
                        return None
        return captions

    def _save(self) -> None:
        """Saves a checkpoint, unless the newest checkpoint has the same state."""
        state = self.done, int(self.validated.numpy())
        if self.manager and state != self._saved:
            self.manager.save(checkpoint_number=self.done)
        self._saved = state

    def _stop_if_asked(self) -> None:
        """Ends training with a checkpoint if this or another worker has received a signal."""
        received = [number for numbers in self.workers.gather(self.received) for number in numbers]
        if not received:
            return
        name = signals.NAMES[received[0]]
        code = signals.CODES[received[0]]
        step = self.done
        if not step:
            raise errors.Interrupted(
                f"{name} ended training before its first step, so nothing was saved. Give the "
                "same command again.",
                code,
            )
        self._save()
        raise errors.Interrupted(
            f"{name} ended training. Step {step} is saved in {self.model_dir}. The same command "
            f"goes on from step {step}.",
            code,
        )

    # ---- what a step runs -----------------------------------------------------------------------

    def _inputs(self, config: configs.Data):
        """Makes the batches of all replicas.

        One replica on a CPU needs no iterator over devices. Freeing such an iterator can take a
        minute: the thread that tunes buffers is woken before the iterator is marked as cancelled.
        """
        devices = map(tf.DeviceSpec.from_string, self.strategy.extended.worker_devices)
        if [device.device_type for device in devices] == ["CPU"] and self.workers.count == 1:
            return self.task.build_inputs(config, tf.distribute.InputContext())
        return self.strategy.distribute_datasets_from_function(
            lambda context: self.task.build_inputs(config, context)
        )

    def _training(self) -> Callable:
        """Makes a function that trains a number of steps on batches from an iterator."""

        def replica_step(inputs):
            self.task.train_step(inputs, self.model, self.optimizer, self.train_metrics)
            self.step.assign_add(1)

        def step(iterator):
            self.strategy.run(replica_step, args=(next(iterator),))
            if self.average:
                self.average.update(self.strategy)

        @tf.function(autograph=False)
        def steps_in_graph(iterator, number):
            def body(done):
                with tf.name_scope(""):  # names without "while/"
                    step(iterator)
                return done + 1

            tf.while_loop(lambda done: done < number, body, [tf.constant(0)])

        options = self.params.trainer
        if options.train_tf_while_loop:
            return steps_in_graph
        compiled = tf.function(step, autograph=False) if options.train_tf_function else step

        def steps(iterator, number):
            for _ in range(int(number)):
                compiled(iterator)

        return steps

    def _validation(self) -> Callable:
        """Makes a function that validates one batch from an iterator."""

        def replica_step(inputs):
            return self.task.validation_step(inputs, self.model, self.validation_metrics)

        def step(iterator):
            logs = self.strategy.run(replica_step, args=(next(iterator),))
            return tf.nest.map_structure(self.strategy.experimental_local_results, logs)

        in_graph = self.params.trainer.eval_tf_function
        return tf.function(step, autograph=False) if in_graph else step


def _results(metrics) -> dict[str, float]:
    """Returns the values of metrics, and resets them."""
    values = {metric.name: float(metric.result()) for metric in metrics}
    for metric in metrics:
        metric.reset_state()
    return values
