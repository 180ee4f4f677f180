"""Meshed-Memory Transformer (Cornia et al., CVPR 2020), the "M2 Transformer".

Letters: B images, N rows of words, R regions, F feature width, T positions, D model width,
H heads, d = D / H, L encoder layers, V vocabulary.
"""

from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

from tfcap.layers import common
from tfcap.layers.attention import MemoryAttention, MultiHeadAttention
from tfcap.layers.dropout import Dropout
from tfcap.layers.expansion import glorot, linear
from tfcap.layers.positions import PositionCodes
from tfcap.models.captioner import register
from tfcap.models.transformer import AttentionBlock, DecoderLayer, TransformerCaptioner

EPSILON = 1e-5  # of all normalisations


def _block(name, attend, dropout):
    """Makes an attention block whose maps start from Glorot-uniform kernels and biases of zero."""
    for affine in (attend.query, attend.key, attend.value, attend.output_map):
        affine.bias_initializer = keras.initializers.Zeros()
    return AttentionBlock(glorot(attend), dropout, EPSILON, name=name)


class _EncoderLayer(layers.Layer):
    """One encoder layer: attention of the regions to regions and memory, feed-forward block.

    Args:
      width: model width, D.
      heads: number of attention heads, H.
      inner: inner width of the feed-forward block.
      slots: number of memory slots.
      dropout: dropout rate of both blocks.
    """

    def __init__(self, width, heads, inner, slots, dropout, **kwargs):
        super().__init__(**kwargs)
        attend = MemoryAttention(width, heads, slots, name="attend")
        self.self_att = _block("self_att", attend, dropout)
        self.ff_layer = glorot(common.FeedForward(width, inner, dropout, name="ff_layer"))

    def call(self, x, visible, training=False):
        """Returns the regions [B, R, D] of the next layer; `visible` is bool [B, 1, R]."""
        x = self.self_att(x, x, x, visible, training=training)
        return self.ff_layer(x, training=training)


class _DecoderLayer(DecoderLayer):
    """One decoder layer: attention to the words so far, meshed attention, feed-forward block.

    Args:
      width: model width, D.
      heads: number of attention heads, H.
      inner: inner width of the feed-forward block.
      encoder_layers: number of layers of the encoder, L, which all are read.
      dropout: dropout rate of the three blocks.
    """

    def __init__(self, width, heads, inner, encoder_layers, dropout, **kwargs):
        super().__init__(**kwargs)
        attend = MultiHeadAttention(width, heads, name="attend")
        self.self_att = _block("self_att", attend, dropout)
        attend = MultiHeadAttention(width, heads, name="attend")
        self.cross_att = _block("cross_att", attend, dropout)
        zeros = keras.initializers.Zeros()
        self.gates = [linear(2 * width, width, f"gate_{i}") for i in range(encoder_layers)]
        for gate in self.gates:
            gate.bias_initializer = zeros
        self.ff_layer = glorot(common.FeedForward(width, inner, dropout, name="ff_layer"))

    @property
    def over_words(self):
        return self.self_att.attend

    def _finish(self, y, attended, regions, mask, training):
        """Finishes the layer; `regions` are the keys and values of each encoder layer."""
        y = self.self_att.add(y, attended, training)
        total = 0.0
        for gate, (keys, values) in zip(self.gates, regions, strict=True):
            attended = self.cross_att(y, keys, values, mask, training=training)
            share = ops.sigmoid(gate(ops.concatenate([y, attended], axis=-1)))
            total = total + share * attended
        return self.ff_layer(total * len(self.gates) ** -0.5, training=training)


