"""Computes matrix products in a lower precision than all other operations.

`mixed_bfloat16` of Keras computes every operation of a layer in bfloat16. That suits accelerators.
A CPU with bfloat16 units uses them for matrix products only: all other operations convert each
number to float32 and back, and are slower than in float32 (docs/speed.md). `Products` computes the
products in bfloat16 and all else in float32, as `torch.autocast` does, with these exceptions:

* A bias is added in the dtype of the product.
* The result of the joint map of X-Linear attention, the largest tensor, stays in bfloat16.
* The product that gives the logits is computed in float32. In bfloat16, one in ten captions of a
  beam search would change. The two products of its gradient are in bfloat16, except in loops over
  words and in a tied head.
* The weights of a mean over regions are rounded to bfloat16, which changes the mean by up to 0.2 %.
* The scores of a Swin are rounded to bfloat16 after their bias is added. Their softmax is computed
  in float32.
* In a step of a decoder, multi-head attention and ExpansionNet's dynamic expansion multiply cached
  words and regions in float32 (`matmul_of_step`).

On NVIDIA GPUs from the A100 on, TensorFlow computes products in float32 with 10 bits of mantissa
(TF32), unless `tf.config.experimental.enable_tensor_float_32_execution(False)` is called.
"""

import contextlib
import functools
from collections.abc import Iterator

import keras
import tensorflow as tf
from keras import ops


@keras.saving.register_keras_serializable("tfcap")
class Products(keras.dtype_policies.DTypePolicy):
    """A Keras policy: layers compute in float32, but multiply matrices in another dtype.

    Only layers that use `matmul` or `of_products` of this module follow the policy.

    Args:
      name: dtype of matrix products, followed by `_products`: for example `bfloat16_products`.
        With `_products_stored`, layers of the class `loops.Affine` store their weights in it, too.

    Attributes:
      products: dtype of matrix products, for example `bfloat16`.
      stored: dtype in which layers of the class `loops.Affine` store their weights.
    """

    def _parse_name(self, name):
        self.products = keras.backend.standardize_dtype(name.split("_")[0])
        self.stored = self.products if name.endswith("_stored") else "float32"
        return "float32", "float32"


def policy(dtype: str | None, accelerated: bool) -> keras.dtype_policies.DTypePolicy:
    """Makes the Keras policy for a precision and a kind of device.

    `float32` and `float16` give the policies `float32` and `mixed_float16` of Keras. On a GPU or
    TPU, `bfloat16` gives `mixed_bfloat16` of Keras. On a CPU, `bfloat16` gives `Products`, with
    which only matrix products are computed in bfloat16.

    Args:
      dtype: `float32`, `bfloat16` or `float16`, as in the key `runtime.mixed_precision_dtype`; None
        means float32.
      accelerated: whether the model runs on a GPU or TPU. Only `bfloat16` depends on this argument.
    """
    if dtype == "bfloat16" and not accelerated:
        return Products("bfloat16_products")
    return keras.dtype_policies.get("float32" if dtype in (None, "float32") else f"mixed_{dtype}")


def of_frozen(policy: keras.dtype_policies.DTypePolicy) -> keras.dtype_policies.DTypePolicy:
    """Returns the policy for a network that is never trained, whose features a model reads.

    Args:
      policy: the policy of the model.

    Returns:
      The policy `float32`, unless `policy` is a `Products`. Then the one with which layers of the
      class `loops.Affine` also store their weights in the dtype of products. That changes no
      result, because these layers round their weights anyway.
    """
    if isinstance(policy, Products):
        return Products(f"{policy.name}_stored")
    return keras.dtype_policies.get("float32")


def set_global(dtype: str | None, accelerated: bool = False) -> None:
    """Sets the global policy of Keras: the precision of layers that are made after this call.

    The function `policy` of this module says which policy each `dtype` gives on a CPU, and on a GPU
    or TPU. `set_mixed_precision_policy` of TF Model Garden would set only the policy of tf_keras.

    Args:
      dtype: `float32`, `bfloat16` or `float16`; None means float32.
      accelerated: True chooses the policy for a GPU or TPU, even if TensorFlow lists no such
        device, for example before it connects to a TPU. False chooses by the devices that
        TensorFlow lists.
    """
    keras.config.set_dtype_policy(_of_devices(dtype, accelerated))


@contextlib.contextmanager
def using(value: str | keras.dtype_policies.DTypePolicy) -> Iterator[None]:
    """Sets the global policy of Keras inside a `with` block, then restores the old one.

    Args:
      value: a Keras policy or its name, such as `float32` or `mixed_float16`.

    Example:
      >>> with using("mixed_float16"):
      ...     layer = keras.layers.Dense(8)
      >>> layer.compute_dtype, layer.variable_dtype
      ('float16', 'float32')
    """
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(value)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def scope(dtype: str | None, accelerated: bool = False) -> contextlib.AbstractContextManager[None]:
    """Sets the global policy of Keras inside a `with` block, then restores the old one.

    The function `policy` of this module says which policy each `dtype` gives on a CPU, and on a GPU
    or TPU.

    Args:
      dtype: `float32`, `bfloat16` or `float16`; None means float32.
      accelerated: True chooses the policy for a GPU or TPU, even if TensorFlow lists no such
        device, for example before it connects to a TPU. False chooses by the devices that
        TensorFlow lists.
    """
    return using(_of_devices(dtype, accelerated))


