"""Holds scores; reads COCO result and annotation files; writes tables and JSON files.

Every reader checks its file and raises a ValueError of one line that names the file. Every writer
writes a temporary file first, so that a file appears only when it is complete.
"""

import collections
import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tfcap.files import read_json, write_json
from tfcap.metrics.registry import KEYS

REFERENCE_SETS = ("all", "c5", "c40")
_PARTIAL = (
    "Give files of the same split, such as references_val.json of the prepared data, or score only "
    "the images that both have: --partial (in Python partial=True)."
)
REMEDY = "Give a whole file of captions in a COCO format."  # for errors about a caption file


@dataclasses.dataclass(frozen=True)
class Scores:
    """The scores of a set of captions of B images.

    Attributes:
        corpus: Key of `KEYS` -> score of the whole set, times 100, for the computed metrics.
        per_image: Image id -> the same keys -> score of this image, times 100.
        unavailable: Requested metric that was not computed -> the reason and what to install.
        notes: Remarks that must be shown with the numbers, one line each.
        statistics: "BLEU", "METEOR" and keys that are ratios -> counts of each image, float64
            [B, Q], in the order of `per_image`. These corpus scores are not means over images: the
            score of any set of images follows from the sum of their counts, see `bootstrap`.
    """

    corpus: dict[str, float]
    per_image: dict[int, dict[str, float]]
    unavailable: dict[str, str] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    statistics: dict[str, np.ndarray] = dataclasses.field(
        default_factory=dict, repr=False, compare=False
    )

    def add(self, key: str, corpus: float, each: Sequence[float]) -> None:
        """Adds a score, times 100.

        Args:
            key: Its name.
            corpus: The score of the whole set, 0 to 1.
            each: The score of each image, in the order of `per_image`.
        """
        self.corpus[key] = 100.0 * float(corpus)
        for values, score in zip(self.per_image.values(), each, strict=True):
            values[key] = 100.0 * float(score)

    def add_ratio(self, key: str, counts: np.ndarray) -> None:
        """Adds a ratio of counts, float64 [B, 2]; an image without any has 0."""
        parts, wholes = counts.T
        each = np.divide(parts, wholes, out=np.zeros(len(counts)), where=wholes > 0)
        self.add(key, parts.sum() / wholes.sum() if wholes.any() else 0.0, each.tolist())
        self.statistics[key] = counts


def load_results(path: str | os.PathLike) -> dict[int, str]:
    """Reads captions in the COCO result format, `[{"image_id": 1, "caption": "a dog"}, …]`.

    Returns:
        Image id -> caption, in the order of the file.

    Raises:
        ValueError: The file cannot be read, is not JSON or has another format, or an image has two
            captions.
    """
    predictions: dict[int, str] = {}
    twice = []
    for image, caption in result_entries(read_json(path, REMEDY), os.fspath(path)):
        if image in predictions:
            twice.append(image)
        predictions[image] = caption
    if twice:
        raise ValueError(
            f"{path} must hold one caption per image. Received: more than one for {some(twice)}. "
            "Keep one of them."
        )
    return predictions


def result_entries(content: Any, place: str) -> list[tuple[int, str]]:
    """Returns the image ids and captions of the content of a file in the COCO result format.

    Raises:
        ValueError: It has another format; the message begins with `place`.
    """
    if not isinstance(content, list):
        raise ValueError(
            f'{place} must hold a list of {{"image_id", "caption"}}. '
            f"Received: {kind(content)}. {REMEDY}"
        )
    return [
        _image_and_caption(entry, f"{place}: entry {position}")
        for position, entry in enumerate(content)
    ]


def load_references(path: str | os.PathLike) -> dict[int, list[str]]:
    """Reads reference captions in the COCO annotation format.

    Returns:
        Image id -> captions of the image, in the order of "images" and "annotations" in the file.

    Raises:
        ValueError: The file cannot be read, is not JSON or has another format, an image is listed
            twice or has no captions, or a caption belongs to an image that is not listed.
    """
    content = read_json(path, REMEDY)
    if not isinstance(content, dict) or not all(
        isinstance(content.get(key), list) for key in ("images", "annotations")
    ):
        raise ValueError(
            f'{path} must hold an object with the lists "images" and "annotations". '
            f"Received: {kind(content)}. {REMEDY}"
        )
    images = [
        integer(entry, "id", f"{path}: image {position}")
        for position, entry in enumerate(content["images"])
    ]
    twice = [image for image, count in collections.Counter(images).items() if count > 1]
    if twice:
        raise ValueError(
            f'{path}: "images" lists {some(twice)} more than once. Keep one entry per image.'
        )
    references: dict[int, list[str]] = {image: [] for image in images}
    for position, entry in enumerate(content["annotations"]):
        place = f"{path}: annotation {position}"
        image, caption = _image_and_caption(entry, place)
        if image not in references:
            raise ValueError(
                f'{place}: image_id {image} is not in "images". Add the image, or drop the '
                "annotation."
            )
        references[image].append(caption)
    bare = [image for image, captions in references.items() if not captions]
    if bare:
        raise ValueError(
            f"{path} has no captions for {some(bare)}. Add captions or drop the images."
        )
    return references


