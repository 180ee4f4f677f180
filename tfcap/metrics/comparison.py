"""Scores several sets of captions of the same images and compares them."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tfcap.metrics import bootstrap, coco, hypotheses, results
from tfcap.metrics.java import JavaError


@dataclasses.dataclass(frozen=True)
class Compared:
    """The result of `compare`.

    Attributes:
        scores: Name -> scores of this set of captions.
        intervals: Name -> key -> interval.
        differences: Name of every set except the first -> key -> this set minus the first.
        notes: Remarks on the resampling, one line each. With one image there are no intervals and
            no differences, and a note says so.
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
    """Scores sets of captions and compares each with the first one.

    Args:
        runs: Name -> image id -> caption; one or more sets, of the images of `references`.
        references: Image id -> reference captions, not tokenized.
        scorer: Computes the metrics to compare.
        samples, level, seed: As for `bootstrap.intervals`.

    Raises:
        ValueError: The sets have different images, or an option is out of range.
    """
    notes: list[str] = []

    def meteor_of(sums):
        try:
            return scorer.meteor_of(sums)
        except JavaError as error:
            notes.append(f"intervals of METEOR are those of its mean over images: {error}")
            raise

    def score_all() -> dict[str, results.Scores]:
        return {name: scorer.score(references, captions) for name, captions in runs.items()}

    scores = scorer.with_one_tokenizer(score_all)
    if len(references) == 1:
        notes.append("there are no intervals, because they need several images")
        empty: dict[str, Any] = {name: {} for name in runs}
        return Compared(scores, empty, dict(list(empty.items())[1:]), notes)
    options: dict[str, Any] = {"samples": samples, "level": level, "seed": seed}
    options["meteor_of"] = meteor_of
    first, *others = scores.values()
    differences = bootstrap.differences(first, others, **options)
    intervals = {name: bootstrap.intervals(run, **options) for name, run in scores.items()}
    return Compared(
        scores,
        intervals,
        dict(zip(list(runs)[1:], differences, strict=True)),
        list(dict.fromkeys(notes)),
    )


def load_runs(paths: Mapping[str, str], references: Mapping[int, Any]) -> dict[str, dict[int, str]]:
    """Reads the captions of other runs for the images that have references.

    Args:
        paths: Name of each run -> path of its result file, or of its file of `--hypotheses`, whose
            first captions count.
        references: Image id -> reference captions.

    Returns:
        Name -> image id -> caption, with the images in the order of `references`.

    Raises:
        ValueError: A file cannot be read, or an image has no caption in it.
    """
    runs = {}
    for name, path in paths.items():
        captions = hypotheses.load_results_or_hypotheses(path).best()
        missing = [image for image in references if image not in captions]
        if missing:
            raise ValueError(
                f"{path} has no caption for image {missing[0]} of the split. Give a result file "
                "of the same split, or --partial."
            )
        runs[name] = {image: captions[image] for image in references}
    return runs


def most_different(
    first: results.Scores, other: results.Scores, count: int
) -> tuple[list[int], list[int]]:
    """Returns the images where `other` gains most CIDEr, and the images where it loses most."""
    change = {
        image: other.per_image[image]["CIDEr"] - each["CIDEr"]
        for image, each in first.per_image.items()
    }
    order = sorted(change, key=lambda image: -change[image])
    gains = [image for image in order[:count] if change[image] > 0]
    losses = [image for image in order[::-1][:count] if change[image] < 0]
    return gains, losses