def _of_devices(dtype: str | None, accelerated: bool) -> keras.dtype_policies.DTypePolicy:
    """Makes the policy for the devices that TensorFlow lists."""
    for kind in ("GPU", "TPU"):
        accelerated = accelerated or bool(tf.config.list_physical_devices(kind))
    return policy(dtype, accelerated)


def of_products(layer: keras.layers.Layer) -> str:
    """Returns the dtype in which a layer multiplies matrices, for example `bfloat16`.

    If the policy of the layer is a `Products`, the result is the attribute `products` of this
    policy. Otherwise it is the compute dtype of the layer.
    """
    return getattr(layer.dtype_policy, "products", layer.compute_dtype)


def is_lower(layer: keras.layers.Layer) -> bool:
    """Returns True if a layer multiplies matrices in a lower precision than it computes in."""
    return of_products(layer) != layer.compute_dtype


def matmul(layer: keras.layers.Layer, a, b):
    """Multiplies matrices in the dtype in which a layer multiplies matrices, see `of_products`.

    Args:
      layer: the layer.
      a: matrices [..., M, K].
      b: matrices [..., K, N].

    Returns:
      The products [..., M, N], cast to the compute dtype of the layer.
    """
    dtype = of_products(layer)
    return ops.cast(ops.matmul(ops.cast(a, dtype), ops.cast(b, dtype)), layer.compute_dtype)


def matmul_of_step(layer, a, b, transpose_b=False):
    """Multiplies matrices in the compute dtype: the small products in a step of a decoder.

    Casting keys and values of all positions in each step takes longer than multiplying them.

    Args:
      layer: the layer.
      a: matrices [..., M, K] in the compute dtype of the layer.
      b: matrices [..., K, N] in the compute dtype of the layer; [..., N, K] with `transpose_b`.
      transpose_b: whether the last two axes of `b` are exchanged.

    Returns:
      The products [..., M, N] in the compute dtype of the layer.
    """
    if not is_lower(layer):
        return matmul(layer, a, ops.swapaxes(b, -1, -2) if transpose_b else b)
    # oneDNN, which TensorFlow uses for `tf.matmul`, takes 20 us for the smallest product.
    a, b = ops.convert_to_tensor(a), ops.convert_to_tensor(b)
    return tf.raw_ops.BatchMatMulV3(x=a, y=b, Tout=a.dtype, adj_y=transpose_b)


def softmax(scores):
    """Computes the softmax of the last axis in float32, and returns it in the dtype of `scores`."""
    if scores.dtype != "float32" and not _rounds_once():
        return ops.cast(ops.softmax(ops.cast(scores, "float32")), scores.dtype)
    return ops.softmax(scores)


@functools.cache
def _rounds_once() -> bool:
    """True if TensorFlow rounds only the result of a softmax in bfloat16, as oneDNN does.

    Without oneDNN it rounds in between, and weights differ by up to 13 %.
    """
    with tf.init_scope():
        scores = tf.cast(tf.linspace(-8.0, 8.0, 144)[None], tf.bfloat16)
        exact = tf.cast(tf.nn.softmax(tf.cast(scores, tf.float32)), tf.bfloat16)
        return bool(tf.reduce_all(tf.nn.softmax(scores) == exact))


def float32_product(x, weight):
    """Multiplies float32 matrices in float32, but computes the gradient as the global policy says.

    If the global policy of Keras is a `Products`, both products of the gradient are computed in its
    dtype of products. Otherwise the gradient is that of TensorFlow.

    Args:
      x: float32 [N, W], N rows of the width W.
      weight: float32 [W, D].

    Returns:
      float32 [N, D].
    """
    dtype = getattr(keras.config.dtype_policy(), "products", "float32")
    if dtype == "float32":
        return tf.matmul(x, weight)

    @tf.custom_gradient
    def product(x, weight):
        def gradient(upstream):
            by_result, left, right = (tf.cast(value, dtype) for value in (upstream, x, weight))
            by_x = tf.matmul(by_result, right, transpose_b=True)
            by_weight = tf.matmul(left, by_result, transpose_a=True)
            return tf.cast(by_x, x.dtype), tf.cast(by_weight, weight.dtype)

        return tf.matmul(x, weight), gradient

    return product(x, weight)


def add_bias(x, bias):
    """Adds `bias` [N] to each of the M rows of `x` [..., M, N]. Both have the same dtype.

    The gradient of the bias is summed in float32. On a CPU, TensorFlow's own gradient adds bfloat16
    numbers one by one: the sum of 250,000 numbers, each 0.1, is then 128 instead of 25,000.
    """
    if x.dtype != tf.float32:
        return _add_rounded_bias(x, bias)
    # The gradient of `bias_add` sums a single column at a tenth of the speed.
    return x + bias if bias.shape == (1,) else tf.nn.bias_add(x, bias)


@tf.custom_gradient
def _add_rounded_bias(x, bias):
    def gradient(upstream):
        # On a processor it takes a third of the time of `tf.reduce_sum`.
        total = tf.raw_ops.BiasAddGrad(out_backprop=tf.cast(upstream, tf.float32))
        return upstream, tf.cast(total, bias.dtype)

    return tf.nn.bias_add(x, bias), gradient
