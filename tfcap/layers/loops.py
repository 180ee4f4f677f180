"""The loops that run a captioner word by word, and the layers that multiply inside them.

A loop over words multiplies a few rows with the same weights many times. So `loop` casts these
weights to the dtype of products once, before the first step. If a gradient is taken, `loop` also
transposes the weights once, and computes the gradient of each weight in one product after the loop.
This is done for layers of the class `Recurring`. `GRUCell` is not `Recurring`, so its weights are
cast at each step. With XLA, the gradient of a weight in bfloat16 is summed over the steps in
bfloat16.

Letters: N rows, W input width, D output width, T iterations.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras import layers, ops

from tfcap.layers import precision
from tfcap.private_api import in_xla

Tree = Any  # a nest of tensors


def loop(
    condition: Callable[..., tf.Tensor],
    body: Callable[..., Any],
    state: Tree,
    *,
    gradient: bool = False,
    maximum_iterations: int | tf.Tensor | None = None,
    shape_invariants: Tree = None,
) -> Tree:
    """Runs `tf.while_loop`, and casts each weight of its products once, before the first step.

    The arguments are those of `tf.while_loop`; without `shape_invariants` the shapes of `state` are
    static. Set `gradient` if a gradient is taken through the loop: then the first item of `state`
    must count the iterations from 0, and `maximum_iterations` is needed. Returns the last state.
    """

    def with_static_shapes(*state):
        _LOOP.index, _LOOP.used = state[0], set()
        new = body(*state)
        return new if shape_invariants else tf.nest.map_structure(_keep_shape, state, new)

    with _entered(maximum_iterations if gradient else None):
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
    """The copies of a weight for one loop."""

    cast: tf.Tensor  # [W, D] in the dtype of products
    transposed: tf.Tensor | None = None  # [D, W], for a gradient that is faster with it
    steps: Sequence[tf.Tensor] = ()  # of `_record`, if the loop is differentiated
    filled: set[bool] | None = None  # of `_record`


class _Loop(threading.local):
    """The loop that this thread is building."""

    def __init__(self):
        self.graph: tf.Graph | None = None  # that the loop stands in; None in eager mode
        self.weights: dict[tuple[int, str], _Weight] | None = None  # by layer and name
        self.length: int | tf.Tensor | None = None  # T if the loop is differentiated
        self.index: tf.Tensor | int = 0  # the iteration, counted from 0
        self.used: set[tuple[int, str]] = set()  # the weights that the body has multiplied with


_LOOP = _Loop()


@contextlib.contextmanager
def _entered(length: int | tf.Tensor | None = None) -> Iterator[None]:
    """While a loop is built inside the block, its weights are cast once, before its first step.

    The layers store nothing, because other threads may be tracing them and Keras would save it.
    `length` is T if a gradient is taken, or None.
    """
    before = dict(vars(_LOOP))
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    vars(_LOOP).update(graph=graph, weights={}, length=length)
    try:
        yield
    finally:
        vars(_LOOP).update(before)


def _weight(layer, name):
    """Returns the cast copy of the weight `name` of a layer.

    The first call for a weight makes the copy, in the graph around the loop.
    """
    graph, key = _LOOP.graph, (id(layer), name)
    # In an eager loop Keras calls some layers in a graph of its own, to build them.
    if _LOOP.weights is None or (graph is None and not tf.executing_eagerly()):
        return _Weight(getattr(layer, name))
    if key not in _LOOP.weights:
        with contextlib.nullcontext() if graph is None else graph.as_default():
            weight = ops.cast(getattr(layer, name), precision.of_products(layer))
            _LOOP.weights[key] = _prepare(weight, _LOOP.length)
    return _LOOP.weights[key]


def _prepare(weight, length):
    """Makes the copies of a weight [W, D] for a loop; with `length`, also for its gradient."""
    # XLA chooses the layout itself, and knows no lists of unknown shape.
    if length is None or in_xla():
        return _Weight(weight)
    transposed = None
    if weight.dtype == tf.float32:  # in bfloat16 it makes no difference
        transposed = ops.transpose(ops.stop_gradient(weight))
    return _Weight(weight, transposed, *_record(weight, length))


class Recurring:
    """A layer that multiplies with the same weights in every step of a loop."""

    compute_dtype: str  # this and the next are attributes of a Keras layer
    dtype_policy: keras.dtype_policies.DTypePolicy

    def times(self, x, name):
        """Multiplies `x` [N, W] by the weight `name` [W, D], in the compute dtype."""
        return ops.cast(self.multiply(x, name), self.compute_dtype)

    def multiply(self, x, name):
        """Multiplies `x` [N, W] by the weight `name` [W, D], in the dtype of products."""
        key, weight = (id(self), name), _weight(self, name)
        if not weight.steps or key in _LOOP.used:  # a list has one item for a step
            dtype = precision.of_products(self)
            return ops.matmul(ops.cast(x, dtype), ops.cast(weight.cast, dtype))
        _LOOP.used.add(key)
        return _product(ops.cast(x, weight.cast.dtype), weight, _LOOP.index)


def _record(weight, length):
    """Makes two lists of T items, whose gradients collect the factors of the gradient of a weight.

    Each step puts the input [N, W] of its product with `weight` [W, D] into the gradient of the
    first list, and the gradient of the output [N, D] into that of the second list. So the gradient
    of the weight is one product of T N rows. T products of N rows take twice as long and must be
    added up: a step of X-LAN at the size of its paper then takes 59 % more processor time, and a
    self-critical step 26 % more.

    Also returns a set, which stays empty until TensorFlow traces a gradient that uses the lists.
    """
    filled: set[bool] = set()

    @tf.custom_gradient
    def record(weight):
        def gradient(inputs, upstream):
            if not filled:  # nothing that the loss depends on reads the products
                return tf.zeros_like(weight)
            x, by_output = (
                _stack(*steps, weight.dtype)
                for steps in zip((inputs, upstream), weight.shape, strict=True)
            )
            return tf.matmul(x, by_output, transpose_a=True)

        lists = [_empty_list((None, size), length, weight.dtype) for size in weight.shape]
        return lists, gradient

    return record(weight), filled


def _product(x, weight, index):
    """Multiplies `x` [N, W] by a weight [W, D], whose gradient goes through the lists of `_record`.

    With few rows, a float32 product with a transposed matrix takes three times as long as a product
    with a matrix that is stored in the transposed order.
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

    return product(x, *weight.steps)


def _empty_list(shape, length, dtype):
    """Makes a list of `length` tensors of one shape, whose sizes may be None."""
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


@keras.saving.register_keras_serializable("tfcap")
class Affine(Recurring, layers.Dense):
    """A dense layer for use in a `loop`; multiplies in the dtype of products, see `precision`."""

    def call(self, inputs):
        shape = ops.shape(inputs)
        out = self.multiply(ops.reshape(inputs, (-1, shape[-1])), "kernel")
        if self.use_bias:
            # Before the cast, so that TensorFlow makes product and bias one operation.
            out = precision.add_bias(out, ops.cast(self.bias, out.dtype))
        out = ops.reshape(ops.cast(out, self.compute_dtype), (*shape[:-1], self.units))
        return self.activation(out)
