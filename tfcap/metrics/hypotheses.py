"""Reads and writes files with several captions per image; COCO's result format holds only one.

`[{"image_id": 1, "captions": ["a dog", "the dog"], "scores": [-3.1, -3.4]}, …]`, the best first.
"scores" are scores of the model, such as log-probabilities; either all images have them or none.
"""

import dataclasses
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfcap.files import read_json, write_json
from tfcap.metrics import results


@dataclasses.dataclass(frozen=True)
class Hypotheses:
    """Several captions for each image.

    Attributes:
        captions: Image id -> one or more captions, in the order of the file.
        scores: Image id -> a score for each caption; None if the file has no scores.
    """

    captions: dict[int, list[str]]
    scores: dict[int, list[float]] | None = None

    def best(self) -> dict[int, str]:
        """Returns the first caption of each image."""
        return {image: captions[0] for image, captions in self.captions.items()}

    def of_images(self, images: Iterable[int]) -> "Hypotheses":
        """Returns the captions and scores of `images`, in this order."""
        images = list(images)
        scores = self.scores and {image: self.scores[image] for image in images}
        return Hypotheses({image: self.captions[image] for image in images}, scores)


def load_hypotheses(path: str | os.PathLike) -> Hypotheses:
    """Reads a file with several captions per image.

    Raises:
        ValueError: The file cannot be read, is not JSON or has another format, an image occurs
            twice or has no captions, or only some captions have scores.
    """
    entries = read_json(path, results.REMEDY)
    if not isinstance(entries, list):
        raise ValueError(
            f'{path} must hold a list of {{"image_id", "captions"}}. '
            f"Received: {results.kind(entries)}. {results.REMEDY}"
        )
    captions: dict[int, list[str]] = {}
    scores: dict[int, list[float]] = {}
    for position, entry in enumerate(entries):
        place = f"{path}: entry {position}"
        image = results.integer(entry, "image_id", place)
        if image in captions:
            raise ValueError(
                f"{place}: image {image} occurs twice. Put all of its captions into one entry."
            )
        group = entry.get("captions")
        if not _is_list_of(group, str) or not group:
            remedy = "Give each image a list with one or more captions."
            if "caption" in entry:
                remedy = (
                    'This is an entry of a COCO result file: rename "caption" and make it a list.'
                )
            raise ValueError(
                f'{place}: "captions" must be a list of text. '
                f"Received: {results.kind(group)}. {remedy}"
            )
        captions[image] = group
        if "scores" in entry:
            numbers = entry["scores"]
            if not _is_list_of(numbers, int | float) or len(numbers) != len(group):
                raise ValueError(
                    f'{place}: "scores" must be {len(group)} numbers, one per caption. '
                    f"Received: {results.kind(numbers)}. Correct the scores or leave them out."
                )
            scores[image] = [float(number) for number in numbers]
    if scores and len(scores) < len(captions):
        bare = next(image for image in captions if image not in scores)
        raise ValueError(
            f"{path}: image {bare} has no scores, but other images have. Give scores for all "
            "images or for none."
        )
    return Hypotheses(captions, scores or None)


def load_results_or_hypotheses(path: str | os.PathLike) -> Hypotheses:
    """Reads a file with several captions per image, or a COCO result file with one per image.

    Raises:
        ValueError: The file is not valid, see `load_hypotheses` and `results.load_results`.
    """
    entries = read_json(path, results.REMEDY)
    first = entries[0] if isinstance(entries, list) and entries else None
    if isinstance(first, dict) and "captions" in first:
        return load_hypotheses(path)
    return Hypotheses({i: [text] for i, text in results.load_results(path).items()})


def write_hypotheses(
    path: str | os.PathLike,
    captions: Mapping[int, Sequence[str]],
    scores: Mapping[int, Sequence[float]] | None = None,
    ranks_before: Mapping[int, Sequence[int]] | None = None,
) -> None:
    """Writes several captions per image. The file appears only when it is complete.

    Args:
        path: The file; its directory must exist.
        captions: Image id -> captions, the best first.
        scores: Image id -> a finite score for each caption.
        ranks_before: Image id -> the rank of each caption before it was reranked.

    Raises:
        ValueError: A score is missing, or it is not finite and so cannot be written as JSON.
    """
    entries = []
    for image, group in captions.items():
        entries.append({"image_id": int(image), "captions": list(group)})
        if scores is not None:
            numbers = [float(number) for number in scores[image]]
            if len(numbers) != len(group) or not all(map(math.isfinite, numbers)):
                raise ValueError(
                    f"image {image} must have {len(group)} finite scores, one per caption. "
                    f"Received: {numbers!r:.100}. Correct the scores or leave them out."
                )
            entries[-1]["scores"] = numbers
        if ranks_before is not None:
            entries[-1]["ranks_before"] = list(ranks_before[image])
    write_json(path, entries, indent=None)


def _is_list_of(value: Any, kinds: Any) -> bool:
    """Returns whether the value is a list of instances of `kinds`, a class or a union of them."""
    # JSON's `true` becomes a Python int and its NaN a float, so both are excluded here.
    return isinstance(value, list) and all(
        isinstance(item, kinds)
        and not isinstance(item, bool)
        and (isinstance(item, str) or math.isfinite(item))
        for item in value
    )
