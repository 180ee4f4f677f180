"""Computes what a captioner looks at for the captions of a whole split."""

import os
import tempfile
from collections.abc import Collection, Mapping, Sequence

import tensorflow as tf
from PIL import Image

from tfcap import cli
from tfcap.data import clips
from tfcap.data.prepared import PreparedData
from tfcap.data.record import inputs_of
from tfcap.data.tokens import Vocab
from tfcap.models.captioner import Captioner
from tfcap.visualize.attention import Attended, attended, has_boxes

_SHEETS: list[tempfile.TemporaryDirectory] = []  # of `shown_paths`


def attended_split(
    model: Captioner,
    vocab: Vocab,
    data: PreparedData,
    split: str,
    captions: Mapping[int, str],
    batch_size: int,
    max_regions: int | None = None,
) -> dict[int, Attended]:
    """Computes the attention of every word of one caption per image.

    Args:
      model: the captioner, weights restored.
      vocab: its words.
      data: the prepared directory that holds the images.
      split: its split.
      captions: the caption of each image by image id.
      batch_size: images computed together.
      max_regions: regions of an image beyond this number are ignored; None keeps all.

    Returns:
      The attention by image id, in the order of `captions`, of the images whose regions have boxes.
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
    """Returns the paths of the pictures on which regions are shown, by image id.

    For a clip, the picture is a sheet with its frames. The sheets are removed when the program
    ends.

    Args:
      data: the prepared directory.
      split: its split.
      folder: the directory of the files; None takes that of the data.
      ids: the images; None takes all of the split.
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
    """Returns the paths of the pictures that figures of attention are drawn over, by image id.

    Args:
      data: the prepared directory.
      split: its split.
      ids: the images.
      folder: the directory of the files; None takes that of the data.

    Raises:
      UsageError: none of the images has a picture, or the first one has no boxes.
    """
    pictures = shown_paths(data, split, folder, ids)
    if not pictures:
        raise cli.UsageError(
            f"--attention needs pictures. Received: none of the {len(ids)} images of split {split} "
            f"is in {folder or data.images}. Give --images, the directory that the file names of "
            "the data are relative to."
        )
    if not has_boxes(data.read(split, ids[:1])["boxes"]):
        raise cli.UsageError(
            f"--attention needs regions with boxes. Received: {data.folder}, whose first image has "
            "none. Prepare the data from pictures, or from features with boxes."
        )
    return pictures
