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

import json
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tfcap.metrics.coco_objects import mentions

_NO_LABELS = (
    "CHAIR knows only the objects that the references mention, so it counts every other object as "
    "wrong. Give COCO's instances_*.json to compare with published values."
)


def chair(
    references: Mapping[int, Sequence[str]],
    captions: Sequence[str],
    labels: Mapping[int, Collection[str]] | None,
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Counts objects in captions.

    Args:
        references: Image id -> tokenized references of B images.
        captions: The tokenized caption of each image.
        labels: Image id -> its labelled classes, from `read_labels`; None without labels.

    Returns:
        "CHAIRi", "CHAIRs" and "CHAIR-recall", each float64 [B, 2]: the score of any set of images
        is the sum of the first column divided by that of the second. And notes for the user.
    """
    wrong, mentioned, recalled, present = np.zeros((4, len(captions)))
    for row, (image, texts) in enumerate(references.items()):
        names = mentions(captions[row].split())
        there = {name for text in texts for name in mentions(text.split())}
        there |= set((labels or {}).get(image, ()))
        wrong[row] = sum(name not in there for name in names)
        mentioned[row] = len(names)
        recalled[row] = len(there & set(names))
        present[row] = len(there)
    counts = {
        "CHAIRi": np.stack([wrong, mentioned], axis=1),
        "CHAIRs": np.stack([wrong > 0, np.ones(len(captions))], axis=1),
        "CHAIR-recall": np.stack([recalled, present], axis=1),
    }
    notes = [_NO_LABELS] if labels is None else []
    if labels is not None and (bare := [image for image in references if image not in labels]):
        notes = [
            f"CHAIR: {len(bare)} of {len(references)} images are not in --instances; for these "
            "images CHAIR knows only the objects that the references mention"
        ]
    return counts, notes


def read_labels(paths: Sequence[str], images: Collection[int]) -> dict[int, set[str]] | None:
    """Reads image id -> names of its labelled classes from COCO's files instances_*.json.

    Args:
        paths: The files; without any the result is None.
        images: The scored images.

    Raises:
        ValueError: A file has another layout, or no scored image is in the files.
        OSError: A file cannot be read.
    """
    if not paths:
        return None
    labels: dict[int, set[str]] = {}
    for path in paths:
        try:
            with open(path, encoding="utf-8-sig") as file:
                content = json.load(file)
            names = {category["id"]: category["name"] for category in content["categories"]}
            for image in content["images"]:
                labels[image["id"]] = set()
            for label in content["annotations"]:
                labels.setdefault(label["image_id"], set()).add(names[label["category_id"]])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is not like COCO's instances_val2014.json: {error!r:.200}"
            ) from None
    if not any(image in labels for image in images):
        raise ValueError(
            f"None of the scored images is in {', '.join(paths)}. Give the file of their split."
        )
    return labels
