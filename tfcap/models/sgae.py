"""SGAE (Yang et al., "Auto-Encoding Scene Graphs for Image Captioning", CVPR 2019).

Letters: B images, N rows of words, R rows of a feature file, F feature width, S nodes of a scene
graph, D model width, A attention width, K vectors of the dictionary.
"""

import keras
import tensorflow as tf
from keras import ops

from tfcap.layers import common, precision
from tfcap.layers.attention import AdditiveAttention
from tfcap.layers.dropout import Dropout
from tfcap.layers.recurrent import LSTMCell
from tfcap.layers.trees import repeat
from tfcap.models.captioner import RecurrentCaptioner, register

COLUMNS = 6  # of a scene graph, behind the features of a region
PHASES = ("sentence", "image")
_SLOPE = 0.1  # of LeakyReLU, for negative numbers


class _Map(common.Layer):
    """Dropout(ReLU(Lin([x; y; ...]))): an affine map of vectors that are joined, each [..., D]."""

    def __init__(self, inputs: int, width: int, dropout: float, **kwargs):
        super().__init__(**kwargs)
        self.linear = common.linear(inputs, width, "linear", dtype=self.dtype_policy)
        self.dropout = Dropout(dropout, name="dropout", dtype=self.dtype_policy)

    def call(self, *vectors, training=False):
        x = ops.relu(self.linear(ops.concatenate(vectors, axis=-1)))
        return self.dropout(x, training=training)


class _SceneGraph(common.Layer):
    """The graph convolution; the docstring of `SGAE` has the equations.

    Args:
      width: width of a node, D.
      dropout: dropout rate on the result of each map.
    """

    def __init__(self, width: int, dropout: float, **kwargs):
        super().__init__(**kwargs)
        self.subject = _Map(3 * width, width, dropout, name="subject")
        self.object = _Map(3 * width, width, dropout, name="object")
        self.relation = _Map(3 * width, width, dropout, name="relation")
        self.attribute = _Map(2 * width, width, dropout, name="attribute")

    def call(self, x, labels, graph, own=None, training=False):
        """Computes the nodes of B graphs, in this order: objects, relations, attributes.

        Args:
          x: vectors of the objects [B, R, D].
          labels: vectors of the labels of the edges [B, R, D].
          graph: the result of `_read_graph`.
          own: what an object keeps of itself [B, R, D]. None: an object keeps `x`, and a relation
            the vector of its label.
          training: whether dropout is on.

        Returns:
          [B, 3 R, D], also for the nodes that a graph does not have.
        """
        first, second, of = (ops.cast(graph[key], x.dtype) for key in ("from", "to", "of"))
        triples = ops.matmul(first, x), ops.matmul(second, x), labels
        objects = ops.matmul(ops.swapaxes(first, 1, 2), self.subject(*triples, training=training))
        objects += ops.matmul(ops.swapaxes(second, 1, 2), self.object(*triples, training=training))
        count = 1 + ops.sum(first + second, axis=1)[..., None]
        objects = (objects + (x if own is None else own)) / count
        relations = self.relation(*triples, training=training)
        if own is None:
            relations = (relations + labels) / 2
        pairs = self.attribute(ops.matmul(of, x), labels, training=training)
        attributes = ops.matmul(ops.swapaxes(of, 1, 2), pairs)
        attributes = attributes / ops.maximum(ops.sum(of, axis=1), 1)[..., None]
        return ops.concatenate([objects, relations, attributes], axis=1)


class _Dictionary(common.Layer):
    """The dictionary: each vector becomes a mean of K learned vectors, softmax(x M^T) M.

    Args:
      vectors: number of vectors, K.
      width: width of a vector, D.
    """

    def __init__(self, vectors: int, width: int, **kwargs):
        super().__init__(**kwargs)
        self.shape = (vectors, width)

    def build(self, *_):
        uniform = keras.initializers.RandomUniform(0, 0.01)
        self.vectors = self.add_weight(shape=self.shape, initializer=uniform, name="vectors")

    def call(self, x):
        """Returns the re-encoded vectors [B, S, D] of `x` [B, S, D]."""
        vectors = ops.convert_to_tensor(self.vectors)
        logits = precision.matmul(self, x, ops.transpose(vectors))
        weights = ops.softmax(ops.cast(logits, "float32"), axis=-1)
        return precision.matmul(self, ops.cast(weights, x.dtype), vectors)


