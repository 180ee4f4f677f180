"""The loops that run a captioner word by word, and the layers that multiply inside them.

A loop over words multiplies a few rows with the same weights many times. So `loop` casts these
weights to the dtype of matrix products once, before the first step. If a gradient is computed,
`loop` also transposes the weights once, and computes the gradient of each weight in one product
after the loop. All this is done for layers of the class `Recurring`. `GRUCell` is not such a layer,
so its weights are cast at each step. With XLA, the gradient of each weight is computed in each step
and summed over the steps, for a weight in bfloat16 in bfloat16.

The environment variable `TFCAP_PLAIN_LOOPS=1` turns all this off: `loop` is then `tf.while_loop`,
and the gradients are those of TensorFlow. The numbers are equal but for rounding, and training
takes longer. Set the variable to find out whether an error comes from this module.

Letters: N rows, W input width, D output width, T iterations.
"""

import contextlib
import contextvars
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras import layers, ops

from tfcap.layers import precision
from tfcap.private_api import in_xla

Tree = Any  # a nest of tensors
PLAIN = os.environ.get("TFCAP_PLAIN_LOOPS") == "1"


def loop(
    condition: Callable[..., tf.Tensor],
    body: Callable[..., Any],
    state: Tree,
    *,
    gradient: bool = False,
    maximum_iterations: int | tf.Tensor | None = None,
    shape_invariants: Tree = None,
) -> Tree:
    """Runs `tf.while_loop`, in which layers of the class `Recurring` cast their weights only once.

    These layers cast their weights to the dtype of matrix products before the first step.

    Args:
      condition: function that takes the items of the state as arguments and returns a bool. The
        loop ends when it returns False.
      body: function that takes the items of the state as arguments and returns the next state.
      state: the first state, a tuple of tensors or of nests of tensors.
      gradient: True makes a gradient through the loop faster; its numbers are equal but for
        rounding. With True, the first item of `state` must count the iterations from 0, and
        `maximum_iterations` must be given. False leaves the gradient to `tf.while_loop`.
      maximum_iterations: largest number of iterations; None sets no limit.
      shape_invariants: shapes of the items of the state, as in `tf.while_loop`, for items whose
        shapes change. None means that no shape changes.

    Returns:
      The last state, a tuple.

    Example:
      >>> index, total = loop(
      ...     condition=lambda index, total: index < 3,
      ...     body=lambda index, total: (index + 1, total + 2.0),
      ...     state=(tf.constant(0), tf.constant(1.0)),
      ... )
      >>> print(float(total))
      7.0
    """

    def with_static_shapes(*state):
        _LOOP.index = state[0]
        _LOOP.used = set()
        new = body(*state)
        return new if shape_invariants else tf.nest.map_structure(_keep_shape, state, new)

    entered = contextlib.nullcontext() if PLAIN else _entered(maximum_iterations, gradient)
    with entered:
        return tf.while_loop(
            condition,
            with_static_shapes,
            state,
            shape_invariants=shape_invariants,
            maximum_iterations=maximum_iterations,
        )


def _keep_shape(old, new):
    if isinstance(new, tf.TensorArray):
        return new
    new = tf.convert_to_tensor(new)
    new.set_shape(tf.convert_to_tensor(old).shape)
    return new


class _Weight(NamedTuple):
    """The copies of a weight for one loop.

    Attributes:
      cast: the weight [W, D] in the dtype of products.
      transposed: [D, W], for a gradient that is faster with it; else None.
      steps: the lists of `_record`, if a gradient is taken.
      filled: the set of `_record`, if a gradient is taken.
    """

    cast: tf.Tensor
    transposed: tf.Tensor | None = None
    steps: Sequence[tf.Tensor] = ()
    filled: set[bool] | None = None


class _Loop(threading.local):
    """The loop that this thread is building.

    Attributes:
      graph: the graph around the loop; None in eager mode.
      weights: the copies of weights, by id of the layer and name; None outside of loops.
      length: T if a gradient is taken, else None.
      index: the iteration, counted from 0.
      used: the weights that the body has multiplied with so far.
    """

    def __init__(self):
        self.graph: tf.Graph | None = None
        self.weights: dict[tuple[int, str], _Weight] | None = None
        self.length: int | tf.Tensor | None = None
        self.index: tf.Tensor | int = 0
        self.used: set[tuple[int, str]] = set()


