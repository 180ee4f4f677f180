"""Swin Transformer: a network for pictures whose attention stays in windows, which shift.

Source: Liu et al., "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows", ICCV
2021, and its released code (microsoft/Swin-Transformer). The network is the one inside the released
ExpansionNet v2: it ends with the last normalisation, without pooling and classes (docs/systems.md
5.9). The layers have the names that they have in the released `.pth` files.

Letters: B pictures, G cells along a side of a stage, C its channels, W cells along a side of a
window, N = W * W, M = (G / W)^2 windows, H heads, d = C / H. Cells and windows are in row-major
order.
"""

import collections
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from tfcap.layers import common, precision
from tfcap.layers.dropout import Dropout
from tfcap.layers.loops import Affine
from tfcap.layers.trees import is_portable, is_seed

PREFIX = "swin_transf."  # that names of tensors have in a file of ExpansionNet v2
DROP_PATH = 0.1  # of the last block, in the training of ExpansionNet v2; Swin's own is 0.2 to 0.5
_BLOCK = re.compile(r"layers\.(\d+)\.blocks\.\d+\.")
_PATCH = 4  # pixels along a side
_HIDDEN = -100.0  # added to a score of cells that a shift brought together; the released number


class Size(NamedTuple):
    """The size of a Swin Transformer.

    A cell is one vector of the grid; the first stage has a cell for each 4 x 4 pixels.

    Attributes:
      width: number of channels of the first stage; each further stage has twice as many.
      depths: number of blocks of each stage.
      heads: number of attention heads of the first stage; each further stage has twice as many.
      window: number of cells along a side of a window, within which attention is computed.
      image_size: pixels along a side of the pictures that it was trained on.
    """

    width: int
    depths: tuple[int, ...]
    heads: int
    window: int
    image_size: int


SIZES = {
    "swin_tiny_224": Size(96, (2, 2, 6, 2), 3, 7, 224),
    "swin_small_224": Size(96, (2, 2, 18, 2), 3, 7, 224),
    "swin_base_224": Size(128, (2, 2, 18, 2), 4, 7, 224),
    "swin_large_224": Size(192, (2, 2, 18, 2), 6, 7, 224),
    "swin_base_384": Size(128, (2, 2, 18, 2), 4, 12, 384),
    "swin_large_384": Size(192, (2, 2, 18, 2), 6, 12, 384),
}


def build(size: Size, image_size: int) -> keras.Model:
    """Builds a Swin Transformer without its classifier.

    The kernels are zeros: random numbers would take seconds to draw, and a file of weights replaces
    them all. In training, a picture skips parts of a block at random. The probability of this rises
    linearly from 0 in the first block to 0.1 in the last.

    Args:
      size: the size of the network, such as `SIZES["swin_base_224"]`.
      image_size: pixels along a side of the pictures.

    Returns:
      A model from B scaled pictures [B, image_size, image_size, 3] to features [B, G, G, F]. G is
      the number of cells along a side of the grid, `image_size` / 32. F is eight times the width of
      the first stage.

    Raises:
      ValueError: `image_size` is not a multiple of `size.image_size`.
    """
    cells = image_size // _PATCH
    if image_size % (_PATCH * 2 ** (len(size.depths) - 1) * size.window):
        raise ValueError(f"`image_size` must be a multiple of {size.image_size}, not {image_size}.")
    pictures = keras.Input((image_size, image_size, 3))
    x = keras.layers.Conv2D(
        size.width, _PATCH, _PATCH, kernel_initializer="zeros", name="patch_embed.proj"
    )(pictures)
    x = common.layer_norm("patch_embed.norm")(x)
    traced: dict[tuple[int, int], Callable] = {}
    rates = iter(np.linspace(0, DROP_PATH, sum(size.depths)).tolist())
    for i, depth in enumerate(size.depths):
        width = size.width * 2**i
        heads = size.heads * 2**i
        for j in range(depth):
            shift = size.window // 2 if j % 2 else 0
            name = f"layers.{i}.blocks.{j}"
            block = Block(cells, width, heads, size.window, shift, next(rates), name=name)
            block.traced = traced.setdefault((cells, block.shift), block.traced)
            x = block(x)
        if i + 1 < len(size.depths):
            x = Merging(width, name=f"layers.{i}.downsample")(x)
            cells //= 2
    return keras.Model(pictures, common.layer_norm("norm")(x), name="swin")


