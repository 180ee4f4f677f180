"""HIP (Yao et al., "Hierarchy Parsing for Image Captioning", ICCV 2019).

Letters: B images, R regions, F feature width, L columns of labels, X width of a region or instance,
M labels of relations, D model width.
"""

import numpy as np
import tensorflow as tf
from keras import ops

from tfcap.layers import common
from tfcap.layers.dropout import Dropout
from tfcap.layers.relations import RelationGraph, relations_in
from tfcap.layers.tree_lstm import TreeLSTM
from tfcap.models.captioner import add_embeddings, register
from tfcap.models.updown import TopDownCaptioner


@register("hip", small=dict(width=128, attention_width=64, regions=5))
class HIP(TopDownCaptioner):
    """Up-Down or GCN-LSTM on an image whose regions and instances form a tree.

    g, r, m = TreeLSTM(mean(v), v, s);  r = ReLU(Graph(r));  m = ReLU(Graph'(m))
    x_i     = Dropout([r_i; m_i]);      e_t = Dropout(ReLU(Emb))

    v_i are the features of region i, s_i those of its instance: the region without its background.
    The root of the tree is the image, with the mean of the regions as its input. The parent of a
    region is the image or another region, and each region has one leaf, its instance. Graph and
    Graph' are layers of the class `layers.relations.RelationGraph`, for the relations of the
    regions; with `regions=0` there are none, nor the ReLU. Emb is the table of words. The base
    class `TopDownCaptioner` has the equations of the LSTMs: it reads x and e_t, and g in the place
    of the mean of x.

    The authors have released no code. Our reading: the input of the root; one attention, which
    reads regions and instances joined; widths, ReLU and dropouts of GCN-LSTM; the same relations in
    both graphs. docs/systems.md 4.17 has the reasons.

    A feature file has one row for each region: X features of the region, X features of its
    instance, the number of its parent, and L labels of relations, so F = 2 X + 1 + L. Rows are
    numbered from 0, and the image is -1. A parent stands before its children. If the parent of a
    region does not stand before it, or is hidden, the image takes its place. The label of row i in
    column j is that of the relation from region i to region j, as in GCN-LSTM. `hierarchy` makes
    the order of the rows and the parents from boxes.

    `encode` returns a result of `TopDownCaptioner.attended_context`. `TopDownCaptioner` describes
    the cache of `step`, too.

    Args:
      *sizes: `vocab_size`, `max_length` and `feature_dim`, F, see `Captioner`. F counts the
        features of a region and of its instance, the parent and the labels.
      width: width of embedded words, of the nodes of the tree and of the LSTMs, D.
      attention_width: width of the additive attention.
      regions: number of regions that can be the target of a relation, L. With 0, there is no graph:
        HIP on Up-Down, not on GCN-LSTM.
      labels: number of different labels, M, including the label 0 (no relation).
      word_dropout: dropout rate on the embedded words.
      region_dropout: dropout rate on regions and instances, before the attention.
      attention_dropout: dropout rate inside the attention, on the result of tanh.
      input_dropout: dropout rate on the input of the second LSTM.
      head_dropout: dropout rate on the output of the second LSTM, before the logits.

    Raises:
      ValueError: F - 1 - L is odd or less than 2.

    Example:
      >>> sizes = dict(vocab_size=20, max_length=5, feature_dim=2 * 6 + 1 + 4)
      >>> model = models.build("hip", **sizes, width=8, regions=4)
      >>> inputs = {"features": tf.ones((2, 4, 17)), "mask": tf.ones((2, 4), tf.bool)}
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
        self.region_width, odd = divmod(self.feature_dim - 1 - regions, 2)
        if odd or self.region_width < 1:
            raise ValueError(
                f"regions does not fit: each row of the feature files has {self.feature_dim} "
                f"numbers, and without the parent and {regions} labels of relations "
                f"{self.feature_dim - 1 - regions} are left, which must be the features of a "
                "region and as many of its instance. Set regions to the number of labels in a "
                "row, 0 for files without labels."
            )
        self.width = width
        self.labels = labels
        self.tree = TreeLSTM(self.region_width, width, name="tree")
        self.graphs = [
            RelationGraph(width, labels, name=name)
            for name in ("region_graph", "instance_graph")
            if regions
        ]
        self.region_dropout = Dropout(region_dropout, name="region_dropout")
        add_embeddings(self, width, word_dropout, 0.0, regions=False)
        self.add_decoder(
            2 * width,
            attention_width,
            attention_dropout,
            input_dropout,
            head_dropout,
            mean_width=width,
        )

    def encode(self, inputs, training=False):
        features = inputs["features"]
        mask = inputs["mask"]
        x = ops.cast(features[..., : 2 * self.region_width], self.compute_dtype)
        regions, instances = ops.split(x, 2, axis=-1)
        nodes = ops.concatenate([common.masked_mean(regions, mask)[:, None], regions], axis=1)
        parents = self._parents(features[..., 2 * self.region_width], mask)
        h, instances = self.tree(nodes, instances, parents, training=training)
        levels = [h[:, 1:], instances]
        if self.graphs:
            relations = relations_in(features[..., 2 * self.region_width + 1 :], mask, self.labels)
            pairs = zip(self.graphs, levels, strict=True)
            levels = [ops.relu(graph(level, relations)) for graph, level in pairs]
        x = self.region_dropout(ops.concatenate(levels, axis=-1), training=training)
        return self.attended_context(x, mask, mean=h[:, 0])

    def _parents(self, column, mask):
        """Returns the parents of image and regions int32 [B, 1 + R], where the image is node 0.

        The parent of the image and of padding is -1.

        Args:
          column: parents [B, R] as in a feature file.
          mask: bool [B, R], False for padded regions.
        """
        rows = tf.range(ops.shape(mask)[1])
        named = ops.round(column)[..., None] == ops.cast(rows, column.dtype)  # [B, child, parent]
        before = rows < rows[:, None]
        parents = ops.sum(ops.cast(named & before & mask[:, None], "int32") * (1 + rows), axis=-1)
        return ops.pad(ops.where(mask, parents, -1), [[0, 0], [1, 0]], constant_values=-1)

    def embed(self, tokens, training=False):
        return self.word_dropout(ops.relu(self.embed_tokens(tokens)), training=training)


def hierarchy(boxes, threshold: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """Makes the tree of the regions of an image from their boxes.

    The regions are ordered by area, the largest first. The parent of a region is the region before
    it with the largest overlap, if this is more than `threshold`, and else the image. The overlap
    of two boxes is their common area divided by the area of their union.

    Our reading: the order, the overlap and the threshold (docs/systems.md 4.17).

    Args:
      boxes: corners x1, y1, x2, y2 of each region [R, 4], in any unit.
      threshold: least overlap of a region with its parent, 0 to 1.

    Returns:
      A tuple: the indices of the regions in the new order, int64 [R]; and their parents int64 [R],
      which count the regions in the new order from 0, with -1 for the image.

    Example:
      >>> order, parents = hierarchy([[4, 4, 8, 8], [0, 0, 8, 8], [9, 0, 12, 3]])
      >>> order.tolist(), parents.tolist()
      ([1, 0, 2], [-1, 0, -1])
    """
    boxes = np.asarray(boxes, float)
    areas = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    order = np.argsort(-areas, kind="stable")
    boxes, areas = boxes[order], areas[order]
    low = np.maximum(boxes[:, None, :2], boxes[:, :2])
    high = np.minimum(boxes[:, None, 2:], boxes[:, 2:])
    common_areas = np.prod(np.maximum(high - low, 0), axis=2)
    overlaps = np.tril(common_areas / (areas[:, None] + areas - common_areas), -1)
    parents = np.where(overlaps.max(1) > threshold, overlaps.argmax(1), -1)
    return order, parents
