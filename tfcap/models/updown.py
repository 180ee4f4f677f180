"""Up-Down (Anderson et al., "Bottom-Up and Top-Down Attention for Image Captioning", CVPR 2018).

Letters: B images, N rows of words, R regions, F feature width, T positions, D model width,
A attention width, V vocabulary.
"""

from keras import ops

from tfcap.layers import common
from tfcap.layers.attention import AdditiveAttention
from tfcap.layers.dropout import Dropout
from tfcap.layers.recurrent import LSTMCell
from tfcap.layers.trees import repeat
from tfcap.models.captioner import RecurrentCaptioner, add_embeddings, register


class TopDownCaptioner(RecurrentCaptioner):
    """Base class of captioners that read regions with the two LSTMs of Up-Down.

    h1_t   = LSTM1([h2_{t-1}; mean(x); e_t], h1_{t-1})
    a_t    = attention(h1_t; x)
    h2_t   = LSTM2([a_t; h1_t], h2_{t-1})
    logits = Lin(Dropout(h2_t))

    x are the regions, and e_t is the embedded word of step t. h1_t and h2_t are the outputs of the
    two LSTMs. attention(q; x) is `layers.attention.AdditiveAttention` of a query q over the regions
    x, Lin an affine map, and [a; b] joins two vectors.

    A subclass supplies `embed`, and an `encode` that returns a result of `attended_context`. The
    constructor of the subclass sets the attribute `width`, the width D of the LSTMs, and calls
    `add_decoder`.

    The cache of `step` holds, for N rows (captions), the outputs `h1` and `h2` and the states `c1`
    and `c2` of the two LSTMs, each [N, D].

    Attributes:
      looks_back: whether the query of the attention is [h1_t; a_{t-1}] in place of h1_t. Then the
        cache holds a_{t-1}, too: `attended` [N, X], for regions of width X.
    """

    looks_back = False

    def add_decoder(
        self,
        region_width: int,
        attention_width: int,
        attention_dropout: float = 0.0,
        input_dropout: float = 0.0,
        head_dropout: float = 0.5,
        attention_biases: bool = False,
        mean_width: int | None = None,
    ) -> None:
        """Makes all layers after the embeddings of words and regions, as attributes.

        Args:
          region_width: width of the regions that the attention reads.
          attention_width: width of the additive attention.
          attention_dropout: dropout rate inside the attention, on the result of tanh.
          input_dropout: dropout rate on the input of the second LSTM.
          head_dropout: dropout rate on the output of the second LSTM, before the logits.
          attention_biases: whether all affine maps of the attention have biases. False gives a bias
            only to the map of the keys.
          mean_width: width of the vector that the first LSTM reads, the `mean` of
            `attended_context`; None means `region_width`.
        """
        width = self.output_width = self.width
        self.attended_width = region_width
        self.lstm1 = LSTMCell(width + (mean_width or region_width) + width, width, name="lstm1")
        self.attention = AdditiveAttention(
            region_width,
            width + region_width if self.looks_back else width,
            attention_width,
            biases=attention_biases,
            dropout=attention_dropout,
            name="attention",
        )
        self.lstm2 = LSTMCell(region_width + width, width, name="lstm2")
        self.input_dropout = Dropout(input_dropout, name="input_dropout")
        self.head_dropout = Dropout(head_dropout, name="head_dropout")
        self.head = common.linear(width, self.vocab_size, "head", dtype="float32")

    def attended_context(self, x, mask, mean=None):
        """Makes the result of `encode` from the regions that the attention reads.

        Args:
          x: regions [B, R, X]: R regions of width X for each of B images.
          mask: bool [B, R], False for padding.
          mean: vector of each image that the first LSTM reads, [B, X] or of the `mean_width` of
            `add_decoder`; None means the mean of `x` without padding.

        Returns:
          A dictionary: `mean`; `regions` [B, R, X], which are `x`; `keys` [B, R, A], the
          keys of the attention, of width A; and `mask` bool [B, 1, R].
        """
        return {
            "mean": common.masked_mean(x, mask) if mean is None else mean,
            "regions": x,
            "keys": self.attention.project(x),
            "mask": mask[:, None],
        }

    def init_cache(self, context, max_length):
        mean = context["mean"]
        empty = ops.zeros((ops.shape(mean)[0], self.width), mean.dtype)
        cache = {name: empty for name in ("h1", "c1", "h2", "c2")}
        if self.looks_back:
            cache["attended"] = ops.zeros_like(context["regions"][:, 0])
        return cache

    def recur(self, context, cache, words, training=False):
        mean = context["mean"]
        mean = repeat(mean, ops.shape(words)[0] // ops.shape(mean)[0])
        inputs = ops.concatenate([cache["h2"], mean, words], axis=-1)
        h1, c1 = self.lstm1(inputs, cache["h1"], cache["c1"])
        query = ops.concatenate([h1, cache["attended"]], axis=-1) if self.looks_back else h1
        attended = self.attention(
            query, context["keys"], context["regions"], context["mask"], training=training
        )
        inputs = self.input_dropout(ops.concatenate([attended, h1], axis=-1), training=training)
        h2, c2 = self.lstm2(inputs, cache["h2"], cache["c2"])
        cache = {"h1": h1, "c1": c1, "h2": h2, "c2": c2}
        return h2, cache | ({"attended": attended} if self.looks_back else {})


@register("updown", small=dict(width=128, attention_width=64))
class UpDown(TopDownCaptioner):
    """Two LSTMs with additive attention between them.

    The base class `TopDownCaptioner` has the equations. The paper is Anderson et al., "Bottom-Up
    and Top-Down Attention for Image Captioning", CVPR 2018. The options choose between three
    implementations:

    * The defaults follow xmodaler, the later toolkit of X-LAN's authors (docs/systems.md 4.2):
      regions and words are embedded with ReLU and dropout, and padded regions are not read.
    * `embed_mean=True` and `width=1000` follow ImageCaptioning.pytorch.
    * `embed_regions=False`, `embed_activation=none` and `width=1000` follow the code of X-LAN
      (docs/systems.md 4.1). One thing differs: that code reads padded regions, too.

    `encode` returns a dictionary, for B images with R regions: `mean` [B, X]; `regions` [B, R, X];
    `keys` [B, R, A], the keys of the attention; and `mask` bool [B, 1, R], False for padded
    regions. X is the width of the regions that the attention reads: D, or F if `embed_regions` is
    False. The cache of `step` holds, for N rows (captions), the outputs `h1` and `h2` and the
    states `c1` and `c2` of the two LSTMs, each [N, D].

    Args:
      *sizes: `vocab_size`, `max_length` and `feature_dim`, F, see `Captioner`.
      width: width of embedded words and regions and of the LSTMs, D; 1000 in X-LAN's code.
      attention_width: width of the additive attention, A.
      embed_regions: whether regions are embedded. False: the attention reads the raw features.
      embed_activation: activation of embedded words and regions: `relu`, `celu` or `none`.
      embed_mean: True: the mean of the raw features is embedded by a separate map for the first
        LSTM, and all maps of the attention have biases, as in ImageCaptioning.pytorch. False: the
        first LSTM reads the mean of the regions that the attention reads.
      word_dropout: dropout rate on the embedded words.
      region_dropout: dropout rate on the embedded regions and on their embedded mean; not used if
        `embed_regions` is False.
      head_dropout: dropout rate on the output of the second LSTM, before the logits.
      **kwargs: `region_positions` and `standardize`, see `Captioner`.

    Raises:
      ValueError: `embed_mean` is True, but `embed_regions` is False.

    Example:
      >>> sizes = dict(vocab_size=20, max_length=5, feature_dim=6)
      >>> model = models.build("updown", **sizes, width=8, attention_width=6)
      >>> inputs = {"features": tf.ones((2, 4, 6)), "mask": tf.ones((2, 4), tf.bool)}
      >>> model.decode(model.encode(inputs), tokens=tf.ones((2, 3), tf.int32)).shape
      TensorShape([2, 3, 20])
    """

    reads_order = True

    def __init__(
        self,
        *sizes: int,
        width: int = 1024,
        attention_width: int = 512,
        embed_regions: bool = True,
        embed_activation: str = "relu",
        embed_mean: bool = False,
        word_dropout: float = 0.5,
        region_dropout: float = 0.5,
        head_dropout: float = 0.5,
        **kwargs,
    ):
        super().__init__(*sizes, **kwargs)
        self.width = width
        self.act = common.activation(embed_activation)
        add_embeddings(self, width, word_dropout, region_dropout, regions=embed_regions)
        region_width = width if embed_regions else self.feature_dim
        self.add_decoder(
            region_width, attention_width, head_dropout=head_dropout, attention_biases=embed_mean
        )
        self.mean_embed = None
        if embed_mean:
            if not embed_regions:
                raise ValueError(
                    "`embed_mean` needs embedded regions: set `embed_regions` to true, or "
                    "`embed_mean` to false."
                )
            self.mean_embed = common.linear(self.feature_dim, width, "mean_embed")
            self.mean_dropout = Dropout(region_dropout, name="mean_dropout")

    def encode(self, inputs, training=False):
        x = ops.cast(self.regions(inputs), self.compute_dtype)
        mean = None
        if self.mean_embed is not None:
            mean = self.act(self.mean_embed(common.masked_mean(x, inputs["mask"])))
            mean = self.mean_dropout(mean, training=training)
        if self.region_embed is not None:
            x = self.region_dropout(self.act(self.region_embed(x)), training=training)
        return self.attended_context(x, inputs["mask"], mean)

    def embed(self, tokens, training=False):
        return self.word_dropout(self.act(self.embed_tokens(tokens)), training=training)
