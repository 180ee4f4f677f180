"""LBPF (Qin et al., "Look Back and Predict Forward in Image Captioning", CVPR 2019).

Letters: B images, N rows of words, R regions, F feature width, T positions, D model width,
X width of the attended regions, V vocabulary.
"""

import tensorflow as tf
from keras import ops

from tfcap.layers import common
from tfcap.layers.dropout import Dropout
from tfcap.layers.packing import on_words
from tfcap.layers.recurrent import LSTMCell
from tfcap.models.captioner import register
from tfcap.models.updown import UpDown


@register("lbpf", small=dict(width=128, attention_width=64))
class LBPF(UpDown):
    """Up-Down that looks back at what it attended to before, and predicts the next two words.

    h1_t   = LSTM1([h2_{t-1}; mean(x); e_t], h1_{t-1})
    a_t    = attention([h1_t; a_{t-1}]; x)
    h2_t   = LSTM2([a_t; h1_t], h2_{t-1})
    h3_t   = LSTM3([a_t; h2_t], h3_{t-1})
    p_t    = softmax(Lin(Dropout(h2_t)));  q_t = softmax(Lin(Dropout(h3_t)))
    logits = log p_t + w log q_{t-1}

    x are the regions and e_t the embedded word of step t, both with ReLU and dropout. Step t has
    the probabilities p_t of the next word and q_t of the word after it. Thus a word has two
    probabilities: p of its own step and q of the step before; the first word has only p. Decoding
    and self-critical training use the product of p and q to the power of w, divided by its sum over
    the words. Cross-entropy training adds up the two losses:
    -sum_t (log p_t(word t + 1) + w log q_{t-1}(word t + 1)).

    The paper (Qin et al., CVPR 2019) has no public code. Its summary says that the attended vector
    of the step before is part of the input of the attention, that a step predicts the next two
    words, and that inference uses both probabilities. The rest is our reading: Up-Down of xmodaler
    as the base decoder, the joined query, LSTM3 and its input, the product with the power w, and
    all sizes (docs/systems.md 4.14).

    `encode` returns a result of `TopDownCaptioner.attended_context`. The cache of `step` holds, for
    N rows (captions): the outputs `h1`, `h2` and `h3` and the states `c1`, `c2` and `c3` of the
    LSTMs, each [N, D]; the `attended` regions [N, X]; and `begun` [N, 1], 0 before the first word
    and 1 after it.

    Args:
      *sizes: `vocab_size`, `max_length` and `feature_dim`, F, see `Captioner`.
      forward_weight: weight w of the prediction of the step before, in the loss and in decoding;
        0 ignores it (our reading: 0.5, because that step has read a word less).
      **options: options of `UpDown`, whose defaults for this class are in `LBPF.defaults`; and
        `region_positions` and `standardize`, see `Captioner`.

    Example:
      >>> sizes = dict(vocab_size=20, max_length=5, feature_dim=6)
      >>> model = models.build("lbpf", **sizes, width=8, attention_width=6)
      >>> inputs = {"features": tf.ones((2, 4, 6)), "mask": tf.ones((2, 4), tf.bool)}
      >>> model.decode(model.encode(inputs), tokens=tf.ones((2, 3), tf.int32)).shape
      TensorShape([2, 3, 20])
    """

    looks_back = True
    defaults = dict(
        width=1024, attention_width=512, word_dropout=0.5, region_dropout=0.5, head_dropout=0.5
    )

    def __init__(self, *sizes: int, forward_weight: float = 0.5, **options):
        if forward_weight < 0:
            raise ValueError(f"`forward_weight` must be at least 0, not {forward_weight}.")
        super().__init__(*sizes, **(self.defaults | options))
        self.forward_weight = forward_weight
        self.lstm3 = LSTMCell(self.attended_width + self.width, self.width, name="lstm3")
        self.forward_dropout = Dropout(self.head_dropout.rate, name="forward_dropout")
        self.forward_head = common.linear(
            self.width, self.vocab_size, "forward_head", dtype="float32"
        )
        self.output_width = 2 * self.width + 1

    def init_cache(self, context, max_length):
        cache = super().init_cache(context, max_length)
        empty = cache["h1"]
        return cache | {"h3": empty, "c3": empty, "begun": empty[:, :1]}

    def recur(self, context, cache, words, training=False):
        h2, new = super().recur(context, cache, words, training)
        inputs = ops.concatenate([new["attended"], h2], axis=-1)
        h3, c3 = self.lstm3(inputs, cache["h3"], cache["c3"])
        outputs = ops.concatenate([h2, cache["h3"], cache["begun"]], axis=-1)
        return outputs, new | {"h3": h3, "c3": c3, "begun": ops.ones_like(cache["begun"])}

    def predict(self, context, words, outputs, training=False, packing=None):
        h2, h3 = outputs[..., : self.width], outputs[..., self.width : -1]  # h3 of the step before
        now = ops.log_softmax(super().predict(context, words, h2, training, packing))
        h3 = self.forward_dropout(h3, training=training)
        before = on_words(self.forward_head, h3, packing)
        weight = self.forward_weight * ops.cast(outputs[..., -1:], "float32")
        return now + weight * ops.log_softmax(before)

    def extra_loss(self, context, logits, targets):
        """Turns the loss of the product of p and q into the sum of the losses of both.

        log p + w log q = logits = log softmax(logits) + log sum exp(logits), word by word.
        """
        return -tf.reduce_sum(tf.reduce_logsumexp(logits, -1) * tf.cast(targets != 0, tf.float32))

    @property
    def vocabulary_axes(self):
        return super().vocabulary_axes | {"forward_head/kernel": 1, "forward_head/bias": 0}
