"""The Transformer baseline (Vaswani et al., "Attention Is All You Need", NeurIPS 2017).

Letters: B images, N rows of words, R regions, F feature width, T positions, D model width,
H heads, d = D / H, V vocabulary.
"""

from typing import Any

from keras import layers, ops

from tfcap.layers import common
from tfcap.layers.attention import MultiHeadAttention
from tfcap.layers.dropout import Dropout
from tfcap.layers.positions import add_words
from tfcap.models.captioner import Captioner, register

EPSILON = 1e-12  # of the normalisations inside layers, as in BERT; the embeddings have 1e-5


class AttentionBlock(layers.Layer):
    """Attention block with a residual, normalised at the end: LN(x + Dropout(attention of x)).

    Args:
      attend: the attention, a layer named "attend".
      dropout: dropout rate on the attended values.
      epsilon: small number that the normalisation adds to the variance.
    """

    def __init__(self, attend: MultiHeadAttention, dropout: float, epsilon: float, **kwargs):
        super().__init__(**kwargs)
        self.attend = attend
        self.dropout = Dropout(dropout, name="dropout")
        self.norm = common.layer_norm("norm", epsilon)

    def call(self, x, keys, values, visible, training=False):
        """Returns [N, T, D] for `x` [N, T, D]; other arguments as in `MultiHeadAttention.call`."""
        attended = self.attend(x, keys, values, visible=visible, training=training)
        return self.add(x, attended, training)

    def add(self, x, attended, training):
        """Returns LN(x + Dropout(attended)), [N, T, D] as `x` and `attended`."""
        return self.norm(x + self.dropout(attended, training=training))


def _block(name, width, heads, weight_dropout, dropout):
    """Makes an attention block of the baseline."""
    attend = MultiHeadAttention(width, heads, weight_dropout, name="attend")
    return AttentionBlock(attend, dropout, EPSILON, name=name)


class _EncoderLayer(layers.Layer):
    """One encoder layer: self-attention of the regions, then the feed-forward block.

    Args:
      width: model width, D.
      heads: number of attention heads, H.
      inner: inner width of the feed-forward block.
      weight_dropout: dropout rate on the attention weights.
      dropout: dropout rate of both blocks.
    """

    def __init__(self, width, heads, inner, weight_dropout, dropout, **kwargs):
        super().__init__(**kwargs)
        self.self_att = _block("self_att", width, heads, weight_dropout, dropout)
        self.ff_layer = common.FeedForward(width, inner, dropout, EPSILON, name="ff_layer")

    def call(self, x, visible, training=False):
        """Returns the regions [B, R, D] of the next layer; `visible` is bool [B, 1, R]."""
        x = self.self_att(x, x, x, visible, training=training)
        return self.ff_layer(x, training=training)


class DecoderLayer(layers.Layer):
    """Base class of decoder layers, which begin with attention to the words so far.

    This class supplies `call`, `empty` and `step`. A subclass supplies the attribute `self_att`, a
    `CachedAttention`, and the method `_finish`. It may override `over_words` and `_prepare`, too.
    """

    def call(self, y, past, regions, mask, training=False):
        """Computes one layer for all positions of N rows.

        Args:
          y: words [N, T, D].
          past: bool [1, T, T], True where a position may read another.
          regions: what the layer reads of the regions, for B images with R regions; in most systems
            keys and values [B, H, R, d].
          mask: bool [B, 1, R], False for padded regions.
          training: whether dropout is on.

        Returns:
          The words [N, T, D] of the next layer.
        """
        attended = self._mix(self._prepare(y), past, training)
        return self._finish(y, attended, regions, mask, training)

    def empty(self, rows, max_length):
        """Makes the cache of `step` before the first position, for N rows of up to T positions."""
        return self.over_words.empty(rows, max_length)

    def step(self, y, cache, index, regions, mask, training=False):
        """Computes position `index` of `call`: returns the new `y` [N, 1, D] and the new cache."""
        attended, cache = self.over_words.step(self._prepare(y), cache, index, training=training)
        return self._finish(y, attended, regions, mask, training), cache

    @property
    def over_words(self):
        """The layer that mixes the words; it has the methods `empty` and `step`."""
        return self.self_att

    def _prepare(self, y):
        """Returns what `over_words` reads, from the words `y` [N, T, D]."""
        return y

    def _mix(self, x, past, training):
        """Applies `over_words` to all positions of `x` [N, T, D]."""
        return self.over_words(x, x, visible=past, training=training)

    def _finish(self, y, attended, regions, mask, training):
        """Computes what follows the attention to words, whose result is `attended` [N, T, D]."""
        raise NotImplementedError


