"""Relations between the regions of an image: their labels, and a graph convolution over them.

Letters: B images, R regions, X width of a region, L columns of labels, M labels of relations.
"""

import keras
import tensorflow as tf
from keras import ops

from tfcap.layers import common, precision


@keras.saving.register_keras_serializable("tfcap")
class RelationGraph(common.Layer):
    """A graph convolution: each region reads itself and the regions that it is related to.

    y_i = g(W_l v_i) + sum_j s_ij sigmoid(a_s v_j + a[r_ij]) (W_s v_j + b[r_ij])
                     + sum_j s_ji sigmoid(a_o v_j + a[r_ji]) (W_o v_j + b[r_ji]) + v_i

    g(z) = sigmoid(a_l v_i + a') z, r_ij is the label of the relation from i to j, and s_ij is 1
    where there is one. Both directions share b [M, X] and a [M, 1], which start at 0.

    Source: the graph of GCN-LSTM (Yao et al., "Exploring Visual Relationship for Image Captioning",
    ECCV 2018) as in xmodaler.

    Args:
      width: width of a region, X.
      labels: number of labels, M, label 0 for no relation included.

    Example:
      >>> graph = RelationGraph(width=8, labels=4)
      >>> graph(ops.ones((2, 3, 8)), ops.ones((2, 3, 3), "int32")).shape
      TensorShape([2, 3, 8])
    """

    def __init__(self, width: int, labels: int, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.labels = labels
        self.loop = common.linear(width, width, "loop")
        self.loop_gate = common.linear(width, 1, "loop_gate")
        self.sub = common.linear(width, width, "sub", use_bias=False)
        self.sub_gate = common.linear(width, 1, "sub_gate", use_bias=False)
        self.obj = common.linear(width, width, "obj", use_bias=False)
        self.obj_gate = common.linear(width, 1, "obj_gate", use_bias=False)

    def build(self, *shapes):
        zeros = keras.initializers.Zeros()
        self.bias = self.add_weight(shape=(self.labels, self.width), initializer=zeros, name="bias")
        self.gate_bias = self.add_weight(
            shape=(self.labels, 1), initializer=zeros, name="gate_bias"
        )

    def call(self, x, relations):
        """Returns y [B, R, X] for regions `x` [B, R, X] and `relations` int32 [B, R, R]."""
        loop = self.loop(x) * ops.sigmoid(self.loop_gate(x))
        objects = self._read(self.sub(x), self.sub_gate(x), relations)
        subjects = self._read(self.obj(x), self.obj_gate(x), ops.swapaxes(relations, 1, 2))
        return loop + objects + subjects + x

    def _read(self, values, gates, relations):
        """Sums the regions to which each region has a relation, one line of the equation.

        Args:
          values: regions after the map W, [B, R, X].
          gates: regions after the map a, [B, R, 1].
          relations: labels int32 [B, R, R].

        Returns:
          [B, R, X].
        """
        kinds = ops.one_hot(relations, self.labels, dtype=self.compute_dtype)  # [B, R, R, M]
        gates = ops.swapaxes(gates, 1, 2) + ops.matmul(kinds, self.gate_bias)[..., 0]
        weights = ops.sigmoid(gates) * ops.cast(relations > 0, self.compute_dtype)
        shares = ops.sum(weights[..., None] * kinds, axis=2)  # [B, R, M]
        return precision.matmul(self, weights, values) + precision.matmul(self, shares, self.bias)


def relations_in(columns, mask, labels: int):
    """Reads the labels of relations from columns of a feature file.

    Numbers are rounded, and cut to those of the labels that there are. Padding has no relations.

    Args:
      columns: float [B, R, L]; number j of region i is the label of the relation from i to j.
        Regions from L on are the target of no relation.
      mask: bool [B, R], False for padded regions.
      labels: number of labels, M, label 0 for no relation included.

    Returns:
      Labels int32 [B, R, R].

    Example:
      >>> columns = tf.constant([[[0.0, 2.0], [1.0, 0.0], [9.0, 1.0]]])
      >>> relations_in(columns, tf.constant([[True, True, True]]), labels=4)[0].numpy().tolist()
      [[0, 2, 0], [1, 0, 0], [3, 1, 0]]
    """
    columns = ops.cast(ops.clip(ops.round(columns), 0, labels - 1), "int32")
    count = ops.shape(columns)[1]
    columns = tf.pad(columns, [[0, 0], [0, 0], [0, count]])[..., :count]
    return ops.where(mask[:, :, None] & mask[:, None], columns, 0)
