"""Object Relation Transformer (Herdade et al., "Transforming Objects into Words", NeurIPS 2019).

Letters: B images, N rows of words, R regions, F feature width, T positions, D model width,
H heads, d = D / H, V vocabulary.
"""

from typing import Any

import keras
from keras import layers, ops

from tfcap.layers import common
from tfcap.layers.attention import MultiHeadAttention
from tfcap.layers.dropout import Dropout
from tfcap.layers.expansion import glorot, linear
from tfcap.layers.geometry import GeometricBias, boxes_of, relation_codes
from tfcap.layers.positions import PositionCodes
from tfcap.models.captioner import register
from tfcap.models.transformer import DecoderLayer, TransformerCaptioner


class _Layer(layers.Layer):
    """Base of encoder and decoder layers, whose blocks are x + Dropout(block(LN(x))).

    Args:
      width: model width, D.
      inner: inner width of the feed-forward block.
      dropout: dropout rate on the output of each block and inside the feed-forward block.
    """

    def __init__(self, width, inner, dropout, **kwargs):
        super().__init__(**kwargs)
        self.self_norm = common.DeviationNorm(name="self_norm")
        self.ff_norm = common.DeviationNorm(name="ff_norm")
        self.fc1 = linear(width, inner, "fc1")
        self.fc2 = linear(inner, width, "fc2")
        self.inner_dropout = Dropout(dropout, name="inner_dropout")
        self.dropout = Dropout(dropout, name="dropout")

    def _feed_forward(self, x, training):
        inner = ops.relu(self.fc1(self.ff_norm(x)))
        return self._add(x, self.fc2(self.inner_dropout(inner, training=training)), training)

    def _add(self, x, update, training):
        return x + self.dropout(update, training=training)


class _EncoderLayer(_Layer):
    """One encoder layer: attention of the regions that reads their boxes, feed-forward block.

    Args:
      width: model width, D.
      heads: number of attention heads, H.
      inner: inner width of the feed-forward block.
      weight_dropout: dropout rate on the attention weights.
      dropout: dropout rate of both blocks.
      extra_skip: whether the normalised regions are added to the joined heads.
    """

    def __init__(self, width, heads, inner, weight_dropout, dropout, extra_skip, **kwargs):
        super().__init__(width, inner, dropout, **kwargs)
        self.extra_skip = extra_skip
        attend = MultiHeadAttention(width, heads, weight_dropout, output=False, name="self_att")
        self.self_att = glorot(attend)
        self.output_map = linear(width, width, "output_map")
        self.geometry = GeometricBias(heads, name="geometry", dtype="float32")

    def call(self, x, codes, visible, training=False):
        """Computes the regions [B, R, D] of the next layer.

        Args:
          x: regions [B, R, D].
          codes: float32 [B, R, R, 64], see `relation_codes`.
          visible: bool [B, 1, R], False for padding.
          training: whether dropout is on.
        """
        normal = self.self_norm(x)
        bias = self.geometry(codes)
        attended = self.self_att(normal, normal, visible=visible, training=training, bias=bias)
        if self.extra_skip:
            attended = attended + normal
        x = self._add(x, self.output_map(attended), training)
        return self._feed_forward(x, training)


class _DecoderLayer(_Layer, DecoderLayer):
    """One decoder layer: attention to the words so far, attention to regions, feed-forward block.

    Args:
      width: model width, D.
      heads: number of attention heads, H.
      inner: inner width of the feed-forward block.
      weight_dropout: dropout rate on the attention weights.
      dropout: dropout rate of the three blocks.
    """

    def __init__(self, width, heads, inner, weight_dropout, dropout, **kwargs):
        super().__init__(width, inner, dropout, **kwargs)
        self.self_att = glorot(MultiHeadAttention(width, heads, weight_dropout, name="self_att"))
        self.cross_norm = common.DeviationNorm(name="cross_norm")
        self.cross_att = glorot(MultiHeadAttention(width, heads, weight_dropout, name="cross_att"))

    def _prepare(self, y):
        return self.self_norm(y)

    def _finish(self, y, attended, regions, mask, training):
        y = self._add(y, attended, training)
        keys, values = regions
        attended = self.cross_att(self.cross_norm(y), keys, values, visible=mask, training=training)
        return self._feed_forward(self._add(y, attended, training), training)


