"""The layers of m-RNN that combine a word, its history and the image.

Letters: B images, N rows of words, T positions, M multimodal width, W word width, V vocabulary.
"""

from typing import Any

import keras
from keras import layers, ops

from tfcap.layers import common, precision
from tfcap.layers.loops import Affine

PATHS = ("word", "recurrent", "image")


def scaled_tanh(x):
    """Computes g2(x) = 1.7159 tanh(2 x / 3), so that g2(1) = 1 and g2(-1) = -1.

    Source: LeCun et al. 1998; equation 4 of m-RNN.
    """
    return 1.7159 * ops.tanh(x * (2.0 / 3.0))


@keras.saving.register_keras_serializable("tfcap")
class Multimodal(common.Layer):
    """The multimodal layer of m-RNN: g2(V_w w + V_r r + V_I I + b).

    Source: equation 3 of m-RNN (Mao et al., ICLR 2015). [GUESS] The paper writes no bias; here one
    bias serves all paths. Each path is a sub-layer with the name of the path. Call the sub-layer
    `image` once per image; `call` gets its result.

    Args:
      width: M.
      paths: which of `word`, `recurrent` and `image` are added.
      initializer: initialiser of the matrices; the bias starts at 0.
    """

    def __init__(
        self,
        width: int,
        paths: tuple[str, ...] = PATHS,
        initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.width, initializer = width, keras.initializers.get(initializer)
        self.word: Any  # a sub-layer or None, and so are the next two
        self.recurrent: Any
        self.image: Any
        self.word, self.recurrent, self.image = (
            Affine(
                width,
                use_bias=False,
                kernel_initializer=initializer.clone(),
                name=path,
                dtype=self.dtype_policy,
            )
            if path in paths
            else None
            for path in PATHS
        )

    def build(self, word_shape, recurrent_shape, image_shape=None):
        self.bias = self.add_weight(shape=(self.width,), initializer="zeros", name="bias")

    def call(self, word, recurrent, image=None):
        """Adds the chosen paths; other inputs are ignored.

        `word` is [N, T, W], `recurrent` [N, T, D], and `image` [N, 1, M] the output of the
        sub-layer `image`. Returns [N, T, M] in the compute dtype.
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
    """Computes logits z E^T + b, where E [V, W] is the word table that also embeds the words.

    Source: Mao et al., "Learning like a Child", ICCV 2015. Construct it with dtype float32: the
    product has the dtype of this layer, not that of `words`.

    Args:
      words: the embedding layer whose table is E.
      bias_initializer: the initialiser of b.
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
        """Maps `z` [..., W] to logits [..., V]."""
        # The table is read here: as an argument of `call`, Keras would cast it to lower precision.
        return precision.matmul(self, z, ops.transpose(self.words.embeddings)) + self.bias