def reference_set(references: Mapping[int, list[str]], name: str) -> dict[int, list[str]]:
    """Returns the references of a published evaluation setting (c5 or c40), or all.

    COCO's test server scores against five references per image (c5) and, on 5,000 images, against
    forty (c40): Chen et al., "Microsoft COCO Captions", 2015. Some images have six or
    seven references; c5 takes the first five [GUESS: the server does not say which].

    Args:
        references: Image id -> reference captions.
        name: "all", "c5" or "c40".

    Raises:
        ValueError: The name is unknown, or an image has too few captions.
    """
    if name not in REFERENCE_SETS:
        raise ValueError(
            f"The reference set must be one of {', '.join(REFERENCE_SETS)}. Received: {name!r}"
        )
    if name == "all":
        return {image: list(captions) for image, captions in references.items()}
    needed = int(name[1:])
    short = [image for image, captions in references.items() if len(captions) < needed]
    if short:
        raise ValueError(
            f"{name} needs {needed} references per image. Received: "
            f"{len(references[short[0]])} for image {short[0]}; {len(short)} of "
            f"{len(references)} images have too few. Use --reference_set all, or a file with more "
            "references."
        )
    return {image: list(captions[:needed]) for image, captions in references.items()}


def common(references: Mapping[int, Any], runs: Iterable[Mapping[int, Any]]) -> list[int]:
    """Returns the images of `references` that have captions in all runs, for `--partial`.

    Raises:
        ValueError: There is none.
    """
    runs = list(runs)
    images = [image for image in references if all(image in captions for captions in runs)]
    if not images:
        raise ValueError("No image has both references and captions. Give files of one data set.")
    return images


def check_ids(references: Mapping[int, Any], predictions: Mapping[int, Any]) -> None:
    """Checks that predictions and references have the same image ids.

    Raises:
        ValueError: The ids differ, or there are no images.
    """
    unknown = [image for image in predictions if image not in references]
    if unknown:
        raise ValueError(
            f"There are no references for {some(unknown)} of the {len(predictions)} predictions. "
            f"{_PARTIAL}"
        )
    missing = [image for image in references if image not in predictions]
    if missing:
        raise ValueError(
            f"There are no predictions for {some(missing)} of the {len(references)} images with "
            f"references. {_PARTIAL}"
        )
    if not references:
        raise ValueError(
            "There is nothing to score: no predictions and no references. Give at least one image."
        )


def write_results(
    path: str | os.PathLike, predictions: Mapping[int, str], names: Mapping[int, str] | None = None
) -> None:
    """Writes captions in the COCO result format. The file appears only when it is complete.

    Args:
        path: The file; its directory must exist.
        predictions: Image id -> caption.
        names: Image id -> name of the picture, written as "file_name"; None writes no names.
    """
    entries: list[dict[str, Any]] = []
    for image, caption in predictions.items():
        name = {"file_name": names[image]} if names else {}
        entries.append({"image_id": int(image), **name, "caption": caption})
    write_json(path, entries, indent=None)


def write_metrics(
    path: str | os.PathLike,
    scores: Scores,
    signature: str = "",
    others: Mapping[str, Any] | None = None,
) -> None:
    """Writes the corpus scores as a JSON object. The file appears only when it is complete.

    The keys are the computed ones of `KEYS`. "unavailable" and "notes" are written if they are not
    empty, so that a reader of the numbers also sees their limits.

    Args:
        path: The file; its directory must exist.
        scores: The scores to write.
        signature: How the model was trained, written as "signature".
        others: Further keys and their values.
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


def format_table(scores: Scores, intervals: Mapping[str, str] | None = None) -> str:
    """Returns the corpus scores as text: one line per metric, then reasons and notes.

    Args:
        scores: The scores.
        intervals: Key -> the interval as `bootstrap.shown` writes it; None shows none.
    """
    intervals = intervals or {}
    shown = [key for key in KEYS if key in scores.corpus or key in scores.unavailable]
    width = max([8, *map(len, shown)])
    lines = [f"{'metric':<{width}} {'score':>7}", f"{'-' * width} {'-' * 7}"]
    for key in shown:
        value = f"{scores.corpus[key]:7.2f}" if key in scores.corpus else f"{'-':>7}"
        lines.append(f"{key:<{width}} {value}{intervals.get(key, '')}")
    if intervals:
        lines.append(f"{len(scores.per_image)} images; in brackets 95 % intervals (bootstrap)")
    lines += [f"{key} is not computed: {why}" for key, why in scores.unavailable.items()]
    lines += [f"note: {note}" for note in scores.notes]
    return "\n".join(lines)


def _image_and_caption(entry: Any, place: str) -> tuple[int, str]:
    image = integer(entry, "image_id", place)
    caption = entry.get("caption")
    if not isinstance(caption, str):
        raise ValueError(f'{place}: "caption" must be text. Received: {kind(caption)}. {REMEDY}')
    return image, caption


def integer(entry: Any, key: str, place: str) -> int:
    """Returns the whole number `entry[key]`.

    Raises:
        ValueError: It is not a whole number; the message begins with `place`.
    """
    if not isinstance(entry, dict):
        raise ValueError(f"{place} must be an object. Received: {kind(entry)}. {REMEDY}")
    value = entry.get(key)
    # JSON's `true` becomes a Python int as well.
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(
            f'{place}: "{key}" must be a whole number. Received: {kind(value)}. {REMEDY}'
        )
    return value


def kind(value: Any) -> str:
    """Describes a received value in a few words, for an error message."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return f"an object with the keys {list(value)[:5]}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return repr(value) if len(repr(value)) <= 60 else repr(value)[:60] + "…"


def some(images: Iterable[int]) -> str:
    """Names up to three images for an error message."""
    images = list(images)
    shown = ", ".join(map(str, images[:3]))
    more = f", … ({len(images)} images)" if len(images) > 3 else ""
    return f"image {shown}" if len(images) == 1 else f"images {shown}{more}"
