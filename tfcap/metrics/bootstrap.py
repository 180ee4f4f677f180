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

A system is a list of runs with different seeds, often of a single run. Every resample draws images
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
_NOISE = 1e-9  # scores this close are equal: sums of equal scores differ by rounding

# Computes S scores, times 100, from sums of counts [S, Q]: `coco.CocoScorer.meteor_of`.
MeteorOf = Callable[[np.ndarray], list[float]]


@dataclasses.dataclass(frozen=True)
class Interval:
    """The score of all images, and its percentile interval over the resamples."""

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Difference(Interval):
    """Score of B minus score of A on the same images, or mean over seeds of B minus that of A.

    `wins` is the share from 0 to 1 of the resamples in which B scores higher; a tie counts half.
    `p` is a two-sided p-value: twice the smaller of two shares of the resamples, those in which B
    is not above A, and those in which B is not below A. The original data count as one more
    resample, so p is never 0 (Davison and Hinkley, "Bootstrap methods and their application",
    1997). As in Koehn, p comes from the resampled differences, not from a null distribution.
    """

    wins: float
    p: float

    @property
    def verdict(self) -> str:
        if self.low > 0:
            return "higher"
        return "lower" if self.high < 0 else "not significant"


def bleu(counts: np.ndarray) -> np.ndarray:
    """Computes corpus BLEU-1 ... 4 from summed counts, as pycocoevalcap does: [S, 4], times 100.

    `counts` float64 [S, 10] are: number of words of the captions; number of words of the references
    closest in length; number of n-grams in the captions for n = 1 ... 4; number of these n-grams
    that match a reference.
    """
    small, tiny = 1e-9, 1e-15  # as in pycocoevalcap, for captions without a 4-gram
    length, closest = counts[:, 0], counts[:, 1]
    guesses, matches = counts[:, 2 : 2 + _ORDERS], counts[:, 2 + _ORDERS :]
    precisions = np.cumprod((matches + tiny) / (guesses + small), axis=1)
    means = precisions ** (1.0 / np.arange(1, _ORDERS + 1))
    ratio = (length + tiny) / (closest + small)
    with np.errstate(over="ignore"):
        penalty = np.where(ratio < 1, np.exp(1 - 1 / ratio), 1.0)
    return 100.0 * means * penalty[:, None]


def shown(low: float, high: float) -> str:
    """Returns an interval as text: ` (29.0 to 59.8)`."""
    return f" ({low:.1f} to {high:.1f})"


def intervals(
    runs: Scores | Sequence[Scores],
    *,
    samples: int = 1000,
    level: float = 95.0,
    seed: int = 1,
    meteor_of: MeteorOf | None = None,
) -> dict[str, Interval]:
    """Computes the percentile interval of every corpus score, or of its mean over seeds.

    Args:
      runs: the result of `CocoScorer.score`, or a list of results with one per seed, for the same
        images.
      samples: S, the number of resamples.
      level: share of the resamples inside the interval, in percent.
      seed: random seed of the draws; the same seed and number of images draw the same images.
      meteor_of: computes METEOR from sums of METEOR's counts. If it is None or fails, the interval
        of METEOR is the interval of the mean over images, shifted to the corpus score.
    """
    runs = _listed(runs)
    (means,) = _resample([runs], samples, seed, meteor_of)
    return {key: Interval(_mean(runs, key), *_ends(means[key], level)) for key in means}


def differences(
    first: Scores | Sequence[Scores],
    other: Scores | Sequence[Scores],
    *,
    samples: int = 1000,
    level: float = 95.0,
    seed: int = 1,
    meteor_of: MeteorOf | None = None,
) -> dict[str, Difference]:
    """Compares two systems by paired bootstrap: both are scored on the same drawn images.

    `first` are the scores of A, or a list with the scores of each seed, and `other` the scores of B
    with the same references. The other arguments are those of `intervals`. Returns key -> B minus
    A.
    """
    first, other = _listed(first), _listed(other)
    drawn, resampled = _resample([first, other], samples, seed, meteor_of)
    return {
        key: _difference(_mean(other, key) - _mean(first, key), resampled[key] - drawn[key], level)
        for key in drawn
        if key in resampled
    }


@dataclasses.dataclass(frozen=True)
class Compared:
    """The result of `compare`: name of the set -> key -> value; and notes, one line each.

    `differences` has every set except the first: its score minus the score of the first.
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

    `runs` is name -> image id -> caption; the other arguments are those of `intervals`.
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


def _listed(runs: Scores | Sequence[Scores]) -> list[Scores]:
    return [runs] if isinstance(runs, Scores) else list(runs)


def _mean(runs: list[Scores], key: str) -> float:
    return float(np.mean([run.corpus[key] for run in runs]))


def draws(images: int, samples: int, seed: int) -> Iterator[np.ndarray]:
    """Yields blocks of counts, float64 [S', N]: how often a resample draws each image."""
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
    """Draws images and runs S times; returns key -> mean scores [S] for each system."""
    runs = [run for system in systems for run in system]
    images = list(runs[0].per_image)
    for run in runs:
        results.check_ids(runs[0].per_image, run.per_image)
    if len(images) < 2:
        raise ValueError("Intervals need the scores of at least two images.")
    tables = [_table(run, images) for run in runs]
    blocks = [[counts @ table for table in tables] for counts in draws(len(images), samples, seed)]
    drawn = iter(
        _scores(run, np.concatenate(sums), len(images), meteor_of)
        for run, sums in zip(runs, zip(*blocks, strict=True), strict=True)
    )
    generator = np.random.default_rng([seed, 1])
    means = []
    for system in systems:
        scores = [next(drawn) for _ in system]
        chosen = generator.integers(len(system), size=(len(system), samples))
        keys = [key for key in scores[0] if all(key in each for each in scores)]
        stacks = {key: np.stack([each[key] for each in scores]) for key in keys}
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
        mean = np.mean([each[key] for each in scores.per_image.values()])
        # The shift is 0 except for a corpus score that is not a mean and has no counts.
        values[key] = sums[:, column] / images + _without_noise(float(scores.corpus[key] - mean))
    start = len(scores.corpus)
    for name, table in scores.statistics.items():
        counted = sums[:, start : start + table.shape[1]]
        start += table.shape[1]
        if name == "BLEU":
            values |= {f"BLEU-{n + 1}": column for n, column in enumerate(bleu(counted).T)}
        elif name == "METEOR" and meteor_of is not None:
            # If Java fails here, METEOR keeps the approximate interval from above.
            with contextlib.suppress(JavaError):
                values[name] = np.array(meteor_of(counted))
        elif name in scores.corpus and name != "METEOR":  # see `results.Scores.add_ratio`
            part, whole = counted.T
            values[name] = 100.0 * np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)
    return values


def _difference(value: float, change: np.ndarray, level: float) -> Difference:
    change = _without_noise(change)
    not_above, not_below = (change <= 0).sum(), (change >= 0).sum()
    return Difference(
        float(_without_noise(value)),
        *_ends(change, level),
        wins=float((len(change) - not_above + not_below) / (2 * len(change))),
        p=float(min(1.0, 2.0 * (1 + min(not_above, not_below)) / (1 + len(change)))),
    )


def _without_noise(values: np.ndarray | float) -> np.ndarray:
    """Replaces rounding errors by 0, because they would count as a win or a loss."""
    return np.where(np.abs(values) < _NOISE, 0.0, values)


def _ends(values: np.ndarray, level: float) -> tuple[float, float]:
    low, high = np.percentile(values, [50 - level / 2, 50 + level / 2])
    return float(low), float(high)
