"""AoANet (Huang et al., "Attention on Attention for Image Captioning", ICCV 2019).

Letters: B images, N rows of words, R regions, F feature width, T positions, D model width,
H heads, d = D / H, V vocabulary.
"""

from keras import layers, ops

from tfcap.layers import common
from tfcap.layers.attention import AttentionOnAttention, MultiHeadAttention
from tfcap.layers.dropout import Dropout
from tfcap.layers.recurrent import LSTMCell
from tfcap.layers.trees import repeat
from tfcap.models.captioner import RecurrentCaptioner, add_embeddings, register


class _RefinerLayer(layers.Layer):
    """One layer of the refiner: x + Dropout(AoA(LN x)), attention on attention of all regions.

    Args:
      width: model width, D.
      heads: number of attention heads, H.
      dropout: dropout rate on the input of the map of AoA.
      weight_dropout: dropout rate on the attention weights.
      block_dropout: dropout rate on the output of AoA.
    """

    def __init__(self, width, heads, dropout, weight_dropout, block_dropout, **kwargs):
        super().__init__(**kwargs)
        self.norm = common.DeviationNorm(name="norm")
        self.self_att = AttentionOnAttention(
            width, heads, dropout, weight_dropout=weight_dropout, name="self_att"
        )
        self.dropout = Dropout(block_dropout, name="dropout")

    def call(self, x, visible, training=False):
        """Returns the regions [B, R, D] of the next layer; `visible` is bool [B, 1, R]."""
        normal = self.norm(x)
        keys, values = self.self_att.project(normal)
        attended = self.self_att(normal, keys, values, visible=visible, training=training)
        return x + self.dropout(attended, training=training)


