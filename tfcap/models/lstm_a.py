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

    h_t is the output of the LSTM at word t = 0, 1, ...; h_{-2} and h_{-1} are its outputs at the
    two steps before the words. Each Lin is an affine map of its own, and Emb is the table of words.
    This is the model LSTM-A3 of the paper (Yao et al., ICCV 2017), as in xmodaler (docs/systems.md
    4.10).

    Attributes are the probabilities that words describe the image. They come from a detector that
    is trained separately. The feature file of an image holds one row: the vector of the image,
    followed by the attributes. If the file holds several rows, their mean is used.

    `encode` returns, for B images, the output `h` and the state `c` of the LSTM after the image,
    each [B, D]. The cache of `step` holds `h` and `c` [N, D] for N rows (captions).

    Args:
      *sizes: `vocab_size`, `max_length` and `feature_dim`, F, see `Captioner`. F counts the entries
        of the image vector and the attributes.
      attributes: number of attributes. They are the last of the F numbers of a row.
      attribute_dropout: dropout rate on the embedded attributes.
      width: width of the LSTM and of the embedded words, image and attributes, D.
      **options: options of `ShowTell`, whose defaults for this class are in `LSTMA.defaults`.

    Raises:
      ValueError: `attributes` is not between 1 and F - 1.

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
                f"`attributes` must be 1 to {self.feature_dim - 1}, not {self.attributes}: each "
                f"row of the feature files has {self.feature_dim} numbers, first those of the "
                "image, then the attributes."
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