def _read_graph(columns, objects, mask, vocab_size):
    """Reads the columns of scene graphs.

    Args:
      columns: the numbers of each row, float32 [B, R, 6], see `SGAE`.
      objects: whether row i is an object, bool [B, R]; None: it is one if it has a label.
      mask: bool [B, R], False for padding.
      vocab_size: number of words. Larger labels become the last word.

    Returns:
      A dictionary: `objects` int32 [B, R], the labels of the objects; `labels` int32 [B, R], those
      of the edges; `from` and `to`, bool [B, R, R], True where relation i begins at or leads to
      object j; `of` bool [B, R, R], True where edge i is an attribute of object j; and `nodes` bool
      [B, 3 R], True for the objects, relations and attributes that exist.
    """
    numbers = ops.cast(ops.round(ops.clip(columns, 0, 65504)), "int32")

    def label(column):
        value = ops.minimum(1000 * numbers[..., column] + numbers[..., column + 1], vocab_size - 1)
        return ops.where(mask, value, 0)

    names, labels = label(0), label(4)
    objects = names > 0 if objects is None else objects
    rows = tf.range(1, tf.shape(mask)[1] + 1)

    def ends(column):
        return (numbers[..., column, None] == rows) & objects[:, None] & (labels > 0)[..., None]

    first, second = ends(2), ends(3)
    relations = ops.any(first, axis=-1) & ops.any(second, axis=-1)
    of = first & (numbers[..., 3] == 0)[..., None]
    return {
        "objects": names,
        "labels": labels,
        "from": first & relations[..., None],
        "to": second & relations[..., None],
        "of": of,
        "nodes": ops.concatenate([objects, relations, ops.any(of, axis=1)], axis=1),
    }


