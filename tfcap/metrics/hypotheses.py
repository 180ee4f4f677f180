"""Files of several captions per image, since COCO's result format holds only one.

`[{"image_id": 1, "captions": ["a dog", "the dog"], "scores": [-3.1, -3.4]}, …]`, the best first.
"scores" are of the model, such as log-probabilities; either all images have them or none.
"""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence

from tfcap.files import read_json, write_json
from tfcap.metrics import results


@dataclasses.dataclass(frozen=True)
class Hypotheses:
    """Captions of images, several each.

    Attributes:
        captions: Image id -> captions, in the order of the file, at least one.
        scores: Image id -> as many scores; None if the file has none.
    """

    captions: dict[int, list[str]]
    scores: dict[int, list[float]] | None = None


def load_hypotheses(path: str | os.PathLike) -> Hypotheses:
    """Reads a file of several captions per image.

    Raises:
        ValueError: Unreadable, not JSON, not this format, an image twice or without captions, or
            scores for some captions only.
    """
    entries = read_json(path, results.REMEDY)
    if not isinstance(entries, list):
        raise ValueError(
            f'{path}: a file of hypotheses is a list of {{"image_id", "captions"}}; received '
            f"{results.kind(entries)}"
        )
    captions: dict[int, list[str]] = {}
    scores: dict[int, list[float]] = {}
    for position, entry in enumerate(entries):
        place = f"{path}: entry {position}"
        image = results.integer(entry, "image_id", place)
        if image in captions:
            raise ValueError(f"{place}: image {image} is there twice; merge its captions")
        group = entry.get("captions")
        if not _is_list_of(group, str) or not group:
            hint = '; a COCO result file has "caption", one per image' if "caption" in entry else ""
            raise ValueError(
                f'{place}: "captions" must be a list of text; received {results.kind(group)}{hint}'
            )
        captions[image] = group
        if "scores" in entry:
            numbers = entry["scores"]
            if not _is_list_of(numbers, int | float) or len(numbers) != len(group):
                raise ValueError(
                    f'{place}: "scores" must be {len(group)} numbers, one per caption; received '
                    f"{results.kind(numbers)}"
                )
            scores[image] = [float(number) for number in numbers]
    if scores and len(scores) < len(captions):
        bare = next(image for image in captions if image not in scores)
        raise ValueError(f"{path}: image {bare} has no scores, others have; give all or none")
    return Hypotheses(captions, scores or None)


def load_results_or_hypotheses(path: str | os.PathLike) -> Hypotheses:
    """Reads a file of several captions per image, or a COCO result file as one caption each.

    Raises:
        ValueError: As `load_hypotheses` or `results.load_results`.
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
) -> None:
    """Writes captions, several per image, whole or not at all.

    Args:
        path: The file; its directory must exist.
        captions: Image id -> captions, the best first.
        scores: Image id -> a finite score for each caption.

    Raises:
        ValueError: A score is missing or not finite, which JSON could not hold.
    """
    entries = []
    for image, group in captions.items():
        entries.append({"image_id": int(image), "captions": list(group)})
        if scores is not None:
            numbers = [float(number) for number in scores[image]]
            if len(numbers) != len(group) or not all(map(math.isfinite, numbers)):
                raise ValueError(
                    f"image {image} needs {len(group)} finite scores; received {numbers!r:.100}"
                )
            entries[-1]["scores"] = numbers
    write_json(path, entries, indent=None)


def _is_list_of(value: object, kinds: type) -> bool:
    # JSON's true is a Python int, too, and NaN a float.
    return isinstance(value, list) and all(
        isinstance(item, kinds)
        and not isinstance(item, bool)
        and (isinstance(item, str) or math.isfinite(item))
        for item in value
    )