@register("ort", small=dict(width=128, encoder_layers=2, decoder_layers=2))
class ObjectRelationTransformer(TransformerCaptioner):
    """Transformer whose encoder weighs pairs of regions by where their boxes are.

    The class follows the released code of Herdade et al., "Image Captioning: Transforming Objects
    into Words", NeurIPS 2019 (docs/systems.md 4.12). A layer normalises the input of each block,
    x + Dropout(block(LN(x))), and encoder and decoder normalise their output. In the encoder, the
    attention of region m to region n is

    w_mn = g_mn exp(q_m k_n / sqrt(d)) / sum_l g_ml exp(q_m k_l / sqrt(d))

    with the geometric weight g_mn of `layers.geometry.GeometricBias`. q and k are queries and keys.
    A region v is embedded as Dropout(ReLU(Lin(v))), and a word as Dropout(sqrt(D) Emb + position
    code). Lin is an affine map, LN a `layers.common.DeviationNorm`, and Emb the table of words.

    The boxes come with the features: those of a detector, or of feature files that have boxes. A
    region without a box is a cell of a grid; `layers.geometry.boxes_of` says of which.

    Two things differ from the released code. Regions are encoded once per image, not once per
    caption. Padded words are not hidden, because they come only after EOS, where nothing is
    predicted.

    `encode` returns a dictionary, for B images with R regions:

    * `regions`: for each decoder layer a pair (keys, values), each [B, H, R, d], d = D / H.
    * `encoded` [B, R, D]: the encoded regions.
    * `mask` bool [B, 1, R]: False for padded regions.

    `TransformerCaptioner` describes the cache of `step`.

    Args:
      *sizes: `vocab_size`, `max_length` and `feature_dim`, F, see `Captioner`.
      width: model width, D.
      heads: number of attention heads, H. Released checkpoints have 8.
      encoder_layers: number of layers of the encoder.
      decoder_layers: number of layers of the decoder.
      inner_width: inner width of the feed-forward blocks; None means 4 * D.
      word_dropout: dropout rate on the embedded words.
      region_dropout: dropout rate on the embedded regions.
      weight_dropout: dropout rate on all attention weights.
      block_dropout: dropout rate on the output of each block, and inside the feed-forward blocks.
      extra_skip: whether the encoder's attention adds the normalised regions to its joined heads,
        before its last map. The released self-critical checkpoint has this connection, which is not
        in the paper.
      stored_positions: False: the position codes of words are computed sinusoids. True: they are a
        weight that is saved, but not trained. `tfcap.convert` sets True if a released file holds
        codes that are not these sinusoids.
      **kwargs: `region_positions` and `standardize`, see `Captioner`.

    Example:
      >>> sizes = dict(vocab_size=20, max_length=5, feature_dim=6, width=16)
      >>> model = models.build("ort", **sizes, encoder_layers=1, decoder_layers=1)
      >>> inputs = {"features": tf.ones((2, 4, 6)), "mask": tf.ones((2, 4), tf.bool)}
      >>> inputs["boxes"] = tf.random.uniform((2, 4, 4))
      >>> model.decode(model.encode(inputs), tokens=tf.ones((2, 3), tf.int32)).shape
      TensorShape([2, 3, 20])
    """

    reads_order = True
    reads_boxes = True

    def __init__(
        self,
        *sizes: int,
        width: int = 512,
        heads: int = 8,
        encoder_layers: int = 6,
        decoder_layers: int = 6,
        inner_width: int | None = None,
        word_dropout: float = 0.1,
        region_dropout: float = 0.5,
        weight_dropout: float = 0.1,
        block_dropout: float = 0.1,
        extra_skip: bool = False,
        stored_positions: bool = False,
        **kwargs,
    ):
        # Boxes stay float32: half precision has no more than 256 places along a side.
        super().__init__(*sizes, autocast=False, **kwargs)
        self.width = width
        shared: dict[str, Any] = dict(
            width=width,
            heads=heads,
            inner=inner_width or 4 * width,
            weight_dropout=weight_dropout,
            dropout=block_dropout,
        )
        self.encoder = [
            _EncoderLayer(name=f"encoder_{i}", extra_skip=extra_skip, **shared)
            for i in range(encoder_layers)
        ]
        self.encoder_norm = common.DeviationNorm(name="encoder_norm")
        self.decoder = [_DecoderLayer(name=f"decoder_{i}", **shared) for i in range(decoder_layers)]
        self.decoder_norm = common.DeviationNorm(name="decoder_norm")
        self.region_embed = common.linear(self.feature_dim, width, "region_embed")
        self.region_dropout = Dropout(region_dropout, name="region_dropout")
        self.embed_tokens = common.embedding(self.vocab_size, width, "embed_tokens")
        self.embed_tokens.embeddings_initializer = keras.initializers.GlorotUniform()
        self.position_codes = PositionCodes(
            self.max_length, width, stored_positions, name="position_codes"
        )
        self.word_dropout = Dropout(word_dropout, name="word_dropout")
        self.head = linear(width, self.vocab_size, "head", dtype="float32")

    def encode(self, inputs, training=False):
        mask = inputs["mask"][:, None]  # [B, 1, R]
        x = ops.relu(self.region_embed(self.regions(inputs)))
        x = self.region_dropout(x, training=training)
        codes = relation_codes(boxes_of(inputs))
        for layer in self.encoder:
            x = layer(x, codes, mask, training=training)
        x = self.encoder_norm(x)
        return {
            "regions": [layer.cross_att.project(x) for layer in self.decoder],
            "encoded": x,
            "mask": mask,
        }

    def words(self, tokens, positions, training=False):
        """Embeds `tokens` at `positions`: Dropout(sqrt(D) Emb + codes)."""
        words = self.embed_tokens(tokens) * self.width**0.5 + self.position_codes(positions)
        return self.word_dropout(words, training=training)

    def predict(self, outputs, training=False):
        return self.head(self.decoder_norm(outputs[-1]))
