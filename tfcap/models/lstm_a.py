"""LSTM-A (Yao et al., "Boosting Image Captioning with Attributes", ICCV 2017).

Letters: B images, N rows of words, R regions, F feature width, D model width.
"""

from keras import ops

from tfcap.layers import common
from tfcap.layers.dropout import Dropout
from tfcap.models.captioner import register
from tfcap.models.show_tell import ShowTell


@register("lstm_a", small=dict(width=128, attributes=8))
class LSTMA(ShowTell):
    """One LSTM that reads the attributes of the image, then the image, then the words.

    h_{-2} = LSTM(Dropout(Lin(attributes)));  h_{-1} = LSTM(Dropout(Lin(image)))
    h_t    = LSTM(Dropout(ReLU(Emb)));        logits = Lin(Dropout(h_t))

    This is the form LSTM-A3 of the paper, as in xmodaler (docs/systems.md 4.10). Attributes are
    probabilities of words, from a detector that is trained apart. They are the last columns of the
    features: a feature file holds one row, the vector of the image followed by the attributes. Of
    several rows, the mean is used.

    Context: the state `h`, `c` [B, D] after the image. Cache: `h`, `c` [N, D].

    Args:
      *sizes: V, T and F, see `Captioner`; F counts the attributes, too.
      attributes: number of attributes among the F features.
      attribute_dropout: dropout rate on the embedded attributes.
      width: width of embedded words, image and attributes and of the LSTM, D.
      **options: the other options in `defaults`, which `ShowTell` describes.

    Example:
      >>> sizes = dict(vocab_size=20, max_length=5, feature_dim=6)
      >>> model = models.build("lstm_a", **sizes, width=8, attributes=2)
      >>> inputs = {"features": tf.ones((2, 4, 6)), "mask": tf.ones((2, 4), tf.bool)}
      >>> model.decode(model.encode(inputs), tokens=tf.ones((2, 3), tf.int32)).shape
      TensorShape([2, 3, 20])
    """

    defaults = dict(width=1024, word_dropout=0.3, region_dropout=0.3, head_dropout=0.5)

    def __init__(
        self, *sizes: int, attributes: int = 1000, attribute_dropout: float = 0.3, **options
    ):
        self.attributes = attributes
        super().__init__(*sizes, **(self.defaults | options))
        self.attribute_embed = common.linear(attributes, self.width, "attribute_embed")
        self.attribute_dropout = Dropout(attribute_dropout, name="attribute_dropout")

    def image_width(self):
        if not 0 < self.attributes < self.feature_dim:
            raise ValueError(
                f"`attributes` must be 1 to {self.feature_dim - 1}, not {self.attributes}: "
                f"a region has {self.feature_dim} features."
            )
        return self.feature_dim - self.attributes

    def encode(self, inputs, training=False):
        both = common.masked_mean(inputs["features"], inputs["mask"])
        attributes = self.attribute_embed(both[:, self.image_width() :])
        attributes = self.attribute_dropout(attributes, training=training)
        empty = ops.zeros_like(attributes)
        h, c = self.lstm(attributes, empty, empty)
        image = self.region_embed(both[:, : self.image_width()])
        h, c = self.lstm(self.region_dropout(image, training=training), h, c)
        return {"h": h, "c": c}

    def embed(self, tokens, training=False):
        return self.word_dropout(ops.relu(self.embed_tokens(tokens)), training=training)