@register("m2", small=dict(width=128, encoder_layers=2, decoder_layers=2, slots=8))
class MeshedMemoryTransformer(TransformerCaptioner):
    """Transformer with memory in the encoder, whose decoder reads every layer of the encoder.

    The class follows the released code of Cornia et al., "Meshed-Memory Transformer for Image
    Captioning", CVPR 2020 (docs/systems.md 4.13). Regions read regions and memory slots
    (`layers.attention.MemoryAttention`). A decoder layer computes, from the words y after their
    attention to each other and the output x_i of encoder layer i of L,

    c_i = LN(y + Dropout(attention of y to x_i))
    y'  = FeedForward(sum_i sigmoid(Lin_i([y; c_i])) c_i / sqrt(L))

    where all i share the attention and its normalisation. In the paper the sum has no factor
    1 / sqrt(L), and y is added after the sum, not before it. A region v is embedded as
    LN(Dropout(ReLU(Lin(v)))), and a word as Emb + position code. Lin is an affine map, LN a layer
    normalisation, and Emb the table of words.

    Three things differ from the released code:

    * Position codes are sinusoids, as in the paper. The released code makes them, but then draws
      random numbers for all its matrices, and these, too; training does not change them.
    * Padded regions are hidden, unless `filled_regions` is set.
    * Regions are encoded once per image, not once per caption. Padded words are not hidden, because
      they come only after EOS, where nothing is predicted.

    `encode` returns a dictionary, for B images with R regions:

    * `regions`: for each decoder layer a list with a pair (keys, values), each [B, H, R, d],
      d = D / H, for each encoder layer.
    * `encoded` [B, R, D]: the output of the last encoder layer.
    * `mask` bool [B, 1, R]: False for padded regions.

    `TransformerCaptioner` describes the cache of `step`.

    Args:
      *sizes: `vocab_size`, `max_length` and `feature_dim`, F, see `Captioner`.
      width: model width, D.
      heads: number of attention heads, H.
      encoder_layers: number of layers of the encoder, L.
      decoder_layers: number of layers of the decoder.
      inner_width: inner width of the feed-forward blocks; None means 4 * D.
      slots: number of memory slots in the attention of each encoder layer.
      region_dropout: dropout rate on the embedded regions.
      block_dropout: dropout rate on the output of each block, and inside the feed-forward blocks.
      filled_regions: an image with fewer regions is filled up to this number with regions of zeros,
        which are read like others; 0 fills nothing. The released code fills up to 50: it hides only
        regions whose normalised numbers have the sum 0, which padding does not have.
      head_bias: whether the map to the logits has a bias. The released model has none;
        `tfcap.convert` sets True, so that the logits of PAD and BOS can be low.
      stored_positions: False: the position codes of words are computed sinusoids. True: they are a
        weight that is saved, but not trained. `tfcap.convert` sets True, because released files
        hold random codes.
      **kwargs: `region_positions` and `standardize`, see `Captioner`.

    Example:
      >>> sizes = dict(vocab_size=20, max_length=5, feature_dim=6, width=16)
      >>> model = models.build("m2", **sizes, encoder_layers=2, decoder_layers=1, slots=3)
      >>> inputs = {"features": tf.ones((2, 4, 6)), "mask": tf.ones((2, 4), tf.bool)}
      >>> model.decode(model.encode(inputs), tokens=tf.ones((2, 3), tf.int32)).shape
      TensorShape([2, 3, 20])
    """

    reads_order = True

    def __init__(
        self,
        *sizes: int,
        width: int = 512,
        heads: int = 8,
        encoder_layers: int = 3,
        decoder_layers: int = 3,
        inner_width: int | None = None,
        slots: int = 40,
        region_dropout: float = 0.1,
        block_dropout: float = 0.1,
        filled_regions: int = 0,
        head_bias: bool = False,
        stored_positions: bool = False,
        **kwargs,
    ):
        super().__init__(*sizes, **kwargs)
        self.width = width
        self.filled_regions = filled_regions
        self.head_bias = head_bias
        shared: dict[str, Any] = dict(
            width=width, heads=heads, inner=inner_width or 4 * width, dropout=block_dropout
        )
        self.encoder = [
            _EncoderLayer(name=f"encoder_{i}", slots=slots, **shared) for i in range(encoder_layers)
        ]
        self.decoder = [
            _DecoderLayer(name=f"decoder_{i}", encoder_layers=encoder_layers, **shared)
            for i in range(decoder_layers)
        ]
        self.region_embed = linear(self.feature_dim, width, "region_embed")
        self.region_dropout = Dropout(region_dropout, name="region_dropout")
        self.region_norm = common.layer_norm("region_norm", EPSILON)
        self.embed_tokens = common.embedding(self.vocab_size, width, "embed_tokens")
        self.embed_tokens.embeddings_initializer = keras.initializers.GlorotUniform()
        self.position_codes = PositionCodes(
            self.max_length, width, stored_positions, name="position_codes"
        )
        self.head = linear(width, self.vocab_size, "head", use_bias=head_bias, dtype="float32")

    @property
    def vocabulary_axes(self):
        axes = super().vocabulary_axes
        return axes if self.head_bias else {k: v for k, v in axes.items() if k != "head/bias"}

    def encode(self, inputs, training=False):
        x, mask = self._filled(self.regions(inputs), inputs["mask"])
        mask = mask[:, None]  # [B, 1, R]
        x = self.region_dropout(ops.relu(self.region_embed(x)), training=training)
        x = self.region_norm(x)
        levels = []
        for layer in self.encoder:
            x = layer(x, mask, training=training)
            levels.append(x)
        return {
            "regions": [
                [layer.cross_att.attend.project(level) for level in levels]
                for layer in self.decoder
            ],
            "encoded": x,
            "mask": mask,
        }

    def _filled(self, x, mask):
        """Fills each image up to `filled_regions` regions; returns features and mask."""
        if not self.filled_regions:
            return x, mask
        x = ops.where(mask[..., None], x, ops.zeros_like(x))
        missing = ops.maximum(self.filled_regions - ops.shape(x)[1], 0)
        x = tf.pad(x, [[0, 0], [0, missing], [0, 0]])
        filled = ops.arange(ops.shape(x)[1]) < self.filled_regions
        mask = tf.pad(tf.cast(mask, tf.int32), [[0, 0], [0, missing]]) > 0
        return x, mask | filled

    def words(self, tokens, positions, training=False):
        """Embeds `tokens` at `positions`: Emb + codes, without dropout."""
        return self.embed_tokens(tokens) + self.position_codes(positions)

    def predict(self, outputs, training=False):
        return self.head(outputs[-1])
