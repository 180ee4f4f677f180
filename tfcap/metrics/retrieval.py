"""Ranking of sentences for images and of images for sentences: R@K, median rank, recall curves.

Letters: I images, N sentences, P images or sentences that a query is compared with, M of them
right, Q queries.

Ranks begin at 1 and are exact. A tie is resolved against the model: what scores as much as a
right item, and is not right itself, stands before it, so that a model that gives everything the
same score finds nothing.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

LEVELS = (1, 5, 10)  # K of R@K
PERCENT = np.arange(101)
COLUMNS = 256  # sentences whose scores are turned into rows at once


class Query(NamedTuple):
    """What came of a query.

    Attributes:
      ranks: int64 [M], of the right items, ascending.
      items: P.
    """

    ranks: np.ndarray
    items: int


class Summary(NamedTuple):
    """Of all queries in one direction.

    Attributes:
      recall: for each K of `LEVELS` the percentage of queries with a right item among the first K.
      median: of the rank of the first right item (the papers' Med r).
      curve: float64 [101], the mean share of the right items of a query, in percent, that are found
        in the first 0, 1, ... 100 percent of the items.
      queries: Q.
    """

    recall: dict[int, float]
    median: float
    curve: np.ndarray
    queries: int

    def as_dict(self) -> dict:
        """For JSON."""
        return {
            **{f"R@{k}": value for k, value in self.recall.items()},
            "median_rank": self.median,
            "queries": self.queries,
            "curve": [round(float(value), 4) for value in self.curve],
        }


def ranks(scores: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Ranks int64 [M], ascending, of the right items.

    Args:
      scores: [P], higher is better; finite.
      right: bool [P].

    Raises:
      ValueError: nothing is right, or a score is NaN, which would be before or behind all others
        depending on the comparison.
    """
    if not right.any() or np.isnan(scores).any():
        raise ValueError(
            "a query needs a right item and scores that are numbers. Received: "
            f"{int(right.sum())} right items, {int(np.isnan(scores).sum())} NaN"
        )
    wanted = np.sort(scores[right])[::-1]
    others = np.sort(scores[~right])
    before = len(others) - np.searchsorted(others, wanted, side="left")
    return before + np.arange(1, len(wanted) + 1)


def image_to_text(
    scores: np.ndarray,
    owners: np.ndarray,
    marginal: np.ndarray | None = None,
    shortlists: np.ndarray | None = None,
) -> Iterator[Query]:
    """Ranks the sentences for every image that has some.

    Args:
      scores: [I, N], log P(sentence | image).
      owners: int [N], the image of each sentence.
      marginal: [N], log of the sum of P(sentence | I') over other images, subtracted from every
        row: equation 7 of Mao et al. (ICLR 2015). None ranks by the scores alone.
      shortlists: int [I, K]; only sentences of these images are ranked, see `nearest`.
    """
    for image, row in enumerate(scores):
        row = row.astype(np.float64) if marginal is None else row - marginal
        right = owners == image
        if shortlists is not None:
            kept = np.isin(owners, shortlists[image])
            row, right = row[kept], right[kept]
        if right.any():
            yield Query(ranks(row, right), len(row))


def text_to_image(scores: np.ndarray, owners: np.ndarray) -> Iterator[Query]:
    """Ranks the images for every sentence; arguments as in `image_to_text`."""
    images = np.arange(len(scores))
    for start in range(0, len(owners), COLUMNS):
        columns = np.ascontiguousarray(scores[:, start : start + COLUMNS].T)
        for owner, row in zip(owners[start : start + COLUMNS], columns, strict=True):
            yield Query(ranks(row, images == owner), len(row))


def summarize(queries: Sequence[Query]) -> Summary:
    """Recall, median rank and curve.

    Raises:
      ValueError: no queries.
    """
    if not queries:
        raise ValueError("there is nothing to summarize: no query has a right answer")
    first = np.array([query.ranks[0] for query in queries])
    found = [
        (query.ranks * 100 <= PERCENT[:, None] * query.items).mean(axis=1) for query in queries
    ]
    return Summary(
        recall={k: 100 * float((first <= k).mean()) for k in LEVELS},
        median=float(np.median(first)),
        curve=100 * np.mean(found, axis=0),
        queries=len(queries),
    )


def log_marginal(scores: np.ndarray) -> np.ndarray:
    """log sum_I' P(s | I') float64 [N] of `scores` [I', N], by log-sum-exp.

    The paper draws I' from the training images, all equally probable; it does not say how many.
    """
    best = np.max(scores, axis=0).astype(np.float64)
    total = np.zeros_like(best)
    for row in scores:
        total += np.exp(row - best)
    return best + np.log(total)


def nearest(features: np.ndarray, number: int) -> np.ndarray:
    """The images that are nearest to each in feature space, itself among them.

    The shortlist of the comparison on IAPR TC-12 (Mao et al., supplement 10.2, after Kiros,
    Salakhutdinov and Zemel, "Multimodal Neural Language Models", ICML 2014): the sentences to be
    ranked for an image are those of its 100 nearest neighbours, which makes the task harder, since
    similar images have similar sentences. [GUESS] The distance is Euclidean, and an image counts
    among its own neighbours, as its sentences must be in the list; the other direction, for which
    no shortlist is mentioned, ranks all images.

    Args:
      features: [I, F].
      number: K, at least 1.

    Returns:
      int64 [I, min(K, I)], the image first, then by distance, ties by position.
    """
    points = np.asarray(features, np.float64)
    squares = np.sum(points**2, axis=1)
    result = np.empty((len(points), min(number, len(points))), np.int64)
    for image, point in enumerate(points):
        distances = squares - 2 * (points @ point)
        distances[image] = -np.inf  # before its own copies
        result[image] = np.argsort(distances, kind="stable")[: result.shape[1]]
    return result


def format_table(found: dict[str, Summary]) -> str:
    """A row for each direction, columns as in the papers."""
    width = max(map(len, found))
    lines = [f"{'':{width}}  {'R@1':>6} {'R@5':>6} {'R@10':>6} {'Med r':>6}"]
    for name, summary in found.items():
        recalls = " ".join(f"{summary.recall[k]:6.1f}" for k in LEVELS)
        lines.append(f"{name:{width}}  {recalls} {summary.median:6g}")
    return "\n".join(lines)
