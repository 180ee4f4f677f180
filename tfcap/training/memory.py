"""What a training run will need of memory, said before its first step.

Letters: B images of one replica, C references of an image, R regions, F feature width, T
`max_length`.
"""

import keras
import tensorflow as tf

from tfcap.measure.graph_memory import PROCESS, Memory, memory_of_step
from tfcap.models.captioner import Captioner
from tfcap.training.task import CaptionTask

SMALLEST = 5_000_000  # weights: below, the process itself needs more than its model
REFERENCES = 5  # C of most data sets


def largest_batch(task: CaptionTask) -> dict[str, tf.TensorSpec]:
    """A batch of one replica with as many regions and words as the configuration allows."""
    config = task.task_config.train_data
    images, length = config.global_batch_size // task.replicas, task.task_config.max_length
    regions = min(task.data.max_regions, config.max_regions or task.data.max_regions)
    specs = {
        "features": tf.TensorSpec([images, regions, task.data.feature_dim]),
        "mask": tf.TensorSpec([images, regions], tf.bool),
        "tokens": tf.TensorSpec([images, config.captions_per_image, length + 1], tf.int32),
        "id": tf.TensorSpec([images], tf.int64),
    }
    wanted = task.training_references()
    if wanted:
        length = wanted["reference_length"] or length
        references = wanted["references"](tf.zeros([images, REFERENCES, length], tf.int32))
        specs["references"] = tf.nest.map_structure(tf.TensorSpec.from_tensor, references)
    return specs


def estimate(
    task: CaptionTask,
    model: Captioner,
    optimizer: keras.optimizers.Optimizer,
    strategy: tf.distribute.Strategy,
) -> Memory:
    """The memory of one replica's step over its `largest_batch`, from the graph of that step.

    Raises:
      ValueError: if a shape in the graph stays open.
    """
    with strategy.scope():
        metrics = task.build_metrics()

    @tf.function(autograph=False)
    def step(inputs):
        return strategy.run(task.train_step, args=(inputs, model, optimizer, metrics))

    found = memory_of_step(step.get_concrete_function(largest_batch(task)), model, optimizer)
    # The graph holds what all replicas need, the gradients of each among it.
    alive = (found.gradients + found.activations) // strategy.num_replicas_in_sync
    activations = max(alive - found.gradients, 0)
    fixed = found.weights + found.gradients + found.slots
    return found._replace(activations=activations, total=fixed + activations)


def said(
    task: CaptionTask,
    model: Captioner,
    optimizer: keras.optimizers.Optimizer,
    strategy: tf.distribute.Strategy,
) -> str:
    """The estimate in words, or why there is none: it must never stop a run."""
    try:
        return sentence(estimate(task, model, optimizer, strategy))
    except ValueError as error:
        return f"how much memory a step needs cannot be told: {str(error).splitlines()[0]}"


def sentence(memory: Memory) -> str:
    """An estimate in words."""
    gib = {name: size / 2**30 for name, size in memory._asdict().items()}
    return (
        f"a step needs about {gib['total']:.1f} GiB of memory on each replica beside TensorFlow's "
        f"own {PROCESS / 2**30:.1f}: weights {gib['weights']:.2f}, gradients "
        f"{gib['gradients']:.2f}, optimizer {gib['slots']:.2f}, the rest "
        f"{gib['activations']:.2f}, most of which task.micro_batches divides"
    )