class Block(keras.layers.Layer):
    """A block of a Swin Transformer: attention in windows, then a feed-forward network.

    From the cells x it computes y = x + attention(norm1(x)), and then the result
    y + feed_forward(norm2(y)). Both norms are layer normalisations with epsilon 1e-5. The
    feed-forward network has 4 * C hidden units and an exact GELU.

    Args:
      cells: number of cells along a side of the grid, G.
      width: number of channels, C.
      heads: number of attention heads, H.
      window: number of cells along a side of a window, W.
      shift: number of cells by which the windows are shifted to the right and down. It has no
        effect if one window covers the grid.
      rate: the probability with which a picture skips attention in training. It skips the
        feed-forward network with the same probability, drawn apart. What is not skipped is divided
        by 1 - `rate`.

    Example:
      >>> import keras
      >>> from tfcap.backbones.swin import Block
      >>> block = Block(cells=8, width=16, heads=2, window=4, shift=2, rate=0.0)
      >>> tuple(block(keras.ops.ones([1, 8, 8, 16])).shape)
      (1, 8, 8, 16)
    """

    def __init__(
        self, cells: int, width: int, heads: int, window: int, shift: int, rate: float, **kwargs
    ):
        # Keras would cast weights to the compute dtype, which products may not have.
        super().__init__(autocast=False, **kwargs)
        self.window = window
        self.heads = heads
        self.shift = shift if window < cells else 0
        self.regions = _regions(cells, window, self.shift) if self.shift else None
        self.norm1 = common.layer_norm("norm1")
        self.norm2 = common.layer_norm("norm2")
        self.qkv = _dense(width, 3 * width, "qkv")
        self.bias = RelativeBias(window, heads, name="bias")
        self.proj = _dense(width, width, "proj")
        self.fc1 = _dense(width, 4 * width, "fc1")
        self.fc2 = _dense(4 * width, width, "fc2")
        for norm in (self.norm1, self.norm2):
            norm.build((None, width))
        self.path_1 = Dropout(rate, name="path_1")
        self.path_2 = Dropout(rate, name="path_2")
        # Not inlined: TensorFlow prepares one graph for all blocks of a kind, and not one for each.
        self.traced = tf.function(
            self._with_parameters,
            autograph=False,
            experimental_attributes={"_noinline": True},
        )
        self.built = True

    def compute_output_shape(self, shape):
        return shape  # without it Keras traces `call` once more, to build the model

    def call(self, x, training=False):
        """Computes the block.

        Args:
          x: the cells [B, G, G, C] of B pictures: a grid of G x G cells with C channels.
          training: whether pictures skip parts of the block at random.

        Returns:
          The new cells [B, G, G, C].
        """
        # LiteRT has no calls of functions.
        if training or tf.executing_eagerly() or is_portable():
            return self._compute(x, training)
        return self.traced(x, [tf.convert_to_tensor(v.value) for v in self._parameters()])

    def _parameters(self):
        return [variable for variable in self.weights if not is_seed(variable)]

    def _with_parameters(self, x, values):
        """Computes the block with the weights of another one that differs in nothing else.

        The 24 blocks of the largest networks are of 7 kinds, and tracing is slow.
        """
        with keras.StatelessScope(zip(self._parameters(), values, strict=True)):
            return self._compute(x, training=False)

    def _compute(self, x, training):
        x = x + self._kept(self._attend(self.norm1(x)), self.path_1, training)
        return x + self._kept(self._feed_forward(self.norm2(x)), self.path_2, training)

    def _kept(self, branch, path, training):
        """Lets pictures skip a branch [B, G, G, C] in training."""
        if not training:
            return branch
        # One number per picture, 0 or 1 / (1 - rate).
        ones = ops.ones((ops.shape(branch)[0], 1, 1, 1), branch.dtype)
        return path(ones, training=True) * branch

    def _feed_forward(self, x):
        """Applies the feed-forward network to each of the cells [B, G, G, C]."""
        hidden = ops.gelu(_rows(self.fc1, x), approximate=False)
        return self._grid(_rows(self.fc2, hidden), x.shape)

    def _grid(self, rows, shape):
        """Returns rows [B G G, C] as cells of the shape [B, G, G, C], in the compute dtype."""
        return ops.reshape(ops.cast(rows, self.compute_dtype), (-1, *shape[1:]))

    def _attend(self, x):
        """Attention of the cells [B, G, G, C] of each window to those of the same window."""
        _, *cells, width = shape = x.shape
        count = cells[0] // self.window
        n = self.window**2
        depth = width // self.heads
        # Rolls and transpositions: the gradient of a gather is not deterministic on GPUs.
        x = ops.roll(x, (-self.shift, -self.shift), (1, 2)) if self.shift else x
        x = ops.reshape(x, (-1, count, self.window, count, self.window, width))
        qkv = _rows(self.qkv, ops.transpose(x, (0, 1, 3, 2, 4, 5)))
        qkv = ops.reshape(qkv, (-1, n, 3, self.heads, depth))
        query, key, value = ops.unstack(ops.transpose(qkv, (2, 3, 0, 1, 4)))  # [H, B M, N, d]
        # TensorFlow computes product, scale and bias in one operation. A product in float16 could
        # pass the largest number.
        late = self.compute_dtype != "float16"
        query = query if late else query * depth**-0.5
        scores = ops.matmul(query, ops.swapaxes(key, -1, -2))
        scores = self.bias(scores * depth**-0.5 if late else scores)
        if self.regions is not None:
            regions = ops.convert_to_tensor(self.regions)
            same = regions[:, :, None] == regions[:, None, :]  # [M, N, N]
            hidden = ops.cast(ops.where(same, 0.0, _HIDDEN), scores.dtype)
            scores = ops.reshape(scores, (-1, count**2, n, n)) + hidden
            scores = ops.reshape(scores, (self.heads, -1, n, n))
        weights = ops.cast(precision.softmax(scores), value.dtype)
        x = ops.transpose(ops.matmul(weights, value), (1, 2, 0, 3))  # [B M, N, H, d]
        x = _rows(self.proj, ops.reshape(x, (-1, width)))
        x = ops.reshape(x, (-1, count, count, self.window, self.window, width))
        x = self._grid(ops.transpose(x, (0, 1, 3, 2, 4, 5)), shape)
        return ops.roll(x, (self.shift, self.shift), (1, 2)) if self.shift else x


