"""Scores, and the files around them: COCO results in, COCO annotations in, tables and JSON out.

Every reader checks what it reads and raises a ValueError of one line that names the file; every
writer puts its file in place only when it is whole.
"""

import collections
import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tfcap.files import read_json, write_json

METRICS = ("BLEU", "METEOR", "ROUGE-L", "CIDEr", "SPICE")
KEYS = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "SPICE")

REFERENCE_SETS = ("all", "c5", "c40")
REMEDY = "Give a whole file of captions in a COCO format."  # of errors about unreadable files


@dataclasses.dataclass(frozen=True)
class Scores:
    """What a set of captions scored.

    Attributes:
        corpus: Key of `KEYS` -> score of the whole set, times 100. Unavailable ones are absent.
        per_image: Image id -> the same keys -> score of this image, times 100.
        unavailable: Metric asked for but not computed -> why, and what to install.
        notes: Remarks that belong beside the numbers, one line each.
        statistics: For scores of the corpus that are no mean over images, what was counted in
            each image: "BLEU" and "METEOR" -> float64 [B, Q], in the order of `per_image`. Their
            sums over any images give the score of these images, see `bootstrap`.
    """

    corpus: dict[str, float]
    per_image: dict[int, dict[str, float]]
    unavailable: dict[str, str] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    statistics: dict[str, np.ndarray] = dataclasses.field(
        default_factory=dict, repr=False, compare=False
    )


def load_results(path: str | os.PathLike) -> dict[int, str]:
    """Reads captions in the COCO result format, `[{"image_id": 1, "caption": "a dog"}, …]`.

    Returns:
        Image id -> caption, in the order of the file.

    Raises:
        ValueError: Unreadable, not JSON, not this format, or two captions for an image.
    """
    entries = read_json(path, REMEDY)
    if not isinstance(entries, list):
        raise ValueError(
            f'{path}: a result file is a list of {{"image_id", "caption"}}; '
            f"received {kind(entries)}"
        )
    predictions: dict[int, str] = {}
    twice = []
    for position, entry in enumerate(entries):
        image, caption = _image_and_caption(entry, f"{path}: entry {position}")
        if image in predictions:
            twice.append(image)
        predictions[image] = caption
    if twice:
        raise ValueError(
            f"{path}: more than one caption for {_some(twice)}; a result file has one per image"
        )
    return predictions


def load_references(path: str | os.PathLike) -> dict[int, list[str]]:
    """Reads reference captions in the COCO annotation format.

    Returns:
        Image id -> its captions, in the order of the file's "images" and "annotations".

    Raises:
        ValueError: Unreadable, not JSON, not this format, an image listed twice or without
            captions, or a caption of an image that is not listed.
    """
    content = read_json(path, REMEDY)
    if not isinstance(content, dict) or not all(
        isinstance(content.get(key), list) for key in ("images", "annotations")
    ):
        raise ValueError(
            f'{path}: an annotation file is an object with the lists "images" and "annotations"; '
            f"received {kind(content)}"
        )
    images = [
        integer(entry, "id", f"{path}: image {position}")
        for position, entry in enumerate(content["images"])
    ]
    twice = [image for image, count in collections.Counter(images).items() if count > 1]
    if twice:
        raise ValueError(f'{path}: "images" lists {_some(twice)} more than once')
    references: dict[int, list[str]] = {image: [] for image in images}
    for position, entry in enumerate(content["annotations"]):
        place = f"{path}: annotation {position}"
        image, caption = _image_and_caption(entry, place)
        if image not in references:
            raise ValueError(f'{place}: image_id {image} is not in "images"')
        references[image].append(caption)
    bare = [image for image, captions in references.items() if not captions]
    if bare:
        raise ValueError(f"{path}: no captions for {_some(bare)}; add them or drop the images")
    return references


def reference_set(references: Mapping[int, list[str]], name: str) -> dict[int, list[str]]:
    """Returns the references that a published score was computed with.

    COCO's test server scores against five references per image (c5) and, on 5,000 images, against
    forty (c40): Chen et al., "Microsoft COCO Captions", 2015. Some images have six or
    seven references; c5 takes the first five [GUESS: the server does not say which].

    Args:
        references: Image id -> its captions.
        name: "all", "c5" or "c40".

    Raises:
        ValueError: Another name, or an image with fewer captions than the set needs.
    """
    if name not in REFERENCE_SETS:
        raise ValueError(
            f"the reference set must be one of {', '.join(REFERENCE_SETS)}; received {name!r}"
        )
    if name == "all":
        return {image: list(captions) for image, captions in references.items()}
    needed = int(name[1:])
    short = [image for image, captions in references.items() if len(captions) < needed]
    if short:
        raise ValueError(
            f"{name} needs {needed} references per image; {_some(short)} of {len(references)} "
            f"have fewer (image {short[0]} has {len(references[short[0]])}); use --reference_set "
            "all, or a file with more references"
        )
    return {image: list(captions[:needed]) for image, captions in references.items()}


