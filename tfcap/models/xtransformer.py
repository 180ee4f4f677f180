"""X-Transformer (Pan et al., "X-Linear Attention Networks for Image Captioning", CVPR 2020).

Letters: B images, N rows of words, R regions, F feature width, T positions, D model width,
H heads, d = D / H, L decoder layers, V vocabulary.

The paper does not describe the architecture, so this follows the released code. Two things differ
without changing the function that is computed. Regions are encoded once per image instead of once
per caption; in training the captions of an image then share the dropout masks of the encoder.
Captions and beams of an image share its cross-attention keys.
"""

import functools

from keras import layers, ops

from tfcap.layers import common
from tfcap.layers.dropout import Dropout
from tfcap.layers.positions import add_words
from tfcap.layers.trees import put, repeat
from tfcap.layers.xlinear import XLinearAttention, XLinearEncoderLayer
from tfcap.models.captioner import Captioner, register


class EncoderLayer(XLinearEncoderLayer):
    """X-LAN's encoder layer followed by a feed-forward block (docs/systems.md 3.2)."""

    def __init__(self, width, attention, inner, dropouts, **kwargs):
        super().__init__(width, attention, dropouts["attention"], dropouts["bifeat"], **kwargs)
        self.ff_layer = common.FeedForward(width, inner, dropouts["feed_forward"], name="ff_layer")

    def call(self, g, x, mask, training=False):  # type: ignore[override]  # keys are values here
        """Returns updated `g` [B, D] and `x` [B, R, D]; `mask` is bool [B, 1, R]."""
        g, x, _ = super().call(g, x, x, mask, training=training)
        return g, self.ff_layer(x, training=training)


class DecoderLayer(layers.Layer):
    """One decoder layer (docs/systems.md 3.3). The last layer does not update the words."""

    def __init__(self, width, attention, inner, dropouts, last, **kwargs):
        super().__init__(**kwargs)
        self.last = last
        self.word_attn = attention(name="word_attn")
        self.cross_att = attention(name="cross_att")
        self.word_dropout = Dropout(dropouts["attention"], name="word_dropout")
        self.cross_dropout = Dropout(dropouts["attention"], name="cross_dropout")
        self.layer_norm_cross = common.layer_norm("layer_norm_cross")
        self.layer_norm_gx = common.layer_norm("layer_norm_gx")
        if not last:
            self.bifeat_emb = common.linear(2 * width, width, "bifeat_emb")
            self.bifeat_dropout = Dropout(dropouts["bifeat"], name="bifeat_dropout")
            self.layer_norm_x = common.layer_norm("layer_norm_x")
            self.ff_layer = common.FeedForward(
                width, inner, dropouts["feed_forward"], name="ff_layer"
            )

    def call(self, gx, y, words, word_mask, regions, region_mask, training=False):
        """Computes one layer for T positions of N rows: the new gx and y, each [N, T, D].

        `gx` is the query of each position, `y` the words. `words` are keys and values [N, H, T', d]
        of the history, `regions` [B, H, R, d]. `word_mask` is bool [N or 1, T, T'], True where a
        position may read a word; `region_mask` is bool [B, 1, R].
        """
        history = self.word_attn(gx, *words, visible=word_mask, training=training)
        z = y + self.word_dropout(history, training=training)
        query = self.layer_norm_cross(z)
        attended = self.cross_att(query, *regions, visible=region_mask, training=training)
        gx = self.layer_norm_gx(z + self.cross_dropout(attended, training=training))
        if self.last:
            return gx, y
        update = ops.relu(self.bifeat_emb(ops.concatenate([gx, y], axis=-1)))
        y = self.layer_norm_x(self.bifeat_dropout(update, training=training) + y)
        return gx, self.ff_layer(y, training=training)


