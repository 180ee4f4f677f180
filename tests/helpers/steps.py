"""One training step of the captioning task, on one replica or more, as data."""

import functools

import keras
import numpy as np
import tensorflow as tf

from helpers import seeds
from tfcap import configs
from tfcap.training import distribution
from tfcap.training.task import CaptionTask


def batch(data, lengths, seed):
    """Two images with two captions each, of `lengths` words and their end."""
    rng = np.random.default_rng(seed)
    tokens = np.zeros((2, 2, 12), np.int32)
    for row, length in zip(tokens.reshape(4, 12), lengths, strict=True):
        row[0], row[1 : 1 + length], row[1 + length] = 1, rng.integers(4, 50, length), 2
    return {
        "features": tf.constant(rng.normal(size=(2, 3, data.feature_dim)), tf.float32),
        "mask": tf.constant([[True] * 3, [True, True, False]]),
        "tokens": tf.constant(tokens),
    }


def update(params, data, batches, done=0, scaled=False, xla=False, teacher=lambda: None):
    """A step of plain gradient descent after `done` others, on one replica per batch.

    `scaled` has the optimizer scale the loss, as under float16; `xla` has XLA compile the network;
    `teacher` makes the teacher.

    Returns the weights before and their change, the metrics, and the loss of each replica.
    """
    optimizer_config = configs.Optimizer(clip="none")
    strategy = distribution.strategy(configs.Runtime(replicas=len(batches)))
    with strategy.scope():
        taught = {"teacher": teacher()}
        seeds.set_seed(4)
        task = CaptionTask(params.task, data, optimizer_config, len(batches), xla=xla, **taught)
        model, metrics = task.build_model(), task.build_metrics()
        optimizer = keras.optimizers.SGD(1.0)
        if scaled:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=256.0)
        optimizer.build(model.trainable_variables)
    optimizer.iterations.assign(done)
    before = np.concatenate([np.ravel(v) for v in model.trainable_variables])
    split = strategy.experimental_distribute_values_from_function(
        lambda context: batches[context.replica_id_in_sync_group]
    )
    run = functools.partial(strategy.run, task.train_step, args=(split, model, optimizer, metrics))
    # Replicas need a graph: run eagerly, they race for the order of their all-reduces.
    logs = tf.function(run, autograph=False)() if len(batches) > 1 else run()
    after = np.concatenate([np.ravel(v) for v in model.trainable_variables])
    losses = strategy.experimental_local_results(logs[task.loss])
    results = [float(metric.result()) for metric in metrics]
    return before, after - before, results, [float(loss) for loss in losses]
