"""m-RNN (Mao et al., "Deep Captioning with Multimodal Recurrent Neural Networks", ICLR 2015).

Letters: B images, N rows of words, R regions, F feature width, T positions, E embedding width,
D recurrent width, M multimodal width, V vocabulary.
"""

import dataclasses

from keras import ops

from tfcap.layers import common
from tfcap.layers.dropout import Dropout
from tfcap.layers.loops import Affine
from tfcap.layers.multimodal import Multimodal, scaled_tanh
from tfcap.layers.packing import on_words
from tfcap.layers.trees import repeat
from tfcap.models.captioner import RecurrentCaptioner, register


@dataclasses.dataclass(frozen=True)
class _Paths:
    """What the parts of a variant read (docs/systems.md 6.2); the letters are those of `MRNN`.

    Attributes:
      second_embedding: whether W2 maps e_t to w_t; without W2 the word table gives w_t.
      word: the word that the multimodal layer reads: `second` (w_t), `first` (e_t) or `none`.
      image: whether the multimodal layer reads the image.
      image_in_words: whether V_J I is added to w_t.
      shared: whether the multimodal layer reads V_J I instead of I.
    """

    second_embedding: bool = True
    word: str = "second"
    image: bool = True
    image_in_words: bool = False
    shared: bool = False


VARIANTS = {
    "base": _Paths(),
    "no_emb_input": _Paths(word="none"),
    "one_layer_emb": _Paths(second_embedding=False),
    "emb_one_input": _Paths(word="first"),
    "vis_in_rnn": _Paths(image=False, image_in_words=True),
    "vis_in_rnn_both": _Paths(image_in_words=True),
    "vis_in_rnn_both_shared": _Paths(image_in_words=True, shared=True),
    "rnn_base": _Paths(image=False),
}