_LOOP = _Loop()


@contextlib.contextmanager
def _entered(length: int | tf.Tensor | None, gradient: bool) -> Iterator[None]:
    """Makes `_weight` copy the weights of the loop that is built inside the block.

    The copies are kept here and not in the layers, because other threads may be tracing the same
    layers, and Keras would save what a layer holds. `length` is T, which is read if `gradient` is
    True.
    """
    before = dict(vars(_LOOP))
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    vars(_LOOP).update(graph=graph, weights={}, length=length if gradient else None)
    try:
        yield
    finally:
        vars(_LOOP).update(before)


def _weight(layer, name):
    """Returns the cast copy of the weight `name` of a layer; outside of a loop, the weight itself.

    The first call for a weight makes the copy, in the graph around the loop.
    """
    graph = _LOOP.graph
    key = (id(layer), name)
    # In an eager loop Keras calls some layers in a graph of its own, to build them.
    if _LOOP.weights is None or (graph is None and not tf.executing_eagerly()):
        return _Weight(getattr(layer, name))
    if key not in _LOOP.weights:
        outside = contextlib.nullcontext() if graph is None else graph.as_default()
        # A name of their own: ONNX accepts no name that the body of the loop has, too.
        with outside, tf.name_scope("outside"):
            weight = ops.cast(getattr(layer, name), precision.of_products(layer))
            _LOOP.weights[key] = _copies(weight, _LOOP.length)
    return _LOOP.weights[key]


def _copies(weight, length):
    """Makes the copies of a weight [W, D]; if `length` is not None, those for a gradient, too."""
    # XLA chooses the layout itself, and knows no lists of unknown shape.
    if length is None or in_xla():
        return _Weight(weight)
    transposed = None
    if weight.dtype == tf.float32:  # in bfloat16 it makes no difference
        transposed = ops.transpose(ops.stop_gradient(weight))
    steps, filled = _record(weight, length)
    return _Weight(weight, transposed, steps, filled)


class Recurring:
    """Mix-in for Keras layers that multiply with the same weights in each step of a `loop`.

    A layer names `Recurring` before its Keras base class, and multiplies with `times` or
    `multiply`. In return, `loop` casts each weight only once, before the first step.
    """

    compute_dtype: str  # an attribute of Keras layers, as the next
    dtype_policy: keras.dtype_policies.DTypePolicy

    def times(self, x, name):
        """Multiplies `x` by a weight of the layer. The result is in the compute dtype.

        Args:
          x: [N, W], N rows of the input width W.
          name: name of the attribute that holds the weight [W, D], with the output width D.

        Returns:
          [N, D] in the compute dtype.
        """
        return ops.cast(self.multiply(x, name), self.compute_dtype)

    def multiply(self, x, name):
        """Multiplies `x` by a weight of the layer. The result is in the dtype of matrix products.

        Args:
          x: [N, W], N rows of the input width W.
          name: name of the attribute that holds the weight [W, D], with the output width D.

        Returns:
          [N, D] in the dtype of matrix products, which is the compute dtype unless the policy of
          the layer is `precision.Products`.
        """
        key = (id(self), name)
        weight = _weight(self, name)
        if not weight.steps or key in _LOOP.used:  # a list has one item for a step
            dtype = precision.of_products(self)
            x, matrix = ops.cast(x, dtype), ops.cast(weight.cast, dtype)
            return (precision.float32_product if dtype == "float32" else ops.matmul)(x, matrix)
        _LOOP.used.add(key)
        return _product(ops.cast(x, weight.cast.dtype), weight, _LOOP.index)


