"""Ranks captions for images and images for captions: R@K, median rank, recall curves.

Letters: I images, N captions, P items (images or captions) that a query is compared with, M correct
items among them, Q queries.

Ranks begin at 1 and are exact. A tie counts against the model: a wrong item with the same score as
a correct item is ranked first.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

LEVELS = (1, 5, 10)  # K of R@K
PERCENT = np.arange(101)
COLUMNS = 256  # number of captions whose scores are transposed together


class Query(NamedTuple):
    """The result of a query.

    Attributes:
      ranks: the ranks of the correct items, int64 [M], ascending.
      items: number of items with which the query was compared, P.
    """

    ranks: np.ndarray
    items: int


class Summary(NamedTuple):
    """Statistics of all queries in one direction.

    Attributes:
      recall: K -> R@K, the share of queries with a correct item among the first K, in percent.
      median: median of the rank of the first correct item ("Med r" in papers).
      curve: recall within the first 0, 1, ... 100 percent of the items, in percent, float64 [101]:
        the share of the correct items of a query, mean over queries.
      queries: number of queries, Q.
    """

    recall: dict[int, float]
    median: float
    curve: np.ndarray
    queries: int

    def as_dict(self) -> dict[str, Any]:
        """Returns the statistics as a dictionary for JSON."""
        return {
            **{f"R@{k}": value for k, value in self.recall.items()},
            "median_rank": self.median,
            "queries": self.queries,
            "curve": [round(float(value), 4) for value in self.curve],
        }


def ranks(scores: np.ndarray, correct: np.ndarray) -> np.ndarray:
    """Computes the ranks of the correct items of a query.

    Args:
      scores: the score of each item, [P].
      correct: whether each item is correct, bool [P].

    Returns:
      int64 [M], ascending.

    Example:
      >>> ranks(np.array([0.9, 0.5, 0.7]), np.array([False, True, True]))
      array([2, 3])
    """
    best_first = np.sort(scores[correct])[::-1]
    wrong = np.sort(scores[~correct])
    wrong_before = len(wrong) - np.searchsorted(wrong, best_first, side="left")
    return wrong_before + np.arange(1, len(best_first) + 1)


def image_to_text(
    scores: np.ndarray,
    owners: np.ndarray,
    marginal: np.ndarray | None = None,
    shortlists: np.ndarray | None = None,
) -> Iterator[Query]:
    """Ranks the captions for every image that has captions.

    Args:
      scores: log P(caption | image), [I, N].
      owners: index of the image of each caption, int [N].
      marginal: the log of the mean, or of the sum, of P(caption | I') over other images, [N]; it is
        subtracted from every row (equation 7 of Mao et al., ICLR 2015). None subtracts nothing.
      shortlists: indices of K images, int [I, K], whose captions alone are ranked for an image;
        None ranks all captions.

    Example:
      >>> scores = np.array([[-1.0, -3.0], [-2.0, -5.0]])
      >>> [query.ranks.tolist() for query in image_to_text(scores, np.array([0, 1]))]
      [[1], [2]]
    """
    for image, row in enumerate(scores):
        row = row.astype(np.float64) if marginal is None else row - marginal
        correct = owners == image
        if shortlists is not None:
            kept = np.isin(owners, shortlists[image])
            row = row[kept]
            correct = correct[kept]
        if correct.any():
            yield Query(ranks(row, correct), len(row))


def text_to_image(scores: np.ndarray, owners: np.ndarray) -> Iterator[Query]:
    """Ranks the images for every caption; the arguments are those of `image_to_text`.

    Example:
      >>> scores = np.array([[-1.0, -3.0], [-2.0, -5.0]])
      >>> [query.ranks.tolist() for query in text_to_image(scores, np.array([0, 1]))]
      [[1], [2]]
    """
    images = np.arange(len(scores))
    for start in range(0, len(owners), COLUMNS):
        columns = np.ascontiguousarray(scores[:, start : start + COLUMNS].T)
        for owner, row in zip(owners[start : start + COLUMNS], columns, strict=True):
            yield Query(ranks(row, images == owner), len(row))


def summarize(queries: Sequence[Query]) -> Summary:
    """Computes recall, median rank and recall curve of the queries.

    Example:
      >>> summary = summarize([Query(np.array([1]), items=8), Query(np.array([6]), items=8)])
      >>> summary.recall, summary.median
      ({1: 50.0, 5: 50.0, 10: 100.0}, 3.5)
    """
    if not queries:
        raise ValueError("No image has captions, so there is nothing to rank.")
    first = np.array([query.ranks[0] for query in queries])
    curves = [
        (query.ranks * 100 <= PERCENT[:, None] * query.items).mean(axis=1) for query in queries
    ]
    return Summary(
        recall={k: 100 * float((first <= k).mean()) for k in LEVELS},
        median=float(np.median(first)),
        curve=100 * np.mean(curves, axis=0),
        queries=len(queries),
    )


def log_marginal(scores: np.ndarray) -> np.ndarray:
    """Computes log sum_I' P(caption | I') of each caption, the `marginal` of `image_to_text`.

    The paper (Mao et al., ICLR 2015) draws the images I' uniformly from the training images; it
    does not say how many.

    Args:
      scores: log P(caption | I'), [number of images I', N].

    Returns:
      float64 [N].

    Example:
      >>> log_marginal(np.log([[0.5, 0.1], [0.25, 0.3]])).round(3)  # log 0.75, log 0.4
      array([-0.288, -0.916])
    """
    best = np.max(scores, axis=0).astype(np.float64)
    total = np.zeros_like(best)
    for row in scores:
        total += np.exp(row - best)
    return best + np.log(total)


def format_table(summaries: dict[str, Summary]) -> str:
    """Returns a table as text, with a row for each direction and the columns of the papers."""
    width = max(map(len, summaries))
    lines = [f"{'':{width}}  {'R@1':>6} {'R@5':>6} {'R@10':>6} {'Med r':>6}"]
    for name, summary in summaries.items():
        recalls = " ".join(f"{summary.recall[k]:6.1f}" for k in LEVELS)
        lines.append(f"{name:{width}}  {recalls} {summary.median:6g}")
    return "\n".join(lines)
