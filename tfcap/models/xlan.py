"""X-LAN (Pan et al., "X-Linear Attention Networks for Image Captioning", CVPR 2020).

Letters: B images, N rows of words, G = N / B rows of one image, R regions, F feature width,
T positions, D model width, H heads, d = D / H, V vocabulary.
"""

import dataclasses
import functools
from typing import Any

from keras import ops

from tfcap.layers import common
from tfcap.layers.attention import AdditiveAttention
from tfcap.layers.dropout import Dropout
from tfcap.layers.recurrent import LSTMCell
from tfcap.layers.trees import repeat
from tfcap.layers.xlinear import XLinearAttention, XLinearEncoderLayer
from tfcap.models.captioner import RecurrentCaptioner, register


@dataclasses.dataclass(frozen=True)
class _Flavour:
    """Choices in which the text of the paper and the released code differ (docs/systems.md 2.4).

    Attributes:
      one_head: whether X-Linear attention has one head of width D, instead of `heads` heads.
      normalizes: whether the projections of X-Linear attention are normalised, and the global
        feature (equation 10).
      separate: whether keys and values of the encoder have separate updates (equation 8).
      adds_context: whether the LSTM reads [e_t; g + c_{t-1}] instead of [e_t; g; c_{t-1}].
      joins_state: whether a_t is LN(Lin [h_t; XLinear(h_t; x)]) instead of XLinear(h_t; x).
    """

    one_head: bool
    normalizes: bool
    separate: bool
    adds_context: bool
    joins_state: bool


FLAVOURS = {
    "released": _Flavour(
        one_head=False, normalizes=True, separate=False, adds_context=True, joins_state=True
    ),
    "paper": _Flavour(
        one_head=True, normalizes=False, separate=True, adds_context=False, joins_state=False
    ),
}


