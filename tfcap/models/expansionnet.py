"""ExpansionNet, the rows of its ablation table and its baselines.

Source: Hu et al., "ExpansionNet: exploring the sequence length bottleneck in the Transformer for
Image Captioning", 2022.

Letters: B images, N rows of words, R regions, F feature width, T positions, E expansion vectors,
D model width, H heads, d = D / H, L decoder layers, V vocabulary.

The final model follows the released code (docs/systems.md 5.4 and 5.5). Three things differ;
without dropout they do not change losses or captions:

* Regions are encoded once per image instead of once per caption. So in training the captions of an
  image share the dropout masks of the encoder.
* Padded words are not hidden, because they affect only the outputs at padding.
* A step of decoding computes one position instead of all positions so far. If words are sampled
  with dropout, most masks of earlier positions stay the same, while the released code draws all
  masks again.

No code was released for the ablations without `reduce`, for the dynamic encoder and for both
baselines (our reading: as docs/systems.md 5.7 describes them).
"""

from typing import Any

from keras import layers, ops

from tfcap.layers import common
from tfcap.layers.attention import AttentionOnAttention, MultiHeadAttention
from tfcap.layers.dropout import Dropout
from tfcap.layers.expansion import DynamicExpansion, StaticExpansion, glorot, linear
from tfcap.models.captioner import register
from tfcap.models.transformer import DecoderLayer, TransformerCaptioner

ENCODER_BLOCKS = ("static", "dynamic", "attention", "aoa")
DECODER_BLOCKS = ("dynamic", "attention", "aoa")


class _FeedForward(layers.Layer):
    """Feed-forward block Lin(Drop(ReLU(Lin x))), without normalisation and residual.

    Args:
      width: model width, D.
      inner: width between the two affine maps.
      dropout: dropout rate between them.
    """

    def __init__(self, width: int, inner: int, dropout: float, **kwargs):
        super().__init__(**kwargs)
        self.fc1 = linear(width, inner, "fc1")
        self.fc2 = linear(inner, width, "fc2")
        self.inner_dropout = Dropout(dropout, name="inner_dropout")

    def call(self, x, training=False):
        return self.fc2(self.inner_dropout(ops.relu(self.fc1(x)), training=training))


class _PreNormLayer(layers.Layer):
    """Base of encoder and decoder layers: x + Drop(block(LN x)), and the feed-forward block.

    Args:
      block: the block that mixes positions: `static`, `dynamic`, `attention` or `aoa`.
      width: model width, D.
      heads: number of attention heads, H.
      inner: inner width of the feed-forward block; `aoa` has no such block.
      vectors: number of expansion vectors, E.
      dropout: dropout rate, the same everywhere in the layer.
    """

    def __init__(self, block, width, heads, inner, vectors, dropout, **kwargs):
        super().__init__(**kwargs)
        self.block = block
        if block in ("static", "dynamic"):
            expansion = StaticExpansion if block == "static" else DynamicExpansion
            self.expansion = expansion(width, vectors, dropout, name="expansion")
        else:
            self.self_mha = _attention(block, width, heads, dropout, "self_mha")
        self.norm_1 = common.layer_norm("norm_1")
        self.block_dropout = Dropout(dropout, name="block_dropout")
        self.ff = None
        if block != "aoa":
            self.ff = _FeedForward(width, inner, dropout, name="ff")
            self.ff_dropout = Dropout(dropout, name="ff_dropout")

    def _mix(self, x, visible, training):
        """Applies the block to normalised positions `x` [N, T, D].

        `visible` is bool [N or 1, T, T] or [N, 1, T], True where a position may be read.
        """
        if self.block in ("static", "dynamic"):
            return self.expansion(x, visible, training=training)
        return self.self_mha(x, x, visible=visible, training=training)

    def _feed_forward(self, x, norm, training):
        if self.ff is None:
            return x
        return x + self.ff_dropout(self.ff(norm(x), training=training), training=training)


class _EncoderLayer(_PreNormLayer):
    """One encoder layer: the block over regions, then the feed-forward block.

    The arguments are those of `_PreNormLayer`.
    """

    def __init__(self, block, width, **sizes):
        super().__init__(block, width, **sizes)
        self.norm_2 = common.layer_norm("norm_2") if self.ff else None

    def call(self, x, visible, training=False):
        """Returns the regions [B, R, D] of the next layer, for `x` [B, R, D].

        `visible` is bool [B, 1, R], False for padding.
        """
        if self.block == "dynamic":  # hide padded regions as keys and as queries
            visible = visible & ops.swapaxes(visible, -1, -2)
        mixed = self._mix(self.norm_1(x), visible, training)
        x = x + self.block_dropout(mixed, training=training)
        return self._feed_forward(x, self.norm_2, training)


