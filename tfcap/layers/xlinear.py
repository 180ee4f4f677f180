"""X-Linear attention (Pan et al., "X-Linear Attention Networks for Image Captioning", CVPR 2020).

Letters: N rows of queries, B images, G = N / B rows of one image, T queries of a row, S keys,
D model width, H heads, d = D / H, e = middle width, P positions without padding (`Packing`).

`XLinearAttention` computes equations 2 to 6 of the paper in the form of the released code: the
query, key and value projections are split into heads and normalised per head. All heads share the
maps to the middle width, to the spatial weight and to the channel gate. With one head and
`normalize=False` it is the block of the paper's text.
"""

from collections.abc import Callable

import keras
import tensorflow as tf
from keras import ops

from tfcap.layers import common, precision
from tfcap.layers.attention import CachedAttention
from tfcap.layers.dropout import Dropout
from tfcap.layers.recording import record

# The usual number of regions; captions have fewer words. At the size of the papers, the order for
# few keys takes 0.4 times as long with 17 keys, 0.67 times with 36, and as long with 100.
USUAL_KEYS = 36
# Up to this width of a head, a matrix product scales queries faster than a broadcast product.
NARROW = 16


@keras.saving.register_keras_serializable("tfcap")
class HeadProjection(common.Layer):
    """Projects a vector and splits it into heads: HeadNorm(act(Lin(x))).

    Lin is an affine map, act the activation, and HeadNorm is `layers.common.HeadNorm`.

    Args:
      width: model width, D.
      heads: number of attention heads, H.
      activation: activation function after the affine map: `celu`, `relu` or `none`.
      normalize: whether each head is normalised. False only splits the vectors into heads.

    Example:
      >>> project = HeadProjection(width=8, heads=2, activation="celu", normalize=True)
      >>> project(ops.ones((4, 3, 8))).shape  # [N, T, D] becomes [N, H, T, d]
      TensorShape([4, 2, 3, 4])
    """

    def __init__(self, width: int, heads: int, activation: str, normalize: bool, **kwargs):
        super().__init__(**kwargs)
        self.linear = common.linear(width, width, "linear", dtype=self.dtype_policy)
        self.activation = common.activation(activation)
        self.norm = common.HeadNorm(heads, normalize, name="norm", dtype=self.dtype_policy)

    def call(self, x, packing=None):
        """Projects `x` [N, T, D] to heads [N, H, T, d], d = D / H, in the compute dtype.

        N is the number of rows, T that of positions, D the model width and H the number of heads.
        With a `packing` (`layers.packing.Packing`), `x` is its list [1, P, D].
        """
        x = self.activation(self.linear(x))
        return self.norm(x if packing is None else packing.unpack(x))


