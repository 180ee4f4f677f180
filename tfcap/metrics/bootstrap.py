"""Computes confidence intervals of scores by bootstrap over images, also for pairs of systems.

The images of a test set are a sample of all images of interest. Drawing as many images from the
test set with replacement, many times, shows how much a score depends on the sample (Efron,
"Bootstrap methods: another look at the jackknife", 1979). To compare two sets of captions, the same
images are drawn for both and the difference of their scores is computed (paired bootstrap: Koehn,
"Statistical significance tests for machine translation evaluation", EMNLP 2004). Difficult images
are difficult for both systems, so paired bootstrap detects differences that are much smaller than
the two intervals.

How a resample is scored:

* CIDEr, ROUGE-L and SPICE are means over images: the score is the mean over the drawn images. The
  document frequencies of CIDEr are those of all references, so that a score does not change
  because rare words were drawn twice.
* BLEU and METEOR are corpus scores: matches, guesses and lengths of the drawn images are added, and
  the score is computed from the sums, as in pycocoevalcap and the METEOR jar. Like the jar,
  `java.counts_to_add` adds no chunk for a caption that equals its reference.
* CHAIRi and the recall of CHAIR are ratios of counts: both counts are added over the drawn images.

A system is a list of runs with different seeds, often a list of one. Each resample draws images
and runs with replacement, as many as there are. With few runs the interval is too narrow: with n
runs, the variance between resampled runs is on average (n - 1) / n of the true one.

Letters: S resamples, N images, Q counts of an image.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfcap.metrics import results
from tfcap.metrics.coco import CocoScorer
from tfcap.metrics.java import JavaError
from tfcap.metrics.results import Scores

_BLOCK = 1 << 22  # number of draws in memory at a time
_ORDERS = 4
_NOISE = 1e-9  # scores that differ by less are equal: sums of equal scores differ by rounding

# Computes S scores, times 100, from sums of counts [S, Q]: `coco.CocoScorer.meteor_of`.
MeteorOf = Callable[[np.ndarray], list[float]]


@dataclasses.dataclass(frozen=True)
class Interval:
    """A score of a set of images, and its confidence interval by bootstrap.

    Attributes:
      value: the score of all images.
      low, high: ends of the interval. By default, 95 % of the resamples have a score between them.
        A resample is as many images as the set has, drawn from it at random with replacement.
    """

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Difference(Interval):
    """The score of system B minus the score of system A on the same images.

    A system may have several runs with different seeds: then its score is the mean over its runs.
    `value`, `low` and `high` are the difference of the scores and the ends of its interval.

    Attributes:
      wins: share of the resamples in which B scores higher, 0 to 1; a tie counts half.
      p: two-sided p-value, 2 (1 + min(a, b)) / (1 + S), at most 1. Of S resamples, a have a
        difference of 0 or less, and b have a difference of 0 or more. The original data count as
        one more resample. So 1 is added to both numbers, and p is never 0 (Davison and Hinkley,
        "Bootstrap methods and their application", 1997). As in Koehn (2004), p comes from the
        resampled differences, not from a null distribution.
    """

    wins: float
    p: float

    @property
    def verdict(self) -> str:
        """How B compares with A, as text: `higher`, `lower` or `not significant`.

        It is `higher` if the whole interval of B - A is above 0, `lower` if the whole interval is
        below 0, and otherwise `not significant`.
        """
        if self.low > 0:
            return "higher"
        return "lower" if self.high < 0 else "not significant"


def bleu(counts: np.ndarray) -> np.ndarray:
    """Computes BLEU-1 ... 4 of sets of captions from summed counts, as pycocoevalcap does.

    Args:
      counts: counts of S sets, each summed over the images of the set, float64 [S, 10]. Column 0 is
        the number of words of the captions. Column 1 is the number of words of the references,
        where each caption counts the reference whose length is closest to its own. Columns 2 to 5
        are the numbers of n-grams of the captions, n = 1 ... 4. Columns 6 to 9 are the numbers of
        these n-grams that match a reference.

    Returns:
      BLEU-1 ... 4 of each set, times 100: float64 [S, 4]. BLEU-n is the geometric mean of the
      precisions of the orders 1 ... n. A precision is the number of matches divided by the number
      of n-grams. If r = column 0 / column 1 is below 1, BLEU-n is multiplied by exp(1 - 1 / r). As
      in pycocoevalcap, each quotient a / b is computed as (a + 1e-15) / (b + 1e-9), so that nothing
      is divided by 0.

    Example:
      >>> counts = np.array([[5.0, 5, 5, 4, 3, 2, 4, 3, 2, 1]])  # one word of five is wrong
      >>> print(bleu(counts).round(1))
      [[80.  77.5 73.7 66.9]]
    """
    small = 1e-9  # as in pycocoevalcap, for captions without a 4-gram
    tiny = 1e-15
    length = counts[:, 0]
    closest = counts[:, 1]
    guesses = counts[:, 2 : 2 + _ORDERS]
    matches = counts[:, 2 + _ORDERS :]
    precisions = np.cumprod((matches + tiny) / (guesses + small), axis=1)
    means = precisions ** (1.0 / np.arange(1, _ORDERS + 1))
    ratio = (length + tiny) / (closest + small)
    with np.errstate(over="ignore"):
        penalty = np.where(ratio < 1, np.exp(1 - 1 / ratio), 1.0)
    return 100.0 * means * penalty[:, None]


def interval_text(low: float, high: float) -> str:
    """Returns an interval as text that is printed behind a score, such as " (29.0 to 59.8)".

    Args:
      low, high: the ends of the interval.
    """
    return f" ({low:.1f} to {high:.1f})"


def intervals(
    runs: Scores | Sequence[Scores],
    *,
    samples: int = 1000,
    level: float = 95.0,
    seed: int = 1,
    meteor_of: MeteorOf | None = None,
) -> dict[str, Interval]:
    """Computes a confidence interval for each score of a set of images, by bootstrap over images.

    A resample draws as many images as there are, at random with replacement. If there are several
    runs, a resample also draws as many runs as there are, and the interval is that of the mean
    score of the runs.

    Args:
      runs: the result of `CocoScorer.score` for the captions of a model; or a list of such results
        for the same images, from training runs that differ only in the seed.
      samples: number of resamples.
      level: share of the resamples inside the interval, in percent.
      seed: random seed of the draws. The same seed draws the same images, if the number of images
        is the same.
      meteor_of: a function that computes METEOR from sums of its counts, such as
        `CocoScorer.meteor_of`. If it is None or raises JavaError, the interval of METEOR is
        approximate: the interval of the mean METEOR of the images, shifted so that it belongs to
        the METEOR of the set.

    Returns:
      Key of the score, such as "CIDEr" -> its interval.

    Raises:
      ValueError: there are fewer than two images, or the runs have different images.

    Example:
      >>> scores = Scores({"CIDEr": 50.0}, {1: {"CIDEr": 20.0}, 2: {"CIDEr": 80.0}})
      >>> intervals(scores)
      {'CIDEr': Interval(value=50.0, low=20.0, high=80.0)}
    """
    runs = _listed(runs)
    (means,) = _resample([runs], samples, seed, meteor_of)
    result = {}
    for key, values in means.items():
        low, high = _ends(values, level)
        result[key] = Interval(_mean(runs, key), low, high)
    return result


def differences(
    first: Scores | Sequence[Scores],
    other: Scores | Sequence[Scores],
    *,
    samples: int = 1000,
    level: float = 95.0,
    seed: int = 1,
    meteor_of: MeteorOf | None = None,
) -> dict[str, Difference]:
    """Compares two systems by paired bootstrap: each resample draws the same images for both.

    Args:
      first: the result of `CocoScorer.score` for system A, or a list of such results from training
        runs of A that differ only in the seed.
      other: the same for system B, with the same images and references.
      samples, level, seed, meteor_of: as in `intervals`.

    Returns:
      Key of the score, such as "CIDEr" -> the score of B minus that of A, with its interval. Only
      scores that both systems have are compared.

    Raises:
      ValueError: there are fewer than two images, or the results have different images.

    Example:
      >>> first = Scores({"CIDEr": 50.0}, {1: {"CIDEr": 20.0}, 2: {"CIDEr": 80.0}})
      >>> other = Scores({"CIDEr": 55.0}, {1: {"CIDEr": 25.0}, 2: {"CIDEr": 85.0}})
      >>> difference = differences(first, other)["CIDEr"]
      >>> difference.value, difference.verdict
      (5.0, 'higher')
    """
    first = _listed(first)
    other = _listed(other)
    means_first, means_other = _resample([first, other], samples, seed, meteor_of)
    return {
        key: _difference(
            _mean(other, key) - _mean(first, key), means_other[key] - means_first[key], level
        )
        for key in means_first
        if key in means_other
    }


@dataclasses.dataclass(frozen=True)
class Compared:
    """Scores of several sets of captions of the same images: the result of `compare`.

    Attributes:
      scores: name of the set -> its scores.
      intervals: name of the set -> key of the score -> its confidence interval.
      differences: name of the set -> key of the score -> the score of this set minus that of the
        first set. The first set has no entry.
      notes: notes for the user, one line each.
    """

    scores: dict[str, Scores]
    intervals: dict[str, dict[str, Interval]]
    differences: dict[str, dict[str, Difference]]
    notes: list[str]


def compare(
    runs: Mapping[str, dict[int, str]],
    references: dict[int, list[str]],
    scorer: CocoScorer,
    *,
    samples: int = 1000,
    seed: int = 1,
) -> Compared:
    """Scores several sets of captions of the same images, and compares each set with the first.

    Args:
      runs: name of the set -> its captions, a dictionary with the caption of each image id. Each
        set has a caption of every image of `references`.
      references: image id -> reference captions.
      scorer: the scorer, which was made for the metrics to compute.
      samples, seed: as in `intervals`.

    Returns:
      Scores, intervals and differences of the sets. If `references` has a single image, there are
      only scores, and a note says so.

    Example:
      >>> references = {1: ["a red bus"], 2: ["two dogs"]}
      >>> runs = {"mine": {1: "a bus", 2: "two dogs"}, "other": {1: "a bus", 2: "a cat"}}
      >>> with CocoScorer(["BLEU"], java=None) as scorer:
      ...     compared = compare(runs, references, scorer)
      >>> compared.differences["other"]["BLEU-1"].verdict
      'not significant'
    """
    before = scorer.notes
    scores = {name: scorer.score(references, captions) for name, captions in runs.items()}
    if scorer.notes != before:  # the tokenizer failed in between, and all need the same tokens
        scores = {name: scorer.score(references, captions) for name, captions in runs.items()}
    first, *others = scores
    if len(references) == 1:
        notes = ["there are no intervals, because they need several images"]
        return Compared(scores, {name: {} for name in scores}, {name: {} for name in others}, notes)
    options: dict[str, Any] = {"samples": samples, "seed": seed, "meteor_of": scorer.meteor_of}
    changes = {name: differences(scores[first], scores[name], **options) for name in others}
    ends = {name: intervals(run, **options) for name, run in scores.items()}
    return Compared(scores, ends, changes, [])


def score_images(
    scores: Scores, images: Sequence[int], *, meteor_of: MeteorOf | None = None
) -> dict[str, float]:
    """Computes the scores of some of the images from the scores and counts of each image.

    Scores that are means over images keep what depends on all images, such as the document
    frequencies of CIDEr.

    Args:
      scores: the result of `CocoScorer.score` for all images.
      images: ids of the images to score, each once.
      meteor_of: as in `intervals`.

    Returns:
      Key of the score, such as "BLEU-4" -> score of these images, times 100.

    Example:
      >>> scores = Scores({"CIDEr": 50.0}, {1: {"CIDEr": 20.0}, 2: {"CIDEr": 80.0}})
      >>> score_images(scores, [2])
      {'CIDEr': 80.0}
    """
    sums = _table(scores, list(images)).sum(axis=0, keepdims=True)
    values = _scores(scores, sums, len(images), meteor_of)
    return {key: float(value[0]) for key, value in values.items()}


def _listed(runs: Scores | Sequence[Scores]) -> list[Scores]:
    return [runs] if isinstance(runs, Scores) else list(runs)


def _mean(runs: list[Scores], key: str) -> float:
    """Returns a score of a set, mean over the runs."""
    return float(np.mean([run.corpus[key] for run in runs]))


def draws(images: int, samples: int, seed: int) -> Iterator[np.ndarray]:
    """Draws the images of each resample, at random with replacement.

    Args:
      images: number of images, N.
      samples: number of resamples.
      seed: random seed.

    Yields:
      Arrays float64 [rows, N]. A row is a resample, and its numbers say how often it contains each
      of the N images. All arrays together have `samples` rows.
    """
    generator = np.random.default_rng(seed)
    block = max(1, _BLOCK // images)
    for start in range(0, samples, block):
        rows = min(block, samples - start)
        drawn = generator.integers(images, size=(rows, images))
        drawn += images * np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * images)
        yield counts.reshape(rows, images).astype(float)


def _resample(
    systems: list[list[Scores]], samples: int, seed: int, meteor_of: MeteorOf | None
) -> list[dict[str, np.ndarray]]:
    """Draws images and runs S times; returns key -> mean scores [S] for each system.

    Every run is scored on all S draws of images; then each draw of a system takes the mean over as
    many drawn runs as it has.
    """
    runs = [run for system in systems for run in system]
    images = list(runs[0].per_image)
    for run in runs:
        results.check_ids(runs[0].per_image, run.per_image)
    if len(images) < 2:
        raise ValueError(
            "Intervals need the scores of at least two images. Score captions of more images."
        )
    tables = [_table(run, images) for run in runs]
    blocks = [[counts @ table for table in tables] for counts in draws(len(images), samples, seed)]
    scores_of_runs = iter(
        _scores(run, np.concatenate(sums), len(images), meteor_of)
        for run, sums in zip(runs, zip(*blocks, strict=True), strict=True)
    )
    generator = np.random.default_rng([seed, 1])
    means = []
    for system in systems:
        scores = [next(scores_of_runs) for _ in system]
        chosen = generator.integers(len(system), size=(len(system), samples))
        keys = [key for key in scores[0] if all(key in values for values in scores)]
        stacks = {key: np.stack([values[key] for values in scores]) for key in keys}
        means.append({k: stack[chosen, np.arange(samples)].mean(0) for k, stack in stacks.items()})
    return means


def _table(scores: Scores, images: list[int]) -> np.ndarray:
    """Builds a table float64 [N, Q'] with a row per image: its scores by key, then its counts."""
    rows = {image: row for row, image in enumerate(scores.per_image)}
    order = [rows[image] for image in images]
    columns = [[scores.per_image[image][key] for key in scores.corpus] for image in images]
    counted = [table[order] for table in scores.statistics.values()]
    return np.concatenate([np.array(columns, float).reshape(len(images), -1), *counted], axis=1)


def _scores(
    scores: Scores, sums: np.ndarray, images: int, meteor_of: MeteorOf | None
) -> dict[str, np.ndarray]:
    """Computes key -> scores [S] from the sums [S, Q'] over the images of each resample."""
    values = {}
    for column, key in enumerate(scores.corpus):
        mean = np.mean([values_of_image[key] for values_of_image in scores.per_image.values()])
        # The shift is 0 except for the score of a set that is no mean over images.
        values[key] = sums[:, column] / images + _without_noise(float(scores.corpus[key] - mean))
    start = len(scores.corpus)
    for name, table in scores.statistics.items():
        counts = sums[:, start : start + table.shape[1]]
        start += table.shape[1]
        if name == "BLEU":
            values |= {f"BLEU-{n + 1}": column for n, column in enumerate(bleu(counts).T)}
        elif name == "METEOR" and meteor_of is not None:
            # If Java fails here, METEOR keeps the approximate interval from above.
            with contextlib.suppress(JavaError):
                values[name] = np.array(meteor_of(counts))
        elif name in scores.corpus and name != "METEOR":  # see `results.Scores.add_ratio`
            part, whole = counts.T
            values[name] = 100.0 * np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)
    return values


def _difference(value: float, change: np.ndarray, level: float) -> Difference:
    change = _without_noise(change)
    not_above = (change <= 0).sum()
    not_below = (change >= 0).sum()
    low, high = _ends(change, level)
    return Difference(
        value=float(_without_noise(value)),
        low=low,
        high=high,
        wins=float((len(change) - not_above + not_below) / (2 * len(change))),
        p=float(min(1.0, 2.0 * (1 + min(not_above, not_below)) / (1 + len(change)))),
    )


def _without_noise(values: np.ndarray | float) -> np.ndarray:
    """Replaces rounding errors by 0, because they would count as a win or a loss."""
    return np.where(np.abs(values) < _NOISE, 0.0, values)


def _ends(values: np.ndarray, level: float) -> tuple[float, float]:
    """Returns the ends of the percentile interval of `values` [S]."""
    low, high = np.percentile(values, [50 - level / 2, 50 + level / 2])
    return float(low), float(high)
