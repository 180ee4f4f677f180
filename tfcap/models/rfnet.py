"""RFNet (Jiang et al., "Recurrent Fusion Network for Image Captioning", ECCV 2018).

Letters: B images, N rows of words, R regions, F feature width, M feature sets, T1 and T2 steps of
the two stages, T positions, D model width, A attention width, V vocabulary, W top words.
"""

from collections.abc import Sequence

import keras
import tensorflow as tf
from keras import layers, ops

from tfcap.layers import common
from tfcap.layers.attention import AdditiveAttention
from tfcap.layers.dropout import Dropout
from tfcap.layers.packing import on_words
from tfcap.models.captioner import RecurrentCaptioner, register

SPECIAL = 4  # PAD, BOS, EOS and UNK, before the words


class _AttentiveLSTM(layers.Layer):
    """One step of an LSTM that attends, with its last output h, to one or more sets of vectors.

    a_m        = attention_m(h; set m)
    i, f, o, g = W_s s + sum_m W_m a_m + W_e e
    c'         = sigmoid(f) c + sigmoid(i) tanh(g);  h' = Dropout(sigmoid(o) tanh(c'))

    s is the input in the place of h, and e an embedded word, if there is one. Each map has a bias.

    Args:
      inputs: width of s.
      set_widths: width of the vectors of each set.
      width: width of the LSTM, D.
      attention_width: width of the additive attentions, A.
      dropout: dropout rate on h'.
      words: width of e; 0 for no word.
    """

    def __init__(
        self,
        inputs: int,
        set_widths: Sequence[int],
        width: int,
        attention_width: int,
        dropout: float,
        words: int = 0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.attentions = [
            AdditiveAttention(keys, width, attention_width, biases=True, name=f"attention_{m}")
            for m, keys in enumerate(set_widths)
        ]
        self.input_map = common.linear(inputs, 4 * width, "input_map")
        self.set_maps = [
            common.linear(keys, 4 * width, f"set_map_{m}") for m, keys in enumerate(set_widths)
        ]
        self.word_map = common.linear(words, 4 * width, "word_map") if words else None
        self.dropout = Dropout(dropout, name="dropout")

    def project(self, sets):
        """Returns the keys [B, S, A] of each of the sets [B, S, X]."""
        return [layer.project(x) for layer, x in zip(self.attentions, sets, strict=True)]

    def call(self, s, h, c, keys, sets, masks, words=None, training=False):
        """Computes one step.

        Args:
          s: [N, `inputs`].
          h: output of the step before, the query, [N, D].
          c: state after the step before, [N, D].
          keys: the result of `project`.
          sets: the sets, [B, S, X] each.
          masks: bool [B, S] of each set, False where a vector is not read; None reads all.
          words: e [N, `words`].
          training: whether dropout is on.

        Returns:
          A tuple: h' and c', each [N, D].
        """
        z = self.input_map(s)
        parts = zip(self.attentions, self.set_maps, keys, sets, masks, strict=True)
        for attention, set_map, key, values, mask in parts:
            z = z + set_map(attention(h, key, values, mask))
        if self.word_map is not None:
            z = z + self.word_map(words)
        i, f, o, g = ops.split(z, 4, axis=-1)
        c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)
        return self.dropout(ops.sigmoid(o) * ops.tanh(c), training=training), c


