"""X-Transformer (Pan et al., "X-Linear Attention Networks for Image Captioning", CVPR 2020).

Letters: B images, N rows of words, R regions, F feature width, T positions, D model width,
H heads, d = D / H, L decoder layers, V vocabulary, P positions without padding (`Packing`).

The paper does not describe the architecture, so this module follows the released code. Two things
differ; without dropout they do not change the result:

* Regions are encoded once per image instead of once per caption. So in training the captions of an
  image share the dropout masks of the encoder.
* The captions and beams of an image share its cross-attention keys.
"""

import functools
from typing import Any

from keras import layers, ops

from tfcap.layers import common
from tfcap.layers.dropout import Dropout
from tfcap.layers.packing import Packing
from tfcap.layers.positions import add_words
from tfcap.layers.trees import repeat
from tfcap.layers.xlinear import XLinearAttention, XLinearEncoderLayer
from tfcap.models.captioner import Captioner, count_positions, register
from tfcap.private_api import in_xla


class _EncoderLayer(XLinearEncoderLayer):
    """X-LAN's encoder layer followed by a feed-forward block (docs/systems.md 3.2).

    Args:
      width: model width, D.
      attention: function that makes the attention block, given its `name`.
      inner: inner width of the feed-forward block.
      dropout: dropout rate on the attended feature.
      bifeat_dropout: dropout rate on the update of the regions.
      feed_forward_dropout: dropout rate of the feed-forward block.
    """

    def __init__(
        self, width, attention, inner, dropout, bifeat_dropout, feed_forward_dropout, **kwargs
    ):
        super().__init__(width, attention, dropout, bifeat_dropout, **kwargs)
        self.ff_layer = common.FeedForward(width, inner, feed_forward_dropout, name="ff_layer")

    def call(self, g, x, mask, training=False):  # type: ignore[override]  # keys are values here
        """Returns updated `g` [B, D] and `x` [B, R, D]; `mask` is bool [B, 1, R]."""
        g, x, _ = super().call(g, x, x, mask, training=training)
        return g, self.ff_layer(x, training=training)


class _DecoderLayer(layers.Layer):
    """One decoder layer (docs/systems.md 3.3).

    The arguments are those of `_EncoderLayer`, and one more.

    Args:
      last: whether this is the last layer, which does not update the words.
    """

    def __init__(
        self, width, attention, inner, dropout, bifeat_dropout, feed_forward_dropout, last, **kwargs
    ):
        super().__init__(**kwargs)
        self.last = last
        self.word_attn = attention(name="word_attn")
        self.cross_att = attention(name="cross_att")
        self.word_dropout = Dropout(dropout, name="word_dropout")
        self.cross_dropout = Dropout(dropout, name="cross_dropout")
        self.layer_norm_cross = common.layer_norm("layer_norm_cross")
        self.layer_norm_gx = common.layer_norm("layer_norm_gx")
        if not last:
            self.bifeat_emb = common.linear(2 * width, width, "bifeat_emb")
            self.bifeat_dropout = Dropout(bifeat_dropout, name="bifeat_dropout")
            self.layer_norm_x = common.layer_norm("layer_norm_x")
            self.ff_layer = common.FeedForward(width, inner, feed_forward_dropout, name="ff_layer")

    def call(self, gx, y, past, regions, mask, training=False, packings=(None, None)):
        """Computes one layer for all positions of N rows.

        Args:
          gx: query of each position [N, T, D].
          y: words [N, T, D].
          past: bool [N or 1, T, T], True where a position may read a word.
          regions: keys and values [B, H, R, d] of `cross_att.project`.
          mask: bool [B, 1, R].
          training: whether dropout is on.
          packings: two `Packing`, whose rows are captions and images. `gx`, `y` and the results are
            then lists [1, P, D] of the words of all captions.

        Returns:
          The new `gx` and `y`.
        """
        captions, images = packings
        keys, values = self.word_attn.project(y, packing=captions)
        attended = self.word_attn(
            gx, keys, values, visible=past, training=training, packing=captions
        )
        return self._finish(y, attended, regions, mask, training, images)

    def step(self, gx, y, cache, index, regions, mask, training=False):
        """Computes position `index` of `call`: new `gx` and `y` [N, 1, D], and the new cache."""
        attended, cache = self.word_attn.step(y, cache, index, query=gx, training=training)
        gx, y = self._finish(y, attended, regions, mask, training)
        return gx, y, cache

    def _finish(self, y, attended, regions, mask, training, packing=None):
        """Computes what follows the attention to words, whose result is `attended` [N, T, D]."""
        z = y + self.word_dropout(attended, training=training)
        keys, values = regions
        query = self.layer_norm_cross(z)
        from_regions = self.cross_att(
            query, keys, values, visible=mask, training=training, packing=packing
        )
        gx = self.layer_norm_gx(z + self.cross_dropout(from_regions, training=training))
        if self.last:
            return gx, y
        update = ops.relu(self.bifeat_emb(ops.concatenate([gx, y], axis=-1)))
        y = self.layer_norm_x(self.bifeat_dropout(update, training=training) + y)
        return gx, self.ff_layer(y, training=training)