class RelativeBias(keras.layers.Layer):
    """Adds to each attention score a learned number, one per head and offset from key to query.

    Input and output are scores [H, B M, N, N] of H heads, B pictures and M windows, for N queries
    (last axis but one) and N keys (last axis). N is the number of cells of a window. With a policy
    of half precision the result is float32, because the sum would be rounded before the softmax.
    With `precision.Products` it has the dtype of products: TensorFlow adds the numbers before it
    rounds a product.

    Args:
      window: number of cells along a side of a window, W; N = W * W.
      heads: number of attention heads, H.

    Example:
      >>> import keras
      >>> from tfcap.backbones.swin import RelativeBias
      >>> bias = RelativeBias(window=2, heads=3)
      >>> tuple(bias(keras.ops.zeros([3, 5, 4, 4])).shape)
      (3, 5, 4, 4)
    """

    def __init__(self, window: int, heads: int, **kwargs):
        super().__init__(autocast=False, **kwargs)
        shape = ((2 * window - 1) ** 2, heads)
        self.table = self.add_weight(shape, "zeros", "float32", autocast=False, name="table")
        y, x = np.divmod(np.arange(window**2), window)
        down = y[:, None] - y + window - 1
        across = x[:, None] - x + window - 1
        self.index = down * (2 * window - 1) + across  # [query, key]
        self.built = True

    def call(self, scores):
        if self.compute_dtype != "float32":
            scores = ops.cast(scores, "float32")
        bias = ops.take(ops.cast(self.table, scores.dtype), self.index, axis=0)  # [N, N, H]
        return scores + ops.transpose(bias, (2, 0, 1))[:, None]