@register("xlan", small=dict(width=128, encoder_layers=2))
class XLAN(RecurrentCaptioner):
    """LSTM decoder with X-Linear attention to regions; X-Linear layers encode the regions.

    g, x   = Encoder(v)                                       equations 7, 8 and 10
    h_t    = LSTM([e_t; g + Dropout(ctx_{t-1})], h_{t-1})
    a_t    = LN(Lin([h_t; XLinear(h_t; x)]))
    ctx_t  = GLU(Lin([a_t; h_t]))
    logits = Lin(Dropout(ctx_t))

    The paper (Pan et al., CVPR 2020) numbers the equations of the encoder, but not those of the
    decoder. The symbols are:

    * v: the embedded regions; x: the encoded regions; g: the global feature of the image.
    * e_t: the embedded word of step t; h_t: the output of the LSTM; a_t: the attended feature;
      ctx_t: the context vector.
    * XLinear(q; x): X-Linear attention of a query q over the regions x. Its equations are at
      `layers.xlinear.XLinearAttention`.
    * LN: layer normalisation; Lin: an affine map, a different one at each place; GLU: a gated
      linear unit; [a; b]: two vectors joined.

    The encoder is a stack of L layers, whose equations are at `layers.xlinear.XLinearEncoderLayer`.
    Its global feature is g = LN(Lin([g_0; ...; g_L])), where g_0 is the mean of v, and g_l is the
    global feature after layer l.

    `flavour=released` is the authors' code, which gave the published numbers. `flavour=paper`
    follows the text of the paper where text and code differ (docs/systems.md 2.4):

    * X-Linear attention has one head of width D: the option `heads` is ignored. The default of
      `middle_width` is then D / 2; another value of `middle_width` is used as it is.
    * The projections of X-Linear attention have no group normalisation, and g has no layer
      normalisation (equation 10).
    * In each encoder layer, keys and values have separate updates (equation 8). The decoder
      computes both its keys and its values from the values of the last encoder layer (sections
      3.3.2 and 3.3.3).
    * The input of the LSTM is [e_t; g; Dropout(ctx_{t-1})].
    * The attended feature is a_t = XLinear(h_t; x).

    Because `flavour=paper` does not normalise, features in the hundreds overflow float16. Use
    bfloat16 or float32.

    The options `encoder_layers` (0 to 4), `attention` and `activation` give the rows of the paper's
    table 3 (ablations). No code was released for the first row, conventional attention (our
    reading: there are no encoder layers, so g = LN(Lin(g_0)), and a_t is additive attention over
    v).

    Two things differ from the released code:

    * Regions are always encoded once per image, also in self-critical training.
    * Dropout is applied to ctx_t before the logits whenever `training` is True. The released code
      leaves out this dropout when it samples captions in training. To sample as the released code
      does, set `head_dropout` to 0.

    `encode` returns a dictionary, for B images with R regions:

    * `global` [B, D]: the global feature g.
    * `regions` [B, R, D]: the encoded regions x.
    * `keys`: for each decoder layer a pair (keys, values), each [B, H, R, d], d = D / H. With
      `attention=additive`, a list with one tensor instead: the projected keys [B, R, A].
    * `mask` bool [B, 1, R]: False for padded regions.

    The cache of `step` is a dictionary, for N rows (captions): the output `h` and the state `c` of
    the LSTM, and `context`, which is ctx_t, each [N, D].

    Args:
      *sizes: `vocab_size`, `max_length` and `feature_dim`, F, see `Captioner`; F is 2048 in the
        paper.
      width: model width, D; 1024 in the paper.
      heads: number of heads of X-Linear attention, H; not used by `flavour=paper`, where H is 1.
      encoder_layers: number of layers of the encoder; with 0 the global feature is computed from
        the mean of the regions alone.
      decoder_layers: number of X-Linear layers in the decoder's attention; not used by
        `attention=additive`.
      middle_width: width of the result of the joint map inside X-Linear attention (its equations
        are at `layers.xlinear.XLinearAttention`); None means half the width of a head.
      attention: attention of the decoder: `xlinear`; or `additive`, conventional additive attention
        in place of XLinear.
      attention_width: width of additive attention, A; not used by `xlinear`.
      activation: activation of the X-Linear projections, `celu` or `relu`.
      embed_activation: activation of embedded words and regions: `celu` in the released code,
        `relu` in the authors' later toolkit (docs/systems.md 4.5), or `none`.
      flavour: what the system follows: `released`, the authors' code, or `paper`, the text of the
        paper.
      word_dropout: dropout rate on the embedded words.
      region_dropout: dropout rate on the embedded regions.
      middle_dropout: dropout rate on the result of the joint map inside X-Linear attention.
      encoder_dropout: dropout rate on the output of the encoder's X-Linear attention.
      decoder_dropout: dropout rate on the output of the decoder's attention.
      bifeat_dropout: dropout rate on the update of the regions in each layer of the encoder.
      context_dropout: dropout rate on the context vector ctx_{t-1} of the previous step, where the
        LSTM reads it.
      head_dropout: dropout rate on the context vector ctx_t, before the logits.
      **kwargs: `region_positions` and `standardize`, see `Captioner`.

    Example:
      >>> sizes = dict(vocab_size=20, max_length=5, feature_dim=6)
      >>> model = models.build("xlan", **sizes, width=8, heads=2, encoder_layers=1)
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
        encoder_layers: int = 4,
        decoder_layers: int = 1,
        middle_width: int | None = None,
        attention: str = "xlinear",
        attention_width: int = 512,
        activation: str = "celu",
        embed_activation: str = "celu",
        flavour: str = "released",
        word_dropout: float = 0.5,
        region_dropout: float = 0.5,
        middle_dropout: float = 0.1,
        encoder_dropout: float = 0.5,
        decoder_dropout: float = 0.5,
        bifeat_dropout: float = 0.3,
        context_dropout: float = 0.5,
        head_dropout: float = 0.5,
        **kwargs,
    ):
        super().__init__(*sizes, **kwargs)
        common.check_choice("attention", attention, ("xlinear", "additive"))
        common.check_choice("flavour", flavour, FLAVOURS)
        self.width = self.output_width = width
        self.flavour = FLAVOURS[flavour]
        self.act = common.activation(embed_activation)
        xlinear = functools.partial(
            XLinearAttention,
            width,
            1 if self.flavour.one_head else heads,
            middle=middle_width,
            activation=activation,
            middle_dropout=middle_dropout,
            normalize=self.flavour.normalizes,
        )
        # The encoder.
        self.region_embed = common.linear(self.feature_dim, width, "region_embed")
        self.region_dropout = Dropout(region_dropout, name="region_dropout")
        self._add_encoder(xlinear, encoder_layers, encoder_dropout, bifeat_dropout)

        # What the LSTM of the decoder reads.
        self.embed_tokens = common.embedding(self.vocab_size, width, "embed_tokens")
        self.word_dropout = Dropout(word_dropout, name="word_dropout")
        self.context_dropout = Dropout(context_dropout, name="context_dropout")
        inputs = 2 if self.flavour.adds_context else 3
        self.lstm = LSTMCell(inputs * width, width, name="lstm")

        # The attention of the decoder.
        self.is_additive = attention == "additive"
        if self.is_additive:
            self.attention: Any = AdditiveAttention(width, width, attention_width, name="attention")
            self.attention_proj = None
        else:
            self._add_xlinear(xlinear, decoder_layers)
        self.attention_dropout = Dropout(decoder_dropout, name="attention_dropout")

        # From the attended regions to the logits.
        self.att2ctx = common.linear(2 * width, 2 * width, "att2ctx")
        self.head_dropout = Dropout(head_dropout, name="head_dropout")
        self.head = common.linear(width, self.vocab_size, "head", dtype="float32")

    def _add_encoder(self, xlinear, layers, dropout, bifeat_dropout):
        """Adds the layers of the encoder, and those that join the global features of all layers.

        `xlinear` makes X-Linear attention, given its `name`; `layers` is the number of layers.
        """
        width = self.width
        self.encoder = [
            XLinearEncoderLayer(
                width,
                xlinear,
                dropout,
                bifeat_dropout,
                separate=self.flavour.separate,
                last=i == layers - 1,
                name=f"encoder_{i}",
            )
            for i in range(layers)
        ]
        self.encoder_proj = common.linear(width * (layers + 1), width, "encoder_proj")
        self.encoder_norm = None
        if self.flavour.normalizes:
            self.encoder_norm = common.layer_norm("encoder_norm")

    def _add_xlinear(self, xlinear, layers):
        """Adds the X-Linear attention of the decoder; arguments as in `_add_encoder`."""
        self.attention = [xlinear(name=f"attention_{i}") for i in range(layers)]
        self.attention_proj = None
        if self.flavour.joins_state:
            joined = self.width * (layers + 1)
            self.attention_proj = common.linear(joined, self.width, "attention_proj")
            self.attention_norm = common.layer_norm("attention_norm")

    def encode(self, inputs, training=False):
        mask = inputs["mask"][:, None]  # [B, 1, R]
        x = self.act(self.region_embed(self.regions(inputs)))
        keys = values = self.region_dropout(x, training=training)
        g = common.masked_mean(keys, inputs["mask"])
        features = [g]
        for layer in self.encoder:
            g, keys, values = layer(g, keys, values, mask, training=training)
            features.append(g)
        g = self.encoder_proj(ops.concatenate(features, axis=-1))
        if self.encoder_norm is not None:
            g = self.encoder_norm(g)
        # The keys of the decoder are projected values: in the released code both are one tensor.
        readers = [self.attention] if self.is_additive else self.attention
        projected = [layer.project(values) for layer in readers]
        return {"global": g, "regions": values, "keys": projected, "mask": mask}

    def init_cache(self, context, max_length):
        empty = ops.zeros_like(context["global"])
        return {"h": empty, "c": empty, "context": empty}

    def embed(self, tokens, training=False):
        return self.word_dropout(self.act(self.embed_tokens(tokens)), training=training)

    def recur(self, context, cache, words, training=False):
        g = context["global"]
        g = repeat(g, ops.shape(words)[0] // ops.shape(g)[0])
        last = self.context_dropout(cache["context"], training=training)
        image = [g + last] if self.flavour.adds_context else [g, last]
        h, c = self.lstm(ops.concatenate([words, *image], axis=-1), cache["h"], cache["c"])
        attended = self._attend(context, h, training)
        new = common.gated(self.att2ctx(ops.concatenate([attended, h], axis=-1)))
        return new, {"h": h, "c": c, "context": new}

    def _attend(self, context, h, training):
        """Computes a_t [N, D], the regions attended with the state `h` [N, D] as query."""
        mask = context["mask"]
        if self.is_additive:
            attended = self.attention(h, context["keys"][0], context["regions"], mask)
            return self.attention_dropout(attended, training=training)
        queries = [h]
        for layer, (keys, values) in zip(self.attention, context["keys"], strict=True):
            attended = layer(queries[-1], keys, values, visible=mask, training=training)
            queries.append(self.attention_dropout(attended, training=training))
        if self.attention_proj is None:
            return queries[-1]
        return self.attention_norm(self.attention_proj(ops.concatenate(queries, axis=-1)))
