"""Computes for each word of a caption which regions of the image the captioner used.

The weights are either the attention, recorded while the finished caption is decoded by teacher
forcing, or the contribution of each region to the word, from gradients. Every system has
contributions.

Letters: B images, R regions of an image, T' words of a caption, F feature width.
"""

import dataclasses
import os
import tempfile
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import tensorflow as tf
from PIL import Image

from tfcap import errors, progress
from tfcap.data import clips
from tfcap.data.prepared import PreparedData
from tfcap.data.record import inputs_of
from tfcap.data.tokens import Vocab
from tfcap.ids import BOS, PAD
from tfcap.layers.recording import recording
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
    if not has_boxes(boxes):
        raise ValueError(
            "Attention needs features with boxes: prepare the data from pictures, or from "
            "features with boxes."
        )
    tensors = {
        key: tf.convert_to_tensor(value, tf.bool if key == "mask" else tf.float32)
        for key, value in inputs_of(inputs).items()
    }
    words = [caption.split() for caption in captions]
    longest = max(words, key=len)
    if len(longest) > model.max_length:
        raise ValueError(
            f"Attention needs captions of at most {model.max_length} words, and this one is "
            f"longer: {' '.join(longest)}"
        )
    targets = np.full((len(words), max(1, len(longest))), PAD, np.int32)  # [B, T']
    for row, own in zip(targets, words, strict=True):
        row[: len(own)] = vocab.ids(own)
    tokens = tf.constant(np.pad(targets, ((0, 0), (1, 0)), constant_values=BOS)[:, :-1])
    weights = _attention(model, tensors, tokens) if kind == "attention" else None
    if weights is None:
        kind, weights = "contribution", _contribution(model, tensors, tokens, targets)
    return [
        Attended(own, rows[: len(own), real], corners[real], kind)  # without padding
        for own, rows, real, corners in zip(
            words, weights, tensors["mask"].numpy(), np.asarray(boxes, np.float32), strict=True
        )
    ]


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
    for start in progress.progress(starts, len(starts), "attention"):
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
        raise errors.UsageError(
            f"--attention finds no picture of split {split}{where}. Give --images, the directory "
            "that the file names of the data are relative to."
        )
    if not has_boxes(data.read(split, ids[:1])["boxes"]):
        raise errors.UsageError(
            f"--attention needs features with boxes, and {data.folder} has none: prepare it from "
            "pictures, or from features with boxes."
        )
    return pictures


def has_boxes(boxes: np.ndarray | tf.Tensor | None) -> bool:
    """True if all images of `boxes` [..., R, 4] have boxes. Zeros mean no boxes."""
    return boxes is not None and bool(np.asarray(boxes).any((-2, -1)).all())


def _attention(model, inputs, tokens) -> np.ndarray | None:
    """Computes [B, T', R]: the last attention of each member, mean over heads and members.

    In every system it is the attention to the regions; other attention, to earlier words, comes
    before it. Returns None for a model without attention.
    """
    context = model.encode(inputs)
    with recording() as records:
        model.decode(context, tokens)
    paths: dict[int, str] = {}
    for path, layer in named_layers(model):
        paths.setdefault(id(layer), path)
    steps: dict[str, list[np.ndarray]] = {}  # by layer; a recurrence makes a record at each word
    for record in records:
        steps.setdefault(paths[id(record.layer)], []).append(record.weights.mean(1))
    last = {}
    for path, weights in steps.items():
        first, member, *_ = path.split("/")
        last[member if first == "members" else ""] = np.concatenate(weights, 1)
    return np.mean(list(last.values()), 0) if last else None


def _contribution(model, inputs, tokens, targets) -> np.ndarray:
    """Computes gradient x input [B, T', R], positive parts with sum 1 over the regions."""
    features, products = inputs["features"], []
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(features)
        logits = model.decode(model.encode(inputs), tokens)
        each = tf.gather(tf.nn.log_softmax(logits), targets, batch_dims=2)  # [B, T']
        totals = [tf.reduce_sum(column) for column in tf.unstack(each, axis=1)]
    for total in totals:  # the sum keeps gradients of images apart
        gradient = tape.gradient(
            total, features, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        products.append(tf.reduce_sum(gradient * features, -1).numpy())
    positive = np.maximum(np.stack(products, 1), 0) * inputs["mask"].numpy()[:, None]
    return positive / np.maximum(positive.sum(-1, keepdims=True), 1e-30)
