"""How far scores can be trusted: bootstrap over images, for one set of captions and for pairs.

The images of a test set are a sample of the images that one wants to know about. Drawing as many
of them again, with replacement, many times over, shows how much a score would move with another
sample (Efron, "Bootstrap methods: another look at the jackknife", 1979). For two sets of captions
the same images are drawn for both and the difference of their scores is looked at: paired
bootstrap, Koehn, "Statistical significance tests for machine translation evaluation", EMNLP 2004.
It sees differences that are far smaller than either interval, since hard images are hard for both.

What is resampled:

* CIDEr, ROUGE-L and SPICE are means over images: the mean of the scores of the images drawn. The
  document frequencies of CIDEr stay those of all references, so that a score does not change
  because rare words were drawn twice.
* BLEU and METEOR are scores of a corpus: matches, guesses and lengths of the images drawn are
  added, and the score is computed from the sums, as pycocoevalcap and the METEOR jar do it.

Letters: S resamples, N images, Q counts of an image.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from tfcap.metrics import java as java_lib
from tfcap.metrics import results
from tfcap.metrics.results import Scores

_BLOCK = 1 << 22  # draws held at a time
_ORDERS = 4

# Sums of METEOR's counts [S, Q] -> S scores, times 100: `coco.CocoScorer.meteor_of`.
MeteorOf = Callable[[np.ndarray], list[float]]


@dataclasses.dataclass(frozen=True)
class Interval:
    """A score and where it would lie for other images.

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
    """Score of B minus score of A, on the same images.

    Attributes:
        wins: Share of the resamples in which B scores higher, equal ones counted half.
        p: Two-sided: twice the share of resamples in which the better one is not better, with the
            data themselves counted as one more resample, so never 0 (Davison and Hinkley,
            "Bootstrap methods and their application", 1997; that the bootstrap of
            the difference is used instead of its null distribution is Koehn's). 1 at most.
        verdict: "higher" or "lower" (B than A) if the interval excludes 0, else "not told apart".
    """

    wins: float
    p: float

    @property
    def verdict(self) -> str:
        if self.low > 0:
            return "higher"
        return "lower" if self.high < 0 else "not told apart"


def bleu(counts: np.ndarray) -> np.ndarray:
    """BLEU-1 ... 4 from summed counts, as pycocoevalcap computes the score of a corpus.

    Args:
        counts: float64 [S, 10]: words of the captions, words of the references closest in length,
            n-grams for n = 1 ... 4 in the captions, and those of them that match.

    Returns:
        float64 [S, 4], times 100.
    """
    small, tiny = 1e-9, 1e-15  # pycocoevalcap's: a caption without a 4-gram is no error
    length, closest = counts[:, 0], counts[:, 1]
    guesses, matches = counts[:, 2 : 2 + _ORDERS], counts[:, 2 + _ORDERS :]
    precisions = np.cumprod((matches + tiny) / (guesses + small), axis=1)
    means = precisions ** (1.0 / np.arange(1, _ORDERS + 1))
    ratio = (length + tiny) / (closest + small)
    with np.errstate(over="ignore"):
        penalty = np.where(ratio < 1, np.exp(1 - 1 / ratio), 1.0)
    return 100.0 * means * penalty[:, None]


def intervals(
    scores: Scores,
    *,
    samples: int = 1000,
    level: float = 95.0,
    seed: int = 1,
    meteor_of: MeteorOf | None = None,
) -> dict[str, Interval]:
    """Percentile intervals of every score of the corpus.

    Args:
        scores: As `CocoScorer.score` returns them.
        samples: S.
        level: Share of the resamples between the two ends, in percent.
        seed: Of the draws; the same seed and number of images draw the same images.
        meteor_of: Scores sums of METEOR's counts. Without it, and where it fails, the interval of
            METEOR is that of its mean over images, moved to the score of the corpus.

    Returns:
        Key -> interval, for the keys of `scores.corpus`.

    Raises:
        ValueError: Nothing to resample, or samples or level out of range.
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
    """Paired bootstrap of every other set of captions against the first.

    Args:
        first: A.
        others: Each a B, scored with the same references.
        samples: S; the same draws for all.
        level, seed, meteor_of: As for `intervals`.

    Returns:
        For each of `others`: key -> B minus A, for the keys that both have.

    Raises:
        ValueError: Other images, or as `intervals`.
    """
    for other in others:
        results.check_ids(first.per_image, other.per_image)
    drawn, *rest = _resample([first, *others], samples, level, seed, meteor_of)
    found = []
    for scores, resampled in zip(others, rest, strict=True):
        found.append({})
        for key in (key for key in drawn if key in resampled):
            change = resampled[key] - drawn[key]
            not_above, not_below = (change <= 0).sum(), (change >= 0).sum()
            found[-1][key] = Difference(
                scores.corpus[key] - first.corpus[key],
                *_ends(change, level),
                wins=float((len(change) - not_above + not_below) / (2 * len(change))),
                p=float(min(1.0, 2.0 * (1 + min(not_above, not_below)) / (1 + len(change)))),
            )
    return found


def draws(images: int, samples: int, seed: int) -> Iterator[np.ndarray]:
    """Yields how often each image is drawn: float64 [S', N] until there were S rows."""
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
    """For each of `runs` key -> scores [S] of the same resamples of the images."""
    if samples < 1 or not 0 < level < 100:
        raise ValueError(
            "resampling needs at least 1 sample and a level between 0 and 100; received "
            f"{samples} samples and level {level:g}"
        )
    images = list(runs[0].per_image)
    if not images:
        raise ValueError("there are no scores of images to resample")
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
    """What is added up, float64 [N, Q']: scores of the corpus' keys, then all statistics."""
    rows = {image: row for row, image in enumerate(scores.per_image)}
    order = [rows[image] for image in images]
    columns = [[scores.per_image[image][key] for key in scores.corpus] for image in images]
    counted = [table[order] for table in scores.statistics.values()]
    return np.concatenate([np.array(columns, float).reshape(len(images), -1), *counted], axis=1)


def _scores(
    scores: Scores, sums: np.ndarray, images: int, meteor_of: MeteorOf | None
) -> dict[str, np.ndarray]:
    """Key -> scores [S] from sums [S, Q'] over the images of each resample."""
    found = {}
    for column, key in enumerate(scores.corpus):
        mean = np.mean([each[key] for each in scores.per_image.values()])
        # Zero but for a score of the corpus that is no mean and whose counts are missing.
        found[key] = sums[:, column] / images + (scores.corpus[key] - mean)
    start = len(scores.corpus)
    for name, table in scores.statistics.items():
        counted = sums[:, start : start + table.shape[1]]
        start += table.shape[1]
        if name == "BLEU":
            found |= {f"BLEU-{n + 1}": column for n, column in enumerate(bleu(counted).T)}
        elif name == "METEOR" and meteor_of is not None:
            # Java that dies here costs the exact interval, not the others.
            with contextlib.suppress(java_lib.JavaError):
                found[name] = np.array(meteor_of(counted))
    return found


def _ends(values: np.ndarray, level: float) -> tuple[float, float]:
    low, high = np.percentile(values, [50 - level / 2, 50 + level / 2])
    return float(low), float(high)
