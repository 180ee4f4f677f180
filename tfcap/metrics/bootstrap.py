"""Computes confidence intervals of scores by bootstrap over images, also for pairs of systems.

The images of a test set are a sample of all images of interest. Drawing the same number of images
again with replacement, many times, shows how much a score changes with the sample (Efron,
"Bootstrap methods: another look at the jackknife", 1979). To compare two sets of captions, the same
images are drawn for both and the difference of their scores is computed (paired bootstrap: Koehn,
"Statistical significance tests for machine translation evaluation", EMNLP 2004). Difficult images
are difficult for both systems, so this detects differences much smaller than either interval.

How a resample is scored:

* CIDEr, ROUGE-L and SPICE are means over images: the score is the mean over the drawn images. The
  document frequencies of CIDEr are those of all references, so that a score does not change
  because rare words were drawn twice.
* BLEU and METEOR are corpus scores: matches, guesses and lengths of the drawn images are added, and
  the score is computed from the sums, as in pycocoevalcap and the METEOR jar. The jar adds no chunk
  for a caption that equals its reference, and `java.counts_to_add` neither.
* CHAIRi and the recall of CHAIR are ratios of counts: both counts are added over the drawn images.

Letters: S resamples, N images, Q counts of an image.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from tfcap.metrics import java as java_lib
from tfcap.metrics import results
from tfcap.metrics.results import Scores

_BLOCK = 1 << 22  # number of draws in memory at a time
_ORDERS = 4
_NOISE = 1e-9  # scores this close are equal: sums of equal scores differ by rounding

# Computes S scores, times 100, from sums of counts [S, Q]: `coco.CocoScorer.meteor_of`.
MeteorOf = Callable[[np.ndarray], list[float]]


@dataclasses.dataclass(frozen=True)
class Interval:
    """A score and its percentile interval over the resamples.

    Attributes:
        value: The score of all images.
        low: Lower end: the percentile (100 - level) / 2 of the resamples.
        high: Upper end.
    """

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Difference(Interval):
    """Score of B minus score of A on the same images, or of their means over seeds.

    Attributes:
        wins: Share from 0 to 1 of the resamples in which B scores higher; a tie counts one half.
        p: Two-sided p-value, at most 1: twice the smaller of two shares of the resamples, those in
            which B is not above A, and those in which B is not below A. The data themselves count
            as one more resample, so p is never 0 (Davison and Hinkley, "Bootstrap methods and their
            application", 1997). As in Koehn, the shares are those of resampled differences, not of
            a null distribution.
        verdict: "higher" or "lower" (B than A) if the interval excludes 0, else "not significant".
    """

    wins: float
    p: float

    @property
    def verdict(self) -> str:
        if self.low > 0:
            return "higher"
        return "lower" if self.high < 0 else "not significant"


def bleu(counts: np.ndarray) -> np.ndarray:
    """Computes corpus BLEU-1 ... 4 from summed counts, as pycocoevalcap does.

    Args:
        counts: float64 [S, 10]: number of words of the captions; number of words of the references
            closest in length; number of n-grams in the captions for n = 1 ... 4; number of these
            n-grams that match a reference.

    Returns:
        float64 [S, 4], times 100.
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
    """Returns an interval as it stands behind a score: ` (29.0 to 59.8)`."""
    return f" ({low:.1f} to {high:.1f})"


def intervals(
    scores: Scores,
    *,
    samples: int = 1000,
    level: float = 95.0,
    seed: int = 1,
    meteor_of: MeteorOf | None = None,
) -> dict[str, Interval]:
    """Computes the percentile interval of every corpus score.

    Args:
        scores: The result of `CocoScorer.score`.
        samples: S, the number of resamples.
        level: Share of the resamples inside the interval, in percent.
        seed: Random seed of the draws; the same seed and number of images draw the same images.
        meteor_of: Computes METEOR from sums of its counts. Without it, or if it fails, the interval
            of METEOR is the interval of its mean over images, shifted to the corpus score.

    Returns:
        Key -> interval, for the keys of `scores.corpus`.

    Raises:
        ValueError: There are fewer than two images, or `samples` or `level` is out of range.
    """
    drawn = _resample([scores], samples, level, seed, meteor_of)[0]
    return {key: Interval(scores.corpus[key], *_ends(drawn[key], level)) for key in drawn}


def differences(
    first: Scores,
    others: list[Scores],
    *,
    samples: int = 1000,
    level: float = 95.0,
    seed: int = 1,
    meteor_of: MeteorOf | None = None,
) -> list[dict[str, Difference]]:
    """Compares every other set of captions with the first one by paired bootstrap.

    Args:
        first: Scores of A.
        others: Scores of every B, computed with the same references.
        samples: S, the number of resamples; all sets use the same draws.
        level, seed, meteor_of: As for `intervals`.

    Returns:
        For each of `others`: key -> B minus A, for the keys that both have.

    Raises:
        ValueError: The image ids differ, or an argument is not valid for `intervals`.
    """
    for other in others:
        results.check_ids(first.per_image, other.per_image)
    drawn, *rest = _resample([first, *others], samples, level, seed, meteor_of)
    changes: list[dict[str, Difference]] = []
    for scores, resampled in zip(others, rest, strict=True):
        changes.append({})
        for key in (key for key in drawn if key in resampled):
            value = scores.corpus[key] - first.corpus[key]
            changes[-1][key] = _difference(value, resampled[key] - drawn[key], level)
    return changes


def intervals_of_seeds(
    runs: list[Scores], *, samples: int = 1000, level: float = 95.0, seed: int = 1
) -> dict[str, Interval]:
    """Computes the interval of the mean score of runs that differ in their seed.

    Every resample draws images, and draws runs, both with replacement and as many as there are. Few
    runs give an interval that is too narrow: with n runs, the variance between resampled runs is on
    average (n - 1) / n of the true variance.

    Args:
      runs: The scores of each seed, of the same images.
      samples, level, seed: As for `intervals`.

    Returns:
      Key -> interval of the mean, for the keys that all runs have.

    Raises:
      ValueError: As for `differences_of_seeds`.
    """
    (means,) = _means_of_seeds([runs], samples, level, seed)
    return {key: Interval(_mean(runs, key), *_ends(means[key], level)) for key in means}


def differences_of_seeds(
    first: list[Scores],
    other: list[Scores],
    *,
    samples: int = 1000,
    level: float = 95.0,
    seed: int = 1,
) -> dict[str, Difference]:
    """Compares the mean scores of two systems, each trained with several seeds.

    Every resample draws the same images for both systems, and draws the runs of each system
    independently, see `intervals_of_seeds`. With one run of each this is `differences`.

    Args:
      first: The scores of each seed of A.
      other: The scores of each seed of B.
      samples, level, seed: As for `intervals`.

    Returns:
      Key -> mean of B minus mean of A, for the keys that all runs have.

    Raises:
      ValueError: There is no run, the image ids differ, or an argument is not valid for
        `intervals`.
    """
    drawn, resampled = _means_of_seeds([first, other], samples, level, seed)
    return {
        key: _difference(_mean(other, key) - _mean(first, key), resampled[key] - drawn[key], level)
        for key in drawn
        if key in resampled
    }


def _means_of_seeds(
    systems: list[list[Scores]], samples: int, level: float, seed: int
) -> list[dict[str, np.ndarray]]:
    """Returns key -> mean scores [S] over the drawn seeds, for each system."""
    if not all(systems):
        raise ValueError(
            "A system must have the scores of at least one run. Received: none. Score a run first."
        )
    every = [run for runs in systems for run in runs]
    for run in every:
        results.check_ids(every[0].per_image, run.per_image)
    drawn = iter(_resample(every, samples, level, seed, None))
    generator = np.random.default_rng([seed, 1])
    means = []
    for runs in systems:
        tables = [next(drawn) for _ in runs]
        chosen = generator.integers(len(runs), size=(len(runs), samples))
        means.append(
            {
                key: np.stack([table[key] for table in tables])[chosen, np.arange(samples)].mean(
                    axis=0
                )
                for key in tables[0]
                if all(key in table for table in tables)
            }
        )
    return means


def _mean(runs: list[Scores], key: str) -> float:
    return float(np.mean([run.corpus[key] for run in runs]))


def draws(images: int, samples: int, seed: int) -> Iterator[np.ndarray]:
    """Yields blocks of counts, float64 [S', N]: how often a resample draws each image.

    All blocks together have S rows.
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
    runs: list[Scores], samples: int, level: float, seed: int, meteor_of: MeteorOf | None
) -> list[dict[str, np.ndarray]]:
    """Resamples the images S times; returns key -> scores [S] for each of `runs`."""
    if samples < 1 or not 0 < level < 100:
        raise ValueError(
            "samples must be at least 1 and level between 0 and 100. Received: "
            f"{samples} samples and level {level:g}. 1000 samples and level 95 are usual."
        )
    images = list(runs[0].per_image)
    if len(images) < 2:
        raise ValueError(
            "Resampling needs the scores of at least two images: every resample of one image is "
            f"the same. Received: {len(images)}. Score more images."
        )
    tables = [_table(run, images) for run in runs]
    sums = [
        np.concatenate(parts)
        for parts in zip(
            *([counts @ table for table in tables] for counts in draws(len(images), samples, seed)),
            strict=True,
        )
    ]
    return [
        _scores(run, drawn, len(images), meteor_of) for run, drawn in zip(runs, sums, strict=True)
    ]


def _table(scores: Scores, images: list[int]) -> np.ndarray:
    """Builds the table that resamples add up, float64 [N, Q']: scores by key, then all counts."""
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
            with contextlib.suppress(java_lib.JavaError):
                values[name] = np.array(meteor_of(counted))
        elif name in scores.corpus and name != "METEOR":  # see `results.Scores.add_ratio`
            part, whole = counted.T
            values[name] = 100.0 * np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)
    return values


def _difference(value: float, change: np.ndarray, level: float) -> Difference:
    """Makes a `Difference` with `value`, and with the statistics of its resamples `change` [S]."""
    change = _without_noise(change)
    not_above, not_below = (change <= 0).sum(), (change >= 0).sum()
    return Difference(
        float(_without_noise(value)),
        *_ends(change, level),
        wins=float((len(change) - not_above + not_below) / (2 * len(change))),
        p=float(min(1.0, 2.0 * (1 + min(not_above, not_below)) / (1 + len(change)))),
    )


def _without_noise(values: np.ndarray | float) -> np.ndarray:
    """Replaces numbers that differ from 0 only by rounding: they would count as a win or a loss."""
    return np.where(np.abs(values) < _NOISE, 0.0, values)


def _ends(values: np.ndarray, level: float) -> tuple[float, float]:
    low, high = np.percentile(values, [50 - level / 2, 50 + level / 2])
    return float(low), float(high)
