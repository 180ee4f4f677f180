"""The gradient of a mean over all replicas, for a whole batch or in micro-batches.

Letters: B images of one replica.
"""

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

Sums = dict[str, tuple[tf.Tensor, tf.Tensor]]  # metric -> its sum, and the number to divide by
Objective = Callable[[dict[str, tf.Tensor]], tuple[tf.Tensor, tf.Tensor, Sums]]


def of_mean(
    objective: Objective,
    inputs: dict[str, tf.Tensor],
    variables: Sequence[keras.Variable],
    optimizer: keras.optimizers.Optimizer,
    names: Sequence[str],
    parts: int = 1,
) -> tuple[list[tf.Tensor], tf.Tensor, Sums]:
    """Computes this replica's share of the gradient of sum(total) / sum(count).

    Both sums run over all replicas and parts; the caller adds up the shares of the replicas. With
    micro-batches only the activations of one part exist at a time. The gradient is then the same
    except for the order of the additions, and dropout draws other masks. Call this function in
    replica context.

    Args:
      objective: maps a batch, or a part of it, to total, count (float32 scalars) and the sums.
      inputs: a batch; every leaf is [B, ...].
      variables: the weights to differentiate by.
      optimizer: scales the loss under float16.
      names: the keys of the sums that `objective` returns.
      parts: number of micro-batches; B is a multiple of it.

    Returns:
      The gradients, the share of the mean, and the sums of this replica.
    """
    replica = tf.distribute.get_replica_context()
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    scale = optimizer.scale_loss if scaled else tf.identity

    def every(count):
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, count)

    if parts == 1:
        with tf.GradientTape() as tape:
            total, count, sums = objective(inputs)
            mean = total / every(count)
            loss = scale(mean)
        return tape.gradient(loss, variables), mean, sums

    def body(index, gradients, total, count, sums):
        part = tf.nest.map_structure(lambda leaf: _part(leaf, index, parts), dict(inputs))
        # The count of all parts is not known yet; the count of this part keeps float16 in range.
        with tf.GradientTape() as tape:
            new_total, new_count, new_sums = objective(part)
            loss = scale(new_total / new_count)
        new = tape.gradient(loss, variables)
        new = [
            old + tf.convert_to_tensor(g) * new_count for old, g in zip(gradients, new, strict=True)
        ]
        sums = tf.nest.map_structure(tf.add, sums, new_sums)
        return index + 1, new, total + new_total, count + new_count, sums

    zero = tf.constant(0.0)
    start = [tf.zeros(variable.shape, variable.dtype) for variable in variables]
    _, gradients, total, count, sums = tf.while_loop(
        lambda index, *_: index < parts,
        body,
        (tf.constant(0), start, zero, zero, {name: (zero, zero) for name in names}),
        parallel_iterations=1,
    )
    count = every(count)
    return [gradient / count for gradient in gradients], total / count, sums


def _part(leaf, index, parts):
    """Returns part number `index` of `parts` equal parts of `leaf` [B, ...]."""
    size = tf.shape(leaf)[0] // parts
    part = leaf[index * size : (index + 1) * size]
    if leaf.shape[0] is not None:
        part.set_shape([leaf.shape[0] // parts, *leaf.shape[1:]])
    return part
