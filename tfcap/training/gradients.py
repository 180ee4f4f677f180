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
    compiled: Callable[[Callable], Callable] | None = None,
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
      compiled: compiles a function with XLA; None compiles nothing. Sums over replicas stay outside
        the compiled function, which cannot contain them.

    Returns:
      The gradients, the share of the mean, and the sums of this replica.
    """
    replica = tf.distribute.get_replica_context()
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    scale = optimizer.scale_loss if scaled else tf.identity

    def every(count):
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, count)

    if parts == 1 and not compiled:
        with tf.GradientTape() as tape:
            total, count, sums = objective(inputs)
            mean = total / every(count)
            loss = scale(mean)
        return tape.gradient(loss, variables), mean, sums

    def of_part(part):
        # The count of all parts is not known yet; the count of this part keeps float16 in range.
        with tf.GradientTape() as tape:
            total, count, sums = objective(part)
            loss = scale(total / count)
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, variables)]
        return [gradient * count for gradient in gradients], total, count, sums

    if compiled:
        of_part = compiled(of_part)
    if parts == 1:
        gradients, total, count, sums = of_part(dict(inputs))
        count = every(count)
        return [gradient / count for gradient in gradients], total / count, sums

    def body(index, *state):
        part = tf.nest.map_structure(lambda leaf: _part(leaf, index, parts), dict(inputs))
        return index + 1, *tf.nest.map_structure(tf.add, list(state), list(of_part(part)))

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
