"""m-RNN whose word table is also its output matrix.

Source: Mao et al., "Learning like a Child", ICCV 2015, and the authors' code TF-mRNN.

Letters: B images, N rows of words, R regions, F feature width, T positions, E embedding width,
D recurrent width, M multimodal width, V vocabulary.
"""

import keras
from keras import layers, ops

from tfcap.layers import common
from tfcap.layers.dropout import Dropout
from tfcap.layers.loops import Affine
from tfcap.layers.multimodal import Multimodal, TiedHead, scaled_tanh
from tfcap.layers.packing import on_words
from tfcap.layers.recurrent import GRUCell, LSTMCell
from tfcap.layers.trees import repeat
from tfcap.models.captioner import RecurrentCaptioner, register


@register("mrnn_shared", small=dict(embed_width=128, width=128, multimodal_width=256))
class MRNNShared(RecurrentCaptioner):
    """A recurrence over words whose logits are a product with the transposed word table.

    e_t = Dropout(Emb[w]);  logits = z_t Emb^T + b

    w is the id of word t, Emb the word table, and e_t the embedded word. h_t is the output of the
    recurrence, m_t the multimodal layer, and z_t its map to the width of the word table. I is the
    vector of the whole image if the data has one, else the mean of its regions. The W and V are
    learned matrices, and each b is a bias of its own. How z_t is computed depends on `variant`:

    * `multimodal`, the model that the authors of m-RNN released (docs/systems.md 6.5):
      h_t = GRU(e_t, h_{t-1});  m_t = ReLU(W_r Dropout(h_t) + b) + ReLU(W_v I + b);
      z_t = ReLU(W_m Dropout(m_t) + b).
    * `init`, also in the released code, with `width` 1024 and `embed_width` 512:
      h_t = GRU(e_t, h_{t-1}), where the state before the first word is ReLU(W_v I + b);
      z_t = ReLU(W_m Dropout(h_t) + b).
    * `child`, the model of the paper (Mao et al., ICCV 2015; docs/systems.md 6.6):
      h_t = LSTM(e_t, h_{t-1});  m_t = g2(V_w e_t + V_r Dropout(h_t) + V_I I + b);
      z_t = g2(W_m Dropout(m_t) + b), where g2(x) = 1.7159 tanh(2 x / 3).
      The paper gives no sizes, biases and dropout, and no function for z_t (our reading: as here,
      with for example `embed_width` 512, `width` 512 and `multimodal_width` 1024, the width of the
      released image features).

    Weights start from U(-0.05, 0.05) as in the released code, with three exceptions: the bias of
    m_t in `child` starts at 0, and the biases of `layers.recurrent.GRUCell` and all weights of
    `layers.recurrent.LSTMCell` start as these classes set them.

    `encode` returns a dictionary, for B images: with `init`, `state` [B, D], the state before the
    first word; with the other variants, `image` [B, 1, M], what the image adds to m_t. The cache of
    `step` is a dictionary, for N rows (captions): `h` [N, D], and with `child` also the state of
    the LSTM, `c` [N, D].

    Args:
      *sizes: `vocab_size`, `max_length` and `feature_dim`, F, see `Captioner`; F is 2048 or 4096 in
        the released code.
      variant: how image and words are combined (docs/systems.md 6.5, 6.6): `multimodal`, `init` or
        `child`.
      embed_width: width of the word table.
      width: width of the recurrence, D.
      multimodal_width: width of the multimodal layer, M; not used by `init`.
      word_dropout: dropout rate on the embedded words.
      recurrent_dropout: dropout rate on the output h_t of the recurrence, where later layers read
        it. The next step of the recurrence reads h_t without dropout.
      head_dropout: dropout rate on the output m_t of the multimodal layer; not used by `init`.

    Example:
      >>> sizes = dict(vocab_size=20, max_length=5, feature_dim=6)
      >>> model = models.build("mrnn_shared", **sizes, width=8)
      >>> inputs = {"features": tf.ones((2, 4, 6)), "mask": tf.ones((2, 4), tf.bool)}
      >>> model.decode(model.encode(inputs), tokens=tf.ones((2, 3), tf.int32)).shape
      TensorShape([2, 3, 20])
    """

    reads_image = True

    def __init__(
        self,
        *sizes: int,
        variant: str = "multimodal",
        embed_width: int = 1024,
        width: int = 2048,
        multimodal_width: int = 2048,
        word_dropout: float = 0.5,
        recurrent_dropout: float = 0.5,
        head_dropout: float = 0.5,
        **kwargs,
    ):
        super().__init__(*sizes, **kwargs)
        common.check_choice("variant", variant, ("multimodal", "init", "child"))
        self.variant = variant
        self.width = self.output_width = width
        self.embed_tokens = layers.Embedding(
            self.vocab_size, embed_width, embeddings_initializer=_uniform(), name="embed_tokens"
        )
        self.word_dropout = Dropout(word_dropout, name="word_dropout")
        cell = LSTMCell if variant == "child" else GRUCell
        self.cell = cell(embed_width, width, name="cell")
        self.recurrent_dropout = Dropout(recurrent_dropout, name="recurrent_dropout")
        if variant == "init":
            self.image = _linear(width, "image", activation="relu")
        elif variant == "multimodal":
            self.image = _linear(multimodal_width, "image", activation="relu")
            self.recurrent = _linear(multimodal_width, "recurrent", activation="relu")
        else:
            self.multimodal = Multimodal(multimodal_width, initializer=_uniform())
        if variant != "init":
            self.head_dropout = Dropout(head_dropout, name="head_dropout")
        activation = scaled_tanh if variant == "child" else "relu"
        self.to_word = _linear(embed_width, "to_word", activation=activation)
        self.head = TiedHead(self.embed_tokens, _uniform(), dtype="float32", name="head")

    @property
    def vocabulary_axes(self):
        return {"embed_tokens/embeddings": 0, "head/bias": 0}

    def encode(self, inputs, training=False):
        image = common.image_vector(inputs)
        if self.variant == "init":
            return {"state": self.image(image)}
        project = self.multimodal.image if self.variant == "child" else self.image
        return {"image": project(image[:, None])}

    def refined_features(self, inputs):
        """Computes image features that training on captions has refined.

        The variant `child` gives g2(V_I I), as m-RNN does. The other variants give ReLU(W_v I + b).
        I is the image vector, V_I and W_v are learned matrices, b is a bias, and g2(x) = 1.7159
        tanh(2 x / 3). The authors released such features, but not the model that computed them (our
        reading: these formulas).

        Args:
          inputs: the dictionary for `encode`, for B images.

        Returns:
          float32 [B, M], where M is the multimodal width; with `init` [B, D], where D is the width
          of the recurrence.
        """
        context = self.encode(inputs)
        image = context["state"] if self.variant == "init" else context["image"][:, 0]
        return ops.cast(scaled_tanh(image) if self.variant == "child" else image, "float32")

    def init_cache(self, context, max_length):
        if self.variant == "init":
            return {"h": context["state"]}
        image = context["image"]
        empty = ops.zeros((ops.shape(image)[0], self.width), image.dtype)
        return {"h": empty, "c": empty} if self.variant == "child" else {"h": empty}

    def embed(self, tokens, training=False):
        return self.word_dropout(self.embed_tokens(tokens), training=training)

    def recur(self, context, cache, words, training=False):
        if self.variant == "child":
            h, c = self.cell(words, cache["h"], cache["c"])
            return h, {"h": h, "c": c}
        h = self.cell(words, cache["h"])
        return h, {"h": h}

    def predict(self, context, words, outputs, training=False, packing=None):
        m = self.recurrent_dropout(outputs, training=training)
        if self.variant != "init":
            image = context["image"]
            image = repeat(image, ops.shape(words)[0] // ops.shape(image)[0])
            if self.variant == "child":
                m = self.multimodal(words, m, image)
            else:
                m = self.recurrent(m) + image
            m = self.head_dropout(m, training=training)
        return on_words(self.head, self.to_word(m), packing)


def _uniform():
    return keras.initializers.RandomUniform(-0.05, 0.05)


def _linear(units, name, activation):
    return Affine(
        units,
        activation=activation,
        kernel_initializer=_uniform(),
        bias_initializer=_uniform(),
        name=name,
    )
