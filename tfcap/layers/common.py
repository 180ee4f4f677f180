"""Small layers that several systems share, with the initialisation of the released models.

Letters: B images, R regions, N rows, G = N / B rows of one image, T positions, S keys,
D model width, H heads, d = D / H.

The released models are PyTorch code with PyTorch's default initialisation: weight and bias of every
affine map start from U(-1/sqrt(inputs), 1/sqrt(inputs)), every embedding starts from N(0, 1), and
every normalisation uses epsilon 1e-5. Keras has other defaults for all three.
"""

import math
from collections.abc import Callable, Iterable

import keras
import tensorflow as tf
from keras import layers, ops

from tfcap.layers.dropout import Dropout
from tfcap.layers.loops import Affine

CELU_ALPHA = 1.3  # the released configurations use it everywhere (ELU_ALPHA)


def linear(inputs: int, units: int, name: str, **kwargs) -> layers.Dense:
    """Makes an affine map whose initial weights and bias are drawn as in `torch.nn.Linear`.

    Both are drawn uniformly between -1/sqrt(inputs) and 1/sqrt(inputs).

    Args:
      inputs: width of the input.
      units: width of the output.
      name: name of the layer.
      **kwargs: further arguments of `keras.layers.Dense`.

    Example:
      >>> layer = linear(inputs=16, units=8, name="project")
      >>> layer(ops.ones((2, 3, 16))).shape
      TensorShape([2, 3, 8])
      >>> bool(ops.max(ops.abs(layer.kernel)) <= 16**-0.5)
      True
    """
    limit = inputs**-0.5
    return Affine(
        units,
        kernel_initializer=keras.initializers.RandomUniform(-limit, limit),
        bias_initializer=keras.initializers.RandomUniform(-limit, limit),
        name=name,
        **kwargs,
    )


def embedding(vocab_size: int, width: int, name: str) -> layers.Embedding:
    """Makes an embedding layer for words. Its weights start from N(0, 1), as in PyTorch.

    Args:
      vocab_size: number of words, including the special words PAD, BOS, EOS and UNK.
      width: width of an embedded word.
      name: name of the layer.

    Example:
      >>> words = embedding(vocab_size=20, width=8, name="words")
      >>> words(ops.ones((2, 3), "int32")).shape
      TensorShape([2, 3, 8])
    """
    return layers.Embedding(
        vocab_size, width, embeddings_initializer=keras.initializers.RandomNormal(0, 1), name=name
    )


def layer_norm(name: str, epsilon: float = 1e-5, **kwargs) -> layers.LayerNormalization:
    """Makes a `LayerNorm` with the default epsilon of PyTorch, 1e-5. The default of Keras is 1e-3.

    Args:
      name: name of the layer.
      epsilon: small number that is added to the variance.
      **kwargs: further arguments of `keras.layers.LayerNormalization`.

    Example:
      >>> layer = layer_norm("norm")
      >>> print(layer(np.float32([[1, 3]])).numpy().round(2))
      [[-1.  1.]]
    """
    return LayerNorm(epsilon=epsilon, name=name, **kwargs)


class Layer(layers.Layer):
    """Base class of the layers in this package.

    A subclass supplies `__init__` and `call`. It needs no `get_config` if all arguments of its
    constructor are plain values, such as numbers and strings: Keras saves these by itself. The
    first call creates the weights. The Keras mask of an input passes through the layer.
    """

    def __new__(cls, *args, dtype=None, **kwargs):
        # Keras keeps the arguments for `get_config` if all are plain; it adds the dtype itself.
        return super().__new__(cls, *args, **kwargs)

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def get_build_config(self):
        return None  # else Keras warns on loading where there is no `build`


@keras.saving.register_keras_serializable("tfcap")
class LayerNorm(layers.LayerNormalization):
    """Layer normalisation over the last axis.

    Mean and variance are computed in float32, whatever the precision of the layer. The arguments
    are those of `keras.layers.LayerNormalization`, so epsilon is 1e-3 by default.

    Example:
      >>> layer = LayerNorm(epsilon=1e-5)
      >>> print(layer(np.float32([[1, 3]])).numpy().round(2))
      [[-1.  1.]]
    """

    def call(self, inputs):
        x, gamma, beta = (ops.cast(value, "float32") for value in (inputs, self.gamma, self.beta))
        return ops.cast(_normalise(x, gamma, beta, self.epsilon), self.compute_dtype)


