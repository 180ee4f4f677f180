"""The GRU cell of m-RNN against NumPy in float64 and against Keras.

The LSTM cell is compared by the tests of the systems that use it.
"""

import keras
import numpy as np

from tfcap.layers.recurrent import GRUCell
from tfcap.models.captioner import named_variables

N, W, D = 4, 5, 6
RNG = np.random.default_rng(2)
X, H = (RNG.normal(size=(N, size)).astype("float32") for size in (W, D))


def random_weights(layer):
    """Assigns random values to all weights and returns them by name in float64."""
    variables = named_variables(layer)
    for variable in variables.values():
        variable.assign(RNG.normal(size=variable.shape) * 0.5)
    return {name: np.float64(variable) for name, variable in variables.items()}


def test_gru_equals_keras_without_reset_after():
    """The kernels of Keras have the order u, r, n."""
    cell, theirs = GRUCell(W, D), keras.layers.GRUCell(D, reset_after=False)
    x, h = X, H
    cell(x, h), theirs(x, h)
    random_weights(cell)

    def swapped(value):
        r, u, n = np.split(np.asarray(value), 3, axis=-1)
        return np.concatenate([u, r, n], axis=-1)

    bias = np.concatenate([cell.gate_bias, cell.bias])
    theirs.set_weights([swapped(v) for v in (cell.kernel, cell.recurrent_kernel, bias)])
    np.testing.assert_allclose(cell(x, h), theirs(x, h)[0], atol=1e-6)