class _DecoderLayer(DecoderLayer):
    """One decoder layer: attention to the words so far, attention to regions, feed-forward block.

    The arguments are those of `_EncoderLayer`.
    """

    def __init__(self, width, heads, inner, weight_dropout, dropout, **kwargs):
        super().__init__(**kwargs)
        self.self_att = _block("self_att", width, heads, weight_dropout, dropout)
        self.cross_att = _block("cross_att", width, heads, weight_dropout, dropout)
        self.ff_layer = common.FeedForward(width, inner, dropout, EPSILON, name="ff_layer")

    @property
    def over_words(self):
        return self.self_att.attend

    def _finish(self, y, attended, regions, mask, training):
        y = self.self_att.add(y, attended, training)
        keys, values = regions
        y = self.cross_att(y, keys, values, mask, training=training)
        return self.ff_layer(y, training=training)


class TransformerCaptioner(Captioner):
    """Base class of captioners whose decoder is a stack of layers, as in a Transformer.

    This class supplies `decode`, `init_cache` and `step`. A subclass supplies:

    * the method `encode`, whose result is a dictionary. For B images with R regions it has
      `regions`, a list with what each decoder layer reads of the regions; `encoded` [B, R, D], the
      encoded regions; and `mask` bool [B, 1, R], False for padded regions;
    * the methods `words` and `predict`;
    * the attribute `decoder`, a list of layers.

    The cache of `step` is a list with the result of `empty` for each decoder layer: in most systems
    a pair (keys, values), each [N, H, T, d], for N rows (captions) of up to T words and H heads of
    width d.
    """

    decoder: list[DecoderLayer]

    def words(self, tokens, positions, training=False):
        """Returns the embedded words [N, T, D] of word ids `tokens` [N, T] at `positions` [T].

        N is the number of captions, T the number of words of each, and D the model width.
        """
        raise NotImplementedError

    def predict(self, outputs, training=False):
        """Returns logits float32 [N, T, V] from the output [N, T, D] of each decoder layer."""
        raise NotImplementedError

    def decode(self, context, tokens, training=False):
        length = tokens.shape[1] or ops.shape(tokens)[1]
        positions = ops.arange(length)
        past = (positions[:, None] >= positions)[None]  # [1, T', T']
        y = self.words(tokens, positions, training)
        outputs = []
        for layer, regions in zip(self.decoder, context["regions"], strict=True):
            y = layer(y, past, regions, context["mask"], training=training)
            outputs.append(y)
        return self.predict(outputs, training)

    def init_cache(self, context, max_length):
        rows = ops.shape(context["encoded"])[0]
        return [layer.empty(rows, max_length) for layer in self.decoder]

    def step(self, context, cache, tokens, index, training=False):
        y = self.words(tokens[:, None], ops.reshape(index, (1,)), training)
        outputs, caches = [], []
        for layer, regions, old in zip(self.decoder, context["regions"], cache, strict=True):
            y, new = layer.step(y, old, index, regions, context["mask"], training)
            outputs.append(y)
            caches.append(new)
        return self.predict(outputs, training)[:, 0], caches


