"""Nests of tensors with one row for each image, caption or beam.

Letters: N rows, M chosen rows.
"""

from typing import Any

import tensorflow as tf

from tfcap.layers.loops import in_xla

Tree = Any  # a nest of tensors


def repeat(tree: Tree, times: int) -> Tree:
    """Repeats each row of every leaf [N, ...]: [N * times, ...], copies of a row side by side."""
    if isinstance(times, int) and times == 1:  # a tensor has no truth in a graph
        return tree
    return tf.nest.map_structure(lambda leaf: _repeat(leaf, times), tree)


def _repeat(leaf, times):
    if not isinstance(times, int) or not leaf.shape.is_fully_defined():
        return tf.repeat(leaf, times, axis=0)
    # XLA has no gradient of `tf.repeat` inside a loop.
    rows, *rest = leaf.shape
    return tf.reshape(tf.tile(leaf[:, None], [1, times] + [1] * len(rest)), [rows * times, *rest])


def take(tree: Tree, rows: tf.Tensor) -> Tree:
    """Gathers the rows int32 [M] of every leaf [N, ...]: [M, ...]."""
    return tf.nest.map_structure(lambda leaf: tf.gather(leaf, rows), tree)


def put(buffer: tf.Tensor, row: tf.Tensor, index: tf.Tensor, axis: int) -> tf.Tensor:
    """Writes `row`, which has length 1 on `axis`, at position `index` of that axis of `buffer`.

    Inside a loop this operation writes in place; a select or a scatter would copy the buffer.
    `keras.ops.slice_update` has no gradient on TensorFlow. XLA cannot compile the operation, so XLA
    gets a select.
    """
    if in_xla():
        here = tf.one_hot(index, tf.shape(buffer)[axis], True, False)
        here = tf.reshape(here, [-1] + [1] * (len(buffer.shape) - axis - 1))
        return tf.where(here, tf.cast(row, buffer.dtype), buffer)
    before, whole = [0] * axis, (1 << axis) - 1  # a mask of all axes before `axis`
    return tf.raw_ops.TensorStridedSliceUpdate(
        input=buffer,
        begin=tf.stack([*before, index]),
        end=tf.stack([*before, index + 1]),
        strides=[1] * (axis + 1),
        value=tf.cast(row, buffer.dtype),
        begin_mask=whole,
        end_mask=whole,
    )
