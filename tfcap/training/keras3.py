"""What official.core needs in order to drive Keras 3, in one place.

official.core and orbit are written for tf_keras. Under Keras 3 they silently lose variables,
metrics, precision policies and random states; each function here is one remedy.
"""

import functools
import json
import os

import keras
import numpy as np
import orbit
import tensorflow as tf
from official.common import distribute_utils
from official.core import base_trainer, train_utils

from tfcap import configs
from tfcap.models.captioner import Captioner, is_seed, named_variables
from tfcap.training import optim


def strategy(runtime: configs.Runtime) -> tf.distribute.Strategy:
    """The distribution strategy that a `configs.Runtime` describes.

    Raises:
      ValueError: if there are fewer GPUs than replicas.
    """
    if runtime.distribution_strategy != "mirrored":
        distribute_utils.configure_cluster(runtime.worker_hosts, runtime.task_index)
        return distribute_utils.get_distribution_strategy(
            runtime.distribution_strategy,
            num_gpus=runtime.num_gpus,
            all_reduce_alg=runtime.all_reduce_alg,
            num_packs=runtime.num_packs,
            tpu_address=runtime.tpu,
        )
    gpus = tf.config.list_physical_devices("GPU")
    replicas = runtime.replicas or runtime.num_gpus or len(gpus) or 1
    if gpus and replicas > len(gpus):
        raise ValueError(
            f"runtime.replicas must be at most the number of GPUs, {len(gpus)}. "
            f"Received: {replicas}"
        )
    if not gpus and replicas > 1:
        split_processor(replicas)
    return _mirrored("GPU" if gpus else "CPU", replicas)


@functools.cache
def _mirrored(kind: str, replicas: int) -> tf.distribute.MirroredStrategy:
    """One strategy per process and set of devices.

    Every strategy numbers its all-reduces from the same start, and TensorFlow remembers the shape
    of each number: a second strategy over the same devices would fail.
    """
    return tf.distribute.MirroredStrategy([f"{kind}:{i}" for i in range(replicas)])


def split_processor(devices: int) -> None:
    """Makes `devices` logical devices of the processor; must come before TensorFlow starts.

    Raises:
      ValueError: if TensorFlow runs already with another number.
    """
    if len(tf.config.get_logical_device_configuration(_processor()) or [0]) == devices:
        return
    try:
        tf.config.set_logical_device_configuration(
            _processor(), [tf.config.LogicalDeviceConfiguration()] * devices
        )
    except RuntimeError as error:
        raise ValueError(
            f"runtime.replicas={devices} needs {devices} logical processors, and TensorFlow has "
            "started already: set it before anything else runs"
        ) from error


def _processor():
    return tf.config.list_physical_devices("CPU")[0]


def set_precision(dtype: str | None) -> None:
    """Sets Keras 3's global policy; the Model Garden's own function sets only tf_keras'."""
    policy = "float32" if dtype in (None, "float32") else f"mixed_{dtype}"
    keras.mixed_precision.set_global_policy(policy)


def metric(metric: keras.metrics.Metric) -> keras.metrics.Metric:
    """A Keras 3 metric with the method name that official.core calls."""
    metric.reset_states = metric.reset_state
    return metric


def spread_seeds(model: Captioner) -> None:
    """Gives every replica its own dropout: replica r's generators start r * 7919 further on.

    Keras copies one generator to all replicas, so that their masks would be the same. A checkpoint
    holds the first replica's state, from which this makes the others' again: idempotent, and to be
    called after every restore.
    """
    for variable in named_variables(model).values():
        replicas = getattr(variable.value, "values", None)
        if is_seed(variable) and replicas:
            first = replicas[0].numpy()
            for index, replica in enumerate(replicas):
                replica.assign(tf.constant([first[0] + index * 7919, first[1]], replica.dtype))


