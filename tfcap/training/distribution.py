"""Makes distribution strategies work with Keras 3: each function solves one problem."""

import functools
import logging
import math
import signal
from collections.abc import Sequence

import keras
import tensorflow as tf
from official.common import distribute_utils

from tfcap import configs, errors, private_api
from tfcap.models.captioner import Captioner
from tfcap.training import optim
from tfcap.training.workers import cluster_position

_log = logging.getLogger(__name__)


def strategy(runtime: configs.Runtime) -> tf.distribute.Strategy:
    """Makes the TensorFlow distribution strategy that a configuration asks for.

    If the environment variable `TF_CONFIG` names several workers, `mirrored` means
    `multi_worker_mirrored`.

    Args:
      runtime: the group `runtime` of the configuration.

    Raises:
      UsageError: this machine has fewer GPUs than configured; `replicas` is above 1 without
        `mirrored` on a single worker; `TF_CONFIG` is wrong; or TensorFlow has already started with
        another number of replicas.
    """
    gpus = len(tf.config.list_physical_devices("GPU"))
    name = runtime.distribution_strategy
    if max(runtime.num_gpus, runtime.replicas * bool(gpus)) > gpus:
        key = "num_gpus" if runtime.num_gpus > gpus else "replicas"
        raise errors.UsageError(
            f"runtime.{key}={getattr(runtime, key)} is more than the {gpus} GPUs of this machine. "
            f"Set it to at most {gpus}."
        )
    if name == "mirrored" and cluster_position()[0] > 1:
        name = "multi_worker_mirrored"
    if name != "mirrored" and runtime.replicas > 1:
        raise errors.UsageError(
            f"runtime.replicas={runtime.replicas} needs runtime.distribution_strategy=mirrored on "
            f"a single worker, not {name}. Set runtime.replicas=0, or change the strategy."
        )
    if name == "mirrored":
        replicas = runtime.replicas or runtime.num_gpus or gpus or 1
        if not gpus and replicas > 1:
            _split_processor(replicas)
        return _mirrored("GPU" if gpus else "CPU", replicas)
    distribute_utils.configure_cluster(runtime.worker_hosts, runtime.task_index)
    if name == "multi_worker_mirrored":
        cluster_position(several=True)  # also the addresses of runtime.worker_hosts
        return _multi_worker(
            runtime.all_reduce_alg or "auto", runtime.start_timeout, runtime.worker_timeout
        )
    return distribute_utils.get_distribution_strategy(
        name,
        num_gpus=runtime.num_gpus,
        all_reduce_alg=runtime.all_reduce_alg,
        num_packs=runtime.num_packs,
        tpu_address=runtime.tpu,
    )


@functools.cache
def _mirrored(kind: str, replicas: int) -> tf.distribute.MirroredStrategy:
    """Makes one strategy per process and set of devices.

    Every strategy numbers its all-reduces from the same start, and TensorFlow remembers a shape for
    each number. So a second strategy over the same devices would fail.
    """
    # TensorFlow warns of steps without a graph, for which trainer.train_tf_function=false asks.
    tf.get_logger().addFilter(lambda record: "eagerly has significant" not in record.getMessage())
    return tf.distribute.MirroredStrategy([f"{kind}:{i}" for i in range(replicas)])


@functools.cache
def _multi_worker(
    all_reduce: str, start_timeout: float, worker_timeout: float
) -> tf.distribute.MultiWorkerMirroredStrategy:
    """Makes one strategy per process, which later stages use, too.

    Args:
      all_reduce: how replicas add their gradients: auto, ring or nccl.
      start_timeout: seconds to wait for the start of the other workers.
      worker_timeout: seconds without an answer after which a worker counts as lost.
    """
    private_api.set_worker_timeout(worker_timeout)
    kinds = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=kinds(all_reduce.upper())
    )
    _log.warning(
        f"waiting at most {start_timeout:.0f} s (runtime.start_timeout) for the workers of "
        "TF_CONFIG"
    )
    # TensorFlow waits in C++ and keeps Python's lock: only the kernel can end this process then.
    signal.alarm(math.ceil(start_timeout))
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    finally:
        signal.alarm(0)


def describe_devices(strategy: tf.distribute.Strategy) -> str:
    """Returns the devices of this worker as text, such as `1 CPU` or `2 GPUs`."""
    names = [tf.DeviceSpec.from_string(name) for name in strategy.extended.worker_devices]
    return f"{len(names)} {names[0].device_type}{'s' * (len(names) > 1)}"


def _split_processor(devices: int) -> None:
    """Splits the processor into `devices` logical devices, before TensorFlow starts."""
    processor = tf.config.list_physical_devices("CPU")[0]
    if len(tf.config.get_logical_device_configuration(processor) or [0]) == devices:
        return
    try:
        parts = [tf.config.LogicalDeviceConfiguration()] * devices
        tf.config.set_logical_device_configuration(processor, parts)
    except RuntimeError as error:
        raise errors.UsageError(
            "TensorFlow has already started in this process, with another number of replicas than "
            f"runtime.replicas={devices}. Train in a new process."
        ) from error


def spread_seeds(model: Captioner, worker: int = 0) -> None:
    """Gives each replica its own dropout masks, by random states that differ.

    Keras copies one random state to all replicas, so they would draw the same masks. Here 7919 r is
    added to the seed of replica r = 0, 1, ..., counted over all workers. A checkpoint holds the
    state of the first replica alone. So call this function once after each restore, in every
    worker.

    Args:
      model: the captioner, whose dropout layers hold the random states.
      worker: the index of this worker, from 0.
    """
    for state in model.checkpoint_items["seeds"].values():
        replicas = getattr(state, "values", None)
        if replicas:
            first = replicas[0].numpy()
            for index, replica in enumerate(replicas, start=worker * len(replicas)):
                replica.assign(tf.constant([first[0] + index * 7919, first[1]], replica.dtype))


def apply_gradients(
    optimizer: keras.optimizers.Optimizer,
    gradients: list[tf.Tensor],
    variables: Sequence[keras.Variable],
    clip: str,
    threshold: float,
) -> None:
    """Sums gradients over all replicas, clips the sum, and updates the variables with it.

    Call it in replica context. Keras 3 would clip the gradients of each replica and sum afterwards.
    The optimizer sums over replicas again, so each replica passes an equal share of the clipped sum
    to it.

    Args:
      optimizer: the optimizer, built for these variables.
      gradients: the gradients of this replica, one for each variable. With a `LossScaleOptimizer`
        (float16) these are the gradients of the scaled loss.
      variables: the trained variables, in the order of the gradients.
      clip: how to clip: `value`, `norm` or `none`, see `optim.clip`.
      threshold: the limit for `value` and `norm`. For the gradients of a scaled loss it is
        multiplied by the loss scale here.
    """
    context = tf.distribute.get_replica_context()
    gradients = [tf.convert_to_tensor(g) for g in gradients]
    if context.num_replicas_in_sync > 1:
        gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    limit = threshold * tf.convert_to_tensor(optimizer.dynamic_scale) if scaled else threshold
    clipped = optim.clip(gradients, clip, limit, share=1.0 / context.num_replicas_in_sync)
    if scaled:  # the optimizer must see an overflow, to skip the step: clipping would hide it
        clipped = [
            tf.where(tf.math.is_finite(g), c, g) for g, c in zip(gradients, clipped, strict=True)
        ]
    optimizer.apply(clipped, variables)
