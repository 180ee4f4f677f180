"""The recurrent cells of X-LAN, its baselines, SCST and m-RNN.

Letters: N rows, D cell width.
"""

import keras
from keras import ops

from tfcap.layers import common, precision
from tfcap.layers.loops import Recurring


@keras.saving.register_keras_serializable("tfcap")
class LSTMCell(Recurring, common.Layer):
    """One step of an LSTM.

    i, f, g, o = W x + b + U h + b'
    c'         = sigmoid(f) c + sigmoid(i) tanh(g)
    h'         = sigmoid(o) tanh(c')

    x is the input. h and c are the output and the state of the cell after the previous step, and h'
    and c' those after this step. sigmoid(i), sigmoid(f) and sigmoid(o) are the input, forget and
    output gates, and tanh(g) is the new content.

    The cell has two biases, b and b', as `torch.nn.LSTMCell` has. Both get the same gradient, so
    their sum changes twice as fast as the single bias of the Keras cell. W, U, b and b' start from
    U(-1/sqrt(D), 1/sqrt(D)).

    Args:
      inputs: width of the input.
      width: width of the cell, D.

    Example:
      >>> cell = LSTMCell(inputs=6, width=8)
      >>> h = c = ops.zeros((2, 8))
      >>> h, c = cell(ops.ones((2, 6)), h, c)
      >>> h.shape
      TensorShape([2, 8])
    """

    def __init__(self, inputs: int, width: int, **kwargs):
        super().__init__(**kwargs)
        self.inputs = inputs
        self.width = width

    def build(self, x_shape, h_shape, c_shape):
        limit = self.width**-0.5
        uniform = keras.initializers.RandomUniform(-limit, limit)

        def weight(name, *shape):
            return self.add_weight(shape=shape, initializer=uniform.clone(), name=name)

        self.kernel = weight("kernel", self.inputs, 4 * self.width)
        self.recurrent_kernel = weight("recurrent_kernel", self.width, 4 * self.width)
        self.bias = weight("bias", 4 * self.width)
        self.recurrent_bias = weight("recurrent_bias", 4 * self.width)

    def call(self, x, h, c):
        """Computes one step for N rows (captions).

        Args:
          x: input [N, inputs], `inputs` as in the constructor.
          h: output of the step before [N, D], D the width of the cell.
          c: state after the step before [N, D].

        Returns:
          A tuple: the new output h and the new state c, each [N, D] in the compute dtype.
        """
        z = self.times(x, "kernel") + self.times(h, "recurrent_kernel")
        i, f, g, o = ops.split(z + (self.bias + self.recurrent_bias), 4, axis=-1)
        c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)
        return ops.sigmoid(o) * ops.tanh(c), c