@register("aoanet", small=dict(width=128, refiner_layers=2))
class AoANet(RecurrentCaptioner):
    """Attention on attention in a refiner of the regions and in an LSTM decoder.

    x      = LN(Refiner(Dropout(ReLU(Lin(v)))))
    h_t    = LSTM([e_t; mean(x) + Dropout(ctx_{t-1})], h_{t-1})
    a_t    = MultiHeadAttention(LN(h_t); x)
    ctx_t  = GLU(Lin([a_t; h_t]))
    logits = Lin(Dropout(ctx_t))

    v are the features of the regions, and e_t = Dropout(ReLU(Emb)) is the embedded word of step t.
    A layer of the refiner computes y + Dropout(AoA(LN(y))), where AoA is attention on attention
    between the regions y (`layers.attention.AttentionOnAttention`). MultiHeadAttention(q; x) is
    attention of a query q over the regions x, LN a layer normalisation, Lin an affine map, GLU a
    gated linear unit, and [a; b] joins two vectors.

    The model follows the code of the paper's authors (Huang et al., "Attention on Attention for
    Image Captioning", ICCV 2019; docs/systems.md 4.8) with the options of its training script. As
    in that code, layer normalisations divide by the unbiased standard deviation plus 1e-6, and all
    layers of the refiner start from the same random weights. The maps for query, key and value of
    these layers share one initial value, too. One thing differs: in training, the captions of an
    image share the dropout masks of the refiner. In the authors' code each caption has its own
    masks.

    `encode` returns a dictionary, for B images with R regions:

    * `mean` [B, D]: the mean of x, without padding.
    * `keys` and `values` [B, H, R, d], d = D / H: the regions as the attention reads them.
    * `mask` bool [B, 1, R]: False for padded regions.

    The cache of `step` is a dictionary, for N rows (captions): the output `h` and the state `c` of
    the LSTM, and `ctx`, each [N, D].

    Args:
      *sizes: `vocab_size`, `max_length` and `feature_dim`, F, see `Captioner`.
      width: width of embedded words and regions and of the LSTM, D.
      heads: number of attention heads, H.
      refiner_layers: number of layers of the refiner; 0 leaves the refiner out, as one model of the
        paper's ablation does.
      word_dropout: dropout rate on the embedded words.
      region_dropout: dropout rate on the embedded regions.
      weight_dropout: dropout rate on all attention weights.
      aoa_dropout: dropout rate in the layers of the refiner, on the attended values joined with the
        query, before the gate.
      block_dropout: dropout rate on the output of the AoA of each layer of the refiner.
      context_dropout: dropout rate on the context vector ctx_{t-1} of the previous step, where the
        LSTM reads it.
      head_dropout: dropout rate on the context vector ctx_t, before the logits.
      **kwargs: `region_positions` and `standardize`, see `Captioner`.

    Example:
      >>> sizes = dict(vocab_size=20, max_length=5, feature_dim=6)
      >>> model = models.build("aoanet", **sizes, width=8, heads=2, refiner_layers=1)
      >>> inputs = {"features": tf.ones((2, 4, 6)), "mask": tf.ones((2, 4), tf.bool)}
      >>> model.decode(model.encode(inputs), tokens=tf.ones((2, 3), tf.int32)).shape
      TensorShape([2, 3, 20])
    """

    reads_order = True

    def __init__(
        self,
        *sizes: int,
        width: int = 1024,
        heads: int = 8,
        refiner_layers: int = 6,
        word_dropout: float = 0.5,
        region_dropout: float = 0.5,
        weight_dropout: float = 0.1,
        aoa_dropout: float = 0.3,
        block_dropout: float = 0.1,
        context_dropout: float = 0.5,
        head_dropout: float = 0.5,
        **kwargs,
    ):
        super().__init__(*sizes, **kwargs)
        self.width = self.output_width = width
        add_embeddings(self, width, word_dropout, region_dropout)
        self.refiner = [
            _RefinerLayer(
                width, heads, aoa_dropout, weight_dropout, block_dropout, name=f"refiner_{i}"
            )
            for i in range(refiner_layers)
        ]
        self.refiner_norm = common.DeviationNorm(name="refiner_norm") if refiner_layers else None
        self.lstm = LSTMCell(2 * width, width, name="lstm")
        self.query_norm = common.DeviationNorm(name="query_norm")
        self.attention = MultiHeadAttention(
            width, heads, weight_dropout, output=False, name="attention"
        )
        self.att2ctx = common.linear(2 * width, 2 * width, "att2ctx")
        self.context_dropout = Dropout(context_dropout, name="context_dropout")
        self.head_dropout = Dropout(head_dropout, name="head_dropout")
        self.head = common.linear(width, self.vocab_size, "head", dtype="float32")

    def build(self, inputs_shape=None):
        """Creates all variables.

        As in the authors' code, all layers of the refiner start from the same random weights. The
        maps for query, key and value of these layers share one initial value, too.

        Args:
          inputs_shape: not used.
        """
        super().build(inputs_shape)
        for layer in self.refiner:
            first = self.refiner[0].self_att
            for name in ("query", "key", "value"):
                getattr(layer.self_att, name).set_weights(first.query.get_weights())
            layer.self_att.aoa.set_weights(first.aoa.get_weights())

    def encode(self, inputs, training=False):
        mask = inputs["mask"][:, None]  # [B, 1, R]
        x = ops.relu(self.region_embed(self.regions(inputs)))
        x = self.region_dropout(x, training=training)
        for layer in self.refiner:
            x = layer(x, mask, training=training)
        if self.refiner_norm is not None:
            x = self.refiner_norm(x)
        keys, values = self.attention.project(x)
        mean = common.masked_mean(x, inputs["mask"])
        return {"mean": mean, "keys": keys, "values": values, "mask": mask}

    def init_cache(self, context, max_length):
        empty = ops.zeros_like(context["mean"])
        return {name: empty for name in ("h", "c", "ctx")}

    def embed(self, tokens, training=False):
        return self.word_dropout(ops.relu(self.embed_tokens(tokens)), training=training)

    def recur(self, context, cache, words, training=False):
        mean = context["mean"]
        mean = repeat(mean, ops.shape(words)[0] // ops.shape(mean)[0])
        image = mean + self.context_dropout(cache["ctx"], training=training)
        h, c = self.lstm(ops.concatenate([words, image], axis=-1), cache["h"], cache["c"])
        attended = self.attention(
            self.query_norm(h)[:, None],
            context["keys"],
            context["values"],
            visible=context["mask"],
            training=training,
        )
        ctx = common.gated(self.att2ctx(ops.concatenate([attended[:, 0], h], axis=-1)))
        return ctx, {"h": h, "c": c, "ctx": ctx}