@register("sgae", small=dict(width=128, attention_width=64, dictionary=100))
class SGAE(RecurrentCaptioner):
    """Up-Down on a scene graph and on what a dictionary, learned from sentences, makes of it.

    A scene graph has objects, relations from one object to another, and attributes of objects. Its
    nodes are, with the vectors x_i of the objects and z_e of the label of an edge e (a relation
    from i to j, or an attribute of i):

    n_i = (u_i + sum_e f_s(x_i, x_j, z_e) + sum_e f_o(x_j, x_i, z_e)) / (1 + edges of i)
    n_e = f_r(x_i, x_j, z_e);  n_a = mean over the attributes e of i of f_a(x_i, z_e)

    Each f is Dropout(ReLU(Lin([x; y; z]))). The system is trained in two phases:

    * `phase=sentence`, an auto-encoder of sentences: the objects are words, x_i and z_e are
      embedded words, and u_i = f_u(x_i). The decoder reads D(n) = softmax(n M^T) M, where M are the
      K vectors of the dictionary.
    * `phase=image`: the objects are regions, u_i = x_i = Dropout(ReLU(Lin(region))), z_e =
      f_z(word), and n_e = (z_e + f_r(...)) / 2. The decoder reads n and D(g(n)), where g has three
      affine maps with LeakyReLU between them. Without `graph` the nodes are the regions x.

    h1_t   = LSTM1([h2_{t-1}; Dropout(ReLU(Lin(mean))); e_t], h1_{t-1})
    h2_t   = LSTM2([attention_D(h1_t; D(g(n))); attention(h1_t; n); h1_t], h2_{t-1})
    logits = Lin(Dropout(h2_t))

    mean is the mean of the regions, e_t = Dropout(ReLU(Emb)) an embedded word, and both attentions
    are `layers.attention.AdditiveAttention` with one map of the keys. In the phase `sentence` the
    second LSTM reads one attention alone. The phase `image` starts (`task.init_checkpoint`) from a
    run of the phase `sentence` and takes from it the words, the dictionary and the logits. The
    other weights are new.

    The class follows the released code (docs/systems.md 4.16), which reads the mean of the regions
    in the phase `sentence`, too. In the paper (Yang et al., CVPR 2019) an auto-encoder of sentences
    has no image: features of zeros leave it out here.

    Row i of a feature file is the vector of region i, followed by six numbers of the scene graph:
    the label of object i (thousands, rest), the start of edge i, its end, and its label (thousands,
    rest). Start and end are numbers of rows from 1; the end 0 makes the edge an attribute. A label
    is the id of a word; 0 means that there is none. Rows without a region have zeros in its place.
    `tfcap.prepare` writes the six numbers from arrays of the files.

    `encode` returns a dictionary, for B images with S nodes: `mean` [B, D]; the lists `values`
    [B, S, D] and `keys` [B, S, A] of what is attended to; and `mask` bool [B, 1, S]. The cache of
    `step` holds, for N rows (captions), the outputs `h1` and `h2` and the states `c1` and `c2` of
    the two LSTMs, each [N, D].

    Args:
      *sizes: `vocab_size`, `max_length` and `feature_dim`, F, see `Captioner`. F counts the numbers
        of the scene graph, if they are read.
      phase: `sentence` or `image`, see above.
      graph: with `phase=image`, whether the feature files have scene graphs.
      dictionary: number of vectors of the dictionary, K. 0 means that there is none: D(x) = x.
      width: width of words, regions, nodes and LSTMs, D.
      attention_width: width of the additive attention, A.
      word_dropout: dropout rate on the embedded words.
      region_dropout: dropout rate on the embedded regions and on their embedded mean.
      graph_dropout: dropout rate on the results of the maps f and g.
      head_dropout: dropout rate on the output of the second LSTM, before the logits.

    Raises:
      ValueError: the features have no place for a scene graph.

    Example:
      >>> sizes = dict(vocab_size=20, max_length=5, feature_dim=6)
      >>> model = models.build("sgae", **sizes, width=8, attention_width=6, dictionary=10)
      >>> inputs = {"features": tf.ones((2, 4, 6)), "mask": tf.ones((2, 4), tf.bool)}
      >>> model.decode(model.encode(inputs), tokens=tf.ones((2, 3), tf.int32)).shape
      TensorShape([2, 3, 20])
    """

    phase_weights = ("sentence/", "image/", "dictionary/")

    def __init__(
        self,
        *sizes: int,
        phase: str = "image",
        graph: bool = False,
        dictionary: int = 10000,
        width: int = 1000,
        attention_width: int = 512,
        word_dropout: float = 0.5,
        region_dropout: float = 0.5,
        graph_dropout: float = 0.5,
        head_dropout: float = 0.5,
        **kwargs,
    ):
        super().__init__(*sizes, **kwargs)
        common.check_choice("phase", phase, PHASES)
        of_images = phase == "image"
        self.phase = phase
        self.has_graph = graph or not of_images
        self.attends_to_regions = not self.has_graph  # but to relations and attributes, too
        self.region_width = self.feature_dim - COLUMNS * self.has_graph
        if self.region_width < 1:
            raise ValueError(
                f"The features are {self.feature_dim} wide, but a scene graph needs {COLUMNS} "
                "numbers behind those of a region. Prepare the data with scene graphs, or set "
                "`phase=image` and `graph=false`."
            )
        self.width = self.output_width = width

        def lstm(name, vectors):
            return LSTMCell(vectors * width, width, name=name)

        def attention(name):
            return AdditiveAttention(width, width, attention_width, biases=True, name=name)

        def maps(name, inputs=width, dropout=graph_dropout):
            return _Map(inputs, width, dropout, name=name)

        self.embed_tokens = common.embedding(self.vocab_size, width, "embed_tokens")
        self.word_dropout = Dropout(word_dropout, name="word_dropout")
        self.mean_embed = maps("mean_embed", self.region_width, region_dropout)
        self.dictionary = _Dictionary(dictionary, width, name="dictionary") if dictionary else None
        parts = {"attention": attention("attention"), "lstm1": lstm("lstm1", 3)}
        parts["lstm2"] = lstm("lstm2", 3 if of_images else 2)
        if self.has_graph:
            parts["graph"] = _SceneGraph(width, graph_dropout, name="graph")
            parts["label" if of_images else "own"] = maps("label" if of_images else "own")
        if of_images:
            parts["region"] = maps("region", self.region_width, region_dropout)
            parts["to_sentence"] = [
                common.linear(width, width, f"to_sentence_{i}") for i in range(3)
            ]
            self.sentence_dropout = Dropout(graph_dropout, name="sentence_dropout")
            parts["dictionary_attention"] = attention("dictionary_attention")
            parts["dictionary_attention"].key = parts["attention"].key
        setattr(self, phase, parts)  # so that the names of the weights begin with the phase
        self.head_dropout = Dropout(head_dropout, name="head_dropout")
        self.head = common.linear(width, self.vocab_size, "head", dtype="float32")

    def encode(self, inputs, training=False):
        parts = getattr(self, self.phase)
        features = inputs["features"]
        regions = features[..., : self.region_width]
        present = inputs["mask"] & ops.any(regions != 0, axis=-1)
        regions = ops.cast(regions, self.compute_dtype)
        mean = self.mean_embed(common.masked_mean(regions, present), training=training)
        nodes, visible = None, present
        if self.phase == "image":
            nodes = parts["region"](regions, training=training)
        if self.has_graph:
            objects = present if self.phase == "image" else None
            columns = features[..., self.region_width :]
            graph = _read_graph(columns, objects, inputs["mask"], self.vocab_size)
            visible = graph["nodes"]
            labels = self.embed(graph["labels"], training)
            if self.phase == "image":
                labels = parts["label"](labels, training=training)
                nodes = parts["graph"](nodes, labels, graph, training=training)
            else:
                words = self.embed(graph["objects"], training)
                own = parts["own"](words, training=training)
                nodes = parts["graph"](words, labels, graph, own, training=training)
        recoded = self.dictionary or (lambda x: x)
        if self.phase == "image":
            first, second, last = parts["to_sentence"]
            x = ops.leaky_relu(first(nodes), _SLOPE)
            x = ops.leaky_relu(second(self.sentence_dropout(x, training=training)), _SLOPE)
            x = last(self.sentence_dropout(x, training=training))
            values = [recoded(x), nodes]
        else:
            values = [recoded(nodes)]
        keys = [parts["attention"].project(value) for value in values]
        return {"mean": mean, "values": values, "keys": keys, "mask": visible[:, None]}

    def init_cache(self, context, max_length):
        empty = ops.zeros_like(context["mean"])
        return {name: empty for name in ("h1", "c1", "h2", "c2")}

    def embed(self, tokens, training=False):
        return self.word_dropout(ops.relu(self.embed_tokens(tokens)), training=training)

    def recur(self, context, cache, words, training=False):
        parts = getattr(self, self.phase)
        mean = repeat(context["mean"], ops.shape(words)[0] // ops.shape(context["mean"])[0])
        inputs = ops.concatenate([cache["h2"], mean, words], axis=-1)
        h1, c1 = parts["lstm1"](inputs, cache["h1"], cache["c1"])
        names = ("dictionary_attention", "attention")[-len(context["values"]) :]
        attended = [
            parts[name](h1, keys, values, context["mask"], training=training)
            for name, keys, values in zip(names, context["keys"], context["values"], strict=True)
        ]
        inputs = ops.concatenate([*attended, h1], axis=-1)
        h2, c2 = parts["lstm2"](inputs, cache["h2"], cache["c2"])
        return h2, {"h1": h1, "c1": c1, "h2": h2, "c2": c2}