@keras.saving.register_keras_serializable("tfcap")
class MaxoutLSTMCell(common.Layer):
    """One step of an LSTM whose new content is the maximum of two candidates.

    i, f, o, g1, g2 = W x + b + U h + b' + [0; added]
    c'              = sigmoid(f) c + sigmoid(i) max(g1, g2)
    h'              = sigmoid(o) tanh(c')

    x is the input. h and c are the output and the state of the cell after the previous step, and h'
    and c' those after this step. sigmoid(i), sigmoid(f) and sigmoid(o) are the input, forget and
    output gates, and g1 and g2 are the candidates. [0; added] is the argument `added` of `call`
    with zeros in front: it is added to the candidates, or to all five sums.

    Source: Rennie et al., "Self-critical Sequence Training for Image Captioning", CVPR 2017,
    section 2.1. The order of the gates and the two affine maps are those of
    ImageCaptioning.pytorch.

    Args:
      inputs: width of the input.
      width: width of the cell, D.

    Example:
      >>> cell = MaxoutLSTMCell(inputs=6, width=8)
      >>> h = c = ops.zeros((2, 8))
      >>> h, c = cell(ops.ones((2, 6)), h, c)
      >>> h.shape
      TensorShape([2, 8])
    """

    def __init__(self, inputs: int, width: int, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.input_map = common.linear(inputs, 5 * width, "input_map", dtype=self.dtype_policy)
        self.state_map = common.linear(width, 5 * width, "state_map", dtype=self.dtype_policy)

    def call(self, x, h, c, added=None):
        """Computes one step for N rows (captions).

        Args:
          x: input [N, inputs], `inputs` as in the constructor.
          h: output of the step before [N, D], D the width of the cell.
          c: state after the step before [N, D].
          added: [N, 2 * D], added to the sums of both candidates; or [N, 5 * D], added to the sums
            of the three gates and both candidates. None adds nothing.

        Returns:
          A tuple: the new output h and the new state c, each [N, D] in the compute dtype.
        """
        z = self.input_map(x) + self.state_map(h)
        if added is not None:
            z = z + ops.pad(added, ((0, 0), (5 * self.width - added.shape[-1], 0)))
        i, f, o, *candidates = ops.split(z, 5, axis=-1)
        c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.maximum(*candidates)
        return ops.sigmoid(o) * ops.tanh(c), c


@keras.saving.register_keras_serializable("tfcap")
class GRUCell(common.Layer):
    """One step of a GRU that applies the reset gate before the product (docs/systems.md 6.5).

    r, u = sigmoid(W x + U h + b)
    n    = tanh(W' x + U' (r h) + b')
    h'   = u h + (1 - u) n

    x is the input, h the state after the previous step, and h' the state after this step. r and u
    are the reset and update gates, and n is the new content. The cell computes what the GRU cell of
    TensorFlow 0.8 computes. The matrices start from U(-0.05, 0.05), as in TF-mRNN, the code of
    m-RNN's authors. The biases of both gates start at 1, and the bias of n starts at 0. The weights
    `kernel` (W and W') and `recurrent_kernel` (U and U') hold the columns of r, u and n in this
    order.

    The GRU cell of Keras is not used for two reasons. All its biases start with the same value. And
    even without dropout it has a random generator, whose state is saved in every checkpoint.

    Args:
      inputs: width of the input.
      width: width of the cell, D.

    Example:
      >>> cell = GRUCell(inputs=6, width=8)
      >>> h = cell(ops.ones((2, 6)), ops.zeros((2, 8)))
      >>> h.shape
      TensorShape([2, 8])
    """

    def __init__(self, inputs: int, width: int, **kwargs):
        super().__init__(**kwargs)
        self.inputs = inputs
        self.width = width

    def build(self, x_shape, h_shape):
        def weight(name, *shape):
            uniform = keras.initializers.RandomUniform(-0.05, 0.05)
            return self.add_weight(shape=shape, initializer=uniform, name=name)

        def bias(name, units, start):
            return self.add_weight(shape=(units,), initializer=start, name=name)

        self.kernel = weight("kernel", self.inputs, 3 * self.width)
        self.recurrent_kernel = weight("recurrent_kernel", self.width, 3 * self.width)
        self.gate_bias = bias("gate_bias", 2 * self.width, "ones")
        self.bias = bias("bias", self.width, "zeros")

    def call(self, x, h):
        """Computes one step for N rows (captions).

        Args:
          x: input [N, inputs], `inputs` as in the constructor.
          h: state after the step before [N, D], D the width of the cell.

        Returns:
          The new state [N, D], in the compute dtype.
        """
        gates = 2 * self.width
        z = precision.matmul(self, x, self.kernel)
        recurrent = ops.convert_to_tensor(self.recurrent_kernel)
        gated = z[:, :gates] + precision.matmul(self, h, recurrent[:, :gates]) + self.gate_bias
        r, u = ops.split(ops.sigmoid(gated), 2, axis=-1)
        n = ops.tanh(z[:, gates:] + precision.matmul(self, r * h, recurrent[:, gates:]) + self.bias)
        return u * h + (1 - u) * n
