"""Computes for each word of a caption which regions of the image the captioner used.

The weights are either the attention, recorded while the finished caption is decoded by teacher
forcing, or the contribution of each region to the word, from gradients. Every system has
contributions.

Letters: B images, R regions of an image, T' words of a caption, H heads, d channels of a head,
E expansion vectors.
"""

import dataclasses
import os
import tempfile
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import tensorflow as tf
from PIL import Image

from tfcap import cli
from tfcap.data import clips
from tfcap.data.prepared import PreparedData
from tfcap.data.record import inputs_of
from tfcap.data.tokens import Vocab
from tfcap.ids import BOS, PAD
from tfcap.layers.recording import Record, recording
from tfcap.layers.trees import named_layers
from tfcap.models.captioner import Captioner

_SHEETS: list[tempfile.TemporaryDirectory] = []  # of `shown_paths`, removed at the end


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
        """Returns the last decoder layer of this kind (and `over`, unless empty), or None."""
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
    """
    batch = _Batch(model, vocab, inputs, boxes, captions)
    return batch.attended(_cross_attention(batch.decoder()) if kind == "attention" else None)


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


def attended_split(
    model: Captioner,
    vocab: Vocab,
    data: PreparedData,
    split: str,
    captions: Mapping[int, str],
    batch_size: int,
    max_regions: int | None = None,
) -> dict[int, Attended]:
    """Computes the attention of every word of the caption of each image, by image id.

    Images whose regions have no boxes are left out.
    """
    images = list(captions)
    result: dict[int, Attended] = {}
    starts = range(0, len(images), batch_size)
    for start in cli.progress(starts, len(starts), "attention"):
        part = images[start : start + batch_size]
        batch = data.read(split, part, max_regions)
        places = [place for place, boxes in enumerate(batch["boxes"]) if has_boxes(boxes)]
        if not places:
            continue
        inputs = {key: tf.gather(value, places) for key, value in inputs_of(batch).items()}
        boxes = tf.gather(batch["boxes"], places)
        shown = [part[place] for place in places]
        rows = attended(model, vocab, inputs, boxes, [captions[image] for image in shown])
        result |= dict(zip(shown, rows, strict=True))
    return result


def shown_paths(
    data: PreparedData,
    split: str,
    folder: str | os.PathLike | None = None,
    ids: Collection[int] | None = None,
) -> dict[int, str]:
    """Returns image id -> path of the picture over which figures draw the regions.

    Pictures are looked for in `folder`, or in the directory that the data names. For a clip, the
    picture shows all frames; these temporary pictures are removed when the program ends.
    """
    paths = data.picture_paths(split, folder)
    if ids is not None:
        paths = {image: paths[image] for image in ids if image in paths}
    if not data.frames:
        return paths
    _SHEETS.append(tempfile.TemporaryDirectory(prefix="tfcap-sheets-"))
    sheets = {}
    for image, path in paths.items():
        stem = os.path.splitext(os.path.basename(path))[0]
        target = os.path.join(_SHEETS[-1].name, str(image), f"{stem}.png")
        try:
            pixels = clips.sheet(clips.read_path(path, data.frames))
        except (ValueError, OSError):
            continue  # as a picture that cannot be read, it is left out
        os.makedirs(os.path.dirname(target))
        Image.fromarray(pixels).save(target)
        sheets[image] = target
    return sheets


def pictures_of(
    data: PreparedData, split: str, ids: Sequence[int], folder: str | os.PathLike | None = None
) -> dict[int, str]:
    """Returns `shown_paths`; raises an error if no picture or no box is found."""
    pictures = shown_paths(data, split, folder, ids)
    if not pictures:
        where = f" in {folder or data.images}" if folder or data.images else ""
        raise cli.UsageError(
            f"--attention finds no picture of split {split}{where}. Give --images, the directory "
            "that the file names of the data are relative to."
        )
    if not has_boxes(data.read(split, ids[:1])["boxes"]):
        raise cli.UsageError(
            f"--attention needs features with boxes, and {data.folder} has none: prepare it from "
            "pictures, or from features with boxes."
        )
    return pictures


def has_boxes(boxes: np.ndarray | tf.Tensor | None) -> bool:
    """True if all images of `boxes` [..., R, 4] have boxes. Zeros mean no boxes."""
    return boxes is not None and bool(np.asarray(boxes).any((-2, -1)).all())


class _Batch:
    """Images with their captions, and the model that reads them."""

    def __init__(self, model, vocab, inputs, boxes, captions):
        if not has_boxes(boxes):
            raise ValueError(
                "Attention needs features with boxes: prepare the data from pictures, or from "
                "features with boxes."
            )
        self.model, self.boxes = model, np.asarray(boxes, np.float32)
        self.inputs = {
            key: tf.convert_to_tensor(value, tf.bool if key == "mask" else tf.float32)
            for key, value in inputs_of(inputs).items()
        }
        self.mask = self.inputs["mask"].numpy()
        self.words = [caption.split() for caption in captions]
        self.longest = max(1, *(len(words) for words in self.words))
        if self.longest > model.max_length:
            longest = max(self.words, key=len)
            raise ValueError(
                f"Attention needs captions of at most {model.max_length} words, and this one is "
                f"longer: {' '.join(longest)}"
            )
        self.targets = np.full((len(captions), self.longest), PAD, np.int32)  # [B, T']
        for row, words in zip(self.targets, self.words, strict=True):
            row[: len(words)] = vocab.ids(words)
        self.tokens = np.pad(self.targets, ((0, 0), (1, 0)), constant_values=BOS)[:, :-1]

    def decoder(self):
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
    """Cuts one image out of a layer, without the padding."""
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
