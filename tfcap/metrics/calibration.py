"""Measures whether a confidence tells which captions are usable, and how often.

A caption is usable if its CIDEr is at least a stated level. Captions are kept in the order of the
confidence, the highest first. The coverage is the share of the captions that is kept, and the risk
is the share of the kept captions that is not usable (Geifman and El-Yaniv, "Selective
classification for deep neural networks", NeurIPS 2017). The area under the curve of risk over
coverage is the mean risk of all coverages; a lower one is better.

A confidence is calibrated if, of all captions with a confidence of about 0.7, seven of ten are
usable. The calibration error is the mean distance between the two over bins with equally many
captions (Naeini et al., AAAI 2015; equal bins: Nixon et al., 2019).

Letters: N captions, one of each image.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfcap.metrics.bootstrap import Interval

BINS = 10
CONFIDENCE = "confidence"
_POINTS = 100  # of a curve that is stored


@dataclasses.dataclass(frozen=True)
class Bin:
    """Captions of about the same confidence.

    Attributes:
      images: their number.
      confidence: their mean confidence.
      usable: the share of them that is usable.
    """

    images: int
    confidence: float
    usable: float


@dataclasses.dataclass(frozen=True)
class Calibration:
    """How well the confidence tells which captions are usable.

    Attributes:
      level: the smallest CIDEr of a usable caption, times 100.
      images: number of captions, N.
      usable: the share of all captions that is usable.
      areas: name of an order, such as `CONFIDENCE` -> area under its risk-coverage curve.
      best: the area if all usable captions came first.
      gain: the share by which the area of the confidence is smaller than the smallest of the other
        areas.
      error: the calibration error of the confidence.
      ratio: mean CIDEr of the more confident half of the captions, divided by that of all.
      bins: the bins of the calibration error, from the lowest confidence.
      curves: name of an order -> its risk at the coverages 0.01, 0.02, ... 1.
    """

    level: float
    images: int
    usable: float
    areas: dict[str, Interval]
    best: float
    gain: Interval
    error: Interval
    ratio: Interval
    bins: list[Bin]
    curves: dict[str, list[float]]

    @property
    def chance(self) -> float:
        """The area if the order were random: the share of captions that is not usable."""
        return 1.0 - self.usable

    def as_dict(self) -> dict[str, Any]:
        """Returns the values for JSON; the name of a property is that of the attribute."""
        return dataclasses.asdict(self) | {"chance": self.chance}

    def format(self) -> str:
        """Formats the values as a table."""
        width = max(map(len, [*self.areas, "best possible"]))
        lines = [
            f"{self.images} captions; usable: CIDEr of at least {self.level:g}, "
            f"{self.usable:.3f} of them",
            f"{'captions in the order of':<{width}}  area under the risk-coverage curve",
        ]
        for name, area in self.areas.items():
            lines.append(f"{name:<{width}}  {_shown(area)}")
        lines += [
            f"{'chance':<{width}}  {self.chance:.3f}",
            f"{'best possible':<{width}}  {self.best:.3f}",
            f"the area of the confidence is smaller by {_shown(self.gain)}",
            f"CIDEr of the more confident half, divided by that of all: {_shown(self.ratio)}",
            f"calibration error of {len(self.bins)} bins: {_shown(self.error)}",
            "confidence  " + "  ".join(f"{one.confidence:.2f}" for one in self.bins),
            "usable      " + "  ".join(f"{one.usable:.2f}" for one in self.bins),
            "in brackets 95 % intervals (bootstrap)",
        ]
        return "\n".join(lines)


def _shown(interval: Interval) -> str:
    return f"{interval.value:.3f} ({interval.low:.3f} to {interval.high:.3f})"


def risks(order: np.ndarray, usable: np.ndarray) -> np.ndarray:
    """Computes the risk of keeping the first 1, 2, ... N captions.

    Args:
      order: numbers of which the caption with the highest comes first, float64 [N].
      usable: whether each caption is usable, bool [N].

    Returns:
      float64 [N]. Its mean is the area under the risk-coverage curve.

    Example:
      >>> print(risks(np.array([0.9, 0.2, 0.6]), np.array([True, False, False])).round(2))
      [0.   0.5  0.67]
    """
    wrong = ~usable[np.argsort(-order, kind="stable")]
    return np.cumsum(wrong) / np.arange(1, len(wrong) + 1)


def bins_of(confidence: np.ndarray, usable: np.ndarray, bins: int = BINS) -> list[Bin]:
    """Divides captions by their confidence into bins with equally many captions.

    Args:
      confidence: float64 [N], 0 to 1.
      usable: whether each caption is usable, bool [N].
      bins: number of bins; with fewer captions there are as many bins as captions.

    Example:
      >>> bins_of(np.array([0.9, 0.2, 0.6, 0.3]), np.array([True, False, True, True]), 2)
      [Bin(images=2, confidence=0.25, usable=0.5), Bin(images=2, confidence=0.75, usable=1.0)]
    """
    order = np.argsort(confidence, kind="stable")
    parts = np.array_split(order, min(bins, len(order)))
    return [Bin(len(p), float(confidence[p].mean()), float(usable[p].mean())) for p in parts]


def error_of(bins: Sequence[Bin]) -> float:
    """Computes the calibration error: the mean distance of confidence and share of usable ones.

    Args:
      bins: the captions, from `bins_of`.

    Example:
      >>> error_of([Bin(2, 0.25, 0.5), Bin(2, 0.75, 0.5)])
      0.25
    """
    images = sum(one.images for one in bins)
    return sum(one.images * abs(one.confidence - one.usable) for one in bins) / images


def kept_ratio(order: np.ndarray, scores: np.ndarray) -> float:
    """Computes the mean score of the first half of the captions, divided by that of all.

    Args:
      order: numbers of which the caption with the highest comes first, float64 [N].
      scores: the score of each caption, float64 [N].

    Example:
      >>> kept_ratio(np.array([0.9, 0.2, 0.6, 0.3]), np.array([70.0, 10.0, 50.0, 30.0]))
      1.5
    """
    first = np.argsort(-order, kind="stable")[: len(order) // 2]
    return float(scores[first].mean() / scores.mean()) if scores.any() else 1.0


def calibration(
    confidence: np.ndarray,
    scores: np.ndarray,
    level: float,
    others: Mapping[str, np.ndarray],
    *,
    samples: int = 1000,
    seed: int = 1,
) -> Calibration:
    """Measures a confidence, with 95 % intervals by bootstrap over the images.

    Args:
      confidence: the confidence in each caption, float64 [N], 0 to 1. N is at least 2.
      scores: CIDEr of each caption, times 100, float64 [N].
      level: the smallest CIDEr of a usable caption, times 100.
      others: name -> other numbers by which captions could be ordered, float64 [N]; at least one.
      samples: number of resamples.
      seed: random seed of the draws.
    """
    usable = scores >= level
    orders = {CONFIDENCE: confidence, **others}
    curves = {name: risks(order, usable) for name, order in orders.items()}
    bins = bins_of(confidence, usable)

    def measured(rows: np.ndarray) -> list[float]:
        areas = [float(risks(order[rows], usable[rows]).mean()) for order in orders.values()]
        least = min(areas[1:])
        return [
            *areas,
            1.0 - areas[0] / least if least else 0.0,
            error_of(bins_of(confidence[rows], usable[rows])),
            kept_ratio(confidence[rows], scores[rows]),
        ]

    number = len(scores)
    rng = np.random.default_rng(seed)
    draws = np.array([measured(rng.integers(number, size=number)) for _ in range(samples)])
    ends = np.percentile(draws, [2.5, 97.5], axis=0).T.tolist()
    values = measured(np.arange(number))
    *areas, gain, error, ratio = (Interval(v, *e) for v, e in zip(values, ends, strict=True))
    points = np.ceil(np.arange(1, _POINTS + 1) * number / _POINTS).astype(int) - 1
    return Calibration(
        level,
        number,
        float(usable.mean()),
        dict(zip(orders, areas, strict=True)),
        float(risks(usable.astype(float), usable).mean()),
        gain,
        error,
        ratio,
        bins,
        {name: curve[points].round(4).tolist() for name, curve in curves.items()},
    )
