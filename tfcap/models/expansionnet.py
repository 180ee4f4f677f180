"""ExpansionNet (Hu et al., 2022: "ExpansionNet: exploring the sequence length bottleneck in the
Transformer for Image Captioning"), the rows of its ablation table and its baselines.

Letters: B images, N rows of words, R regions, F feature width, T positions, E expansion vectors,
D model width, H heads, d = D / H, L decoder layers, V vocabulary.

The released code defines the final model (docs/systems.md 5.4 and 5.5). Three things differ from
it, none changes a number that is used: regions are encoded once per image instead of once per
caption (with dropout on, the captions of an image then share the encoder's masks); padded words are
not hidden, since only the outputs at padding could see them; and a step of decoding computes one
position instead of the whole prefix.

`[GUESS]`, as no code was released for them: the wiring of the ablations without the projections
over all layers, of the dynamic encoder and of both baselines (docs/systems.md 5.7).
"""

from keras import layers, ops

from tfcap.layers import common
from tfcap.layers.attention import MultiHeadAttention
from tfcap.layers.expansion import DynamicExpansion, StaticExpansion, glorot, linear
from tfcap.models.captioner import Captioner, put
from tfcap.models.registry import register

ENCODER_BLOCKS = ("static", "dynamic", "attention", "aoa")
DECODER_BLOCKS = ("dynamic", "attention", "aoa")


class AttentionOnAttention(MultiHeadAttention):
    """GLU(Lin(Drop([attended; query]))) in place of the last affine map of multi-head attention.

    Huang et al., "Attention on Attention for Image Captioning", ICCV 2019.

    Args:
      width: D.
      heads: H.
      dropout: on what is attended and the query together; 0.3.
    """

    def __init__(self, width: int, heads: int, dropout: float, **kwargs):
        super().__init__(width, heads, output=False, **kwargs)
        self.aoa = common.linear(2 * width, 2 * width, "aoa")
        self.aoa_dropout = layers.Dropout(dropout, name="aoa_dropout")

    def call(self, query, keys, values, visible=None, training=False):
        """See base class; always [N, T, D]."""
        attended = super().call(query, keys, values, visible, training)
        both = ops.concatenate([attended, query], axis=-1)
        return common.gated(self.aoa(self.aoa_dropout(both, training=training)))


class FeedForward(layers.Layer):
    """Lin(Drop(ReLU(Lin x))); normalisation and residual are outside of it."""

    def __init__(self, width: int, inner: int, dropout: float, **kwargs):
        super().__init__(**kwargs)
        self.fc1 = linear(width, inner, "fc1")
        self.fc2 = linear(inner, width, "fc2")
        self.inner_dropout = layers.Dropout(dropout, name="inner_dropout")

    def call(self, x, training=False):
        return self.fc2(self.inner_dropout(ops.relu(self.fc1(x)), training=training))


class PreNormLayer(layers.Layer):
    """What layers of encoder and decoder share: x + Drop(block(LN x)), and the feed-forward.

    Args:
      block: what mixes positions: `static`, `dynamic`, `attention` or `aoa`.
      width: D.
      heads: H, of attention.
      inner: inner width of the feed-forward; there is none with `aoa`.
      vectors: E, of an expansion.
      dropout: everywhere.
      over: what the positions are, `regions` or `words`.
    """

    def __init__(self, block, width, heads, inner, vectors, dropout, over="regions", **kwargs):
        super().__init__(**kwargs)
        self.block = block
        if block in ("static", "dynamic"):
            expansion = StaticExpansion if block == "static" else DynamicExpansion
            self.expansion = expansion(width, vectors, dropout, over=over, name="expansion")
        else:
            self.self_mha = _attention(block, width, heads, dropout, "self_mha", over)
        self.norm_1 = common.layer_norm("norm_1")
        self.block_dropout = layers.Dropout(dropout, name="block_dropout")
        self.ff = None
        if block != "aoa":
            self.ff = FeedForward(width, inner, dropout, name="ff")
            self.ff_dropout = layers.Dropout(dropout, name="ff_dropout")

    def _mix(self, x, visible, training):
        """The block on normalised positions [N, T, D]; `visible` bool [., T, T] or [., 1, T]."""
        if self.block in ("static", "dynamic"):
            return self.expansion(x, visible, training=training)
        keys = self.self_mha.project(x)
        return self.self_mha(x, *keys, visible=visible, training=training)

    def _feed_forward(self, x, norm, training):
        if self.ff is None:
            return x
        return x + self.ff_dropout(self.ff(norm(x), training=training), training=training)


