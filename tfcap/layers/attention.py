"""Conventional attention: additive (Bahdanau), multi-head, and attention on attention (AoA).

Letters: N rows of queries, B images, G = N / B rows of one image, T queries of a row, S keys,
D model width, H heads, d = D / H, A attention width, V width of the values.

Keys are projected once per image. All rows of an image read the same keys: row n reads those of
image n // G.
"""

import keras
from keras import ops

from tfcap.layers import common, precision
from tfcap.layers.dropout import Dropout
from tfcap.layers.recording import record
from tfcap.layers.trees import put


@keras.saving.register_keras_serializable("tfcap")
class AdditiveAttention(common.Layer):
    """Additive attention: averages values with weights from the sum of key and query.

    a_i = w tanh(W_k k_i + b + W_q q);  attended = sum_i softmax(a)_i v_i

    k_i and v_i are key i and value i of an image, for example its region i, and q is the query.
    W_k, W_q, w and the bias b are learned. Source: equation 1 of the X-LAN paper; docs/systems.md
    4.1, 4.2 and 4.6.

    Args:
      key_width: width of the keys.
      query_width: width of the query.
      attention_width: width of W_k k_i and W_q q; 512 in all released models.
      biases: whether W_q and w have biases, too, as in ImageCaptioning.pytorch. The bias of W_q is
        added to that of W_k, so their sum learns twice as fast. The bias of w has no effect.
      dropout: dropout rate on the result of tanh.

    Example:
      >>> attention = AdditiveAttention(key_width=6, query_width=8, attention_width=4)
      >>> query, regions = ops.ones((4, 8)), ops.ones((2, 5, 6))  # two captions of each image
      >>> attention(query, regions).shape
      TensorShape([4, 6])
    """

    def __init__(
        self,
        key_width: int,
        query_width: int,
        attention_width: int,
        biases: bool = False,
        dropout: float = 0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.key = common.linear(key_width, attention_width, "key", dtype=self.dtype_policy)
        self.query = common.linear(
            query_width, attention_width, "query", use_bias=biases, dtype=self.dtype_policy
        )
        self.alpha = common.linear(
            attention_width, 1, "alpha", use_bias=biases, dtype=self.dtype_policy
        )
        self.dropout = Dropout(dropout, name="dropout", dtype=self.dtype_policy)

    def project(self, keys):
        """Projects the keys of B images for `call`.

        The result does not depend on the queries, so call this once per image, not once per word.

        Args:
          keys: [B, S, key_width], S keys for each image.

        Returns:
          The projected keys [B, S, attention_width].
        """
        return self.key(keys)

    def call(self, query, keys, values=None, visible=None, training=False, keys_mask=None):
        """Averages values, with more weight where the key matches the query.

        Letters: N rows (captions) of B images, G = N / B rows of one image, T queries of a row, S
        keys of an image, V width of a value.

        Args:
          query: [N, query_width], or [N, T, query_width]. Row n reads the keys of image n // G.
          keys: the projected keys [B, S, attention_width] that `project` returned. If `values` is
            None, the keys [B, S, key_width], which this call projects.
          values: [B, S, V]. None means that the unprojected `keys` are the values, too.
          visible: bool [B, S] or [B, 1, S], True where a key may be read. Each image needs at least
            one True. None means `keys_mask`; if both are None, all keys may be read.
          training: whether dropout is on.
          keys_mask: bool [B, S], the Keras mask that `keys` carries, passed by Keras.

        Returns:
          The averages [N, V] or [N, T, V], in the compute dtype.
        """
        visible = keys_mask if visible is None else visible
        if values is None:
            values = keys
            keys = self.project(keys)
        rows = ops.shape(query)[:-1]
        images, length, width = ops.shape(keys)
        query = ops.reshape(self.query(query), (images, -1, 1, width))  # [B, G T, 1, A]
        # Use three axes: with four, Keras 3.12 (the last for Python 3.10) writes past its memory.
        joint = ops.reshape(ops.tanh(keys[:, None] + query), (-1, length, width))  # [N T, S, A]
        joint = self.dropout(joint, training=training)
        logits = ops.cast(ops.reshape(self.alpha(joint), (images, -1, length)), "float32")
        if visible is not None:
            logits = ops.where(common.per_query(visible), logits, -1e9)  # [B, G T, S]
        weights = ops.softmax(logits, axis=-1)
        record(self, lambda: ops.reshape(weights, (rows[0], 1, -1, length)))
        attended = precision.matmul(self, weights, values)  # [B, G T, V]
        return ops.reshape(attended, (*rows, values.shape[-1]))


class CachedAttention(common.Layer):
    """Base class of attention blocks that a decoder can also compute word by word.

    This class supplies `empty` and `step`. `step` computes one position of a decoder, where each
    position reads itself and all earlier positions. The keys and values of earlier positions are
    kept in a cache, which `empty` makes. A subclass supplies `call`, `project`, and the attributes
    `width` (model width, D) and `heads` (number of heads, H).

    Example:
      >>> attention = MultiHeadAttention(width=8, heads=2)
      >>> cache = attention.empty(rows=3, max_length=5)
      >>> word, cache = attention.step(ops.ones((3, 1, 8)), cache, index=0)
      >>> word.shape
      TensorShape([3, 1, 8])
    """

    width: int  # D
    heads: int  # H

    def project(self, keys, values=None):
        """Projects keys and values for `call`, and splits them into heads.

        The result does not depend on the queries. So a decoder calls `project` once per image for
        the regions, and `step` calls it for each new word.

        Args:
          keys: [B, S, D], S keys of the model width D for each of B images or captions.
          values: [B, S, D]; None means that `keys` are the values, too.

        Returns:
          A tuple of keys and values, each [B, H, S, d]: H heads of width d = D / H.
        """
        raise NotImplementedError

    def empty(self, rows, max_length):
        """Makes the cache for the first call of `step`.

        Args:
          rows: number of rows (captions), N.
          max_length: number of positions for which the cache has room, T.

        Returns:
          A tuple of keys and values, each zeros [N, H, T, d] in the compute dtype: H heads of width
          d = D / H, for the model width D.
        """
        shape = (rows, self.heads, max_length, self.width // self.heads)
        return ops.zeros(shape, self.compute_dtype), ops.zeros(shape, self.compute_dtype)

    def step(self, x, cache, index, query=None, training=False):
        """Computes one position of `call`, where each position reads itself and all earlier ones.

        Args:
          x: [N, 1, D], the vector of width D at this position, in each of N rows. Its projections
            are the key and the value of the position.
          cache: in the first step, the result of `empty`; later, the cache that the previous step
            returned.
          index: int32 scalar, the number of this position, counted from 0.
          query: [N, 1, D]; None means that `x` is the query, too.
          training: whether dropout is on.

        Returns:
          A tuple: the attended values [N, 1, D] in the compute dtype, and the new cache.
        """
        new = self.project(x)
        cache = tuple(put(old, row, index, axis=2) for old, row in zip(cache, new, strict=True))
        keys, values = cache
        past = (ops.arange(keys.shape[2]) <= index)[None, None]  # [1, 1, T]
        query = x if query is None else query
        return self(query, keys, values, visible=past, training=training), cache


@keras.saving.register_keras_serializable("tfcap")
class MultiHeadAttention(CachedAttention):
    """Multi-head attention: softmax(Q K^T / sqrt(d)) V per head, then an affine map.

    Q, K and V are affine maps of queries, keys and values, split into heads of width d. Source:
    Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 3.2.

    Args:
      width: model width, D; a multiple of `heads`.
      heads: number of attention heads, H.
      dropout: dropout rate on the attention weights; 0 in ExpansionNet, 0.1 in the Transformer
        baseline.
      output: whether an affine map follows the attention. False returns the joined heads.

    Example:
      >>> attention = MultiHeadAttention(width=8, heads=2)
      >>> words, regions = ops.ones((4, 3, 8)), ops.ones((2, 5, 8))  # two captions of each image
      >>> attention(words, regions).shape
      TensorShape([4, 3, 8])
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0, output: bool = True, **kwargs):
        super().__init__(**kwargs)
        self.scale = common.head_width(width, heads) ** -0.5
        self.width = width
        self.heads = heads
        self.query = common.linear(width, width, "query", dtype=self.dtype_policy)
        self.key = common.linear(width, width, "key", dtype=self.dtype_policy)
        self.value = common.linear(width, width, "value", dtype=self.dtype_policy)
        self.split = common.HeadNorm(heads, normalize=False, name="split", dtype=self.dtype_policy)
        self.weight_dropout = Dropout(dropout, name="weight_dropout", dtype=self.dtype_policy)
        self.output_map = (
            common.linear(width, width, "output_map", dtype=self.dtype_policy) if output else None
        )

    def project(self, keys, values=None):
        values = keys if values is None else values
        return self.split(self.key(keys)), self.split(self.value(values))

    def call(
        self, query, keys, values=None, visible=None, training=False, keys_mask=None, bias=None
    ):
        """Averages values, with more weight where the key matches the query.

        Letters: N rows (captions) of B images, G = N / B rows of one image, T queries of a row, S
        keys of an image, H heads of width d = D / H.

        Args:
          query: [N, T, D], or [N, D] for one query per row. Row n reads the keys of image n // G.
          keys: the keys [B, S, D], which this call projects; or the projected keys [B, H, S, d]
            that `project` returned. With the latter, several calls share one projection.
          values: the values [B, S, D]; or, with projected keys, the values [B, H, S, d] that
            `project` returned. None means that `keys` [B, S, D] are the values, too.
          visible: bool, True where a key may be read: [B, S] for all queries of an image; or three
            axes that broadcast to [B, G * T, S]. The second axis then has the T queries of the
            first row of an image, then those of its second row, and so on. None means `keys_mask`;
            if both are None, all keys may be read.
          training: whether dropout is on.
          keys_mask: bool [B, S], the Keras mask that `keys` carries, passed by Keras.
          bias: float [B, H, G * T, S], numbers that are added to Q K^T / sqrt(d) before the
            softmax; None adds nothing.

        Returns:
          The averages in the compute dtype and in the shape of `query`.
        """
        visible = keys_mask if visible is None else visible
        if len(keys.shape) == 3:
            keys, values = self.project(keys, values)
        single = len(query.shape) == 2
        query = query[:, None] if single else query
        shape = ops.shape(query)
        q = self.split(self.query(query))  # [N, H, T, d]
        if query.shape[1] == 1 and bias is None and not training and precision.is_lower(self):
            out = self._of_words(q * self.scale, keys, values, visible)
            out = out[:, 0] if single else out
            return out if self.output_map is None else self.output_map(out)
        q = common.group_rows(q, keys)  # [B, H, G T, d]
        logits = ops.cast(
            precision.matmul(self, q * self.scale, ops.swapaxes(keys, -1, -2)), "float32"
        )
        if bias is not None:
            logits = logits + ops.cast(bias, "float32")
        if visible is not None:
            logits = ops.where(common.per_query(visible)[:, None], logits, -1e9)
        weights = ops.softmax(logits, axis=-1)
        record(self, lambda: common.ungroup_weights(weights, shape))
        dropped = self.weight_dropout(ops.cast(weights, self.compute_dtype), training=training)
        out = common.ungroup_rows(precision.matmul(self, dropped, values), shape)  # [N, T, H, d]
        out = ops.reshape(out, (-1, self.width) if single else (-1, shape[1], self.width))
        return out if self.output_map is None else self.output_map(out)

    def _of_words(self, q, keys, values, visible):
        """Attends with one query of each row, `q` [N, H, 1, d] times `scale`; returns [N, 1, D].

        The rows of an image are an axis along which `keys` and `values` [B, H, S, d] are the same.
        So nothing is transposed: that takes oneDNN longer than the products.
        """
        keys, values = keys[:, None], values[:, None]  # [B, 1, H, S, d]
        grouped = ops.reshape(q, (ops.shape(keys)[0], -1, *q.shape[1:]))
        logits = precision.matmul_of_step(self, grouped, keys, transpose_b=True)  # [B, G, H, 1, S]
        if visible is not None:
            logits = ops.where(common.per_query(visible)[:, :, None, None], logits, -1e9)
        weights = ops.softmax(logits, axis=-1)
        record(self, lambda: ops.reshape(weights, (-1, self.heads, 1, weights.shape[-1])))
        return ops.reshape(precision.matmul_of_step(self, weights, values), (-1, 1, self.width))


@keras.saving.register_keras_serializable("tfcap")
class MemoryAttention(MultiHeadAttention):
    """Multi-head attention that also reads memory slots, learned keys and values.

    The keys are [K; sqrt(d) M_k] and the values [V; sqrt(m) M_v], where the rows of M_k and M_v are
    m learned vectors, the same for all images. Source: Cornia et al., "Meshed-Memory Transformer
    for Image Captioning", CVPR 2020, equation 2; the factors are those of the released code.

    Args:
      width: model width, D; a multiple of `heads`.
      heads: number of attention heads, H.
      slots: number of memory slots, m.

    Example:
      >>> attention = MemoryAttention(width=8, heads=2, slots=3)
      >>> regions = ops.ones((2, 5, 8))
      >>> attention(regions, regions).shape
      TensorShape([2, 5, 8])
    """

    def __init__(self, width: int, heads: int, slots: int, **kwargs):
        super().__init__(width, heads, **kwargs)
        self.slots = slots

    def build(self, *shapes):
        # Those of `torch.nn.init.xavier_uniform_` for [1, m, D], which the released code draws.
        limit = (6 / ((self.slots + 1) * self.width)) ** 0.5
        shape = (self.slots, self.width)
        uniform = keras.initializers.RandomUniform(-limit, limit)
        self.memory_keys = self.add_weight(shape=shape, initializer=uniform, name="memory_keys")
        uniform = keras.initializers.RandomUniform(-limit, limit)
        self.memory_values = self.add_weight(shape=shape, initializer=uniform, name="memory_values")

    def call(
        self, query, keys, values=None, visible=None, training=False, keys_mask=None, bias=None
    ):
        """Averages values and memory slots; the arguments are those of `MultiHeadAttention.call`.

        `visible` says which keys may be read; memory slots always may. `bias` must be None.
        """
        visible = keys_mask if visible is None else visible
        if len(keys.shape) == 3:
            keys, values = self.project(keys, values)
        if visible is not None:
            visible = common.per_query(visible)
            always = ops.repeat(ops.ones_like(visible[..., :1]), self.slots, axis=-1)
            visible = ops.concatenate([visible, always], axis=-1)
        keys = self._with_slots(keys, self.memory_keys * (self.width // self.heads) ** 0.5)
        values = self._with_slots(values, self.memory_values * self.slots**0.5)
        return super().call(query, keys, values, visible, training)

    def _with_slots(self, x, slots):
        """Appends `slots` [m, D] to `x` [B, H, S, d]."""
        slots = self.split(slots[None])  # [1, H, m, d]
        slots = ops.broadcast_to(slots, (ops.shape(x)[0], *slots.shape[1:]))
        return ops.concatenate([x, slots], axis=2)


@keras.saving.register_keras_serializable("tfcap")
class AttentionOnAttention(MultiHeadAttention):
    """Multi-head attention that ends with a gate: GLU(Lin(Dropout([attended; query]))).

    attended is the result of `MultiHeadAttention` without its last affine map, GLU a gated linear
    unit, Lin an affine map, and [a; b] joins two vectors. Source: Huang et al., "Attention on
    Attention for Image Captioning", ICCV 2019, equation 5.

    Args:
      width: model width, D; a multiple of `heads`.
      heads: number of attention heads, H.
      dropout: dropout rate on [attended; query].
      weight_dropout: dropout rate on the attention weights.

    Example:
      >>> attention = AttentionOnAttention(width=8, heads=2, dropout=0.3)
      >>> words, regions = ops.ones((4, 3, 8)), ops.ones((2, 5, 8))  # two captions of each image
      >>> attention(words, regions).shape
      TensorShape([4, 3, 8])
    """

    def __init__(
        self, width: int, heads: int, dropout: float, weight_dropout: float = 0.0, **kwargs
    ):
        super().__init__(width, heads, weight_dropout, output=False, **kwargs)
        self.aoa = common.linear(2 * width, 2 * width, "aoa", dtype=self.dtype_policy)
        self.aoa_dropout = Dropout(dropout, name="aoa_dropout", dtype=self.dtype_policy)

    def call(
        self, query, keys, values=None, visible=None, training=False, keys_mask=None, bias=None
    ):
        """Computes the attention and its gate.

        The arguments and the shape of the result are those of `MultiHeadAttention.call`.
        """
        attended = super().call(query, keys, values, visible, training, keys_mask, bias)
        both = ops.concatenate([attended, query], axis=-1)
        return common.gated(self.aoa(self.aoa_dropout(both, training=training)))
