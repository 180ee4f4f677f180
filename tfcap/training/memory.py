"""Forecasts the memory of a training step and compares it with the measured peak.

Letters: B images of one replica, C references of an image, R regions, F feature width,
T `max_length`.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import keras
import tensorflow as tf

from tfcap.measure import graphs, timing
from tfcap.models.captioner import Captioner
from tfcap.training.task import CaptionTask

PROCESS = 5 * 2**28  # bytes of a training process without its tensors: TensorFlow, input, graphs
SMALLEST = 5_000_000  # weights; for smaller models there is no forecast: TensorFlow needs more
SLACK = 1.25  # see `activation_bytes`
REFERENCES = 5  # C of most data sets
REMEDY = "raise task.micro_batches, which divides the activations, or lower the batch size"
# Operations whose result lies in the memory of their first input.
VIEWS = {"Identity", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "EnsureShape", "Bitcast"}


class Memory(NamedTuple):
    """Bytes that a training step needs on one replica, without TensorFlow itself."""

    weights: int
    gradients: int  # gradients of the trainable weights
    slots: int  # all variables of the optimizer
    activations: int  # an upper bound
    total: int


def forecast(
    step: tf.types.experimental.ConcreteFunction,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    replicas: int = 1,
    micro_batches: int = 1,
) -> Memory:
    """Forecasts the memory of a traced training step; only the activations are estimated.

    Args:
      step: the step of all replicas, traced with static shapes.
      model: the model that the step trains.
      optimizer: the optimizer of the step, built.
      replicas: the number of replicas whose operations `step` holds.
      micro_batches: number of micro-batches of the step. With several, the gradients of one
        micro-batch and their sum over all are in memory.

    Raises:
      ValueError: if a shape in the graph is open.
    """

    def size(variables):
        return sum(math.prod(v.shape) * tf.as_dtype(v.dtype).size for v in variables)

    gradients = size(model.trainable_variables) * (2 if micro_batches > 1 else 1)
    fixed = size(model.variables), gradients, size(optimizer.variables)
    activations = activation_bytes(graphs.flatten(step), replicas)
    return Memory(*fixed, activations, sum(fixed) + activations)


def activation_bytes(program: graphs.Program, replicas: int = 1) -> int:
    """Computes an upper bound of the bytes of a batch and its activations on one replica.

    The bound assumes that all tensors of the forward pass which the backward pass reads are in
    memory at the same time. The same holds for the lists that loops keep for the backward pass,
    with one element for each iteration. The factor `SLACK` covers temporary tensors of the backward
    pass and gaps between tensors.
    """
    owner: dict[str, str] = {}  # tensor -> the tensor in whose memory it lies
    sizes: dict[str, int] = {}  # bytes of the tensors of the forward pass
    times = {t.name: node.times for node in program.nodes for t in node.op.outputs}
    kept: set[str] = set()
    lists, largest = 0, 0
    for node in program.nodes:
        op, is_backward = node.op, "gradient" in node.op.name
        for tensor in op.outputs:
            first = program.starts.get(tensor.name)  # state of a loop: its value before the loop
            if first is None and op.type in VIEWS:
                first = op.inputs[0].name
            if first is not None:
                owner[tensor.name] = owner.get(first, first)
            elif op.type not in ("Const", "VarHandleOp", "ReadVariableOp"):
                size = _bytes(tensor)
                largest = max(largest, size)
                sizes[tensor.name] = 0 if is_backward else size
        if is_backward:
            kept.update(owner.get(tensor.name, tensor.name) for tensor in op.inputs)
        if op.type in ("TensorListPushBack", "TensorListSetItem"):
            turns = node.times // times.get(program.lists[op.inputs[0].name], 1)
            lists += turns * _bytes(op.inputs[-1])
    read = sum(sizes.get(name, 0) for name in kept)
    batch = sum(map(_bytes, program.inputs))
    return batch + int(SLACK * (read + lists) / replicas) + 4 * largest


def _bytes(tensor: tf.Tensor) -> int:
    """Computes the bytes of a tensor; 0 for resources, lists and strings."""
    if tensor.dtype in (tf.resource, tf.variant, tf.string):
        return 0
    if tensor.shape.rank == 1 and tensor.shape[0] is None and tensor.dtype.is_integer:
        return 0  # a list of axes or of sizes
    return graphs.size_of(tensor) * tensor.dtype.size


def largest_batch(task: CaptionTask) -> dict[str, tf.TensorSpec]:
    """Returns specs, by input name, of the largest batch of one replica that can occur."""
    config = task.task_config.train_data
    images, length = config.global_batch_size // task.replicas, task.task_config.max_length
    regions = task.data.most_regions(config.region_limit)
    specs = {
        "features": tf.TensorSpec([images, regions, task.data.feature_dim]),
        "mask": tf.TensorSpec([images, regions], tf.bool),
        "tokens": tf.TensorSpec([images, config.captions_per_image, length + 1], tf.int32),
        "id": tf.TensorSpec([images], tf.int64),
    }
    if task.data.backbone is not None:
        del specs["features"]
        specs["pictures"] = tf.TensorSpec([images, *task.data.backbone.decoded_shape])
    if task.data.image_dim is not None:
        specs["image"] = tf.TensorSpec([images, task.data.image_dim])
    wanted = task.training_references()
    if wanted:
        length = wanted["reference_length"] or length
        references = wanted["references"](tf.zeros([images, REFERENCES, length], tf.int32))
        specs["references"] = tf.nest.map_structure(tf.TensorSpec.from_tensor, references)
    return specs


def of_training(
    task: CaptionTask,
    model: Captioner,
    optimizer: keras.optimizers.Optimizer,
    strategy: tf.distribute.Strategy,
) -> Memory:
    """Forecasts the memory of a training step of one replica with its `largest_batch`.

    The step is traced once more for this, because the graph of training has open shapes.
    """
    with strategy.scope():
        metrics = task.build_metrics()

    @tf.function(autograph=False)
    def step(inputs):
        return strategy.run(task.train_step, args=(inputs, model, optimizer, metrics))

    concrete = step.get_concrete_function(largest_batch(task))
    parts = task.task_config.micro_batches
    return forecast(concrete, model, optimizer, strategy.num_replicas_in_sync, parts)


class Report:
    """Prints the forecast, and after the first training loop the measured peak.

    It is an action of orbit. A failed forecast does not stop the run; a line gives the reason.
    `say` prints a line.
    """

    def __init__(self, task, model, optimizer, strategy, say: Callable[[str], None] = print):
        self._say = say
        self.replicas = strategy.num_replicas_in_sync
        self.expected: Memory | None = None
        self.is_first = True  # until the first training loop has ended
        try:
            self.expected = of_training(task, model, optimizer, strategy)
        except ValueError as error:
            reason = str(error).splitlines()[0]
            say(f"memory: the forecast of a training step failed: {reason}")
            return
        gib = {name: size / 2**30 for name, size in self.expected._asdict().items()}
        say(
            f"memory: a training step needs at most {gib['total']:.2f} GiB on each replica "
            f"(weights {gib['weights']:.2f}, gradients {gib['gradients']:.2f}, optimizer "
            f"{gib['slots']:.2f}, activations {gib['activations']:.2f}), and TensorFlow itself "
            f"{PROCESS / 2**30:.1f} GiB. If this is too much, {REMEDY}"
        )

    def __call__(self, output) -> None:
        """Prints the measured peak once; orbit calls this action after each training loop."""
        if self.is_first and self.expected:
            self._say(self.line(*timing.peak_memory()))
        self.is_first = False

    def line(self, process: int, gpu: int | None) -> str:
        """Returns the line that compares the measured peak with the forecast.

        Args:
          process: peak of this process in bytes.
          gpu: peak of the tensors on the first GPU in bytes; None without a GPU.
        """
        assert self.expected is not None, "only a report with a forecast has this line"
        if gpu is not None:  # one GPU holds one replica
            measured, expected, where = gpu, self.expected.total, "the GPU"
        else:
            measured, where = process, "the process"
            expected = PROCESS + self.replicas * self.expected.total
        return (
            f"memory: the measured peak of {where} is {measured / 2**30:.2f} GiB after the first "
            f"training steps; the forecast was {expected / 2**30:.2f} GiB"
        )
