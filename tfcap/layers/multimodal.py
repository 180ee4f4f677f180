"""The layers of m-RNN that put words, their history and the image together.

Letters: B images, N rows of words, T positions, M multimodal width, W word width, V vocabulary.
"""

import keras
from keras import layers, ops

PATHS = ("word", "recurrent", "image")


def scaled_tanh(x):
    """g2(x) = 1.7159 tanh(2 x / 3) of LeCun et al. 1998, so that g2(1) = 1 and g2(-1) = -1.

    It is equation 4 of m-RNN.
    """
    return 1.7159 * ops.tanh(x * (2.0 / 3.0))


class Multimodal(layers.Layer):
    """g2(V_w w + V_r r + V_I I + b): the paths that exist, and one bias for all of them.

    m-RNN (Mao et al., ICLR 2015), equation 3; the paper writes no bias [GUESS]. Each path is a
    sub-layer under its own name. `image` is applied once per image, outside `call`.

    Args:
      width: M.
      paths: those that exist, of `word`, `recurrent` and `image`.
      initializer: of the three matrices; the bias starts at 0.

    Raises:
      ValueError: for an unknown path, or none.
    """

    def __init__(
        self,
        width: int,
        paths: tuple[str, ...] = PATHS,
        initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        if not paths or not set(paths) <= set(PATHS):
            raise ValueError(f"paths must be some of {', '.join(PATHS)}. Received: {paths!r}")
        self.width = width
        self.word, self.recurrent, self.image = (
            layers.Dense(
                width,
                use_bias=False,
                kernel_initializer=keras.initializers.get(initializer).clone(),
                name=path,
            )
            if path in paths
            else None
            for path in PATHS
        )

    def build(self, *shapes):
        self.bias = self.add_weight(shape=(self.width,), initializer="zeros", name="bias")

    def call(self, word, recurrent, image=None):
        """Each path that does not exist is not read.

        Args:
          word: [N, T, W].
          recurrent: [N, T, D].
          image: [N, 1, M], which the sub-layer `image` made.

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


class TiedHead(layers.Layer):
    """Logits z E^T + b, where E [V, W] is the word table of `words`: one weight, used twice.

    Mao et al., "Learning like a Child", ICCV 2015. Give it the dtype float32: the product is made
    in that of the layer, whatever `words` computes in.

    Args:
      words: the embedding layer.
      bias_initializer: of b.
    """

    def __init__(self, words: layers.Embedding, bias_initializer="zeros", **kwargs):
        super().__init__(**kwargs)
        self.words = words
        self.bias_initializer = keras.initializers.get(bias_initializer)

    def build(self, shape):
        self.bias = self.add_weight(
            shape=(self.words.input_dim,), initializer=self.bias_initializer, name="bias"
        )

    def call(self, z):
        """`z` [..., W] -> logits [..., V]."""
        # The table is read here and not handed in: on the way in it would lose its precision.
        return ops.matmul(z, ops.transpose(self.words.embeddings)) + self.bias