@keras.saving.register_keras_serializable("tfcap")
class DeviationNorm(Layer):
    """Layer normalisation that divides by the unbiased standard deviation plus 1e-6.

    gamma (x - mean) / (sqrt(sum (x - mean)^2 / (D - 1)) + 1e-6) + beta

    The released code of AoANet and of the Object Relation Transformer uses this form. The usual
    layer normalisation divides by D instead of D - 1, and adds the small number to the variance.
    Statistics are float32.

    Example:
      >>> layer = DeviationNorm()
      >>> print(layer(np.float32([[1, 3]])).numpy().round(2))
      [[-0.71  0.71]]
    """

    def build(self, shape):
        self.gamma = self.add_weight(shape=(shape[-1],), initializer="ones", name="gamma")
        self.beta = self.add_weight(shape=(shape[-1],), initializer="zeros", name="beta")

    def call(self, x):
        """Normalises the last axis of `x` [..., D]; the result has the same shape."""
        x, gamma, beta = (ops.cast(value, "float32") for value in (x, self.gamma, self.beta))
        centred = x - ops.mean(x, axis=-1, keepdims=True)
        variance = ops.sum(ops.square(centred), axis=-1, keepdims=True) / (x.shape[-1] - 1)
        # The root of 0 has no gradient; a row of equal numbers stays 0.
        deviation = ops.sqrt(ops.maximum(variance, 1e-30)) + 1e-6
        return ops.cast(gamma * centred / deviation + beta, self.compute_dtype)


def _normalise(x, gamma, beta, epsilon):
    """Normalises the last axis to mean 0 and variance 1, then multiplies by gamma and adds beta.

    Args:
      x: float32 [..., D]; or [..., H, d], where each head is normalised separately.
      gamma: float32 [D].
      beta: float32 [D].
      epsilon: small number that is added to the variance.

    Returns:
      float32, the shape of `x`.
    """
    split = x.shape[-1:] if x.shape[-1] == gamma.shape[0] else x.shape[-2:]
    rows = list(range(len(x.shape) - len(split)))

    # The gradient that TensorFlow derives has twice the operations: with it a step of the small
    # X-Transformer has 9,500 in place of 7,850, and takes 5 % more processor time.
    @tf.custom_gradient
    def normalise(x, gamma, beta):
        centred = x - ops.mean(x, axis=-1, keepdims=True)
        scale = ops.rsqrt(ops.mean(ops.square(centred), axis=-1, keepdims=True) + epsilon)
        normal = centred * scale

        def gradient(upstream):
            by_normal = upstream * gamma
            mean = ops.mean(by_normal, axis=-1, keepdims=True)
            along = ops.mean(by_normal * normal, axis=-1, keepdims=True)
            by_x = (by_normal - mean - normal * along) * scale
            return by_x, ops.sum(upstream * normal, axis=rows), ops.sum(upstream, axis=rows)

        return normal * gamma + beta, gradient

    return normalise(x, ops.reshape(gamma, split), ops.reshape(beta, split))


def activation(name: str) -> Callable:
    """Returns an activation function by its name.

    Args:
      name: `relu`; `celu`, with alpha 1.3; or `none`, a function that returns its input.

    Raises:
      ValueError: there is no function with this name.

    Example:
      >>> print(activation("relu")(np.float32([-1, 2])).numpy())
      [0. 2.]
    """
    functions = {"relu": ops.relu, "celu": celu, "none": lambda x: x}
    check_choice("activation", name, functions)
    return functions[name]


def check_choice(option: str, value: str, choices: Iterable[str]) -> None:
    """Checks that the value of an option is allowed.

    Args:
      option: name of the option, for the message of the error.
      value: value of the option.
      choices: allowed values.

    Raises:
      ValueError: `value` is not in `choices`. The message lists the allowed values.
    """
    if value not in choices:
        raise ValueError(f"`{option}` must be one of {', '.join(choices)}, not {value!r}.")


def celu(x):
    """Computes the activation CELU with a = 1.3: max(x, 0) + a (exp(min(x, 0) / a) - 1).

    1.3 is the value in the released models. The result has the shape of `x`, which may be any.
    """
    if keras.backend.standardize_dtype(x.dtype) != "float32":  # the factors would be rounded
        return ops.celu(x, alpha=CELU_ALPHA)
    return CELU_ALPHA * ops.elu(x * (1 / CELU_ALPHA))


