"""Computes for each word of a caption which regions of the image the captioner used.

The weight of a region is its attention or its contribution. The attention is recorded while the
finished caption is decoded by teacher forcing. The contribution comes from gradients, so every
system has it.

Letters: B images, R regions of an image, T' words of a caption, F feature width.
"""

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
from tfcap.visualize.attended import Attended

_SHEETS: list[tempfile.TemporaryDirectory] = []  # of `shown_paths`, removed at the end


def attend(
    model: Captioner,
    vocab: Vocab,
    inputs: Mapping[str, tf.Tensor | np.ndarray],
    boxes: np.ndarray | tf.Tensor | None,
    captions: Sequence[str],
    kind: str = "attention",
) -> list[Attended]:
    """Computes how much a captioner used each region of an image for each word of its caption.

    * `attention`: the attention weights over the regions in the decoder's last layer that has any,
      mean over its heads; for an ensemble the mean over the members with attention. A model that
      attends to no regions, or also to other things, gives the contribution instead.
    * `contribution`: x_r . d log p(word) / d x_r for the features x_r of region r, positive parts
      only, as shares of their sum ("gradient x input", Shrikumar et al., arXiv 1605.01713; our
      reading: the gradient is that of log-probabilities, and negative products count as 0).

    The computation runs eagerly, with all images in one batch.

    Args:
      model: the captioner, with its trained variables restored.
      vocab: the vocabulary of the captioner.
      inputs: tensors of B images: `features` [B, R, F] with F features of each of R regions, and
        `mask` bool [B, R], true for real regions; if the data has vectors of whole images, also
        `image` [B, size of a vector]. Other entries are ignored.
      boxes: corners of the regions [B, R, 4], x1, y1, x2, y2 in 0..1. None, or only zeros for an
        image, means that there are no boxes.
      captions: B captions as decoding returns them: words separated by spaces.
      kind: `attention` or `contribution`.

    Returns:
      For each image its caption with the weights of its regions, without padding.

    Raises:
      ValueError: the regions have no boxes, or a caption has more words than the model can decode.
    """
    if not _has_boxes(boxes):
        raise ValueError(
            "Attention is drawn over the boxes of regions, but the regions have none. Prepare the "
            "data from pictures, or from features with boxes."
        )
    tensors = {
        key: tf.convert_to_tensor(value, tf.bool if key == "mask" else tf.float32)
        for key, value in inputs_of(inputs).items()
    }
    texts = [caption.split() for caption in captions]
    longest = max(texts, key=len)
    if len(longest) > model.max_length:
        raise ValueError(
            f"The model reads captions of at most {model.max_length} words. Shorten this one: "
            f"{' '.join(longest)}"
        )
    targets = np.full((len(texts), max(1, len(longest))), PAD, np.int32)  # [B, T']
    for row, words in zip(targets, texts, strict=True):
        row[: len(words)] = vocab.ids(words)
    tokens = tf.constant(np.pad(targets, ((0, 0), (1, 0)), constant_values=BOS)[:, :-1])
    weights = _attention(model, tensors, tokens) if kind == "attention" else None
    if weights is None:
        kind = "contribution"
        weights = _contribution(model, tensors, tokens, targets)
    masks = tensors["mask"].numpy()
    corners = np.asarray(boxes, np.float32)
    return [
        Attended(  # without padding
            words,
            rows[: len(words), mask],
            image_corners[mask],
            kind,
            vocab.shown(" ".join(words)) if vocab.joins else "",
        )
        for words, rows, mask, image_corners in zip(texts, weights, masks, corners, strict=True)
    ]


def attend_split(
    model: Captioner,
    vocab: Vocab,
    data: PreparedData,
    split: str,
    captions: Mapping[int, str],
    batch_size: int,
    max_regions: int | None = None,
) -> dict[int, Attended]:
    """Computes `attend` with the kind `attention` for images of a split, in batches.

    Args:
      model: the captioner, with its trained variables restored.
      vocab: the vocabulary of the captioner.
      data: the prepared data that has the images.
      split: name of the split that has the images.
      captions: image id -> caption, for the images that are wanted.
      batch_size: number of images that are computed together.
      max_regions: largest number of regions of an image that are read; None reads all.

    Returns:
      Image id -> its caption with the weights of its regions. Images whose regions have no boxes
      are left out.

    Raises:
      ValueError: a caption has more words than the model can decode.
    """
    images = list(captions)
    result: dict[int, Attended] = {}
    starts = range(0, len(images), batch_size)
    for start in progress.progress(starts, len(starts), "attention"):
        ids = images[start : start + batch_size]
        batch = data.read(split, ids, max_regions)
        rows = [row for row, boxes in enumerate(batch["boxes"]) if _has_boxes(boxes)]
        if not rows:
            continue
        inputs = {key: tf.gather(value, rows) for key, value in data.inputs_of(batch).items()}
        boxes = tf.gather(batch["boxes"], rows)
        ids = [ids[row] for row in rows]
        attended = attend(model, vocab, inputs, boxes, [captions[image] for image in ids])
        result |= dict(zip(ids, attended, strict=True))
    return result