@register("xtransformer", small=dict(width=128, encoder_layers=2, decoder_layers=2))
class XTransformer(Captioner):
    """Transformer that uses X-Linear attention in every layer of encoder and decoder.

    Context: `global` [B, D] and `query` [B, D], which is computed from it; `regions`, keys and
    values [B, H, R, d] for each decoder layer; `encoded` [B, R, D], the encoded regions, which
    decoding does not read; and `mask` [B, 1, R]. Cache: `sum` of the words so far [N, D] float32,
    and `words`, for each layer keys and values [N, H, T, d].

    Args:
      *sizes: V, T and F, see `Captioner`; F is 2048 in the paper.
      width: D; 768 in the paper.
      heads: H.
      encoder_layers: number of layers.
      decoder_layers: number of layers.
      inner_width: of the feed-forward blocks; None means 4 D.
      middle_width: e of X-Linear attention; None means d // 2.
      activation: of the X-Linear projections and the embeddings, `celu` (released) or `relu`.
      middle_dropout: inside X-Linear attention.
      encoder_dropout: on the output of the encoder's X-Linear attention.
      decoder_dropout: on the output of the decoder's X-Linear attention.
      bifeat_dropout: on the update that is computed from query and word, or from query and region.
      feed_forward_dropout: in the feed-forward blocks.
      stored_positions: whether the position codes are a weight that is not trained, instead of
        sinusoids; `tfcap.convert` sets it if a released file holds other codes.

    Example:
      >>> sizes = dict(width=8, heads=2, encoder_layers=1, decoder_layers=1)
      >>> model = XTransformer(vocab_size=20, max_length=5, feature_dim=6, **sizes)
      >>> inputs = {"features": tf.ones((2, 4, 6)), "mask": tf.ones((2, 4), tf.bool)}
      >>> model.decode(model.encode(inputs), tokens=tf.ones((2, 3), tf.int32)).shape
      TensorShape([2, 3, 20])
    """

    reads_order = True

    def __init__(
        self,
        *sizes: int,
        width: int = 768,
        heads: int = 8,
        encoder_layers: int = 6,
        decoder_layers: int = 6,
        inner_width: int | None = None,
        middle_width: int | None = None,
        activation: str = "celu",
        word_dropout: float = 0.1,
        region_dropout: float = 0.5,
        middle_dropout: float = 0.1,
        encoder_dropout: float = 0.5,
        decoder_dropout: float = 0.5,
        bifeat_dropout: float = 0.3,
        feed_forward_dropout: float = 0.5,
        head_dropout: float = 0.5,
        stored_positions: bool = False,
        **kwargs,
    ):
        super().__init__(*sizes, **kwargs)
        self.width, self.heads = width, heads
        inner = inner_width or 4 * width
        self.act = common.activation(activation)
        rates = {"bifeat": bifeat_dropout, "feed_forward": feed_forward_dropout}
        attention = functools.partial(
            XLinearAttention,
            width,
            heads,
            middle=middle_width,
            activation=activation,
            middle_dropout=middle_dropout,
        )
        rates["attention"] = encoder_dropout
        self.encoder = [
            EncoderLayer(width, attention, inner, rates, name=f"encoder_{i}")
            for i in range(encoder_layers)
        ]
        rates["attention"] = decoder_dropout
        self.decoder = [
            DecoderLayer(
                width, attention, inner, rates, last=i == decoder_layers - 1, name=f"decoder_{i}"
            )
            for i in range(decoder_layers)
        ]
        self.region_embed = common.linear(self.feature_dim, width, "region_embed")
        self.region_norm = common.layer_norm("region_norm")
        self.region_dropout = Dropout(region_dropout, name="region_dropout")
        self.encoder_proj = common.linear(width * (encoder_layers + 1), width, "encoder_proj")
        self.encoder_norm = common.layer_norm("encoder_norm")
        add_words(self, width, word_dropout, stored_positions)
        self.wbil1 = common.linear(width, width, "wbil1")
        self.wbil1_norm = common.layer_norm("wbil1_norm")
        self.wbil2 = common.linear(width, width, "wbil2")
        self.wbil2_norm = common.layer_norm("wbil2_norm")
        self.query_dropout = Dropout(decoder_dropout, name="query_dropout")
        self.decoder_proj = common.linear(width * (decoder_layers + 1), 2 * width, "decoder_proj")
        self.decoder_norm = common.layer_norm("decoder_norm")
        self.head_dropout = Dropout(head_dropout, name="head_dropout")
        self.head = common.linear(width, self.vocab_size, "head", dtype="float32")

    def encode(self, inputs, training=False):
        features, mask = self.regions(inputs), inputs["mask"][:, None]
        x = self.region_norm(self.act(self.region_embed(features)))
        x = self.region_dropout(x, training=training)
        g = common.masked_mean(x, inputs["mask"])
        every = [g]
        for layer in self.encoder:
            g, x = layer(g, x, mask, training=training)
            every.append(g)
        g = self.encoder_norm(self.encoder_proj(ops.concatenate(every, axis=-1)))
        query = self.wbil1_norm(self.act(self.wbil1(g)))
        return {
            "global": g,
            "query": query,
            "regions": [layer.cross_att.project(x) for layer in self.decoder],
            "encoded": x,
            "mask": mask,
        }

    def decode(self, context, tokens, training=False):
        length = tokens.shape[1] or ops.shape(tokens)[1]
        y = self._words(tokens, ops.arange(length), training)
        past = ops.arange(length)[:, None] >= ops.arange(length)
        # The released code hides padding from later queries; only outputs at padding change.
        past = ops.logical_and(past[None], (tokens != 0)[:, None])  # [N, T, T]
        share = ops.cast(past, "float32")
        share = share / ops.maximum(ops.sum(share, axis=-1, keepdims=True), 1.0)
        mean = ops.matmul(share, ops.cast(y, "float32"))

        def history(layer, y):
            return layer.word_attn.project(y)

        out = self._stack(context, y, mean, history, past, training)
        return self.head(self.head_dropout(out, training=training))  # [N, T', V]

    def init_cache(self, context, max_length):
        rows, dtype = ops.shape(context["global"])[0], context["global"].dtype
        shape = (rows, self.heads, max_length, self.width // self.heads)
        return {
            "sum": ops.zeros((rows, self.width), "float32"),
            "words": [(ops.zeros(shape, dtype), ops.zeros(shape, dtype)) for _ in self.decoder],
        }

    def step(self, context, cache, tokens, index, training=False):
        y = self._words(tokens[:, None], ops.reshape(index, (1,)), training)
        total = cache["sum"] + ops.cast(y[:, 0], "float32")
        mean = total[:, None] / ops.cast(index + 1, "float32")
        max_length = cache["words"][0][0].shape[2]
        past = (ops.arange(max_length) <= index)[None, None]  # [1, 1, T]
        words: list = []

        def history(layer, y):
            old = cache["words"][len(words)]
            new = layer.word_attn.project(y)
            words.append(tuple(put(o, n, index, axis=2) for o, n in zip(old, new, strict=True)))
            return words[-1]

        out = self._stack(context, y, mean, history, past, training)
        logits = self.head(self.head_dropout(out, training=training))
        return logits[:, 0], {"sum": total, "words": words}

    def _words(self, tokens, positions, training):
        """Embeds words at `positions` [T] as [N, T, D]: Dropout(LN(sqrt(D) Emb + PE))."""
        words = self.embed_tokens(tokens) * self.width**0.5 + self.position_codes(positions)
        return self.word_dropout(self.word_norm(words), training=training)

    def _stack(self, context, y, mean, history, past, training):
        """Runs all decoder layers on words `y` and their running means [N, T, D]: [N, T, D]."""
        mean = self.wbil2_norm(self.act(self.wbil2(ops.cast(mean, y.dtype))))
        query = context["query"]
        group = ops.shape(y)[0] // ops.shape(query)[0]
        gx = self.query_dropout(repeat(query, group)[:, None] * mean, training=training)
        every = [gx]
        for layer, regions in zip(self.decoder, context["regions"], strict=True):
            gx, y = layer(
                gx, y, history(layer, y), past, regions, context["mask"], training=training
            )
            every.append(gx)
        return self.decoder_norm(common.gated(self.decoder_proj(ops.concatenate(every, axis=-1))))