def gated(x):
    """Computes a gated linear unit: halves the last axis and multiplies one half by a gate.

    Args:
      x: [..., 2 D].

    Returns:
      [..., D]: the first half of the last axis times the sigmoid of the second half.

    Example:
      >>> print(gated(np.float32([[2, 4, 0, 0]])).numpy())
      [[1. 2.]]
    """
    value, gate = ops.split(x, 2, axis=-1)
    return value * ops.sigmoid(gate)


def mean_weights(mask):
    """Computes weights for a mean: the weighted sum of S items is the mean of the chosen items.

    Args:
      mask: bool [..., S], True for the chosen items.

    Returns:
      float32 [..., S]: along the last axis, 1 / n for each of n chosen items, 0 for the others.
    """
    weights = ops.cast(mask, "float32")
    return weights / ops.maximum(ops.sum(weights, axis=-1, keepdims=True), 1.0)


def masked_mean(x, mask):
    """Averages the regions of each image, without padding.

    Args:
      x: [B, R, D], R regions of width D for each of B images.
      mask: bool [B, R], False for padding.

    Returns:
      [B, D] in the dtype of `x`. For an image without regions, the result is zeros.

    Example:
      >>> regions = np.float32([[[1, 1], [3, 5], [9, 9]]])
      >>> print(masked_mean(regions, np.array([[True, True, False]])).numpy())
      [[2. 3.]]
    """
    return ops.matmul(ops.cast(mean_weights(mask), x.dtype)[:, None], x)[:, 0]


def image_vector(inputs):
    """Returns the vectors of whole images, or the means of their regions if there are none.

    Args:
      inputs: dictionary with `image` [B, F], the vectors of B images; or, without this key, with
        `features` [B, R, F], F features of each of R regions of B images, and `mask` bool [B, R],
        False for padding.

    Returns:
      float32 [B, F].

    Example:
      >>> inputs = {"features": np.float32([[[1, 1], [3, 5]]]), "mask": np.array([[True, True]])}
      >>> print(image_vector(inputs).numpy())
      [[2. 3.]]
    """
    if "image" in inputs:
        return ops.cast(inputs["image"], "float32")
    return masked_mean(ops.cast(inputs["features"], "float32"), inputs["mask"])


def head_width(width: int, heads: int) -> int:
    """Returns the width of one attention head, `width` / `heads`.

    Raises:
      ValueError: `width` is not a multiple of `heads`.
    """
    if width % heads:
        raise ValueError(f"`width` must be a multiple of `heads` ({heads}), not {width}.")
    return width // heads


def group_rows(x, keys):
    """Joins the queries of all captions of an image, which read the same keys.

    Letters: N rows (captions) of B images, G = N / B captions of one image, T queries of a row, H
    heads of width d.

    Args:
      x: queries [N, H, T, d]. Row n belongs to image n // G.
      keys: keys [B, ...]. Only the number of images, B, is read.

    Returns:
      The queries [B, H, G * T, d].
    """
    images = ops.shape(keys)[0]
    rows, heads, _, depth = x.shape
    if isinstance(images, int) and images == rows:
        return x
    length = ops.shape(x)[2]
    group = ops.shape(x)[0] // images
    x = ops.reshape(x, (images, group, heads, length, depth))
    x = ops.transpose(x, (0, 2, 1, 3, 4))  # -> [B, H, G, T, d]
    return ops.reshape(x, (images, heads, group * length, depth))


def per_query(visible):
    """Gives a mask of keys an axis for queries: bool [B, S] becomes [B, 1, S].

    A mask that already has this axis, [B, 1, S] or [B, T, S], is returned unchanged. B is the
    number of images, S that of keys and T that of queries.
    """
    return visible if len(visible.shape) == 3 else visible[:, None]


def ungroup_rows(x, shape):
    """Separates the captions that `group_rows` has joined, and puts the axis of heads last but one.

    Args:
      x: [B, H, G * T, z] for B images with G captions each, H heads and T queries of a caption; z
        is any width.
      shape: shape of the queries, which begins with N = B * G and T.

    Returns:
      [N, T, H, z].
    """
    heads = x.shape[1]
    x = ops.transpose(x, (0, 2, 1, 3))  # -> [B, G T, H, z]
    return ops.reshape(x, (shape[0], shape[1], heads, ops.shape(x)[-1]))


