"""Att2in and Att2all (Rennie et al., "Self-critical Sequence Training", CVPR 2017).

Letters: B images, N rows of words, R regions, D model width, A attention width.
"""

from tfcap.layers import common
from tfcap.layers.attention import AdditiveAttention
from tfcap.layers.recurrent import MaxoutLSTMCell
from tfcap.models.attention_lstm import AttentionLSTM
from tfcap.models.captioner import register

ATTEND = {"in": 2, "all": 5}  # sums of the cell that read the attended regions, in units of D


@register("att2in", small=dict(width=128, attention_width=64))
class Att2in(AttentionLSTM):
    """An LSTM with maxout candidates that reads the attended regions through a separate map.

    v_t    = attention(h_{t-1}; x)
    h_t    = MaxoutLSTM(e_t, h_{t-1}, W_v v_t)
    logits = Lin(Dropout(h_t))

    v_t are the attended regions of step t: `layers.attention.AdditiveAttention` over the regions x,
    with the query h_{t-1}. h_t is the output of MaxoutLSTM, `layers.recurrent.MaxoutLSTMCell`,
    whose new content is the maximum of two candidates. W_v and Lin are affine maps. In Att2in,
    W_v v_t is added to the two candidates of the cell; in Att2all, it is added to the gates, too.
    Words e_t and regions x are embedded with ReLU and dropout.

    The class follows the models `att2in2` and `att2all2` of ImageCaptioning.pytorch
    (docs/systems.md 4.9). The paper (Rennie et al., CVPR 2017) embeds without ReLU, attends to the
    grid of a ResNet-101, and trains the ResNet together with Att2in. Its code was not released.

    `encode` returns, for B images with R regions of width D (the option `width`), `regions`
    [B, R, D]; `keys` [B, R, A], where A is the `attention_width`; and `mask` bool [B, 1, R], False
    for padded regions. The cache of `step` holds the output `h` and the state `c` of the cell, each
    [N, D], for N rows (captions).

    Args:
      *sizes: `vocab_size`, `max_length` and `feature_dim`, F, see `Captioner`.
      attend: what the attended regions are added to: `in`, the candidates of the cell (Att2in); or
        `all`, the candidates and the gates (Att2all).
      **options: options of `AttentionLSTM`, whose defaults for this class are in `Att2in.defaults`;
        and `region_positions` and `standardize`, see `Captioner`.

    Example:
      >>> sizes = dict(vocab_size=20, max_length=5, feature_dim=6)
      >>> model = models.build("att2in", **sizes, width=8, attention_width=6)
      >>> inputs = {"features": tf.ones((2, 4, 6)), "mask": tf.ones((2, 4), tf.bool)}
      >>> model.decode(model.encode(inputs), tokens=tf.ones((2, 3), tf.int32)).shape
      TensorShape([2, 3, 20])
    """

    defaults = dict(
        width=512,
        attention_width=512,
        word_dropout=0.5,
        region_dropout=0.5,
        head_dropout=0.5,
    )

    def __init__(self, *sizes: int, attend: str = "in", **options):
        common.check_choice("attend", attend, ATTEND)
        super().__init__(*sizes, **(self.defaults | options))
        self.attended = common.linear(self.width, ATTEND[attend] * self.width, "attended")

    def add_cell(self, attention_width):
        width = self.width
        self.attention = AdditiveAttention(
            width, width, attention_width, biases=True, name="attention"
        )
        self.lstm = MaxoutLSTMCell(width, width, name="lstm")

    def recur(self, context, cache, words, training=False):
        regions = self.attention(cache["h"], context["keys"], context["regions"], context["mask"])
        h, c = self.lstm(words, cache["h"], cache["c"], self.attended(regions))
        return h, {"h": h, "c": c}
