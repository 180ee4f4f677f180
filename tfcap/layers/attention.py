"""Conventional attention: additive (Bahdanau), multi-head (scaled dot-product), and AoA.

Letters: N rows of queries, B images, G = N / B rows of one image, T queries of a row, S keys,
D model width, H heads, d = D / H, A attention width.

As in `xlinear`, keys are projected once per image and shared by its rows: row n reads the keys of
image n // G.
"""

import keras
from keras import ops

from tfcap.layers import common, precision
from tfcap.layers.dropout import Dropout
from tfcap.layers.recording import record


@keras.saving.register_keras_serializable("tfcap")
class AdditiveAttention(common.Layer):
    """Additive attention: one query per row reads all keys of its image.

    a_i = w tanh(W_k k_i + W_q q);  attended = sum_i softmax(a)_i v_i

    Source: equation 1 of the X-LAN paper; docs/systems.md 4.1, 4.2 and 4.6.

    Args:
      key_width: width of the keys.
      query_width: width of the query.
      attention_width: A; 512 in all released models.
      biases: whether W_q and w also have a bias, as in ImageCaptioning.pytorch. The biases of W_q
        and W_k are added, so their sum learns twice as fast. The bias of w has no effect.
      dropout: rate on the tanh.
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
        """Projects `keys` [B, S, key_width] to [B, S, A]. Call it once per image."""
        return self.key(keys)

    def call(self, query, keys, values=None, visible=None, training=False, keys_mask=None):
        """Returns the attended values [N, V] or [N, T, V] of `query` [N, ...] or [N, T, ...].

        With `values` [B, S, V], `keys` are [B, S, A], the result of `project`. If `values` is None,
        `keys` are [B, S, key_width]: this call projects them and also uses them as values. N is a
        multiple of B. `visible` is bool [B, S] or [B, 1, S], True where a key may be read; each
        image needs at least one True. `keys_mask` bool [B, S] is the Keras mask of `keys`; it is
        used if `visible` is None.
        """
        visible = keys_mask if visible is None else visible
        if values is None:
            keys, values = self.project(keys), keys
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


@keras.saving.register_keras_serializable("tfcap")
class MultiHeadAttention(common.Layer):
    """Multi-head attention: softmax(Q K^T / sqrt(d)) V per head, then an affine map.

    Source: Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 3.2.

    Args:
      width: D, a multiple of `heads`.
      heads: H.
      dropout: rate on the attention weights; 0 in ExpansionNet, 0.1 in the Transformer baseline.
      output: whether there is a last affine map; False for attention on attention.
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0, output: bool = True, **kwargs):
        super().__init__(**kwargs)
        self.scale = common.head_width(width, heads) ** -0.5
        self.width, self.heads = width, heads
        self.query = common.linear(width, width, "query", dtype=self.dtype_policy)
        self.key = common.linear(width, width, "key", dtype=self.dtype_policy)
        self.value = common.linear(width, width, "value", dtype=self.dtype_policy)
        self.split = common.HeadNorm(heads, normalize=False, name="split", dtype=self.dtype_policy)
        self.weight_dropout = Dropout(dropout, name="weight_dropout", dtype=self.dtype_policy)
        self.output_map = (
            common.linear(width, width, "output_map", dtype=self.dtype_policy) if output else None
        )

    def project(self, keys, values=None):
        """Returns keys and values of all heads, each [B, H, S, d], for [B, S, D]."""
        return self.split(self.key(keys)), self.split(
            self.value(keys if values is None else values)
        )

    def call(self, query, keys, values=None, visible=None, training=False, keys_mask=None):
        """Returns the attended values of `query`, both [N, T, D] or [N, D], in the compute dtype.

        `keys` and `values` are [B, S, D], or [B, H, S, d] from `project` if several calls read
        them. If `values` is None, the keys [B, S, D] are the values, too. N is a multiple of B.
        `visible` is bool [B, S], or broadcastable to [B, G T, S], True where a key may be read.
        `keys_mask` is as in `AdditiveAttention`.
        """
        visible = keys_mask if visible is None else visible
        if len(keys.shape) == 3:
            keys, values = self.project(keys, values)
        single = len(query.shape) == 2
        query = query[:, None] if single else query
        shape = ops.shape(query)
        q = common.group_rows(self.split(self.query(query)), keys)  # [B, H, G T, d]
        logits = ops.cast(
            precision.matmul(self, q * self.scale, ops.swapaxes(keys, -1, -2)), "float32"
        )
        if visible is not None:
            logits = ops.where(common.per_query(visible)[:, None], logits, -1e9)
        weights = ops.softmax(logits, axis=-1)
        record(self, lambda: common.ungroup_weights(weights, shape))
        dropped = self.weight_dropout(ops.cast(weights, self.compute_dtype), training=training)
        out = common.ungroup_rows(precision.matmul(self, dropped, values), shape)  # [N, T, H, d]
        out = ops.reshape(out, (-1, self.width) if single else (-1, shape[1], self.width))
        return out if self.output_map is None else self.output_map(out)


@keras.saving.register_keras_serializable("tfcap")
class AttentionOnAttention(MultiHeadAttention):
    """Multi-head attention whose last affine map is GLU(Lin(Drop([attended; query]))).

    Source: Huang et al., "Attention on Attention for Image Captioning", ICCV 2019, equation 5.

    Args:
      width: D.
      heads: H.
      dropout: rate on the concatenated attended vector and query.
      **kwargs: the other arguments of `MultiHeadAttention`, except `output`. The rate on the
        attention weights, which is called `dropout` there, is called `weight_dropout` here.
    """

    def __init__(
        self, width: int, heads: int, dropout: float, weight_dropout: float = 0.0, **kwargs
    ):
        super().__init__(width, heads, weight_dropout, output=False, **kwargs)
        self.aoa = common.linear(2 * width, 2 * width, "aoa", dtype=self.dtype_policy)
        self.aoa_dropout = Dropout(dropout, name="aoa_dropout", dtype=self.dtype_policy)

    def call(self, query, keys, values=None, visible=None, training=False, keys_mask=None):
        attended = super().call(query, keys, values, visible, training, keys_mask)
        both = ops.concatenate([attended, query], axis=-1)
        return common.gated(self.aoa(self.aoa_dropout(both, training=training)))