def apply_gradients(optimizer, gradients: list, variables: list, clip: str, threshold) -> None:
    """Sums the gradients over replicas, clips, and applies; call it in replica context.

    Keras 3 clips on each replica before its sum. Here the sum comes first, and since the optimizer
    will sum once more it is handed its share. Under float16 the threshold is scaled like the loss.
    """
    context = tf.distribute.get_replica_context()
    gradients = [tf.convert_to_tensor(g) for g in gradients]
    gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if scaled:
        threshold = threshold * tf.convert_to_tensor(optimizer.dynamic_scale)
    share = 1.0 / context.num_replicas_in_sync
    clipped = [g * share for g in optim.clip(gradients, clip, threshold)]
    if scaled:  # clipping must not hide an overflow from the optimizer, which then skips the step
        clipped = [
            tf.where(tf.math.is_finite(g), c, g) for g, c in zip(gradients, clipped, strict=True)
        ]
    optimizer.apply(clipped, variables)


class Average:
    """The exponential moving average of a model's weights.

    After every step average += (1 - decay) (weights - average). It starts from the weights after
    the first step that it sees, so that it needs no correction of a bias, whether training starts
    anew or goes on from a checkpoint that has no average. Keras' own (`use_ema`) is kept by the
    optimizer in a numbered list before its other variables, so that a run could not be continued
    with another setting: each variable would be restored from its neighbour. Here weights have
    their names.

    Attributes:
      values: the average of each weight, by name.
      started: whether there is one.
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
        """Takes the weights in, each replica its own copy; call it outside of replica context."""
        strategy.run(self._update)
        self.started.assign(True)

    def _update(self):
        rate = tf.where(self.started, 1.0 - self.decay, 1.0)
        for name, value in self.values.items():
            value.assign_add(tf.cast(rate, value.dtype) * (self.weights[name] - value))

    def enter(self) -> None:
        """Puts the average into the model, if there is one."""
        if self.started.numpy():
            self._kept = {name: weight.numpy() for name, weight in self.weights.items()}
            for name, weight in self.weights.items():
                weight.assign(self.values[name])

    def leave(self) -> None:
        """Gives the model the weights back that it had at `enter`."""
        for name, weight in self._kept.items():
            self.weights[name].assign(weight)
        self._kept = {}


class BestExporter(train_utils.BestCheckpointExporter):
    """Exports the best checkpoint, and then its scores in `info.json`, whole or not at all.

    official.core writes the scores first: a run killed in between would keep an older checkpoint
    under the new scores, since the same scores are not better when it validates again.

    Beside the scores stands `signature`, how the run is trained.
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
        temporary = f"{self.best_ckpt_logs_path}.tmp-{os.getpid()}"
        with open(temporary, "w", encoding="utf-8") as file:
            scores["best_ckpt_global_step"] = float(global_step)
            json.dump(scores | {"signature": self.signature}, file, indent=4)
        os.replace(temporary, self.best_ckpt_logs_path)


def best_exporter(
    params: configs.Experiment, model_dir: str, signature: str
) -> BestExporter | None:
    """The exporter that `configs.Trainer` describes; None without a directory for it."""
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
    """official.core's trainer with four remedies.

    Replicas have their own dropout; the checkpoint holds the states of plateau and patience, and
    `validated`, the step of the last validation; with `ema_decay` the average of the weights is
    kept in the checkpoint, validated, and in the best checkpoint it is the weights.
    """

    def __init__(self, *args, plateau: optim.Plateau, patience: optim.Patience, **kwargs):
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
        """Called before every loop of `steps_per_loop` steps, so also after every restore."""
        super().train_loop_begin()
        spread_seeds(self.model)

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
        """See base class, which exports the best checkpoint here."""
        logs = super().eval_end(aggregated_logs)
        if self.average:
            self.average.leave()
        return logs


class Controller(orbit.Controller):
    """orbit's controller, validating after a resume when an uninterrupted run would.

    It validates before the first step where the task has a start to check, and ends training when
    patience does.
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