def ungroup_weights(weights, shape):
    """Separates the attention weights of the captions that `group_rows` has joined.

    Args:
      weights: [B, H, G * T, S] for B images with G captions each, H heads, T queries of a caption
        and S keys.
      shape: shape of the queries, which begins with N = B * G and T.

    Returns:
      [N, H, T, S].
    """
    return ops.swapaxes(ungroup_rows(weights, shape), 1, 2)


@keras.saving.register_keras_serializable("tfcap")
class HeadNorm(Layer):
    """Splits the vector of each position into heads and normalises each head separately.

    The layer applies the computation of `torch.nn.GroupNorm` to each position separately, with a
    group for each head. Keras' GroupNormalization would compute mean and variance over all
    positions of a row. Mean and variance are float32.

    Args:
      heads: number of heads, H.
      normalize: whether the heads are normalised, with epsilon 1e-5. False only splits the vectors
        into heads.

    Example:
      >>> layer = HeadNorm(heads=2)
      >>> layer(ops.ones((4, 3, 8))).shape  # [N, T, D] becomes [N, H, T, d]
      TensorShape([4, 2, 3, 4])
    """

    def __init__(self, heads: int, normalize: bool = True, **kwargs):
        super().__init__(**kwargs)
        self.heads = heads
        self.normalize = normalize

    def build(self, shape):
        if self.normalize:
            self.gamma = self.add_weight(shape=(shape[-1],), initializer="ones", name="gamma")
            self.beta = self.add_weight(shape=(shape[-1],), initializer="zeros", name="beta")

    def call(self, x):
        """Splits `x` [N, T, D] into heads [N, H, T, d], d = D / H, in the compute dtype.

        N is the number of rows, T that of positions, D the model width and H the number of heads.
        """
        width = x.shape[-1]
        split = (self.heads, width // self.heads)
        x = ops.reshape(x, (-1, ops.shape(x)[1], *split))  # [N, T, D] -> [N, T, H, d]
        if self.normalize:
            x, gamma, beta = (ops.cast(v, "float32") for v in (x, self.gamma, self.beta))
            x = _normalise(x, gamma, beta, 1e-5)
        return ops.transpose(ops.cast(x, self.compute_dtype), (0, 2, 1, 3))  # -> [N, H, T, d]


@keras.saving.register_keras_serializable("tfcap")
class FeedForward(Layer):
    """Feed-forward block with a residual, normalised at the end (docs/systems.md 3.2).

    LN(x + Dropout(Lin(Dropout(ReLU(Lin(x)))))), where Lin are two affine maps and LN is a layer
    normalisation.

    Args:
      width: model width, the width of `x` and of the result.
      inner: width between the two affine maps.
      dropout: rate of both dropouts.
      epsilon: small number that the normalisation adds to the variance.

    Example:
      >>> block = FeedForward(width=8, inner=32, dropout=0.1)
      >>> block(ops.ones((4, 3, 8))).shape
      TensorShape([4, 3, 8])
    """

    def __init__(self, width: int, inner: int, dropout: float, epsilon: float = 1e-5, **kwargs):
        super().__init__(**kwargs)
        self.fc1 = linear(width, inner, "fc1", dtype=self.dtype_policy)
        self.fc2 = linear(inner, width, "fc2", dtype=self.dtype_policy)
        self.inner_dropout = Dropout(dropout, name="inner_dropout", dtype=self.dtype_policy)
        self.dropout = Dropout(dropout, name="dropout", dtype=self.dtype_policy)
        self.layer_norms = layer_norm("layer_norms", epsilon, dtype=self.dtype_policy)

    def call(self, x, training=False):
        """Applies the block to each vector of `x` [..., D]; the result has the same shape."""
        rows = math.prod(ops.shape(x)[:-1])
        inner = ops.relu(self.fc1(x))
        inner = self.inner_dropout(inner, training=training, size=rows * self.fc1.units)
        update = self.dropout(self.fc2(inner), training=training, size=rows * self.fc2.units)
        return self.layer_norms(x + update)
