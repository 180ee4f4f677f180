"""Makes distribution strategies work with Keras 3: each function solves one problem."""

import functools
import math
import signal
import sys

import keras
import tensorflow as tf
from official.common import distribute_utils
from tensorflow.python.eager import context

from tfcap import configs
from tfcap.models.captioner import Captioner
from tfcap.training import cluster, optim


def strategy(runtime: configs.Runtime) -> tf.distribute.Strategy:
    """Makes the distribution strategy that a `configs.Runtime` describes.

    Raises:
      ValueError: there are fewer GPUs than replicas, or `TF_CONFIG` names several workers and the
        strategy has one.
    """
    _check_devices(runtime)
    if runtime.distribution_strategy == "multi_worker_mirrored":
        distribute_utils.configure_cluster(runtime.worker_hosts, runtime.task_index)
        timeouts = runtime.start_timeout, runtime.worker_timeout
        return _multi_worker(runtime.all_reduce_alg or "auto", *timeouts)
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
            f"Received: {replicas}. Lower it, or set it to 0 to use every GPU."
        )
    if not gpus and replicas > 1:
        split_processor(replicas)
    return _mirrored("GPU" if gpus else "CPU", replicas)


def _check_devices(runtime):
    """Checks the numbers of GPUs, replicas and workers against the strategy.

    With another strategy each of several workers would be a chief.
    """
    gpus = len(tf.config.list_physical_devices("GPU"))
    if runtime.num_gpus > gpus:
        raise ValueError(
            f"runtime.num_gpus must be at most the number of GPUs, {gpus}. Received: "
            f"{runtime.num_gpus}. Set it to 0 to use every GPU, or the processor if there is none."
        )
    several = runtime.distribution_strategy == "multi_worker_mirrored"
    count = cluster.place().workers
    if count > 1 and runtime.distribution_strategy in ("mirrored", "one_device"):
        raise ValueError(
            "runtime.distribution_strategy must be multi_worker_mirrored where TF_CONFIG names "
            f"several workers. Received: {runtime.distribution_strategy} and {count} workers."
        )
    if runtime.distribution_strategy == "one_device" and runtime.replicas > 1:
        raise ValueError(
            "runtime.replicas must be 0 or 1 with runtime.distribution_strategy=one_device. "
            f"Received: {runtime.replicas}. Use mirrored for several replicas."
        )
    if several and runtime.replicas > 1:
        raise ValueError(
            "runtime.replicas must be 0 with multi_worker_mirrored: each worker uses all GPUs that "
            f"it sees, or its processor as one replica. Received: {runtime.replicas}."
        )


@functools.cache
def _mirrored(kind: str, replicas: int) -> tf.distribute.MirroredStrategy:
    """Makes one strategy per process and set of devices.

    Every strategy numbers its all-reduces from the same start, and TensorFlow remembers the shape
    that belongs to each number. A second strategy over the same devices would therefore fail.
    """
    # TensorFlow warns of steps without a graph, which trainer.train_tf_function=false asks for.
    tf.get_logger().addFilter(lambda record: "eagerly has significant" not in record.getMessage())
    return tf.distribute.MirroredStrategy([f"{kind}:{i}" for i in range(replicas)])


@functools.cache
def _multi_worker(
    all_reduce: str, start: float, silence: float
) -> tf.distribute.MultiWorkerMirroredStrategy:
    """Makes one strategy per process: the second stage of a run goes on with it.

    Args:
      all_reduce: `auto`, `ring` or `nccl`.
      start: seconds to wait for the other workers.
      silence: seconds without an answer after which a worker counts as lost.
    """
    # The strategy has no option for this time: it is given to what the strategy calls.
    service = context.context()
    service.configure_coordination_service = functools.partial(
        service.configure_coordination_service, heartbeat_timeout_in_ms=int(1000 * silence)
    )
    kinds = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=kinds(all_reduce.upper())
    )
    print(
        f"waiting at most {start:.0f} s (runtime.start_timeout) for the workers of TF_CONFIG",
        file=sys.stderr,
        flush=True,
    )
    # TensorFlow waits in C++ and keeps Python's lock: only the kernel can end this process then.
    signal.alarm(math.ceil(start))
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    finally:
        signal.alarm(0)


def describe_devices(strategy: tf.distribute.Strategy) -> str:
    """Returns this worker's devices in words: `1 CPU`, or `2 GPUs (NVIDIA H100 80GB HBM3)`.

    The names in brackets are those of all GPUs that TensorFlow sees.
    """
    names = [tf.DeviceSpec.from_string(name) for name in strategy.extended.worker_devices]
    kind, count = names[0].device_type, len(names)
    details = ""
    if kind == "GPU":
        gpus = tf.config.list_physical_devices("GPU")
        known = [tf.config.experimental.get_device_details(gpu).get("device_name") for gpu in gpus]
        details = ", ".join(sorted({name for name in known if name}))
    return f"{count} {kind}{'s' * (count > 1)}" + (f" ({details})" if details else "")


def split_processor(devices: int) -> None:
    """Splits the processor into `devices` logical devices, before TensorFlow starts.

    Raises:
      ValueError: TensorFlow has started with another number of devices.
    """
    if len(tf.config.get_logical_device_configuration(_processor()) or [0]) == devices:
        return
    try:
        tf.config.set_logical_device_configuration(
            _processor(), [tf.config.LogicalDeviceConfiguration()] * devices
        )
    except RuntimeError as error:
        raise ValueError(
            f"runtime.replicas={devices} needs {devices} logical processors. Received: another "
            "number, with which TensorFlow has started already. Start a new process."
        ) from error


def _processor():
    return tf.config.list_physical_devices("CPU")[0]


def spread_seeds(model: Captioner, worker: int = 0) -> None:
    """Gives every replica its own dropout: the generators of replica r start at seed + r * 7919.

    Keras copies one generator to all replicas, so that they would draw the same masks. A checkpoint
    holds the state of the first replica of all workers. Call this function once after each restore
    in every worker; with a single worker, calling it twice changes nothing.

    Args:
      model: the captioner.
      worker: the number of this worker; all workers have the same number of replicas.
    """
    for state in model.checkpoint_items["seeds"].values():
        replicas = getattr(state, "values", None)
        if replicas:
            first, before = replicas[0].numpy(), worker * len(replicas)
            for index, replica in enumerate(replicas, before):
                replica.assign(tf.constant([first[0] + index * 7919, first[1]], replica.dtype))


def apply_gradients(optimizer, gradients: list, variables: list, clip: str, threshold) -> None:
    """Sums the gradients over replicas, clips the sum and applies it; call it in replica context.

    Keras 3 clips the gradient of each replica and sums afterwards. Here the sum comes first. The
    optimizer sums over replicas once more, so each replica passes it an equal share of the clipped
    sum. Under float16 the threshold is scaled like the loss.
    """
    context = tf.distribute.get_replica_context()
    gradients = [tf.convert_to_tensor(g) for g in gradients]
    if context.num_replicas_in_sync > 1:
        gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if scaled:
        threshold = threshold * tf.convert_to_tensor(optimizer.dynamic_scale)
    share = 1.0 / context.num_replicas_in_sync
    clipped = optim.clip(gradients, clip, threshold, share)
    if scaled:  # the optimizer must see an overflow, to skip the step: clipping would hide it
        clipped = [
            tf.where(tf.math.is_finite(g), c, g) for g, c in zip(gradients, clipped, strict=True)
        ]
    optimizer.apply(clipped, variables)
