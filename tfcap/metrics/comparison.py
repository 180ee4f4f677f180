"""Several sets of captions of the same images, scored and compared."""

import dataclasses
from typing import Any

from tfcap.metrics import bootstrap, coco, results
from tfcap.metrics.java import JavaError


@dataclasses.dataclass(frozen=True)
class Compared:
    """What `compare` found.

    Attributes:
        scores: Name -> scores of this set of captions.
        intervals: Name -> key -> interval.
        differences: Name of every set but the first -> key -> this minus the first.
        notes: Remarks on the resampling, one line each.
    """

    scores: dict[str, results.Scores]
    intervals: dict[str, dict[str, bootstrap.Interval]]
    differences: dict[str, dict[str, bootstrap.Difference]]
    notes: list[str]


def compare(
    runs: dict[str, dict[int, str]],
    references: dict[int, list[str]],
    scorer: coco.CocoScorer,
    *,
    samples: int = 1000,
    level: float = 95.0,
    seed: int = 1,
) -> Compared:
    """Scores sets of captions and compares all with the first.

    Args:
        runs: Name -> image id -> caption; one or more sets, of the images of `references`.
        references: Image id -> reference captions, as written.
        scorer: Its metrics are compared.
        samples, level, seed: As for `bootstrap.intervals`.

    Raises:
        ValueError: Other images in one of them, or bad options.
    """
    notes: list[str] = []

    def meteor_of(sums):
        try:
            return scorer.meteor_of(sums)
        except JavaError as error:
            notes.append(f"intervals of METEOR are those of its mean over images: {error}")
            raise

    scores = {name: scorer.score(references, captions) for name, captions in runs.items()}
    options: dict[str, Any] = {"samples": samples, "level": level, "seed": seed}
    options["meteor_of"] = meteor_of
    first, *others = scores.values()
    found = bootstrap.differences(first, others, **options)
    intervals = {name: bootstrap.intervals(run, **options) for name, run in scores.items()}
    return Compared(
        scores, intervals, dict(zip(list(runs)[1:], found, strict=True)), list(dict.fromkeys(notes))
    )


def most_different(
    first: results.Scores, other: results.Scores, count: int
) -> tuple[list[int], list[int]]:
    """The images in which `other` gains most CIDEr, and those in which it loses most."""
    change = {
        image: other.per_image[image]["CIDEr"] - each["CIDEr"]
        for image, each in first.per_image.items()
    }
    order = sorted(change, key=lambda image: -change[image])
    gains = [image for image in order[:count] if change[image] > 0]
    losses = [image for image in reversed(order[-count:]) if change[image] < 0]
    return gains, losses