def shown_paths(
    data: PreparedData,
    split: str,
    directory: str | os.PathLike | None = None,
    ids: Collection[int] | None = None,
) -> dict[int, str]:
    """Returns the pictures over which figures draw the regions: image id -> path.

    Images whose file does not exist are left out. For a clip this function makes a picture of the
    frames that the model reads, row by row, and for an image with several pictures one that shows
    them side by side. Such a picture is a temporary file, which is removed when the program ends.
    Images that cannot be read are left out.

    Args:
      data: the prepared data.
      split: name of one of its splits.
      directory: where the pictures are; None means the directory from which the data was prepared.
      ids: the images whose pictures are wanted; None means all images of the split.
    """
    views = data.view_paths(split, directory)
    if ids is not None:
        views = {image: views[image] for image in ids if image in views}
    if not data.frames and data.views == 1:
        return {image: paths[0] for image, paths in views.items()}
    sheets = {}
    _SHEETS.append(tempfile.TemporaryDirectory(prefix="tfcap-sheets-"))
    for image, paths in views.items():
        if not data.frames and len(paths) == 1:
            sheets[image] = paths[0]
            continue
        stem = os.path.splitext(os.path.basename(paths[0]))[0]
        target = os.path.join(_SHEETS[-1].name, str(image), f"{stem}.png")
        try:
            pixels = clips.sheet(clips.read_frames(paths, data.frames))
        except (ValueError, OSError):
            continue  # as a picture that cannot be read, it is left out
        os.makedirs(os.path.dirname(target))
        Image.fromarray(pixels).save(target)
        sheets[image] = target
    return sheets


def require_shown_paths(
    data: PreparedData, split: str, directory: str | os.PathLike | None, ids: Sequence[int]
) -> dict[int, str]:
    """Returns the same as `shown_paths`, but checks that attention can be drawn.

    Args:
      data: the prepared data.
      split: name of one of its splits.
      directory: where the pictures are; None means the directory from which the data was prepared.
      ids: the images whose pictures are wanted, at least one.

    Raises:
      UsageError: none of the images has a picture, or the regions of the first image have no boxes.
    """
    paths = shown_paths(data, split, directory, ids)
    if not paths:
        where = f" in {directory or data.images}" if directory or data.images else ""
        raise errors.UsageError(
            f"`attention` finds no picture of split {split}{where}. Give `images`, the directory "
            "to which the file names in the data are relative."
        )
    if not _has_boxes(data.read(split, ids[:1])["boxes"]):
        raise errors.UsageError(
            f"`attention` needs features with boxes, but those in {data.folder} have none. Prepare "
            "the data from pictures, or from features with boxes."
        )
    return paths


def _has_boxes(boxes: np.ndarray | tf.Tensor | None) -> bool:
    """True if all images of `boxes` [..., R, 4] have boxes. Only zeros mean that there are none."""
    return boxes is not None and bool(np.asarray(boxes).any((-2, -1)).all())


def _attention(model, inputs, tokens) -> np.ndarray | None:
    """Computes [B, T', R]: the last attention of each member, mean over heads and members.

    The last attention of most systems is that to the regions: attention to earlier words comes
    before it. If it reads several layers of the encoder in turn, the result is their mean. Returns
    None for a model without attention to regions.
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
        first, number, *_ = path.split("/")
        member = model.members[int(number)] if first == "members" else model
        if member.attends_to_regions:
            rows = np.concatenate(weights, 1)  # [B, T', S], once for each encoder layer it reads
            layers = rows.reshape(len(rows), -1, tokens.shape[1], rows.shape[-1])
            last[member] = layers.mean(1)
    # A model may fill an image up with regions of its own.
    count = inputs["mask"].shape[1]
    return np.mean([weights[..., :count] for weights in last.values()], 0) if last else None


def _contribution(model, inputs, tokens, targets) -> np.ndarray:
    """Computes gradient x input [B, T', R], positive parts with sum 1 over the regions."""
    features = inputs["features"]
    products = []
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(features)
        logits = model.decode(model.encode(inputs), tokens)
        logps = tf.gather(tf.nn.log_softmax(logits), targets, batch_dims=2)  # [B, T']
        totals = [tf.reduce_sum(column) for column in tf.unstack(logps, axis=1)]
    for total in totals:  # its gradient at the features of an image depends on that image alone
        gradient = tape.gradient(
            total, features, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        products.append(tf.reduce_sum(gradient * features, -1).numpy())
    positive = np.maximum(np.stack(products, 1), 0) * inputs["mask"].numpy()[:, None]
    return positive / np.maximum(positive.sum(-1, keepdims=True), 1e-30)
