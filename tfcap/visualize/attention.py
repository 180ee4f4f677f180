"""Computes for each word of a caption which regions of the image the captioner used.

The weights are either the attention, recorded while the finished caption is decoded by teacher
forcing, or, for every system, the contribution of each region to the word, from gradients.

Letters: B images, R regions of an image, T' words of a caption, H heads, d channels of a head,
E expansion vectors.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from tfcap.data.record import inputs_of
from tfcap.data.tokens import Vocab
from tfcap.ids import BOS, PAD
from tfcap.layers.recording import Record, recording
from tfcap.models.captioner import Captioner
from tfcap.models.variables import named_layers
from tfcap.visualize import KINDS


@dataclasses.dataclass(frozen=True, eq=False)
class Attended:
    """A caption and the weights of the regions for each of its words.

    Attributes:
      words: the words of the caption, without the end mark.
      weights: float32 [T', R], for each word a distribution over the regions. Contributions of a
        word are all 0 if no region has a positive contribution.
      boxes: float32 [R, 4], x1, y1, x2, y2 in 0..1; for a grid the boxes of its cells.
      kind: `attention` or `contribution`.
    """

    words: list[str]
    weights: np.ndarray
    boxes: np.ndarray
    kind: str


@dataclasses.dataclass(frozen=True, eq=False)
class Layer:
    """The recorded weights of one layer for one image, without padding.

    Attributes:
      path: path of the layer in the model, for example `decoder/0/cross_att`.
      kind: `attention`, `channel`, `forward_a`, `forward_b`, `backward_a` or `backward_b`.
      over: meaning of the last axis: `regions`, `words`, `channels` or `vectors`.
      weights: float32, with the axes of `recording.Record` except the first one.
    """

    path: str
    kind: str
    over: str
    weights: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Details:
    """All recorded weights for one caption.

    Attributes:
      attended: the result of `attended` for this caption.
      encoder: layers that read the regions once, in the order of their calls.
      decoder: layers that ran for each word, in the order of their calls.
    """

    attended: Attended
    encoder: list[Layer]
    decoder: list[Layer]

    def last(self, kind: str, over: str = "") -> Layer | None:
        """Returns the decoder's last layer of a kind (and `over`, if given), or None."""
        layers = [x for x in self.decoder if x.kind == kind and (not over or x.over == over)]
        return layers[-1] if layers else None


def attended(
    model: Captioner,
    vocab: Vocab,
    inputs: Mapping[str, tf.Tensor | np.ndarray],
    boxes: np.ndarray | tf.Tensor | None,
    captions: Sequence[str],
    kind: str = "attention",
) -> list[Attended]:
    """Computes the weights of the regions for each word of each caption.

    * `attention`: the attention over the regions in the decoder's last layer that has one, mean
      over its heads; for an ensemble the mean over the members with attention. A model without
      attention gives the contribution instead.
    * `contribution`: x_r . d log p(word) / d x_r for the features x_r of region r, positive parts
      only, as shares of their sum ("gradient x input", Shrikumar et al., arXiv 1605.01713;
      [GUESS] log-probabilities and the positive part).

    The computation runs eagerly, with all images in one batch.

    Args:
      model: the captioner, weights restored.
      vocab: its words.
      inputs: `features` [B, R, F] and `mask` bool [B, R]; if the data has vectors of whole images
        also `image` [B, F2]. Other entries are ignored.
      boxes: [B, R, 4], x1, y1, x2, y2 in 0..1.
      captions: B captions as decoding returns them: words separated by spaces.
      kind: `attention` or `contribution`.

    Raises:
      ValueError: the kind is unknown, the features have no boxes, the numbers of captions and
        images differ, or a caption is longer than the model allows.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be {' or '.join(KINDS)}. Received: {kind!r}")
    batch = _Batch(model, vocab, inputs, boxes, captions)
    weights = None
    if kind == "attention":
        weights = _cross_attention(batch.decoder())
    return batch.attended(weights)


def details(
    model: Captioner,
    vocab: Vocab,
    inputs: Mapping[str, tf.Tensor | np.ndarray],
    boxes: np.ndarray | tf.Tensor | None,
    captions: Sequence[str],
) -> list[Details]:
    """Computes the weights of all layers, heads, channels and expansions.

    The arguments are those of `attended`.
    """
    batch = _Batch(model, vocab, inputs, boxes, captions)
    with recording() as records:
        model.encode(batch.inputs)
    encoder, decoder = batch.layers(records), batch.decoder()
    result = []
    for i, seen in enumerate(batch.attended(_cross_attention(decoder))):
        regions, words = np.flatnonzero(batch.mask[i]), np.arange(len(seen.words))
        own = {"regions": regions, "words": words}
        result.append(
            Details(
                seen,
                [_of_image(layer, i, own, regions) for layer in encoder],
                [_of_image(layer, i, own, words) for layer in decoder],
            )
        )
    return result


def grid(boxes: np.ndarray) -> tuple[int, int] | None:
    """Returns the numbers of rows and columns if `boxes` [R, 4] are the cells of a grid, or None.

    The cells are in order, row by row, and together they cover the picture. Neighbours may overlap:
    this happens if a network's grid is averaged to a smaller size that does not divide it.
    """
    boxes = np.round(np.asarray(boxes, np.float64), 4)
    columns = np.unique(boxes[:, [0, 2]], axis=0)
    rows = np.unique(boxes[:, [1, 3]], axis=0)
    if len(rows) * len(columns) != len(boxes):
        return None
    cells = [[x1, y1, x2, y2] for y1, y2 in rows for x1, x2 in columns]
    for side in (rows, columns):
        whole = side[0, 0] == 0 and side[-1, 1] == 1 and (side[1:, 0] <= side[:-1, 1]).all()
        if not whole or np.ptp(side[:, 1] - side[:, 0]) > 1 / len(side):
            return None
    return (len(rows), len(columns)) if np.array_equal(cells, boxes) else None


def has_boxes(boxes: np.ndarray | tf.Tensor | None) -> bool:
    """Returns whether all images of `boxes` [..., R, 4] have boxes. Zeros mean no boxes."""
    return boxes is not None and bool(np.asarray(boxes).any((-2, -1)).all())


class _Batch:
    """Images with their captions, and the model that reads them."""

    def __init__(self, model, vocab, inputs, boxes, captions):
        if not has_boxes(boxes):
            raise ValueError(
                "Attention needs features with boxes. Received: features with no boxes. "
                "To get boxes, prepare the data from pictures, or from features with boxes."
            )
        self.model, self.boxes = model, np.asarray(boxes, np.float32)
        self.inputs = {
            key: tf.convert_to_tensor(value, tf.bool if key == "mask" else tf.float32)
            for key, value in inputs_of(inputs).items()
        }
        self.mask = self.inputs["mask"].numpy()
        if len(captions) != len(self.mask):
            raise ValueError(
                f"captions must hold one caption for each of {len(self.mask)} images. "
                f"Received: {len(captions)}"
            )
        self.words = [caption.split() for caption in captions]
        self.longest = max(1, *(len(words) for words in self.words))
        if self.longest > model.max_length:
            longest = max(self.words, key=len)
            raise ValueError(
                f"captions must have at most {model.max_length} words. Received: "
                f"{' '.join(longest)!r}. Shorten the caption."
            )
        self.targets = np.full((len(captions), self.longest), PAD, np.int32)  # [B, T']
        for row, words in zip(self.targets, self.words, strict=True):
            row[: len(words)] = vocab.ids(words)
        self.tokens = np.pad(self.targets, ((0, 0), (1, 0)), constant_values=BOS)[:, :-1]

    def decoder(self):
        """Returns the weights of all layers that run for each word."""
        context = self.model.encode(self.inputs)
        with recording() as records:
            self.model.decode(context, tf.constant(self.tokens))
        return self.layers(records)

    def layers(self, records: list[Record]) -> list[Layer]:
        """Groups records by layer and kind; joins the steps of a recurrence along the time axis."""
        names: dict[int, str] = {}
        for path, layer in named_layers(self.model):
            names.setdefault(id(layer), path.rstrip("/"))
        groups: dict[tuple[str, str, str], list[np.ndarray]] = {}
        for record in records:
            key = names[id(record.layer)], record.kind, record.over
            groups.setdefault(key, []).append(record.weights)
        return [
            Layer(*key, weights[0] if len(weights) == 1 else np.concatenate(weights, 2))
            for key, weights in groups.items()
        ]

    def attended(self, weights: np.ndarray | None) -> list[Attended]:
        """Removes the padding of `weights` [B, T', R]; None stands for the contribution."""
        kind = "attention"
        if weights is None:
            kind, weights = "contribution", self.contribution()
        return [
            Attended(words, rows[: len(words), mask], boxes[mask], kind)
            for words, rows, mask, boxes in zip(
                self.words, weights, self.mask, self.boxes, strict=True
            )
        ]

    def contribution(self) -> np.ndarray:
        """Computes gradient x input [B, T', R], positive parts with sum 1 over the regions."""
        features, products = self.inputs["features"], []
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(features)
            logits = self.model.decode(self.model.encode(self.inputs), tf.constant(self.tokens))
            each = tf.gather(tf.nn.log_softmax(logits), self.targets, batch_dims=2)  # [B, T']
            totals = [tf.reduce_sum(column) for column in tf.unstack(each, axis=1)]
        for total in totals:  # the sum keeps gradients of images apart
            gradient = tape.gradient(
                total, features, unconnected_gradients=tf.UnconnectedGradients.ZERO
            )
            products.append(tf.reduce_sum(gradient * features, -1).numpy())
        positive = np.maximum(np.stack(products, 1), 0) * self.mask[:, None]
        return positive / np.maximum(positive.sum(-1, keepdims=True), 1e-30)


def _cross_attention(decoder: Sequence[Layer]) -> np.ndarray | None:
    """Computes [B, T', R]: each member's last layer over regions, mean over heads and members."""
    last = {}
    for layer in decoder:
        if layer.kind == "attention" and layer.over == "regions":
            first, *rest = layer.path.split("/")
            last[rest[0] if first == "members" else ""] = layer.weights.mean(1)
    return np.mean(list(last.values()), 0) if last else None


def _of_image(layer: Layer, image: int, own: Mapping, queries: np.ndarray) -> Layer:
    """Cuts one image out of a layer: `own` has its regions and words, `queries` its queries."""
    weights, kind = layer.weights[image], layer.kind.split("_")[0]
    if kind in ("attention", "forward"):
        weights = weights[..., own[layer.over]]
    if kind in ("attention", "channel") and weights.shape[1] > 1:  # 1: one query for all
        weights = weights[:, queries]
    if kind == "backward" or weights.ndim == 3 and kind == "forward":
        weights = weights[queries]
    if kind == "backward" and weights.ndim == 3:
        weights = weights[:, queries]
    return dataclasses.replace(layer, weights=weights)
