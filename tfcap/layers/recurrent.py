"""The recurrent cell of X-LAN and its baselines.

Letters: N rows, D cell width, W input width.
"""

import keras
from keras import layers, ops


class LSTMCell(layers.Layer):
    """One step of an LSTM: gates i, f, g, o of W x + b + U h + b'.

    c' = sigmoid(f) c + sigmoid(i) tanh(g);  h' = sigmoid(o) tanh(c')

    It has two biases, as `torch.nn.LSTMCell` does: both get the same gradient, so that their sum
    moves twice as far in a step as a single bias would. All four weights start from
    U(-1/sqrt(D), 1/sqrt(D)). Keras' own cell has one bias.

    Args:
      inputs: W.
      width: D.
    """

    def __init__(self, inputs: int, width: int, **kwargs):
        super().__init__(**kwargs)
        self.inputs, self.width = inputs, width

    def build(self, *shapes):
        limit = self.width**-0.5
        uniform = keras.initializers.RandomUniform(-limit, limit)

        def weight(name, *shape):
            return self.add_weight(shape=shape, initializer=uniform.clone(), name=name)

        self.kernel = weight("kernel", self.inputs, 4 * self.width)
        self.recurrent_kernel = weight("recurrent_kernel", self.width, 4 * self.width)
        self.bias = weight("bias", 4 * self.width)
        self.recurrent_bias = weight("recurrent_bias", 4 * self.width)

    def call(self, x, h, c):
        """`x` [N, W], `h` and `c` [N, D] -> the new h and c, in the compute dtype."""
        z = ops.matmul(x, self.kernel) + ops.matmul(h, self.recurrent_kernel)
        i, f, g, o = ops.split(z + (self.bias + self.recurrent_bias), 4, axis=-1)
        c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)
        return ops.sigmoid(o) * ops.tanh(c), c