@keras.saving.register_keras_serializable("tfcap")
class XLinearAttention(CachedAttention):
    """Bilinear attention over keys, with a softmax over the keys and a gate of the channels.

    For each head: M[t, s] = Q[t] * K[s]                            equation 2
                   E[t, s] = Dropout(ReLU(Lin_{d->e} M[t, s]))      joint map B', equation 3
                   a[t, s] = softmax_s(Lin_{e->1} E[t, s])          spatial attention, equation 3
                   g[t]    = sigmoid(Lin_{e->d}(mean_s E[t, s]))    channel gate, equations 4 and 5
                   out[t]  = V1[t] * (sum_s a[t, s] V2[s]) * g[t]   equation 6

    t counts queries and s keys. d is the width of a head, and e the width of E[t, s]. Q and V1 are
    projections of the query, K a projection of the keys, and V2 one of the values. * is the
    elementwise product, and Lin_{d->e} an affine map from width d to width e. Masked keys are left
    out of the softmax and of the mean. As in the released code, there is no output projection and
    no division by sqrt(d). The equations are those of Pan et al., "X-Linear Attention Networks for
    Image Captioning", CVPR 2020.

    Several captions may read the keys of one image, without copies of the keys: `query` has
    N = B * G rows for B images with G captions each, and row n reads the keys of image n // G.

    Args:
      width: model width, D; a multiple of `heads`.
      heads: number of attention heads, H.
      middle: width e of E[t, s]; None means d // 2, as in all released configurations.
      activation: activation of the four projections: `celu` or `relu`.
      middle_dropout: dropout rate on E, after the ReLU.
      normalize: whether each head of the projections is normalised. False follows the paper's text.

    Example:
      >>> attention = XLinearAttention(width=8, heads=2)
      >>> words, regions = ops.ones((4, 3, 8)), ops.ones((2, 5, 8))  # two captions of each image
      >>> attention(words, regions).shape
      TensorShape([4, 3, 8])
    """

    def __init__(
        self,
        width: int,
        heads: int = 8,
        middle: int | None = None,
        activation: str = "celu",
        middle_dropout: float = 0.1,
        normalize: bool = True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        depth = common.head_width(width, heads)
        self.width = width
        self.heads = heads
        self.middle = middle or depth // 2

        def project(name):
            return HeadProjection(
                width, heads, activation, normalize, name=name, dtype=self.dtype_policy
            )

        self.in_proj_q = project("in_proj_q")
        self.in_proj_k = project("in_proj_k")
        self.in_proj_v1 = project("in_proj_v1")
        self.in_proj_v2 = project("in_proj_v2")
        self.joint = JointMap(depth, self.middle, name="attention_basic", dtype=self.dtype_policy)
        # The joint map is the largest tensor: it stays in the precision of products.
        uncast = {"dtype": self.dtype_policy, "autocast": False}
        self.spatial = common.linear(self.middle, 1, "attention_last", **uncast)
        self.channel = common.linear(self.middle, depth, "attention_last2", **uncast)
        self.dropout = Dropout(middle_dropout, name="middle_dropout", **uncast)

    def project(self, keys, values=None, packing=None):
        values = keys if values is None else values
        return self.in_proj_k(keys, packing=packing), self.in_proj_v2(values, packing=packing)

    def call(
        self, query, keys, values=None, visible=None, training=False, keys_mask=None, packing=None
    ):
        """Computes the attention.

        The arguments and the shape of the result are those of
        `layers.attention.MultiHeadAttention.call`. If a query may read no key, the softmax is
        uniform and the mean is zero, so the result is finite.

        With a `packing` (`layers.packing.Packing`), `query` and the result are lists [1, P, D], and
        the rows of this packing read the keys.
        """
        visible = keys_mask if visible is None else visible
        if len(keys.shape) == 3:
            keys, values = self.project(keys, values)
        single = len(query.shape) == 2
        rows = ops.expand_dims(query, 1) if single else query
        shape = ops.shape(rows) if packing is None else packing.shape
        q = common.group_rows(self.in_proj_q(rows, packing=packing), keys)
        v1 = common.group_rows(self.in_proj_v1(rows, packing=packing), keys)

        size = shape[0] * shape[1] * self.heads * ops.shape(keys)[2] * self.middle
        joint = self.dropout(self.joint(q, keys), training=training, size=size)  # [B, H, S, GT, e]
        if visible is None:
            visible = ops.ones((1, 1, ops.shape(keys)[2]), "bool")
        visible = ops.expand_dims(common.per_query(visible), 1)  # -> [B, 1, GT, S]
        gate = ops.sigmoid(self.channel(self._mean(joint, visible)))

        logits = ops.squeeze(self.spatial(joint), -1)  # -> [B, H, S, GT]
        logits = ops.cast(ops.swapaxes(logits, -1, -2), "float32")
        weights = ops.softmax(ops.where(visible, logits, -1e9), axis=-1)
        record(self, lambda: common.ungroup_weights(weights, shape))
        attended = precision.matmul(self, weights, values)
        out = common.ungroup_rows(v1 * attended * gate, shape)  # -> [N, T, H, d]
        out = ops.reshape(out, (-1, self.width) if single else (-1, shape[1], self.width))
        return out if packing is None else packing.pack(out)

    def _mean(self, joint, visible):
        """Averages `joint` [B, H, S, GT, e] over visible keys: [B, H, GT, e]; 0 if there are none.

        `visible` is bool [B, 1, GT or 1, S].
        """
        weights = ops.cast(common.mean_weights(visible), joint.dtype)
        if weights.shape[2] != 1:
            parts = joint * ops.expand_dims(ops.swapaxes(weights, -1, -2), -1)
            return ops.sum(ops.cast(parts, self.compute_dtype), axis=2)
        images, heads, keys, queries, middle = ops.shape(joint)
        flat = ops.reshape(joint, (images, heads, keys, queries * middle))
        return ops.reshape(precision.matmul(self, weights, flat), (images, heads, queries, middle))


@keras.saving.register_keras_serializable("tfcap")
class JointMap(common.Layer):
    """Computes ReLU(Lin(q * k)) for all pairs of a query q and a key k.

    Lin is an affine map from width d to width e, and * is the elementwise product. `call`
    multiplies in the order that needs less memory. If there are fewer keys than e, queries are
    multiplied by keys first, which makes T * S * d numbers for T queries and S keys. Otherwise
    queries are multiplied by the weight of Lin first, which makes T * d * e numbers. If the graph
    does not know the number of keys, as in training, it takes them to be `USUAL_KEYS`.

    Args:
      depth: width of a head, d.
      middle: width of the result, e.

    Example:
      >>> joint = JointMap(depth=4, middle=3)
      >>> joint(ops.ones((2, 1, 5, 4)), ops.ones((2, 1, 6, 4))).shape
      TensorShape([2, 1, 6, 5, 3])
    """

    def __init__(self, depth: int, middle: int, **kwargs):
        super().__init__(**kwargs)
        self.depth = depth
        self.middle = middle

    def build(self, queries_shape, keys_shape):
        uniform = common.linear(self.depth, self.middle, "unused")
        self.kernel = self.add_weight(
            shape=(self.depth, self.middle), initializer=uniform.kernel_initializer, name="kernel"
        )
        self.bias = self.add_weight(
            shape=(self.middle,), initializer=uniform.bias_initializer, name="bias"
        )

    def call(self, queries, keys):
        """Computes the map for all pairs.

        Args:
          queries: [B, H, T, d], T queries of width d for each of B images and H heads.
          keys: [B, H, S, d], S keys for each of B images and H heads.

        Returns:
          [B, H, S, T, e], of width e for each pair, in the dtype of matrix products, see
          `layers.precision.Products`.
        """
        images, heads, length, _ = ops.shape(queries)
        count = ops.shape(keys)[2]
        dtype = precision.of_products(self)
        queries, keys, kernel, bias = (
            ops.cast(x, dtype) for x in (queries, keys, self.kernel, self.bias)
        )
        if (keys.shape[2] or USUAL_KEYS) < self.middle:
            pairs = ops.expand_dims(keys, 3) * ops.expand_dims(queries, 2)  # [B, H, S, T, d]
            joint = ops.matmul(ops.reshape(pairs, (-1, self.depth)), kernel)
            joint = ops.relu(precision.add_bias(joint, bias))
            return ops.reshape(joint, (images, heads, count, length, self.middle))
        if self.depth <= NARROW:  # a product with diagonal matrices, one for each e
            spread = ops.eye(self.depth, dtype=dtype)[:, None] * ops.transpose(kernel)  # [d, e, d]
            spread = ops.reshape(spread, (self.depth, self.middle * self.depth))
            scaled = ops.matmul(ops.reshape(queries, (-1, self.depth)), spread)
        else:
            scaled = ops.expand_dims(queries, 3) * ops.transpose(kernel)  # [B, H, T, e, d]
        scaled = ops.reshape(scaled, (images, heads, length * self.middle, self.depth))
        joint = tf.matmul(keys, scaled, transpose_b=True)  # -> [B, H, S, T * e]
        # A bias for each T and e: TensorFlow adds rows of e = 8 numbers at half the speed.
        joint = ops.relu(precision.add_bias(joint, tf.tile(bias, [length])))
        return ops.reshape(joint, (images, heads, count, length, self.middle))


@keras.saving.register_keras_serializable("tfcap")
class XLinearEncoderLayer(common.Layer):
    """One encoder layer of X-LAN: updates the global feature g and the regions k of each image.

    g' = Dropout(XLinear(g; k, v))              equation 7
    k' = LN(k + Dropout(ReLU(Lin [g'; k])))     equation 8; docs/systems.md 1.3

    XLinear(g; k, v) is `XLinearAttention` of the query g over keys k and values v. LN is a layer
    normalisation, Lin an affine map, and [g'; k] joins g' to each region. In the released code the
    regions k are both keys and values. If `separate` is True, as in the paper's text, the values
    have an update with other weights: v' = LN(v + Dropout(ReLU(Lin [g'; v]))).

    Args:
      width: model width, D.
      attention: function that makes an `XLinearAttention`, given the keyword `name`.
      dropout: dropout rate on the attended feature, g'.
      bifeat_dropout: dropout rate on the update of the regions.
      separate: whether the values have an update of their own. False: the updated keys are the
        values, too.
      last: whether this is the last layer of the encoder. If `separate` is True, the last layer
        does not update the keys, because only its values are read. Otherwise `last` has no effect.

    Example:
      >>> def attention(name):
      ...     return XLinearAttention(width=8, heads=2, name=name)
      >>> layer = XLinearEncoderLayer(8, attention, dropout=0.5, bifeat_dropout=0.3)
      >>> g, keys, values = layer(ops.ones((2, 8)), ops.ones((2, 5, 8)))
      >>> keys.shape
      TensorShape([2, 5, 8])
    """

    def __init__(
        self,
        width: int,
        attention: Callable[..., XLinearAttention],
        dropout: float,
        bifeat_dropout: float,
        separate: bool = False,
        last: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self._options = {"width": width, "dropout": dropout, "bifeat_dropout": bifeat_dropout}
        self._options |= {"separate": separate, "last": last}
        self.encoder_attn = attention(name="encoder_attn")
        self.attn_dropout = Dropout(dropout, name="attn_dropout", dtype=self.dtype_policy)
        self.separate = separate
        self.keeps_keys = separate and last
        # Checkpoints hold optimizer slots in the order in which layers are created: keep it.
        if not self.keeps_keys:
            self.bifeat_emb = common.linear(2 * width, width, "bifeat_emb", dtype=self.dtype_policy)
        self.bifeat_dropout = Dropout(
            bifeat_dropout, name="bifeat_dropout", dtype=self.dtype_policy
        )
        if not self.keeps_keys:
            self.layer_norm = common.layer_norm("layer_norm", dtype=self.dtype_policy)
        if separate:
            self.value_emb = common.linear(2 * width, width, "value_emb", dtype=self.dtype_policy)
            self.value_norm = common.layer_norm("value_norm", dtype=self.dtype_policy)

    def call(self, g, keys, values=None, keys_mask=None, training=False):
        """Computes the layer for R regions of B images.

        Args:
          g: global feature [B, D], the query.
          keys: regions [B, R, D], read as keys.
          values: regions [B, R, D], read as values; None means that `keys` are the values, too.
          keys_mask: bool [B, R] or [B, 1, R], True for real regions; None means that all are real.
          training: whether dropout is on.

        Returns:
          A tuple of the new `g` [B, D], `keys` [B, R, D] and `values` [B, R, D].
        """
        values = keys if values is None else values
        read_keys, read_values = self.encoder_attn.project(keys, values)
        g = self.encoder_attn(g, read_keys, read_values, visible=keys_mask, training=training)
        g = self.attn_dropout(g, training=training)
        if not self.keeps_keys:
            keys = self.layer_norm(keys + self._update(self.bifeat_emb, g, keys, training))
        if not self.separate:
            return g, keys, keys
        values = self.value_norm(values + self._update(self.value_emb, g, values, training))
        return g, keys, values

    def get_config(self):
        block = keras.saving.serialize_keras_object(self.encoder_attn)
        return {**super().get_config(), **self._options, "attention": block}

    @classmethod
    def from_config(cls, config):
        """Makes a layer, with its attention block, from a result of `get_config`."""
        block = keras.saving.deserialize_keras_object(config["attention"])
        return super().from_config({**config, "attention": lambda name: block})

    def _update(self, embed, g, x, training):
        """Returns Dropout(ReLU(Lin [g; x])) [B, R, D] for `g` [B, D] and `x` [B, R, D]."""
        both = ops.concatenate([ops.broadcast_to(g[:, None], ops.shape(x)), x], axis=-1)
        return self.bifeat_dropout(ops.relu(embed(both)), training=training)