@register("xtransformer", small=dict(width=128, encoder_layers=2, decoder_layers=2))
class XTransformer(Captioner):
    """Transformer that uses X-Linear attention in every layer of encoder and decoder.

    The class follows the released code of Pan et al., "X-Linear Attention Networks for Image
    Captioning", CVPR 2020 (docs/systems.md 3). The paper does not describe the architecture.

    `encode` returns a dictionary, for B images with R regions:

    * `global` [B, D]: the global feature of the image.
    * `query` [B, D]: a map of the global feature. The first query of each position is the product
      of `query` and a map of the mean of the words so far.
    * `regions`: for each decoder layer a pair (keys, values), each [B, H, R, d], d = D / H.
    * `encoded` [B, R, D]: the encoded regions.
    * `mask` bool [B, 1, R]: False for padded regions.

    The cache of `step` is a dictionary, for N rows (captions) of up to T words:

    * `sum`, float32 [N, D]: the sum of the embedded words so far.
    * `words`: for each decoder layer a pair (keys, values), each [N, H, T, d].

    Args:
      *sizes: `vocab_size`, `max_length` and `feature_dim`, F, see `Captioner`; F is 2048 in the
        paper.
      width: model width, D; 768 in the paper.
      heads: number of attention heads, H.
      encoder_layers: number of layers of the encoder.
      decoder_layers: number of layers of the decoder.
      inner_width: inner width of the feed-forward blocks; None means 4 * D.
      middle_width: width of the result of the joint map inside X-Linear attention (its equations
        are at `layers.xlinear.XLinearAttention`); None means half the width of a head.
      activation: activation of the X-Linear projections, of the embedded regions, and of the maps
        that make the first queries of the decoder: `celu`, as released, or `relu`.
      word_dropout: dropout rate on the embedded words.
      region_dropout: dropout rate on the embedded regions.
      middle_dropout: dropout rate on the result of the joint map inside X-Linear attention.
      encoder_dropout: dropout rate on the output of the encoder's X-Linear attention.
      decoder_dropout: dropout rate on the output of the decoder's X-Linear attention, and on the
        first queries of the decoder.
      bifeat_dropout: dropout rate on the update that each layer adds to a region or word.
      feed_forward_dropout: dropout rate inside the feed-forward blocks and on their output.
      head_dropout: dropout rate on the output of the decoder, before the logits.
      stored_positions: False: the position codes of words are computed sinusoids. True: they are a
        weight that is saved, but not trained. `tfcap.convert` sets True if a released file holds
        codes that are not these sinusoids.
      **kwargs: `region_positions` and `standardize`, see `Captioner`.

    Example:
      >>> sizes = dict(vocab_size=20, max_length=5, feature_dim=6, width=16)
      >>> model = models.build("xtransformer", **sizes, encoder_layers=1, decoder_layers=1)
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
        self.width = width
        self.act = common.activation(activation)
        # The layers of encoder and decoder.
        attention = functools.partial(
            XLinearAttention,
            width,
            heads,
            middle=middle_width,
            activation=activation,
            middle_dropout=middle_dropout,
        )
        shared: dict[str, Any] = dict(
            width=width,
            attention=attention,
            inner=inner_width or 4 * width,
            bifeat_dropout=bifeat_dropout,
            feed_forward_dropout=feed_forward_dropout,
        )
        self.encoder = [
            _EncoderLayer(name=f"encoder_{i}", dropout=encoder_dropout, **shared)
            for i in range(encoder_layers)
        ]
        self.decoder = [
            _DecoderLayer(
                name=f"decoder_{i}",
                dropout=decoder_dropout,
                last=i == decoder_layers - 1,
                **shared,
            )
            for i in range(decoder_layers)
        ]
        # Regions, and the global feature of all layers of the encoder.
        self.region_embed = common.linear(self.feature_dim, width, "region_embed")
        self.region_norm = common.layer_norm("region_norm")
        self.region_dropout = Dropout(region_dropout, name="region_dropout")
        self.encoder_proj = common.linear(width * (encoder_layers + 1), width, "encoder_proj")
        self.encoder_norm = common.layer_norm("encoder_norm")
        # Words, and the first query of each position, from global feature and words.
        add_words(self, width, word_dropout, stored_positions)
        self.wbil1 = common.linear(width, width, "wbil1")
        self.wbil1_norm = common.layer_norm("wbil1_norm")
        self.wbil2 = common.linear(width, width, "wbil2")
        self.wbil2_norm = common.layer_norm("wbil2_norm")
        self.query_dropout = Dropout(decoder_dropout, name="query_dropout")
        # The output of all layers of the decoder.
        self.decoder_proj = common.linear(width * (decoder_layers + 1), 2 * width, "decoder_proj")
        self.decoder_norm = common.layer_norm("decoder_norm")
        self.head_dropout = Dropout(head_dropout, name="head_dropout")
        self.head = common.linear(width, self.vocab_size, "head", dtype="float32")

    def encode(self, inputs, training=False):
        mask = inputs["mask"][:, None]  # [B, 1, R]
        x = self.region_norm(self.act(self.region_embed(self.regions(inputs))))
        x = self.region_dropout(x, training=training)
        g = common.masked_mean(x, inputs["mask"])
        features = [g]
        for layer in self.encoder:
            g, x = layer(g, x, mask, training=training)
            features.append(g)
        g = self.encoder_norm(self.encoder_proj(ops.concatenate(features, axis=-1)))
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
        mean = ops.matmul(common.mean_weights(past), ops.cast(y, "float32"))
        gx = self._queries(context, y, mean, training)
        captions, images = self._packings(context, tokens, length) if training else (None, None)
        if captions is not None:
            gx, y = captions.pack(gx), captions.pack(y)
        outputs = [gx]
        for layer, regions in zip(self.decoder, context["regions"], strict=True):
            mask = context["mask"]
            gx, y = layer(
                gx, y, past, regions, mask, training=training, packings=(captions, images)
            )
            outputs.append(gx)
        logits = self._logits(outputs, training)  # [N, T', V]
        return logits if captions is None else captions.unpack(logits)

    def _packings(self, context, tokens, length):
        """Makes the packings of words by captions and by images; XLA knows no such shapes."""
        if in_xla():
            return None, None
        counts = count_positions(tokens)
        by_image = ops.reshape(counts, (ops.shape(context["global"])[0], -1))
        return Packing(counts, length), Packing(ops.sum(by_image, axis=1))

    def init_cache(self, context, max_length):
        rows = ops.shape(context["global"])[0]
        return {
            "sum": ops.zeros((rows, self.width), "float32"),
            "words": [layer.word_attn.empty(rows, max_length) for layer in self.decoder],
        }

    def step(self, context, cache, tokens, index, training=False):
        y = self._words(tokens[:, None], ops.reshape(index, (1,)), training)
        total = cache["sum"] + ops.cast(y[:, 0], "float32")
        mean = total[:, None] / ops.cast(index + 1, "float32")
        gx = self._queries(context, y, mean, training)
        outputs = [gx]
        words = []
        for layer, regions, old in zip(
            self.decoder, context["regions"], cache["words"], strict=True
        ):
            gx, y, new = layer.step(gx, y, old, index, regions, context["mask"], training)
            outputs.append(gx)
            words.append(new)
        return self._logits(outputs, training)[:, 0], {"sum": total, "words": words}

    def _words(self, tokens, positions, training):
        """Embeds words at `positions` [T]: Dropout(LN(sqrt(D) Emb + codes)), [N, T, D]."""
        words = self.embed_tokens(tokens) * self.width**0.5 + self.position_codes(positions)
        return self.word_dropout(self.word_norm(words), training=training)

    def _queries(self, context, y, mean, training):
        """Returns the first query of each position, from the running means of words `y` [N, T, D].

        `mean` is float32 [N, T, D]: at each position, the mean of the words up to it.
        """
        mean = self.wbil2_norm(self.act(self.wbil2(ops.cast(mean, y.dtype))))
        query = context["query"]
        group = ops.shape(y)[0] // ops.shape(query)[0]
        return self.query_dropout(repeat(query, group)[:, None] * mean, training=training)

    def _logits(self, outputs, training):
        """Computes logits [N, T, V] from the queries [N, T, D] before and after each layer."""
        joined = self.decoder_proj(ops.concatenate(outputs, axis=-1))
        out = self.decoder_norm(common.gated(joined))
        return self.head(self.head_dropout(out, training=training))