def _record(weight, length):
    """Makes two lists whose gradients collect what the gradient of a weight is computed from.

    Each step puts the input [N, W] of its product with `weight` [W, D] into the gradient of the
    first list, and the gradient of the output [N, D] into that of the second list. So the gradient
    of the weight is one product of T N rows. T products of N rows take twice as long and must be
    added up: a step of X-LAN at the size of its paper then takes 59 % more processor time, and a
    self-critical step 26 % more.

    Returns:
      The two lists of T items, and a set that stays empty until TensorFlow traces a gradient that
      uses the lists.
    """
    filled: set[bool] = set()

    @tf.custom_gradient
    def record(weight):
        def gradient(inputs, upstream):
            if not filled:  # nothing that the loss depends on reads the products
                return tf.zeros_like(weight)
            x = _stack(inputs, weight.shape[0], weight.dtype)
            by_output = _stack(upstream, weight.shape[1], weight.dtype)
            words = tf.where(tf.reduce_any(by_output != 0, axis=1))  # padding has no gradient
            x, by_output = tf.gather_nd(x, words), tf.gather_nd(by_output, words)
            return tf.matmul(x, by_output, transpose_a=True)

        lists = [_empty_list((None, size), length, weight.dtype) for size in weight.shape]
        return lists, gradient

    return record(weight), filled


def _product(x, weight, index):
    """Multiplies `x` [N, W] by a weight [W, D]; its gradient goes through the lists of `_record`.

    With few rows, a float32 product with a transposed matrix takes three times as long as a product
    with a matrix that is stored in transposed order.
    """

    @tf.custom_gradient
    def product(x, inputs, upstream):
        def gradient(by_output):
            weight.filled.add(True)
            if weight.transposed is None:
                by_x = tf.matmul(by_output, weight.cast, transpose_b=True)
            else:
                by_x = tf.matmul(by_output, weight.transposed)
            return by_x, _put(inputs, index, x), _put(upstream, index, by_output)

        return tf.matmul(x, tf.stop_gradient(weight.cast)), gradient

    inputs, upstream = weight.steps
    return product(x, inputs, upstream)


def _empty_list(shape, length, dtype):
    """Makes a list of `length` tensors, still empty; `shape` may have None for unknown sizes."""
    return tf.raw_ops.TensorListReserve(
        element_shape=[-1 if size is None else size for size in shape],
        num_elements=length,
        element_dtype=dtype,
    )


def _stack(steps, size, dtype):
    """Joins the items [N, size] of a list into one matrix [T N, size]."""
    stacked = tf.raw_ops.TensorListStack(
        input_handle=steps, element_shape=(-1, size), element_dtype=dtype
    )
    return tf.reshape(stacked, (-1, size))


def _put(steps, index, item):
    """Makes a list as long as `steps` that holds `item` at `index` and is empty elsewhere."""
    length = tf.raw_ops.TensorListLength(input_handle=steps)
    empty = _empty_list(item.shape, length, item.dtype)
    return tf.raw_ops.TensorListSetItem(input_handle=empty, index=index, item=item)


_UNSET = contextvars.ContextVar("unset", default=False)


@contextlib.contextmanager
def unset_weights() -> Iterator[None]:
    """Context manager: new layers of the class `Affine` have weights with any numbers.

    This is for weights that a file will set: nothing is drawn, and no memory is written. The caller
    must set all weights of these layers.
    """
    token = _UNSET.set(True)
    try:
        yield
    finally:
        _UNSET.reset(token)


def _unset(shape, dtype=None):
    """Makes a tensor that has any numbers; a Keras initializer."""
    return tf.raw_ops.Empty(shape=shape, dtype=dtype, init=False)


@keras.saving.register_keras_serializable("tfcap")
class Affine(Recurring, layers.Dense):
    """A dense layer whose kernel is cast only once in a `loop`.

    The product is computed in the dtype of matrix products, see `precision.of_products`. The
    arguments are those of `keras.layers.Dense`.

    Example:
      >>> layer = Affine(8, use_bias=False)
      >>> layer(ops.ones((2, 3, 16))).shape
      TensorShape([2, 3, 8])
    """

    @property
    def variable_dtype(self):
        return getattr(self.dtype_policy, "stored", super().variable_dtype)

    def add_weight(self, *args, **kwargs):
        if _UNSET.get():
            kwargs["initializer"] = _unset
        return super().add_weight(*args, **kwargs)

    def call(self, inputs):
        shape = ops.shape(inputs)
        out = self.multiply(ops.reshape(inputs, (-1, shape[-1])), "kernel")
        if self.use_bias:
            # Before the cast, so that TensorFlow makes product and bias one operation.
            out = precision.add_bias(out, ops.cast(self.bias, out.dtype))
        out = ops.reshape(ops.cast(out, self.compute_dtype), (*shape[:-1], self.units))
        return self.activation(out)
