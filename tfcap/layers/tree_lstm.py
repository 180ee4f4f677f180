"""An LSTM over the nodes of a tree, from the leaves to the root.

Letters: B trees, N inner nodes, X width of an input, D width of the cell.
"""

import keras
import tensorflow as tf
from keras import ops

from tfcap.layers import common, precision
from tfcap.layers.loops import loop


@keras.saving.register_keras_serializable("tfcap")
class TreeLSTM(common.Layer):
    """The Child-Sum Tree-LSTM over trees in which each inner node but the root has a leaf.

    i, o, u = W x_j + b + U sum_k h_k
    f_jk    = sigmoid(W_f x_j + b_f + U_f h_k)
    c_j     = sigmoid(i) tanh(u) + sum_k f_jk c_k
    h_j     = sigmoid(o) tanh(c_j)

    x_j is the input of node j, and k runs over its children: inner nodes, and the leaf of node j.
    The sums of a leaf are 0. W, U, W_f and U_f are matrices, b and b_f biases.

    Source: Tai et al., "Improved Semantic Representations From Tree-Structured Long Short-Term
    Memory Networks", ACL 2015, equations 2 to 8.

    Args:
      inputs: width of an input, X.
      width: width of the cell, D.

    Example:
      >>> layer = TreeLSTM(inputs=6, width=8)
      >>> parents = tf.constant([[-1, 0, 1, 1]])  # a root, its child, and two children of that one
      >>> h, leaves = layer(tf.ones((1, 4, 6)), tf.ones((1, 3, 6)), parents)
      >>> h.shape, leaves.shape
      (TensorShape([1, 4, 8]), TensorShape([1, 3, 8]))
    """

    def __init__(self, inputs: int, width: int, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.input_map = common.linear(inputs, 4 * width, "input_map")
        self.state_map = common.linear(width, 3 * width, "state_map", use_bias=False)
        self.forget_map = common.linear(width, width, "forget_map", use_bias=False)

    def call(self, x, leaves, parents, training=False):
        """Computes the states of all nodes.

        Args:
          x: inputs of the inner nodes [B, N, X]. The first is the root, and a parent stands before
            its children.
          leaves: inputs of the leaves [B, N - 1, X], one below each inner node but the root.
          parents: index of the parent of each inner node, int32 [B, N]. A node with the parent -1
            counts in no other one.
          training: True makes the gradient faster.

        Returns:
          A tuple: the outputs h of the inner nodes [B, N, D], and of the leaves [B, N - 1, D].
        """
        count = ops.shape(x)[1]
        gates, forget = self._gates(x)
        gates_of_leaves, _ = self._gates(leaves)
        h, c = self._state(gates_of_leaves, 0.0)
        sums = self._to_parent(h, c, forget[:, 1:])
        sums = ops.pad(sums, [[0, 0], [1, 0], [0, 0]])  # the root has no leaf
        child_of = ops.cast(parents[..., None] == tf.range(count), self.compute_dtype)
        forget = precision.matmul(self, child_of, forget)  # of the parent of each node

        # A sum and no list: LiteRT computes wrong numbers with lists of tensors.
        def body(index, sums, outputs):
            node = count - 1 - index
            by_h, by_c = ops.split(sums[:, node], 2, axis=-1)
            h, c = self._state(gates[:, node] + self.state_map(by_h), by_c)
            added = self._to_parent(h, c, forget[:, node])
            sums = sums + child_of[:, node, :, None] * added[:, None]
            here = ops.cast(tf.range(count) == node, self.compute_dtype)
            return index + 1, sums, outputs + here[:, None] * h[:, None]

        *_, outputs = loop(
            lambda index, *_: index < count,
            body,
            (tf.constant(0), sums, ops.zeros_like(forget)),
            gradient=training,
            maximum_iterations=count,
        )
        return outputs, h

    def _gates(self, x):
        """Returns what inputs add to i, o and u [..., 3 D], and to f [..., D]."""
        mapped = self.input_map(x)
        return mapped[..., : 3 * self.width], mapped[..., 3 * self.width :]

    def _state(self, gates, by_children):
        """Computes h and c [..., D] from i, o and u [..., 3 D] and from the sum of f_jk c_k."""
        i, o, u = ops.split(gates, 3, axis=-1)
        c = ops.sigmoid(i) * ops.tanh(u) + by_children
        return ops.sigmoid(o) * ops.tanh(c), c

    def _to_parent(self, h, c, forget):
        """What nodes add to the sums of their parents, [h_k; f_jk c_k], [..., 2 D]."""
        return ops.concatenate([h, ops.sigmoid(forget + self.forget_map(h)) * c], axis=-1)
