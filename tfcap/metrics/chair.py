"""CHAIR: how many of the mentioned objects are not in the picture.

Rohrbach et al., "Object Hallucination in Image Captioning", EMNLP 2018, section 3.1:

* CHAIRi: mentions of objects that are not in the image, divided by all mentions of objects.
* CHAIRs: captions with such a mention, divided by all captions.
* CHAIR-recall: classes in the image that the caption mentions, divided by all classes in the
  image. It shows whether a low CHAIRi comes from captions that say little.

Objects are the 80 classes of COCO. Those of an image are its labelled objects (--instances) and the
objects that its references mention. Lower is better, except for the recall.

Letters: B images.
"""

import functools
import os
from collections.abc import Collection, Sequence

import numpy as np

from tfcap.metrics.coco_objects import mentions
from tfcap.metrics.instances import labelled_objects
from tfcap.metrics.registry import Inputs, Values, register_on_request

KEYS = ("CHAIRi", "CHAIRs", "CHAIR-recall")
_NO_LABELS = (
    "CHAIR knows only the objects that the references mention, so it counts every other object as "
    "wrong. Give COCO's instances_*.json to compare with published values."
)


@register_on_request("CHAIR", KEYS)
def chair(inputs: Inputs) -> tuple[dict[str, Values], list[str]]:
    """Computes CHAIRi, CHAIRs and the recall.

    Raises:
        ValueError: A file of labelled objects is bad, or has none of the images.
    """
    labels, notes = _labels(inputs)
    wrong, mentioned, recalled, present = np.zeros((4, len(inputs.images)))
    for row, image in enumerate(inputs.images):
        names = mentions(inputs.captions[row].split())
        there = {name for text in inputs.references[row] for name in mentions(text.split())}
        there |= labels.get(image, set())
        wrong[row] = sum(name not in there for name in names)
        mentioned[row] = len(names)
        recalled[row] = len(there & set(names))
        present[row] = len(there)
    values = {
        "CHAIRi": _ratio(wrong, mentioned),
        "CHAIRs": Values((wrong > 0).astype(float).tolist()),
        "CHAIR-recall": _ratio(recalled, present),
    }
    return values, notes


def _labels(inputs: Inputs) -> tuple[dict[int, set[str]], list[str]]:
    """Returns the labelled classes of each image, and notes for the user."""
    files = inputs.options.instances
    if not files:
        return {}, [_NO_LABELS]
    labels = labels_of(files, inputs.images)
    if bare := [image for image in inputs.images if image not in labels]:
        return labels, [
            f"CHAIR: {len(bare)} of {len(inputs.images)} images are not in --instances; for these "
            "images CHAIR knows only the objects that the references mention"
        ]
    return labels, []


def labels_of(files: Sequence[str], images: Collection[int]) -> dict[int, set[str]]:
    """Returns the labelled classes of every image of the files.

    Args:
        files: COCO's files of labelled objects.
        images: The scored images.

    Raises:
        ValueError: A file is bad, or no scored image is in the files.
    """
    labels: dict[int, set[str]] = {}
    for path in files:
        labels |= read_labels(path)
    if images and not any(image in labels for image in images):
        raise ValueError(
            f"--instances must hold the scored images. Received: {', '.join(files)}, where all "
            f"of them are missing, for example image {next(iter(images))}. Give the file of their "
            "split."
        )
    return labels


def read_labels(path: str) -> dict[int, set[str]]:
    """Returns the result of `instances.labelled_objects`; reads an unchanged file only once."""
    return _read(path, os.stat(path).st_mtime_ns if os.path.isfile(path) else 0)


@functools.lru_cache(maxsize=4)
def _read(path: str, changed: int) -> dict[int, set[str]]:
    """Reads a file once; `changed` is its time of change."""
    return labelled_objects(path)


def _ratio(part: np.ndarray, whole: np.ndarray) -> Values:
    """Returns the ratio of counts [B]; an image without any has 0."""
    each = np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)
    return Values(each.tolist(), np.stack([part, whole], axis=1))
