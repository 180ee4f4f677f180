"""The layers of m-RNN that combine a word, its history and the image.

Letters: B images, N rows of words, T positions, M multimodal width, W word width, V vocabulary.
"""

import keras
from keras import layers, ops

from tfcap.layers import common, precision
from tfcap.layers.loops import Affine

PATHS = ("word", "recurrent", "image")  # what may be added


def scaled_tanh(x):
    """Computes g2(x) = 1.7159 tanh(2 x / 3), so that g2(1) = 1 and g2(-1) = -1.

    `x` may have any shape. Source: LeCun et al. 1998; equation 4 of m-RNN.

    Example:
      >>> print(scaled_tanh(np.float32([-1, 0, 1])).numpy().round(3))
      [-1.  0.  1.]
    """
    return 1.7159 * ops.tanh(x * (2.0 / 3.0))


@keras.saving.register_keras_serializable("tfcap")
class Multimodal(common.Layer):
    """The multimodal layer of m-RNN, which combines word, history and image.

    g2(V_w w + V_r r + V_I I + b)

    w is the embedded word, r the state of the recurrence, I the image vector, and g2 is
    `scaled_tanh`. V_w, V_r, V_I and the bias b are learned. Source: equation 3 of m-RNN (Mao et
    al., ICLR 2015). The paper writes no bias (our reading: it leaves biases out of its equations).

    The products with V_w, V_r and V_I are computed by the sub-layers `word`, `recurrent` and
    `image`. Call the sub-layer `image` once per image, and pass its result to `call`.

    Args:
      width: multimodal width, M.
      paths: names of the products that are added: any of `word`, `recurrent` and `image`.
      initializer: Keras initialiser of V_w, V_r and V_I, or its name. The bias starts at 0.

    Example:
      >>> layer = Multimodal(width=8)
      >>> words, history = ops.ones((2, 3, 6)), ops.ones((2, 3, 5))
      >>> image = layer.image(ops.ones((2, 1, 9)))
      >>> layer(words, history, image).shape
      TensorShape([2, 3, 8])
    """

    def __init__(
        self,
        width: int,
        paths: tuple[str, ...] = PATHS,
        initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.width = width
        initializer = keras.initializers.get(initializer)

        def path(name):
            if name not in paths:
                return None
            return Affine(
                width,
                use_bias=False,
                kernel_initializer=initializer.clone(),
                name=name,
                dtype=self.dtype_policy,
            )

        self.word = path("word")
        self.recurrent = path("recurrent")
        self.image = path("image")

    def build(self, word_shape, recurrent_shape, image_shape=None):
        self.bias = self.add_weight(shape=(self.width,), initializer="zeros", name="bias")

    def call(self, word, recurrent, image=None):
        """Computes the layer. An input that `paths` leaves out is ignored.

        Args:
          word: embedded words [N, T, W]: T words of width W in each of N rows (captions).
          recurrent: states of the recurrence [N, T, D], of width D.
          image: [N, 1, M], for each row the result of the sub-layer `image` for its image, of the
            multimodal width M. May be None if `paths` leaves it out.

        Returns:
          [N, T, M] in the compute dtype.
        """
        total = ops.convert_to_tensor(self.bias)
        if self.word is not None:
            total += self.word(word)
        if self.recurrent is not None:
            total += self.recurrent(recurrent)
        if self.image is not None:
            total += image
        return scaled_tanh(total)


@keras.saving.register_keras_serializable("tfcap")
class TiedHead(common.Layer):
    """Computes logits z E^T + b with the word table E that also embeds the words.

    z is a vector of the width of the word table, and b a learned bias. Source: Mao et al.,
    "Learning like a Child", ICCV 2015. The product has the dtype of this layer, not that of
    `words`. So construct the layer with `dtype="float32"` to get float32 logits in a model of lower
    precision, too.

    Args:
      words: embedding layer whose table is E.
      bias_initializer: Keras initialiser of b, or its name.

    Example:
      >>> words = common.embedding(vocab_size=20, width=8, name="words")
      >>> head = TiedHead(words, dtype="float32")
      >>> head(words(ops.ones((2, 3), "int32"))).shape
      TensorShape([2, 3, 20])
    """

    def __init__(self, words: layers.Embedding, bias_initializer="zeros", **kwargs):
        super().__init__(**kwargs)
        self.words = words
        self.bias_initializer = bias_initializer

    def build(self, shape):
        self.bias = self.add_weight(
            shape=(self.words.input_dim,), initializer=self.bias_initializer, name="bias"
        )

    def call(self, z):
        """Returns the logits [..., V] of all words for vectors `z` [..., W].

        V is the number of words and W the width of the word table.
        """
        # The table is read here: as an argument of `call`, Keras would cast it to lower precision.
        return precision.matmul(self, z, ops.transpose(self.words.embeddings)) + self.bias