class _DecoderLayer(_PreNormLayer, DecoderLayer):
    """One decoder layer: the block over words, attention to regions, feed-forward block.

    The arguments are those of `_PreNormLayer`.
    """

    def __init__(self, block, width, heads, dropout, **sizes):
        super().__init__(block, width, heads=heads, dropout=dropout, **sizes)
        self.norm_2 = common.layer_norm("norm_2")
        self.mha = _attention(block, width, heads, dropout, "mha")
        self.mha_dropout = Dropout(dropout, name="mha_dropout")
        self.norm_3 = common.layer_norm("norm_3") if self.ff else None

    @property
    def over_words(self):
        return self.expansion if self.block == "dynamic" else self.self_mha

    def _prepare(self, y):
        return self.norm_1(y)

    def _finish(self, y, mixed, regions, mask, training):
        y = y + self.block_dropout(mixed, training=training)
        keys, values = regions
        attended = self.mha(self.norm_2(y), keys, values, visible=mask, training=training)
        y = y + self.mha_dropout(attended, training=training)
        return self._feed_forward(y, self.norm_3, training)


@register(
    "expansionnet",
    small=dict(
        width=128,
        encoder_layers=2,
        decoder_layers=2,
        inner_width=256,
        encoder_vectors=16,
        decoder_vectors=8,
    ),
)
class ExpansionNet(TransformerCaptioner):
    """Encoder and decoder with expansion blocks in place of self-attention.

    `layers.expansion.StaticExpansion` and `layers.expansion.DynamicExpansion` have the equations of
    the blocks. Words read regions by attention, as in a Transformer. Source: Hu et al.,
    "ExpansionNet: exploring the sequence length bottleneck in the Transformer for Image
    Captioning", 2022 (docs/systems.md 5).

    `encode` returns a dictionary, for B images with R regions:

    * `regions`: for each decoder layer a pair (keys, values), each [B, H, R, d], d = D / H.
    * `encoded` [B, R, D]: the encoded regions.
    * `mask` bool [B, 1, R]: False for padded regions.

    The cache of `step` is a list with an item for each decoder layer. With `decoder_block=dynamic`
    the item is the dictionary that `DynamicExpansion.empty` describes. Otherwise it is a pair
    (keys, values), each [N, H, T, d], for N rows (captions) of up to T words.

    Args:
      *sizes: `vocab_size`, `max_length` and `feature_dim`, F, see `Captioner`; F is 2048 in the
        paper.
      width: model width, D; 768 in the final model, 512 in the paper's ablations and baselines.
      heads: number of attention heads, H.
      encoder_layers: number of layers of the encoder; 6 in the baseline with attention.
      decoder_layers: number of layers of the decoder; 6 in the baseline with attention.
      inner_width: inner width of the feed-forward blocks.
      encoder_block: block of the encoder layers: `static`, with the same expansion vectors for all
        images; `dynamic`, with expansion vectors that depend on the regions; `attention`, the
        self-attention of a Transformer; or `aoa`, attention on attention, whose layers have no
        feed-forward block. `attention` in encoder and decoder is the Transformer baseline.
      encoder_vectors: number of expansion vectors of an encoder layer; used by `static` and
        `dynamic`. In Python, but not in a configuration, it may be a sequence of the sizes of
        groups of vectors.
      decoder_block: block of the decoder layers: `dynamic`, `attention` or `aoa`. With `aoa`, the
        attention to regions is attention on attention, too.
      decoder_vectors: number of expansion vectors of each word in a decoder layer; used by
        `dynamic`.
      reduce: whether an affine map of the outputs of all layers is added to the output of the last
        layer, in the encoder and in the decoder.
      positions: number of learned position vectors; `max_length`, if that is more.
      region_dropout: dropout rate on the embedded regions.
      word_dropout: dropout rate on the embedded words, before they are multiplied by sqrt(D) and
        the position vectors are added.
      block_dropout: dropout rate inside and after each block, feed-forward blocks included.
      reduce_dropout: dropout rate on the affine map of the outputs of all layers, see `reduce`.
      **kwargs: `region_positions` and `standardize`, see `Captioner`.

    Example:
      >>> sizes = dict(vocab_size=20, max_length=5, feature_dim=6, width=16)
      >>> model = models.build("expansionnet", **sizes, encoder_layers=1, decoder_layers=1)
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
        encoder_layers: int = 3,
        decoder_layers: int = 3,
        inner_width: int = 2048,
        encoder_block: str = "static",
        encoder_vectors: int = 64,
        decoder_block: str = "dynamic",
        decoder_vectors: int = 16,
        reduce: bool = True,
        positions: int = 74,
        region_dropout: float = 0.3,
        word_dropout: float = 0.3,
        block_dropout: float = 0.3,
        reduce_dropout: float = 0.3,
        **kwargs,
    ):
        super().__init__(*sizes, **kwargs)
        common.check_choice("encoder_block", encoder_block, ENCODER_BLOCKS)
        common.check_choice("decoder_block", decoder_block, DECODER_BLOCKS)
        self.width = width
        self.reduce = reduce
        self.region_embed = linear(self.feature_dim, width, "region_embed")
        self.region_dropout = Dropout(region_dropout, name="region_dropout")
        self.embed_tokens = _table(self.vocab_size, width, "embed_tokens")
        self.embed_positions = _table(max(positions, self.max_length), width, "embed_positions")
        self.word_dropout = Dropout(word_dropout, name="word_dropout")
        # The layers of both stacks.
        shared: dict[str, Any] = dict(
            width=width, heads=heads, inner=inner_width, dropout=block_dropout
        )
        encoder = dict(block=encoder_block, vectors=encoder_vectors, **shared)
        decoder = dict(block=decoder_block, vectors=decoder_vectors, **shared)
        self.encoder = [
            _EncoderLayer(name=f"encoder_{i}", **encoder) for i in range(encoder_layers)
        ]
        self.decoder = [
            _DecoderLayer(name=f"decoder_{i}", **decoder) for i in range(decoder_layers)
        ]
        # The end of each stack.
        self.encoder_norm = common.layer_norm("encoder_norm")
        self.decoder_norm = common.layer_norm("decoder_norm")
        if reduce:
            self.encoder_proj = linear(encoder_layers * width, width, "encoder_proj")
            self.decoder_proj = linear(decoder_layers * width, width, "decoder_proj")
            self.encoder_dropout = Dropout(reduce_dropout, name="encoder_dropout")
            self.decoder_dropout = Dropout(reduce_dropout, name="decoder_dropout")
        self.head = linear(width, self.vocab_size, "head", dtype="float32")

    def encode(self, inputs, training=False):
        mask = inputs["mask"][:, None]  # [B, 1, R]
        x = self.region_dropout(self.region_embed(self.regions(inputs)), training=training)
        outputs = []
        for layer in self.encoder:
            x = layer(x, mask, training=training)
            outputs.append(x)
        encoded = self._reduce("encoder", outputs, training)
        regions = [layer.mha.project(encoded) for layer in self.decoder]
        return {"regions": regions, "encoded": encoded, "mask": mask}

    def words(self, tokens, positions, training=False):
        """Embeds `tokens` [N, T] at `positions` [T]: sqrt(D) Drop(Emb) + Pos, [N, T, D]."""
        words = self.word_dropout(self.embed_tokens(tokens), training=training)
        return words * self.width**0.5 + self.embed_positions(positions)

    def predict(self, outputs, training=False):
        return self.head(self._reduce("decoder", outputs, training))

    def _reduce(self, stack, outputs, training):
        """Computes LN(x_L + Drop(Lin([x_1; ...; x_L]))), or LN(x_L) without `reduce`.

        `stack` is `encoder` or `decoder`, and `outputs` the outputs x of its layers.
        """
        x = outputs[-1]
        if self.reduce:
            update = getattr(self, f"{stack}_proj")(ops.concatenate(outputs, axis=-1))
            x = x + getattr(self, f"{stack}_dropout")(update, training=training)
        return getattr(self, f"{stack}_norm")(x)


def _attention(block, width, heads, dropout, name):
    if block == "aoa":
        return glorot(AttentionOnAttention(width, heads, dropout, name=name))
    return glorot(MultiHeadAttention(width, heads, name=name))


def _table(size, width, name):
    return layers.Embedding(size, width, embeddings_initializer="glorot_uniform", name=name)
