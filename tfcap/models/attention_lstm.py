"""An LSTM with soft attention (Xu et al., "Show, Attend and Tell", ICML 2015), simplified.

Letters: B images, N rows of words, R regions, F feature width, T positions, D model width,
A attention width, V vocabulary.
"""

from keras import layers, ops

from tfcap.layers import common
from tfcap.layers.attention import AdditiveAttention
from tfcap.layers.dropout import Dropout
from tfcap.layers.recurrent import LSTMCell
from tfcap.models.captioner import RecurrentCaptioner, add_embeddings, register


@register("attention_lstm", small=dict(width=128, attention_width=64))
class AttentionLSTM(RecurrentCaptioner):
    """One LSTM with additive attention; the query is the previous output of the LSTM.

    v_t    = attention(h_{t-1}; x)
    h_t    = LSTM([e_t; v_t], h_{t-1})
    logits = Lin(Dropout(h_t))

    v_t are the attended regions of step t: `layers.attention.AdditiveAttention` over the regions x,
    with the query h_{t-1}. h_t is the output of the LSTM, Lin an affine map, and [a; b] joins two
    vectors. Words e_t and regions x are embedded with ReLU and dropout. Padded regions are not
    read.

    The class follows the model SALSTM of xmodaler, the later toolkit of X-LAN's authors
    (docs/systems.md 4.3). That model differs from the paper, "Show, Attend and Tell" (2015): the
    state of the LSTM starts from zeros, v_t has no gate, and the logits are computed from h_t
    alone.

    `encode` returns, for B images with R regions, the embedded `regions` [B, R, D]; their `keys`
    [B, R, A]; and `mask` bool [B, 1, R], False for padded regions. The cache of `step` holds the
    output `h` and the state `c` of the LSTM, each [N, D], for N rows (captions).

    Args:
      *sizes: `vocab_size`, `max_length` and `feature_dim`, F, see `Captioner`.
      width: width of embedded words and regions and of the LSTM, D.
      attention_width: width of the additive attention, A.
      embed_activation: activation of embedded words and regions: `relu`, `celu` or `none`.
      word_dropout: dropout rate on the embedded words.
      region_dropout: dropout rate on the embedded regions.
      head_dropout: dropout rate on the output of the LSTM, before the logits.
      **kwargs: `region_positions` and `standardize`, see `Captioner`.

    Example:
      >>> sizes = dict(vocab_size=20, max_length=5, feature_dim=6)
      >>> model = models.build("attention_lstm", **sizes, width=8, attention_width=6)
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
        embed_activation: str = "relu",
        word_dropout: float = 0.5,
        region_dropout: float = 0.5,
        head_dropout: float = 0.5,
        **kwargs,
    ):
        super().__init__(*sizes, **kwargs)
        self.width = self.output_width = width
        self.act = common.activation(embed_activation)
        add_embeddings(self, width, word_dropout, region_dropout)
        self.add_cell(attention_width)
        self.head_dropout = Dropout(head_dropout, name="head_dropout")
        self.head = common.linear(width, self.vocab_size, "head", dtype="float32")

    def add_cell(self, attention_width: int) -> None:
        """Makes the attention and the recurrent cell, the attributes `attention` and `lstm`.

        A subclass with another cell overrides this method.

        Args:
          attention_width: width of the additive attention.
        """
        width = self.width
        self.attention = AdditiveAttention(width, width, attention_width, name="attention")
        self.lstm: layers.Layer = LSTMCell(2 * width, width, name="lstm")

    def encode(self, inputs, training=False):
        x = self.act(self.region_embed(self.regions(inputs)))
        x = self.region_dropout(x, training=training)
        return {"regions": x, "keys": self.attention.project(x), "mask": inputs["mask"][:, None]}

    def init_cache(self, context, max_length):
        regions = context["regions"]
        empty = ops.zeros((ops.shape(regions)[0], self.width), regions.dtype)
        return {"h": empty, "c": empty}

    def embed(self, tokens, training=False):
        return self.word_dropout(self.act(self.embed_tokens(tokens)), training=training)

    def recur(self, context, cache, words, training=False):
        attended = self.attention(cache["h"], context["keys"], context["regions"], context["mask"])
        h, c = self.lstm(ops.concatenate([words, attended], axis=-1), cache["h"], cache["c"])
        return h, {"h": h, "c": c}
