"""Show and Tell (Vinyals et al., "Show and Tell: A Neural Image Caption Generator", CVPR 2015).

Letters: B images, N rows of words, F feature width, T positions, D model width, V vocabulary.
"""

from keras import layers, ops

from tfcap.layers import common
from tfcap.layers.dropout import Dropout
from tfcap.layers.recurrent import LSTMCell, MaxoutLSTMCell
from tfcap.models.captioner import RecurrentCaptioner, add_embeddings, register

CELLS: dict[str, type[layers.Layer]] = {"lstm": LSTMCell, "maxout": MaxoutLSTMCell}


@register("show_tell", small=dict(width=128))
class ShowTell(RecurrentCaptioner):
    """One LSTM that first reads the image, then the words.

    h_{-1} = LSTM(Dropout(Lin(image)))         equation 10
    h_t    = LSTM(Dropout(e_t))                equation 11
    logits = Lin(Dropout(h_t))                 equation 12

    image is the mean of the regions, without padding. h_t is the output of the LSTM at word t, and
    e_t is the embedded word; word 0 is BOS. Before the image, the state of the LSTM is zero. Each
    Lin is an affine map of its own.

    In the paper (Vinyals et al., CVPR 2015) a network computes one vector of the image and is
    trained, too (our reading: here the mean of the regions stands for this vector). The paper gives
    no dropout rate. The authors' later code, im2txt, has a rate of 0.3 on all inputs of the LSTM,
    the image included, and on all outputs. The paper does not say how weights start (our reading:
    as in the other systems); in im2txt they start from U(-0.08, 0.08), with a forget bias of 1.

    With `cell=maxout` the class is the model FC of self-critical training (Rennie et al., CVPR
    2017), as in ImageCaptioning.pytorch (`newfc`, docs/systems.md 4.7). That code has dropout on
    the outputs only, with a rate of 0.5, and its image vector is the mean of the grid of a
    ResNet-101.

    `encode` returns, for B images, the output `h` and the state `c` of the LSTM after the image,
    each [B, D]. The cache of `step` holds `h` and `c` [N, D] for N rows (captions).

    Args:
      *sizes: `vocab_size`, `max_length` and `feature_dim`, F, see `Captioner`.
      width: width of the LSTM and of the embedded words and image, D; 512 in the paper.
      cell: cell of the recurrence: `lstm`; or `maxout`, the cell of the paper on self-critical
        training, `layers.recurrent.MaxoutLSTMCell`.
      word_dropout: dropout rate on the embedded words.
      region_dropout: dropout rate on the embedded image.
      head_dropout: dropout rate on the output of the LSTM, before the logits.

    Example:
      >>> sizes = dict(vocab_size=20, max_length=5, feature_dim=6)
      >>> model = models.build("show_tell", **sizes, width=8)
      >>> inputs = {"features": tf.ones((2, 4, 6)), "mask": tf.ones((2, 4), tf.bool)}
      >>> model.decode(model.encode(inputs), tokens=tf.ones((2, 3), tf.int32)).shape
      TensorShape([2, 3, 20])
    """

    def __init__(
        self,
        *sizes: int,
        width: int = 512,
        cell: str = "lstm",
        word_dropout: float = 0.3,
        region_dropout: float = 0.3,
        head_dropout: float = 0.3,
        **kwargs,
    ):
        super().__init__(*sizes, **kwargs)
        common.check_choice("cell", cell, CELLS)
        self.width = self.output_width = width
        add_embeddings(self, width, word_dropout, region_dropout, region_width=self.image_width())
        self.lstm = CELLS[cell](width, width, name="lstm")
        self.head_dropout = Dropout(head_dropout, name="head_dropout")
        self.head = common.linear(width, self.vocab_size, "head", dtype="float32")

    def image_width(self) -> int:
        """Returns the width of the image vector before it is embedded: here, `feature_dim`.

        A subclass whose image vector is only a part of the features overrides this method.
        """
        return self.feature_dim

    def encode(self, inputs, training=False):
        image = self.region_embed(common.masked_mean(inputs["features"], inputs["mask"]))
        image = self.region_dropout(image, training=training)
        empty = ops.zeros_like(image)
        h, c = self.lstm(image, empty, empty)
        return {"h": h, "c": c}

    def init_cache(self, context, max_length):
        return {"h": context["h"], "c": context["c"]}

    def embed(self, tokens, training=False):
        return self.word_dropout(self.embed_tokens(tokens), training=training)

    def recur(self, context, cache, words, training=False):
        h, c = self.lstm(words, cache["h"], cache["c"])
        return h, {"h": h, "c": c}
