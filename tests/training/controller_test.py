"""The controller: which validations a run makes after it was killed."""

import keras
import orbit
import pytest
import tensorflow as tf

from tfcap.training import interrupts, schedules
from tfcap.training.controller import Controller
from tfcap.training.task import CaptionTask
from tfcap.training.workers import Workers


class Counter(orbit.AbstractTrainer, orbit.AbstractEvaluator):
    """Counts steps, and remembers at which ones it was asked to evaluate."""

    def __init__(self, step, validated):
        self.step = tf.Variable(step, dtype=tf.int64)
        self.validated = tf.Variable(validated, dtype=tf.int64)
        self.evaluations = []
        self.patience = schedules.Patience(0, "CIDEr", True)
        self.workers = Workers()
        self.task = CaptionTask  # which validates no start
        self.signals = interrupts.Signals()
        self.train_metrics, self.train_loss = [], keras.metrics.Mean()

    def train(self, num_steps):
        self.step.assign_add(tf.cast(num_steps, tf.int64))
        return {"loss": 0.0}

    def evaluate(self, num_steps):
        self.evaluations.append(int(self.step))
        return {"loss": 0.0}


def controlled(counter, folder, checkpoint_interval, steps_per_loop, **items):
    """A manager of checkpoints of `items`, and the controller that uses it."""
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(step=counter.step, **items),
        str(folder),
        9,
        step_counter=counter.step,
        checkpoint_interval=checkpoint_interval,
    )
    controller = Controller(
        trainer=counter,
        evaluator=counter,
        global_step=counter.step,
        steps_per_loop=steps_per_loop,
        checkpoint_manager=manager,
    )
    return manager, controller


def test_a_resumed_run_with_patience_keeps_its_last_step(tmp_path):
    """Steps after the last regular checkpoint, trained to the end of an interval."""
    counter = Counter(9, 8)
    counter.patience = schedules.Patience(3, "CIDEr", True)
    controlled(counter, tmp_path, 4, 3)[0].save(9)  # the run was interrupted there
    manager, controller = controlled(counter, tmp_path, 4, 3)
    controller.train_and_evaluate(10, eval_interval=4)
    assert counter.evaluations == [10] and manager.latest_checkpoint.endswith("ckpt-10")


def test_the_last_checkpoint_knows_the_validation_after_it(tmp_path):
    """It is saved before the validation of its step; a finished run is not validated again."""
    for _ in range(2):
        counter = Counter(0, 0)
        manager, controller = controlled(counter, tmp_path, 5, 5, validated=counter.validated)
        manager.restore_or_initialize()
        controller.train_and_evaluate(10, eval_interval=5)
        assert manager.latest_checkpoint.endswith("ckpt-10")
        newest = tf.train.load_checkpoint(manager.latest_checkpoint)
        assert newest.get_tensor("validated/.ATTRIBUTES/VARIABLE_VALUE") == 10
    assert counter.evaluations == []


@pytest.mark.parametrize(
    "step, validated, expected",
    [
        (0, 0, [4, 8, 10]),
        (3, 0, [4, 8, 10]),
        (4, 0, [4, 8, 10]),  # killed in the validation at step 4
        (4, 4, [8, 10]),
        (6, 4, [8, 10]),
        (9, 8, [10]),
        (10, 8, [10]),  # killed in the last one
        (10, 10, []),
    ],
)
def test_validations_after_a_resume(step, validated, expected):
    counter = Counter(step, validated)
    controller = Controller(
        trainer=counter, evaluator=counter, global_step=counter.step, steps_per_loop=3
    )
    output = controller.train_and_evaluate(10, eval_interval=4)
    assert counter.evaluations == expected and bool(output) == bool(expected)
    assert int(counter.step) == 10 and int(counter.validated) == 10