@register("transformer", small=dict(width=128, encoder_layers=2, decoder_layers=2))
class Transformer(TransformerCaptioner):
    """Transformer with sinusoidal position codes for words and no positions for regions.

    The class follows xmodaler, the later toolkit of X-LAN's authors (docs/systems.md 4.4). Layers
    normalise after they add the residual. A region v is embedded as Dropout(LN(ReLU(Lin(v)))), and
    a word as Dropout(LN(Emb + position code)), without the factor sqrt(D). Lin is an affine map, LN
    a layer normalisation, and Emb the table of words. Padded words are not hidden, because they
    come only after EOS, where nothing is predicted.

    X-LAN's paper compares with a Transformer "as in Sharma et al.", whose code was not released
    (our reading: it is this model).

    Two things differ from xmodaler:

    * Attention logits of padded regions are replaced by -1e9, while xmodaler adds -10000 to them.
    * Regions are encoded once per image, not once per caption.

    `encode` returns a dictionary, for B images with R regions:

    * `regions`: for each decoder layer a pair (keys, values), each [B, H, R, d], d = D / H.
    * `encoded` [B, R, D]: the encoded regions.
    * `mask` bool [B, 1, R]: False for padded regions.

    The cache of `step` is a list with a pair (keys, values) for each decoder layer, each
    [N, H, T, d], for N rows (captions) of up to T words.

    Args:
      *sizes: `vocab_size`, `max_length` and `feature_dim`, F, see `Captioner`.
      width: model width, D.
      heads: number of attention heads, H.
      encoder_layers: number of layers of the encoder.
      decoder_layers: number of layers of the decoder.
      inner_width: inner width of the feed-forward blocks; None means 4 * D.
      word_dropout: dropout rate on the embedded words.
      region_dropout: dropout rate on the embedded regions.
      weight_dropout: dropout rate on all attention weights.
      block_dropout: dropout rate on the output of each block, and inside the feed-forward blocks.
      head_dropout: dropout rate on the output of the last layer, before the logits.
      stored_positions: False: the position codes of words are computed sinusoids. True: they are a
        weight that is saved, but not trained. `tfcap.convert` sets True if a released file holds
        codes that are not these sinusoids.
      **kwargs: `region_positions` and `standardize`, see `Captioner`.

    Example:
      >>> sizes = dict(vocab_size=20, max_length=5, feature_dim=6, width=16)
      >>> model = models.build("transformer", **sizes, encoder_layers=1, decoder_layers=1)
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
        encoder_layers: int = 6,
        decoder_layers: int = 6,
        inner_width: int | None = None,
        word_dropout: float = 0.1,
        region_dropout: float = 0.5,
        weight_dropout: float = 0.1,
        block_dropout: float = 0.1,
        head_dropout: float = 0.5,
        stored_positions: bool = False,
        **kwargs,
    ):
        super().__init__(*sizes, **kwargs)
        self.width = width
        shared: dict[str, Any] = dict(
            width=width,
            heads=heads,
            inner=inner_width or 4 * width,
            weight_dropout=weight_dropout,
            dropout=block_dropout,
        )
        self.encoder = [_EncoderLayer(name=f"encoder_{i}", **shared) for i in range(encoder_layers)]
        self.decoder = [_DecoderLayer(name=f"decoder_{i}", **shared) for i in range(decoder_layers)]
        self.region_embed = common.linear(self.feature_dim, width, "region_embed")
        self.region_norm = common.layer_norm("region_norm")
        self.region_dropout = Dropout(region_dropout, name="region_dropout")
        add_words(self, width, word_dropout, stored_positions)
        self.head_dropout = Dropout(head_dropout, name="head_dropout")
        self.head = common.linear(width, self.vocab_size, "head", dtype="float32")

    def encode(self, inputs, training=False):
        mask = inputs["mask"][:, None]  # [B, 1, R]
        x = self.region_norm(ops.relu(self.region_embed(self.regions(inputs))))
        x = self.region_dropout(x, training=training)
        for layer in self.encoder:
            x = layer(x, mask, training=training)
        return {
            "regions": [layer.cross_att.attend.project(x) for layer in self.decoder],
            "encoded": x,
            "mask": mask,
        }

    def words(self, tokens, positions, training=False):
        """Embeds `tokens` [N, T'] at `positions` [T']: Dropout(LN(Emb + codes)), [N, T', D]."""
        words = self.word_norm(self.embed_tokens(tokens) + self.position_codes(positions))
        return self.word_dropout(words, training=training)

    def predict(self, outputs, training=False):
        return self.head(self.head_dropout(outputs[-1], training=training))
