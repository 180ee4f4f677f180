"""GCN-LSTM (Yao et al., "Exploring Visual Relationship for Image Captioning", ECCV 2018).

Letters: B images, R regions, F feature width, L columns of labels, X = F - L width of a region,
M labels of relations.
"""

from keras import ops

from tfcap.layers.dropout import Dropout
from tfcap.layers.relations import RelationGraph, relations_in
from tfcap.models.captioner import add_embeddings, register
from tfcap.models.updown import TopDownCaptioner


@register("gcn_lstm", small=dict(width=128, attention_width=64, regions=4))
class GCNLSTM(TopDownCaptioner):
    """Up-Down on regions after a graph convolution over their relations.

    x = Dropout(ReLU(RelationGraph(v, r)));  e_t = Dropout(ReLU(Emb))

    v are the features of the regions, r the labels of their relations, Emb the table of words and
    e_t an embedded word. The base class `TopDownCaptioner` reads x and e_t and has the equations of
    the LSTMs. In RelationGraph each region reads itself, the regions to which it has a relation,
    and the regions that have a relation to it; docs/systems.md 4.11 has the equation.

    The class follows xmodaler, the later toolkit of X-LAN's authors. One thing differs: here a
    batch may have padded regions, which are not read. The paper (Yao et al., ECCV 2018) has a
    second graph, for the positions of the regions. This class does not have it.

    A feature file holds the features and the labels of an image. Row i of the file is the feature
    vector v_i of region i, followed by L labels: r_ij is the label of the relation from region i to
    region j, for j = 0, 1, ... L - 1. Labels are whole numbers from 0 (no relation) to M - 1. Only
    the first L regions can be the target of a relation.

    `encode` returns a result of `TopDownCaptioner.attended_context`. `TopDownCaptioner` describes
    the cache of `step`, too.

    Args:
      *sizes: `vocab_size`, `max_length` and `feature_dim`, F, see `Captioner`. F counts the
        features of a region and its L labels.
      width: width of embedded words and of the LSTMs.
      attention_width: width of the additive attention.
      regions: number of regions that can be the target of a relation, L.
      labels: number of different labels, M, including the label 0 (no relation).
      word_dropout: dropout rate on the embedded words.
      region_dropout: dropout rate on the regions that the graph returns.
      attention_dropout: dropout rate inside the attention, on the result of tanh.
      input_dropout: dropout rate on the input of the second LSTM.
      head_dropout: dropout rate on the output of the second LSTM, before the logits.

    Raises:
      ValueError: `regions` is not between 1 and F - 1.

    Example:
      >>> sizes = dict(vocab_size=20, max_length=5, feature_dim=6 + 4)
      >>> model = models.build("gcn_lstm", **sizes, width=8, regions=4)
      >>> inputs = {"features": tf.ones((2, 4, 6 + 4)), "mask": tf.ones((2, 4), tf.bool)}
      >>> model.decode(model.encode(inputs), tokens=tf.ones((2, 3), tf.int32)).shape
      TensorShape([2, 3, 20])
    """

    def __init__(
        self,
        *sizes: int,
        width: int = 1024,
        attention_width: int = 512,
        regions: int = 36,
        labels: int = 21,
        word_dropout: float = 0.5,
        region_dropout: float = 0.5,
        attention_dropout: float = 0.5,
        input_dropout: float = 0.5,
        head_dropout: float = 0.5,
        **kwargs,
    ):
        super().__init__(*sizes, **kwargs)
        if not 0 < regions < self.feature_dim:
            raise ValueError(
                f"regions must be 1 to {self.feature_dim - 1}, not {regions}. Each row of the "
                f"feature files has {self.feature_dim} numbers: first the features of a region, "
                "then as many labels of relations as the option says."
            )
        self.width = width
        self.labels = labels
        self.region_width = self.feature_dim - regions
        self.graph = RelationGraph(self.region_width, labels, name="graph")
        self.region_dropout = Dropout(region_dropout, name="region_dropout")
        add_embeddings(self, width, word_dropout, 0.0, regions=False)
        self.add_decoder(
            self.region_width, attention_width, attention_dropout, input_dropout, head_dropout
        )

    def encode(self, inputs, training=False):
        features = inputs["features"]
        mask = inputs["mask"]
        x = ops.cast(features[..., : self.region_width], self.compute_dtype)
        relations = relations_in(features[..., self.region_width :], mask, self.labels)
        x = self.region_dropout(ops.relu(self.graph(x, relations)), training=training)
        return self.attended_context(x, mask)

    def embed(self, tokens, training=False):
        return self.word_dropout(ops.relu(self.embed_tokens(tokens)), training=training)