@register("mrnn", small=dict(embed_width=128, width=128, multimodal_width=256))
class MRNN(RecurrentCaptioner):
    """A ReLU recurrence, and a multimodal layer that combines word, history and image.

    e_t = Dropout(E1[w]);  w_t = W2 e_t + b
    r_t = ReLU(U_r r_{t-1} + w_t)                      equation 2; r_0 = 0
    m_t = g2(V_w w_t + V_r r_t + V_I I + b)            equation 3
    g2(x) = 1.7159 tanh(2 x / 3)                       equation 4
    logits = V_y Dropout(m_t) + b                      not numbered

    w is a word id and E1 the word table. e_t and w_t are the first and the second embedding of the
    word, r_t is the state of the recurrence, and m_t the multimodal layer. W2, U_r, V_w, V_r, V_I
    and V_y are learned matrices, and each b is a bias of its own. I is the image vector: the vector
    of the whole image if the data has one, else the mean of the regions, with dropout. In the paper
    (Mao et al., ICLR 2015) an image has one region, its fc7 vector. `variant` is a row of the table
    of variants (docs/systems.md 6.2):

    * `base`: the equations above;
    * `no_emb_input`: without V_w w_t;
    * `one_layer_emb`: the word table gives w_t itself, so there is no W2;
    * `emb_one_input`: V_w e_t instead of V_w w_t;
    * `vis_in_rnn`: w_t = W2 e_t + V_J I + b, in r_t and in m_t, with a matrix V_J; without V_I I;
    * `vis_in_rnn_both`: like `vis_in_rnn`, but m_t keeps V_I I;
    * `vis_in_rnn_both_shared`: like `vis_in_rnn_both`, but with V_J I in place of I in m_t. V_J I
      has D numbers and m_t has M numbers, and the paper does not say how they are added (our
      reading: V_P (V_J I), with one more matrix V_P, instead of V_I I);
    * `rnn_base`: without V_I I; this variant reads no image.

    The paper says nothing about biases, the activation of W2, dropout and initial values. Our
    reading:

    * W2, the multimodal sum and the logits have biases. W2 has no activation. There is no dropout.
    * U_r starts as the identity, which suits ReLU recurrences (Le et al., arXiv 1504.00941). The
      other matrices start Glorot-uniform, the word table from N(0, 1), and biases at 0.

    `encode` returns a dictionary, for B images:

    * `image` [B, 1, M]: V_I I, or V_P (V_J I). The variants `vis_in_rnn` and `rnn_base` do not have
      it.
    * `image_in_words` [B, 1, D]: V_J I. Only the variants `vis_in_rnn*` have it.
    * `empty` [B, 0]: a tensor without numbers, from which only B is read.

    The cache of `step` is a dictionary with the state `r` [N, D] for N rows (captions).

    Args:
      *sizes: `vocab_size`, `max_length` and `feature_dim`, F, see `Captioner`; F is 4096 in the
        paper.
      variant: which layers read the image and the words (docs/systems.md 6.2): `base`,
        `no_emb_input`, `one_layer_emb`, `emb_one_input`, `vis_in_rnn`, `vis_in_rnn_both`,
        `vis_in_rnn_both_shared` or `rnn_base`.
      embed_width: width of the first embedding of words; not used by `one_layer_emb`.
      width: width of the recurrence, D.
      multimodal_width: width of the multimodal layer, M.
      word_dropout: dropout rate on the first embedding of words, e_t.
      region_dropout: dropout rate on the image vector I.
      head_dropout: dropout rate on the output m_t of the multimodal layer, before the logits.

    Example:
      >>> sizes = dict(vocab_size=20, max_length=5, feature_dim=6)
      >>> model = models.build("mrnn", **sizes, width=8)
      >>> inputs = {"features": tf.ones((2, 4, 6)), "mask": tf.ones((2, 4), tf.bool)}
      >>> model.decode(model.encode(inputs), tokens=tf.ones((2, 3), tf.int32)).shape
      TensorShape([2, 3, 20])
    """

    reads_image = True

    def __init__(
        self,
        *sizes: int,
        variant: str = "base",
        embed_width: int = 128,
        width: int = 256,
        multimodal_width: int = 512,
        word_dropout: float = 0.0,
        region_dropout: float = 0.0,
        head_dropout: float = 0.0,
        **kwargs,
    ):
        super().__init__(*sizes, **kwargs)
        common.check_choice("variant", variant, VARIANTS)
        self.width = self.output_width = width
        self.multimodal_width = multimodal_width
        self.paths = VARIANTS[variant]
        first = embed_width if self.paths.second_embedding else width
        self.embed_tokens = common.embedding(self.vocab_size, first, "embed_tokens")
        self.word_dropout = Dropout(word_dropout, name="word_dropout")
        self.region_dropout = None
        self.embed_second = None
        if self.paths.second_embedding:
            self.embed_second = Affine(width, name="embed_second")
        if self.paths.image_in_words or self.paths.image:
            self.region_dropout = Dropout(region_dropout, name="region_dropout")
        self.image_in_words = None
        if self.paths.image_in_words:
            self.image_in_words = Affine(width, use_bias=False, name="image_in_words")
        self.recurrence = Affine(
            width, use_bias=False, kernel_initializer="identity", name="recurrence"
        )
        inputs = {"word": self.paths.word != "none", "recurrent": True, "image": self.paths.image}
        self.multimodal = Multimodal(
            multimodal_width, tuple(path for path, exists in inputs.items() if exists)
        )
        self.head_dropout = Dropout(head_dropout, name="head_dropout")
        self.head = Affine(self.vocab_size, dtype="float32", name="head")

    def encode(self, inputs, training=False):
        context = {"empty": ops.cast(inputs["mask"][:, :0], self.compute_dtype)}
        if self.region_dropout is None:  # the variant reads no image
            return context
        image = common.image_vector(inputs)
        image = self.region_dropout(image[:, None], training=training)  # [B, 1, F]
        if self.image_in_words is not None:
            context["image_in_words"] = self.image_in_words(image)
        if self.paths.image:
            source = context["image_in_words"] if self.paths.shared else image
            context["image"] = self.multimodal.image(source)
        return context

    def refined_features(self, inputs):
        """Computes image features that training on captions has refined: g2(V_I I).

        I is the image vector, V_I its learned matrix in the multimodal layer, and g2(x) = 1.7159
        tanh(2 x / 3). The features can be used to search for similar images. Source: section 8 of
        the m-RNN paper.

        Args:
          inputs: the dictionary for `encode`, for B images.

        Returns:
          float32 [B, M], where M is the multimodal width.

        Raises:
          ValueError: the multimodal layer of the variant reads no image.
        """
        if not self.paths.image:
            raise ValueError(
                "The multimodal layer of this `variant` reads no image, so there are no refined "
                "features. Use the features of the data, or train another variant, such as "
                "`variant=base`."
            )
        return ops.cast(scaled_tanh(self.encode(inputs)["image"][:, 0]), "float32")

    def init_cache(self, context, max_length):
        empty = context["empty"]
        return {"r": ops.zeros((ops.shape(empty)[0], self.width), empty.dtype)}

    def embed(self, tokens, training=False):
        first = self.word_dropout(self.embed_tokens(tokens), training=training)
        if self.embed_second is None:
            return first
        second = self.embed_second(first)
        return ops.concatenate([first, second], -1) if self.paths.word == "first" else second

    def recur(self, context, cache, words, training=False):
        words = self._with_image(context, words[:, None, -self.width :])[:, 0]
        r = ops.relu(self.recurrence(cache["r"]) + words)
        return r, {"r": r}

    def predict(self, context, words, outputs, training=False, packing=None):
        if self.paths.word == "first":
            words = words[..., : -self.width]
        else:
            words = self._with_image(context, words)
        m = self.multimodal(words, outputs, _for_rows(context.get("image"), words))
        return on_words(self.head, self.head_dropout(m, training=training), packing)

    def _with_image(self, context, words):
        """Returns w_t [N, T, D]: the words, plus V_J I if the variant adds it."""
        if self.image_in_words is None:
            return words
        return words + _for_rows(context["image_in_words"], words)


def _for_rows(image, rows):
    """Repeats `image` [B, 1, X] for each of `rows` [N, ...]: [N, 1, X]. None stays None."""
    return None if image is None else repeat(image, ops.shape(rows)[0] // ops.shape(image)[0])
