"""The controller orders training, validation and checkpoints, in a resumed run too."""

import contextlib
from collections.abc import Sequence

import orbit
import tensorflow as tf
from official.core import train_lib

from tfcap.training import interrupts

_VALIDATED = "validated/.ATTRIBUTES/VARIABLE_VALUE"  # of a checkpoint, see `trainer.Trainer`


class Reader(tf.train.CheckpointManager):
    """Finds the checkpoints that the chief has saved, and saves none."""

    def save(self, *args, **kwargs):
        """Saves nothing."""
        return None


class Runner(train_lib.OrbitExperimentRunner):
    """The runner of official.core, whose workers all restore the checkpoints of the chief.

    In official.core each worker has a directory of its own. A run that is resumed would then
    restore the chief alone.
    """

    def _maybe_build_checkpoint_manager(self):
        assert self.trainer is not None
        # The first save would make this counter: the chief would wait there for the others.
        assert self.trainer.checkpoint.save_counter is not None
        if self.trainer.workers.is_chief:
            return super()._maybe_build_checkpoint_manager()
        return Reader(
            self.trainer.checkpoint,
            directory=self.model_dir,
            max_to_keep=None,
            step_counter=self.trainer.global_step,
            checkpoint_interval=self.params.trainer.checkpoint_interval,
            init_fn=self.trainer.initialize,
        )


class Controller(orbit.Controller):
    """The controller of orbit: a resumed run validates at the steps of an uninterrupted run.

    It also validates before the first step if the task checks its start. It ends training after
    `trainer.patience` validations without a better score. When a signal ends training, it saves a
    checkpoint and the unfinished loop; a resumed run finishes that loop first.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._begun: interrupts.Loop | None = None
        self._regular = -1  # step of the last checkpoint that no signal caused
        saved = self.checkpoint_manager and self.checkpoint_manager.latest_checkpoint
        if self.trainer is not None and saved:
            step = int(self.global_step.numpy())
            self._begun = interrupts.read_loop(self.checkpoint_manager.directory, step)
            self._regular = self._begun.regular if self._begun else step

    def train(self, steps, checkpoint_at_completion=True):
        """See base class."""
        with self.trainer.signals.deferred():
            super().train(steps, checkpoint_at_completion)

    def _train_n_steps(self, num_steps):
        begun, self._begun = self._begun, None
        metrics = [*self.trainer.train_metrics, self.trainer.train_loss]
        if begun and begun.left:
            num_steps = min(int(num_steps), begun.left)
            workers = self.trainer.workers
            interrupts.assign_sums(metrics, begun.sums, workers.index, workers.count)
        goal = int(self.global_step.numpy()) + int(num_steps)
        try:
            super()._train_n_steps(num_steps)
        except interrupts.Stop:
            self._keep(goal - int(self.global_step.numpy()), interrupts.read_sums(metrics))
            raise

    def _keep(self, left: int = 0, sums: Sequence = ()) -> None:
        """Saves a checkpoint and the begun loop because a signal ends training."""
        step, directory = int(self.global_step.numpy()), self.checkpoint_manager.directory
        workers = self.trainer.workers
        if step:  # step 0 has nothing to keep
            super()._maybe_save_checkpoint(check_interval=False)
            rows = [row for part in workers.gather(list(sums)) for row in part]
            if workers.is_chief:
                loop = interrupts.Loop(step, left, self._regular, rows)
                interrupts.write_loop(directory, loop)

    def _maybe_save_checkpoint(self, check_interval=True):
        """See base class; a checkpoint that a signal caused does not delay the regular ones."""
        if not self.checkpoint_manager:
            return False
        step, interval = int(self.global_step.numpy()), self.checkpoint_manager.checkpoint_interval
        is_due = interval and (self._regular < 0 or step >= self._regular + interval)
        saved = super()._maybe_save_checkpoint(check_interval and not is_due)
        if saved:
            self._regular = step
            interrupts.remove_loop(self.checkpoint_manager.directory)
        return saved

    def train_and_evaluate(self, train_steps, eval_steps=-1, eval_interval=None):
        """See base class."""
        with self.trainer.signals.deferred():
            output = self._train_and_evaluate(train_steps, eval_steps, eval_interval)
            if output:
                self._save_validation()
            return output

    def _save_validation(self):
        """Writes the newest checkpoint again if it was saved before the validation of its step.

        Otherwise the same command would validate a finished run again.
        """
        manager, step = self.checkpoint_manager, int(self.global_step.numpy())
        newest = manager and manager.latest_checkpoint
        if not newest or isinstance(manager, Reader) or not newest.endswith(f"-{step}"):
            return
        saved = tf.train.load_checkpoint(newest)
        if not saved.has_tensor(_VALIDATED) or saved.get_tensor(_VALIDATED) != step:
            with contextlib.suppress(tf.errors.OpError):  # without space the run is finished, too
                manager.checkpoint.write(newest)

    def _train_and_evaluate(self, train_steps, eval_steps, eval_interval):
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
        saves = bool(past)  # the steps above were trained without a checkpoint at their end
        while not self.trainer.patience.over and self.global_step.numpy() < train_steps:
            goal = min(int(self.global_step.numpy()) + eval_interval, train_steps)
            output = super().train_and_evaluate(goal, eval_steps, eval_interval)
            saves = False
        if saves and output:
            self._maybe_save_checkpoint(check_interval=False)
        return output

    def evaluate(self, steps=-1):
        """See base class."""
        with self.evaluator.signals.deferred():
            try:
                output = super().evaluate(steps)
            except interrupts.Stop:
                if self.trainer is not None:
                    self._keep()
                raise
            self.evaluator.validated.assign(self.global_step)
            self._end_together()
        return output

    def _end_together(self):
        """Ends all workers after a validation in which one of them has received a signal."""
        if self.trainer is None or self.trainer.workers.count == 1:
            return
        self.trainer.agree()
        try:
            self.trainer.signals.check(alone=False)
        except interrupts.Stop:
            self._keep()
            raise