class Merging(keras.layers.Layer):
    """Halves the grid: four neighbouring cells become one cell with twice as many channels.

    Args:
      width: number of channels of the input, C.

    Example:
      >>> import keras
      >>> from tfcap.backbones.swin import Merging
      >>> tuple(Merging(width=16)(keras.ops.ones([1, 8, 8, 16])).shape)
      (1, 4, 4, 32)
    """

    def __init__(self, width: int, **kwargs):
        super().__init__(**kwargs)
        self.norm = common.layer_norm("norm")
        self.norm.build((None, 4 * width))
        self.reduction = _dense(4 * width, 2 * width, "reduction", use_bias=False)
        self.built = True

    def call(self, x):
        """Halves the grid.

        The channels of four cells are joined in the order top left, bottom left, top right, bottom
        right. Then they are layer-normalised, and projected to 2 * C channels without a bias.

        Args:
          x: the cells [B, G, G, C] of B pictures: a grid of G x G cells with C channels.

        Returns:
          The new cells [B, G / 2, G / 2, 2 * C].
        """
        _, rows, columns, width = x.shape
        # On a processor one transposition takes a thirtieth of the time of four strided slices.
        x = ops.reshape(x, (-1, rows // 2, 2, columns // 2, 2, width))
        x = ops.transpose(x, (0, 1, 3, 4, 2, 5))
        return self.reduction(self.norm(ops.reshape(x, (-1, rows // 2, columns // 2, 4 * width))))


def _rows(layer: Affine, x):
    """Applies an affine map to the last axis of `x`; the result [rows, D] is as the product is.

    TensorFlow computes product, bias and GELU in one operation if nothing stands between them. A
    call of the layer would reshape and cast.
    """
    product = layer.multiply(ops.reshape(x, (-1, x.shape[-1])), "kernel")
    return precision.add_bias(product, ops.cast(layer.bias, product.dtype))


def _dense(inputs: int, units: int, name: str, use_bias: bool = True) -> Affine:
    layer = Affine(units, use_bias=use_bias, kernel_initializer="zeros", name=name)
    layer.build((None, inputs))
    return layer


def _regions(cells: int, window: int, shift: int) -> np.ndarray:
    """Numbers the parts of a shifted picture whose cells are neighbours, int8 [M, N]."""
    position = np.arange(cells)
    band = (position >= cells - window).astype(np.int8) + (position >= cells - shift)
    parts = 3 * band[:, None] + band
    parts = parts.reshape(cells // window, window, cells // window, window)
    return parts.transpose(0, 2, 1, 3).reshape(-1, window**2)


def tensors(model: keras.Model) -> Iterator[tuple[keras.layers.Layer, str, int]]:
    """Finds where the weights of a Swin Transformer are in a state dict of PyTorch.

    Args:
      model: a model of `build`.

    Yields:
      Each layer that has weights, its name in the state dict, and the number 1, the `channels` of
      `networks.values`: no layer reads a flattened grid.
    """
    for layer in model.layers:
        if isinstance(layer, Block):
            parts = {"norm1": layer.norm1, "norm2": layer.norm2}
            parts |= {"attn.qkv": layer.qkv, "attn.proj": layer.proj}
            parts |= {"attn.relative_position_bias_table": layer.bias}
            parts |= {"mlp.fc1": layer.fc1, "mlp.fc2": layer.fc2}
        elif isinstance(layer, Merging):
            parts = {"norm": layer.norm, "reduction": layer.reduction}
        else:
            parts = {"": layer} if layer.weights else {}
        for name, part in parts.items():
            yield part, f"{layer.name}.{name}".rstrip("."), 1


def name_of(tensors: Mapping[str, np.ndarray]) -> str:
    """Returns the name of a Swin Transformer, a key of `SIZES`, by the shapes of its weights.

    Args:
      tensors: the state dict: names -> arrays.

    Raises:
      ValueError: the weights are not those of any of `SIZES`.
    """
    patches = tensors.get("patch_embed.proj.weight")
    table = tensors.get("layers.0.blocks.0.attn.relative_position_bias_table")
    if patches is None or table is None or table.ndim != 2:
        raise ValueError(
            "the state dict is not that of a Swin Transformer: it lacks patch_embed.proj.weight or "
            "layers.0.blocks.0.attn.relative_position_bias_table. Give the file as it was released."
        )
    blocks = {match[0]: int(match[1]) for key in tensors if (match := _BLOCK.match(key))}
    depths = tuple(collections.Counter(blocks.values()).values())
    window = (math.isqrt(len(table)) + 1) // 2
    width = len(patches)
    heads = table.shape[1]
    for name, size in SIZES.items():
        if size[:4] == (width, depths, heads, window):
            return name
    raise ValueError(
        f"no known Swin Transformer has {width} channels, {depths} blocks, {heads} heads and "
        f"windows of {window} cells. Give the weights of one of {', '.join(SIZES)}."
    )


def resize(image: tf.Tensor, side: int) -> tf.Tensor:
    """Resizes a picture as Pillow does: bilinear, width first, and rounded after each step.

    The released features come from pictures that Pillow resized. The result of this function
    differs from Pillow's in few numbers. A single `tf.image.resize` does not round; its result
    differs from Pillow's by 0.25 on average.

    Args:
      image: an upright picture, uint8 [height, width, 3].
      side: pixels along both sides of the result.

    Returns:
      float32 [side, side, 3], whole numbers of 0 to 255.
    """
    image = tf.cast(image, tf.float32)
    for height in (tf.shape(image)[0], side):
        image = tf.image.resize(image, [height, side], method="bilinear", antialias=True)
        image = tf.floor(image + 0.5)
    return image