def check_ids(references: Mapping[int, Any], predictions: Mapping[int, Any]) -> None:
    """Makes sure that predictions and references are about the same images.

    Raises:
        ValueError: They are not, or there are none at all.
    """
    unknown = [image for image in predictions if image not in references]
    if unknown:
        raise ValueError(
            f"no references for {_some(unknown)} of the {len(predictions)} predictions; "
            "is this the right split?"
        )
    missing = [image for image in references if image not in predictions]
    if missing:
        raise ValueError(
            f"no predictions for {_some(missing)} of the {len(references)} images with "
            "references; caption them, or drop them from the references"
        )
    if not references:
        raise ValueError("nothing to score: no predictions and no references")


def write_results(path: str | os.PathLike, predictions: Mapping[int, str]) -> None:
    """Writes captions in the COCO result format, whole or not at all.

    Args:
        path: The file; its directory must exist.
        predictions: Image id -> caption.
    """
    entries = [
        {"image_id": int(image), "caption": caption} for image, caption in predictions.items()
    ]
    write_json(path, entries, indent=None)


def write_metrics(
    path: str | os.PathLike,
    scores: Scores,
    signature: str = "",
    others: Mapping[str, Any] | None = None,
) -> None:
    """Writes the corpus scores as a JSON object, whole or not at all.

    The keys are those of `KEYS` that were computed; "unavailable" and "notes" are there only if
    there is something to say, so that numbers with a reservation do not travel without it.

    Args:
        path: The file; its directory must exist.
        scores: What to write.
        signature: How the model was trained, written beside them as "signature".
        others: Further keys.
    """
    content: dict[str, Any] = {key: scores.corpus[key] for key in KEYS if key in scores.corpus}
    if signature:
        content["signature"] = signature
    if scores.unavailable:
        content["unavailable"] = scores.unavailable
    if scores.notes:
        content["notes"] = scores.notes
    content |= others or {}
    write_json(path, content, indent=2)


def write_per_image(
    path: str | os.PathLike,
    scores: Scores,
    perplexities: Mapping[int, Sequence[float]] | None = None,
) -> None:
    """Writes {image id: {score: value, "perplexities": [one of each reference]}} as JSON.

    Args:
        path: The file.
        scores: Scores of each image.
        perplexities: Image id -> the perplexity of each of its references.
    """
    content: dict[str, Any] = {str(i): dict(values) for i, values in scores.per_image.items()}
    for image, values in (perplexities or {}).items():
        content[str(image)]["perplexities"] = [float(value) for value in values]
    write_json(path, content, indent=None)


def format_table(scores: Scores) -> str:
    """Returns the corpus scores as text: a line per score, then why others are missing."""
    lines = [f"{'metric':<8} {'score':>7}", f"{'-' * 8} {'-' * 7}"]
    for key in KEYS:
        if key in scores.corpus:
            lines.append(f"{key:<8} {scores.corpus[key]:7.2f}")
        elif key in scores.unavailable:
            lines.append(f"{key:<8} {'-':>7}  not computed: {scores.unavailable[key]}")
    lines += [f"note: {note}" for note in scores.notes]
    return "\n".join(lines)


def _image_and_caption(entry: Any, place: str) -> tuple[int, str]:
    image = integer(entry, "image_id", place)
    caption = entry.get("caption")
    if not isinstance(caption, str):
        raise ValueError(f'{place}: "caption" must be text; received {kind(caption)}')
    return image, caption


def integer(entry: Any, key: str, place: str) -> int:
    """Returns `entry[key]`; a ValueError that begins with `place` if it is no whole number."""
    if not isinstance(entry, dict):
        raise ValueError(f"{place}: must be an object; received {kind(entry)}")
    value = entry.get(key)
    # JSON's true is a Python int, too.
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f'{place}: "{key}" must be a whole number; received {kind(value)}')
    return value


def kind(value: Any) -> str:
    """Says in a few words what was received, for an error."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return f"an object with the keys {list(value)[:5]}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return repr(value) if len(repr(value)) <= 60 else repr(value)[:60] + "…"


def _some(images: Iterable[int]) -> str:
    images = list(images)
    shown = ", ".join(map(str, images[:3]))
    more = f", … ({len(images)} images)" if len(images) > 3 else ""
    return f"image {shown}" if len(images) == 1 else f"images {shown}{more}"
