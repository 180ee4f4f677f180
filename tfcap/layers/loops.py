"""The loops that run a captioner word by word, and the layers that multiply inside them.

A loop over words multiplies a few rows with the same weights many times. So `loop` casts these
weights to the compute dtype once, before its first step. If the loop is differentiated, it also
transposes them once. Every such loop of the package is `loop` or `unrolled_loop`: no caller can
forget the casting.

Letters: N rows, W input width, D output width.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

Tree = Any  # a nest of tensors


def loop(
    model: keras.Model,
    condition: Callable[..., tf.Tensor],
    body: Callable[..., Any],
    state: Tree,
    *,
    gradient: bool = False,
    maximum_iterations: int | tf.Tensor | None = None,
    shape_invariants: Tree = None,
) -> Tree:
    """Runs `tf.while_loop` after the weights of the model's recurrent layers are cast.

    In a graph, TensorFlow computes only those casts that the loop uses.

    Args:
      model: the model whose layers `body` calls.
      condition: gives a bool scalar for a state: whether `body` runs again.
      body: gives the next state.
      state: the first state, a tuple.
      gradient: whether a gradient will be taken through the loop: the weights are then transposed
        before the loop as well.
      maximum_iterations: a limit that some accelerators and gradients need.
      shape_invariants: as in `tf.while_loop`; None keeps the static shapes of `state`.

    Returns:
      The last state.
    """

    def with_static_shapes(*state):
        new = body(*state)
        return new if shape_invariants else tf.nest.map_structure(_keep_shape, state, new)

    with _cast_weights(model, gradient):
        return tf.while_loop(
            condition,
            with_static_shapes,
            state,
            shape_invariants=shape_invariants,
            maximum_iterations=maximum_iterations,
        )


def unrolled_loop(
    model: keras.Model, body: Callable[..., Any], state: Tree, iterations: int
) -> Tree:
    """Runs `body` a fixed number of times with cast weights, as a graph without a loop."""
    with _cast_weights(model, gradient=False):
        for _ in range(iterations):
            state = body(*state)
    return state


def _keep_shape(old, new):
    if isinstance(new, tf.TensorArray):
        return new
    new = tf.convert_to_tensor(new)
    new.set_shape(tf.convert_to_tensor(old).shape)
    return new


class _CastWeights(threading.local):
    """By layer and name, the weights that `_cast_weights` has made for the loop of this thread."""

    weights: dict[tuple[int, str], tuple] = {}


_CAST = _CastWeights()


@contextlib.contextmanager
def _cast_weights(model: keras.Model, gradient: bool) -> Iterator[None]:
    """Casts the weights of the `Recurring` layers of `model` before the loop that is built inside.

    Nothing is kept in the layers: other threads may be tracing them, and Keras would save it.
    """
    weights = {}
    for layer in model._flatten_layers():
        if isinstance(layer, Recurring) and layer.built:
            for name in layer.weights_of_loop:
                weight = ops.cast(getattr(layer, name), layer.compute_dtype)
                transposed = ops.transpose(ops.stop_gradient(weight)) if gradient else None
                weights[id(layer), name] = weight, transposed
    before, _CAST.weights = _CAST.weights, weights
    try:
        yield
    finally:
        _CAST.weights = before


class Recurring:
    """A layer that multiplies with its weights `weights_of_loop` in every step of a loop."""

    weights_of_loop: tuple[str, ...] = ()
    built: bool  # this and the next are attributes of a Keras layer
    compute_dtype: str

    def times(self, x, name):
        """Multiplies `x` [N, W] by the weight `name` [W, D], by its cast copy inside a loop."""
        weight, transposed = _CAST.weights.get((id(self), name), (getattr(self, name), None))
        return ops.matmul(x, weight) if transposed is None else _product(x, weight, transposed)


@ops.custom_gradient
def _product(x, kernel, transposed):
    """Multiplies `x` [N, W] by `kernel` [W, D], given its transpose [D, W] for the gradient of x.

    With few rows a product with a transposed matrix takes several times as long as one with a
    matrix that lies in memory in that order.
    """

    def gradient(upstream):
        by_x = ops.matmul(upstream, transposed)
        return by_x, ops.matmul(ops.transpose(x), upstream), None

    return ops.matmul(x, kernel), gradient


class Affine(Recurring, layers.Dense):
    """A dense layer that may be used inside a loop."""

    weights_of_loop = ("kernel",)

    def call(self, inputs):
        if (id(self), "kernel") not in _CAST.weights:
            return super().call(inputs)
        shape = ops.shape(inputs)
        flat = self.times(ops.reshape(inputs, (-1, shape[-1])), "kernel")
        out = ops.reshape(flat, (*shape[:-1], self.units))
        return self.activation(out + self.bias if self.use_bias else out)