class EncoderLayer(PreNormLayer):
    """Regions, one layer on."""

    def __init__(self, block, width, **sizes):
        super().__init__(block, width, **sizes)
        self.norm_2 = common.layer_norm("norm_2") if self.ff else None

    def call(self, x, visible, training=False):
        """`x` [B, R, D] and `visible` bool [B, 1, R] -> [B, R, D]."""
        if self.block == "dynamic":  # hidden regions neither read nor are read
            visible = visible & ops.swapaxes(visible, -1, -2)
        mixed = self._mix(self.norm_1(x), visible, training)
        x = x + self.block_dropout(mixed, training=training)
        return self._feed_forward(x, self.norm_2, training)


class DecoderLayer(PreNormLayer):
    """Words, one layer on; between block and feed-forward they attend to the regions."""

    def __init__(self, block, width, heads, dropout, **sizes):
        super().__init__(block, width, heads=heads, dropout=dropout, over="words", **sizes)
        self.norm_2 = common.layer_norm("norm_2")
        self.mha = _attention(block, width, heads, dropout, "mha")
        self.mha_dropout = layers.Dropout(dropout, name="mha_dropout")
        self.norm_3 = common.layer_norm("norm_3") if self.ff else None

    def call(self, y, visible, regions, mask, training=False):
        """All positions of N rows.

        Args:
          y: [N, T, D].
          visible: bool [1, T, T], True where a position may read another.
          regions: keys and values [B, H, R, d] of `mha.project`.
          mask: bool [B, 1, R].
          training: switches dropout on.

        Returns:
          [N, T, D].
        """
        mixed = self._mix(self.norm_1(y), visible, training)
        return self._finish(y, mixed, regions, mask, training)

    def empty(self, rows, max_length):
        """The cache of no position."""
        if self.block == "dynamic":
            return self.expansion.empty(rows, max_length)
        heads = self.self_mha.heads
        shape = (rows, heads, max_length, self.self_mha.width // heads)
        return {name: ops.zeros(shape, self.compute_dtype) for name in ("key", "value")}

    def step(self, y, cache, index, regions, mask, training=False):
        """One position: `y` [N, 1, D] -> [N, 1, D] and the new cache."""
        x = self.norm_1(y)
        if self.block == "dynamic":
            mixed, cache = self.expansion.step(x, cache, index, put, training)
        else:
            new = self.self_mha.project(x)
            keys = [put(cache[k], n, index, axis=2) for k, n in zip(cache, new, strict=True)]
            past = (ops.arange(keys[0].shape[2]) <= index)[None, None]  # [1, 1, T]
            mixed = self.self_mha(x, *keys, visible=past, training=training)
            cache = dict(zip(cache, keys, strict=True))
        return self._finish(y, mixed, regions, mask, training), cache

    def _finish(self, y, mixed, regions, mask, training):
        y = y + self.block_dropout(mixed, training=training)
        seen = self.mha(self.norm_2(y), *regions, visible=mask, training=training)
        y = y + self.mha_dropout(seen, training=training)
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
class ExpansionNet(Captioner):
    """Encoder and decoder of expansions, with attention from words to regions only.

    Context: `regions`, keys and values [B, H, R, d] for each decoder layer; `encoded` [B, R, D],
    the regions themselves, which decoding does not read; and the `mask` [B, 1, R]. Cache, for each
    layer: keys and values [N, H, T, d] of attention; of a dynamic expansion `key`, `class_a`,
    `class_b` and `cond` [N, T, D], the scores `asked` [N, T, E], and `expanded_a` and `expanded_b`
    [N, T, E, T]: not the expanded vectors, but their coefficients over the positions.

    Args:
      *sizes: V, T and F, as of `Captioner`; F is 2048 in the paper.
      width: D; 768 in the final model, 512 in the paper's ablations and baselines.
      heads: H; 8, of attention only.
      encoder_layers: 3; 6 in the baseline with attention.
      decoder_layers: 3; 6 in the baseline with attention.
      inner_width: of the feed-forward blocks; 2048.
      encoder_block: `static`, or `dynamic` (each region reads all), `attention` (with the same in
        the decoder the Transformer baseline) or `aoa`, attention on attention without feed-forward.
      encoder_vectors: E in the encoder; 64.
      decoder_block: `dynamic`, `attention` or `aoa`, the latter for attention to regions as well.
      decoder_vectors: E in the decoder; 16.
      reduce: whether both stacks end with an affine map of all their layers' outputs together.
      positions: how many positions have a learned vector; 74, more than are used.
      region_dropout: on the embedded regions.
      word_dropout: on the embedded words, before sqrt(D) and positions.
      block_dropout: inside and after every block.
      reduce_dropout: on the affine maps of all layers.

    Raises:
      ValueError: for an unknown block, no layer, heads that do not divide the width, or a
        `max_length` above `positions`.
    """

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
        _check(encoder_block, decoder_block, min(encoder_layers, decoder_layers))
        if self.max_length > positions:
            raise ValueError(
                f"positions must be at least max_length ({self.max_length}). Received: {positions}"
            )
        self.width, self.reduce = width, reduce
        self.region_embed = linear(self.feature_dim, width, "region_embed")
        self.region_dropout = layers.Dropout(region_dropout, name="region_dropout")
        self.embed_tokens = _table(self.vocab_size, width, "embed_tokens")
        self.embed_positions = _table(positions, width, "embed_positions")
        self.word_dropout = layers.Dropout(word_dropout, name="word_dropout")
        sizes = dict(width=width, heads=heads, inner=inner_width, dropout=block_dropout)
        encoder = dict(block=encoder_block, vectors=encoder_vectors, **sizes)
        decoder = dict(block=decoder_block, vectors=decoder_vectors, **sizes)
        self.encoder = [EncoderLayer(name=f"encoder_{i}", **encoder) for i in range(encoder_layers)]
        self.decoder = [DecoderLayer(name=f"decoder_{i}", **decoder) for i in range(decoder_layers)]
        self.encoder_norm = common.layer_norm("encoder_norm")
        self.decoder_norm = common.layer_norm("decoder_norm")
        if reduce:
            self.encoder_proj = linear(encoder_layers * width, width, "encoder_proj")
            self.decoder_proj = linear(decoder_layers * width, width, "decoder_proj")
            self.encoder_dropout = layers.Dropout(reduce_dropout, name="encoder_dropout")
            self.decoder_dropout = layers.Dropout(reduce_dropout, name="decoder_dropout")
        self.head = linear(width, self.vocab_size, "head", dtype="float32")

    def encode(self, inputs, training=False):
        """See base class."""
        mask = inputs["mask"][:, None]  # [B, 1, R]
        x = self.region_dropout(self.region_embed(inputs["features"]), training=training)
        every = []
        for layer in self.encoder:
            x = layer(x, mask, training=training)
            every.append(x)
        encoded = self._reduce("encoder", every, training)
        regions = [layer.mha.project(encoded) for layer in self.decoder]
        return {"regions": regions, "encoded": encoded, "mask": mask}

    def decode(self, context, tokens, training=False):
        """See base class."""
        places = ops.arange(ops.shape(tokens)[1])
        past = (places[None] <= places[:, None])[None]  # [1, T', T']
        y, every = self._words(tokens, places, training), []
        for layer, regions in zip(self.decoder, context["regions"], strict=True):
            y = layer(y, past, regions, context["mask"], training=training)
            every.append(y)
        return self.head(self._reduce("decoder", every, training))  # [N, T', V]

    def init_cache(self, context, max_length):
        """See base class."""
        rows = ops.shape(context["encoded"])[0]
        return [layer.empty(rows, max_length) for layer in self.decoder]

    def step(self, context, cache, tokens, index, training=False):
        """See base class."""
        y = self._words(tokens[:, None], ops.reshape(index, (1,)), training)
        every, caches = [], []
        for layer, regions, old in zip(self.decoder, context["regions"], cache, strict=True):
            y, new = layer.step(y, old, index, regions, context["mask"], training)
            every.append(y)
            caches.append(new)
        return self.head(self._reduce("decoder", every, training))[:, 0], caches

    def _words(self, tokens, places, training):
        """[N, T, D] of `tokens` [N, T] at `places` [T]: sqrt(D) Drop(Emb) + Pos."""
        words = self.word_dropout(self.embed_tokens(tokens), training=training)
        return words * self.width**0.5 + self.embed_positions(places)

    def _reduce(self, stack, every, training):
        """LN(x_L + Drop(Lin([x_1; ...; x_L]))), or LN(x_L)."""
        x = every[-1]
        if self.reduce:
            update = getattr(self, f"{stack}_proj")(ops.concatenate(every, axis=-1))
            x = x + getattr(self, f"{stack}_dropout")(update, training=training)
        return getattr(self, f"{stack}_norm")(x)


def _attention(block, width, heads, dropout, name, over="regions"):
    if block == "aoa":
        return glorot(AttentionOnAttention(width, heads, dropout, over=over, name=name))
    return glorot(MultiHeadAttention(width, heads, over=over, name=name))


def _table(size, width, name):
    return layers.Embedding(size, width, embeddings_initializer="glorot_uniform", name=name)


def _check(encoder_block, decoder_block, fewest):
    for key, value, known in (
        ("encoder_block", encoder_block, ENCODER_BLOCKS),
        ("decoder_block", decoder_block, DECODER_BLOCKS),
    ):
        if value not in known:
            raise ValueError(f"{key} must be one of {', '.join(known)}. Received: {value!r}")
    if fewest < 1:
        raise ValueError(
            f"encoder_layers and decoder_layers must be at least 1. The smaller is: {fewest}"
        )