@register(
    "rfnet",
    small=dict(width=128, attention_width=64, stage1_steps=2, stage2_steps=4),
)
class RFNet(RecurrentCaptioner):
    """Fuses the feature sets of several networks in two recurrent stages, then decodes.

    h_0^m       = c_0^m = Lin_m(mean of set m)
    h_t^m, c_t^m = LSTM_t^m([h_{t-1}^1; ... h_{t-1}^M]; set m)       stage 1, t = 1 ... T1
    h_0, c_0    = means over m of h_T1^m and c_T1^m
    h_t, c_t    = LSTM_t(h_{t-1}; H^1, ... H^M)                      stage 2, t = 1 ... T2
    h_t, c_t    = LSTM(h_{t-1}, e_t; [h_1, ... h_T2] of stage 2)     decoder, from h_T2, c_T2
    logits      = Lin(h_t)

    Set m holds the regions of network m, and H^m = [h_1^m, ... h_T1^m]. After the semicolon of an
    LSTM stand the sets that it attends to, each with an additive attention whose query is the last
    output of the LSTM. Each step of both stages has weights of its own. e_t is the embedded word.

    Cross-entropy training has a discriminative loss, too. The vectors of a stage give a score to
    each of the W top words, the maximum over the steps: s^m = max_t Lin_m(h_t^m), and another s for
    stage 2. For the top words P of a caption,
    loss(s) = sum_{j in P} sum_{i not in P} max(0, 1 - s_j + s_i) / W, and the mean over the M + 1
    scores is added to the loss of each caption, times `discriminative_weight`.

    The class follows the code of the paper's authors (docs/systems.md 4.15). Two things differ:
    padded regions are not read, and the vector of the whole image is the mean of the regions of a
    set, where that code has files of the networks' last layers.

    With several sets, a row of the features holds the numbers of a region, zeros behind them up to
    the largest width, and at last the number of its set: 0, 1, ... M - 1. `prepare` with
    `further_features` writes such rows. With one set, all numbers of a row are features, so that
    any data can be read.

    `encode` returns, for B images: `vectors` [B, T2, D], the outputs of stage 2; their `keys`
    [B, T2, A]; the output `h` and the state `c` of its last step, each [B, D]; and `scores`
    [B, M + 1, W], which only training reads. The cache of `step` holds `h` and `c` [N, D], for N
    rows (captions).

    Args:
      *sizes: `vocab_size`, `max_length` and `feature_dim`, F, see `Captioner`.
      set_widths: widths of the feature sets with spaces between them, such as "2048 1536"; the
        order is that of their numbers. Empty for one set; training and a loaded run then take the
        widths of the prepared data.
      width: width of embedded words and of all LSTMs, D.
      attention_width: width of the additive attentions, A.
      stage1_steps: number of steps of stage 1, T1.
      stage2_steps: number of steps of stage 2, T2.
      top_words: number of words that the discriminative loss knows, W: the first ones of the
        vocabulary, which are the most frequent ones.
      discriminative_weight: weight of the discriminative loss; 0 leaves it out.
      stage1_dropout: dropout rate on the outputs of stage 1.
      stage2_dropout: dropout rate on the outputs of stage 2.
      decoder_dropout: dropout rate on the output of the decoder, also where its next step reads it.

    Raises:
      ValueError: `set_widths` is not a list of numbers, or does not fit F; or a stage has no step.

    Example:
      >>> sizes = dict(vocab_size=20, max_length=5, feature_dim=6 + 1)
      >>> model = models.build("rfnet", **sizes, set_widths="6 4", width=8, attention_width=6)
      >>> sets = tf.repeat([[0.0], [1.0]], [3, 2], axis=0)  # three rows of set 0, two of set 1
      >>> rows = tf.concat([tf.ones((5, 6)), sets], axis=1)
      >>> inputs = {"features": tf.stack([rows] * 2), "mask": tf.ones((2, 5), tf.bool)}
      >>> model.decode(model.encode(inputs), tokens=tf.ones((2, 3), tf.int32)).shape
      TensorShape([2, 3, 20])
    """

    attends_to_regions = False

    def __init__(
        self,
        *sizes: int,
        set_widths: str = "",
        width: int = 512,
        attention_width: int = 512,
        stage1_steps: int = 8,
        stage2_steps: int = 8,
        top_words: int = 1000,
        discriminative_weight: float = 1.0,
        stage1_dropout: float = 0.0,
        stage2_dropout: float = 0.0,
        decoder_dropout: float = 0.3,
        **kwargs,
    ):
        super().__init__(*sizes, **kwargs)
        if min(stage1_steps, stage2_steps) < 1:
            raise ValueError("`stage1_steps` and `stage2_steps` must be at least 1.")
        self.set_widths = self._widths(str(set_widths))
        self.width = self.output_width = width
        self.top_words = max(1, min(top_words, self.vocab_size - SPECIAL))
        self.discriminative_weight = discriminative_weight
        count = len(self.set_widths)
        self.init_maps = [
            common.linear(x, width, f"init_map_{m}") for m, x in enumerate(self.set_widths)
        ]
        self.stage1 = [
            [
                _AttentiveLSTM(
                    count * width,
                    [x],
                    width,
                    attention_width,
                    stage1_dropout,
                    name=f"stage1_{t}_{m}",
                )
                for m, x in enumerate(self.set_widths)
            ]
            for t in range(stage1_steps)
        ]
        self.stage2 = [
            _AttentiveLSTM(
                width, [width] * count, width, attention_width, stage2_dropout, name=f"stage2_{t}"
            )
            for t in range(stage2_steps)
        ]
        self.score_maps = [
            common.linear(width, self.top_words, f"score_map_{m}") for m in range(count + 1)
        ]
        self.embed_tokens = common.embedding(self.vocab_size, width, "embed_tokens")
        self.lstm = _AttentiveLSTM(
            width, [width], width, attention_width, decoder_dropout, words=width, name="lstm"
        )
        self.head = common.linear(width, self.vocab_size, "head", dtype="float32")

    def _widths(self, text: str) -> list[int]:
        """Returns the widths of the sets; `text` is the option `set_widths`."""
        widths = [int(size) if size.isdecimal() else 0 for size in text.split()]
        if 0 in widths:
            raise ValueError(
                "`set_widths` must be positive numbers with spaces between them, such as "
                f'"2048 1536", not {text!r}.'
            )
        if len(widths) > 1 and self.feature_dim <= max(widths):
            raise ValueError(
                f"`set_widths` is {text!r}, but a row of the features has {self.feature_dim} "
                f"numbers, and not {max(widths)} and the number of the set. Leave `set_widths` "
                "out: prepared data has the widths of its sets, or one set."
            )
        return widths if len(widths) > 1 else [self.feature_dim]

    def build(self, inputs_shape=None):
        """Creates all variables. As in the authors' code, they start from U(-0.1, 0.1).

        There a few biases start from PyTorch's default, and that of the logits from 0.

        Args:
          inputs_shape: not used.
        """
        super().build(inputs_shape)
        for weight in self.trainable_variables:
            weight.assign(keras.initializers.RandomUniform(-0.1, 0.1)(weight.shape))
        self.head.bias.assign(ops.zeros_like(self.head.bias))

    def encode(self, inputs, training=False):
        sets, masks = self._sets(inputs)
        h = [
            init(common.masked_mean(x, mask))
            for init, x, mask in zip(self.init_maps, sets, masks, strict=True)
        ]
        c = h
        steps = []  # T1 lists of M outputs [B, D]
        for cells in self.stage1:
            joined = ops.concatenate(h, axis=-1)
            now = [
                cell(joined, h[m], c[m], cell.project([x]), [x], [mask], training=training)
                for m, (cell, x, mask) in enumerate(zip(cells, sets, masks, strict=True))
            ]
            h, c = [output for output, _ in now], [state for _, state in now]
            steps.append(h)
        fused = [ops.stack(outputs, axis=1) for outputs in zip(*steps, strict=True)]
        h, c = sum(h) / len(h), sum(c) / len(c)
        outputs = []
        for cell in self.stage2:
            h, c = cell(h, h, c, cell.project(fused), fused, [None] * len(fused), training=training)
            outputs.append(h)
        vectors = ops.stack(outputs, axis=1)  # [B, T2, D]
        scored = zip(self.score_maps, [*fused, vectors], strict=True)
        scores = ops.stack([ops.max(score(x), axis=1) for score, x in scored], axis=1)
        [keys] = self.lstm.project([vectors])
        return {"vectors": vectors, "keys": keys, "h": h, "c": c, "scores": scores}

    def _sets(self, inputs):
        """Returns the regions [B, R, X] of each set, zeros elsewhere, and its masks bool [B, R]."""
        features, mask = ops.cast(inputs["features"], self.compute_dtype), inputs["mask"]
        count = len(self.set_widths)
        masks = [mask]
        if count > 1:
            numbers = ops.clip(ops.round(features[..., -1]), 0, count - 1)
            masks = [mask & (numbers == m) for m in range(count)]
        # Zeros, so that an image without a region of a set has the same result in any batch.
        pairs = zip(self.set_widths, masks, strict=True)
        return [ops.where(here[..., None], features[..., :x], 0) for x, here in pairs], masks

    def init_cache(self, context, max_length):
        return {"h": context["h"], "c": context["c"]}

    def embed(self, tokens, training=False):
        return self.embed_tokens(tokens)

    def recur(self, context, cache, words, training=False):
        h, c = self.lstm(
            cache["h"],
            cache["h"],
            cache["c"],
            [context["keys"]],
            [context["vectors"]],
            [None],
            words,
            training=training,
        )
        return h, {"h": h, "c": c}

    def predict(self, context, words, outputs, training=False, packing=None):
        return on_words(self.head, outputs, packing)

    def extra_loss(self, context, logits, targets):
        """Computes the discriminative loss of all captions, with its weight."""
        scores = tf.cast(context["scores"], tf.float32)  # [B, M + 1, W]
        words = targets - SPECIAL  # [B, S, T]
        same = tf.cast(words[..., None] == words[..., None, :], tf.int32)  # [B, S, T, T]
        is_first = tf.reduce_sum(tf.linalg.band_part(same, -1, 0), -1) == 1
        is_top = is_first & (words >= 0) & (words < self.top_words)
        chosen = tf.one_hot(tf.where(is_top, words, -1), self.top_words)  # [B, S, T, W]
        reached = tf.einsum("bmw,bstw->bsmt", scores, chosen)
        margins = tf.nn.relu(1 - reached[..., None] + scores[:, None, :, None])
        counted = tf.cast(is_top, tf.float32)[:, :, None, :, None]
        counted *= 1 - tf.reduce_max(chosen, 2)[:, :, None, None]
        size = self.top_words * len(self.score_maps)
        return tf.reduce_sum(margins * counted) * (self.discriminative_weight / size)
