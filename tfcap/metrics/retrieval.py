"""Ranks captions for images and images for captions: R@K, median rank, recall curves.

Letters: I images, N captions, P items (images or captions) that a query is compared with, M correct
items among them, Q queries.

Ranks begin at 1 and are exact. A tie counts against the model: a wrong item with the same score as
a correct item is ranked before it.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

LEVELS = (1, 5, 10)  # K of R@K
PERCENT = np.arange(101)
COLUMNS = 256  # number of captions whose scores are transposed together


class Query(NamedTuple):
    """The ranks of the correct items of one query.

    The query is an image and the items are captions, or the query is a caption and the items are
    images.

    Attributes:
      ranks: the ranks of the M correct items, int64 [M], from 1 on, ascending.
      items: number of all items that were ranked.
    """

    ranks: np.ndarray
    items: int


class Summary(NamedTuple):
    """Retrieval measures over all queries in one direction, image to text or text to image.

    Attributes:
      recall: K -> R@K, for K = 1, 5 and 10. R@K is the share of queries with a correct item among
        the first K items, in percent.
      median: median over the queries of the rank of the first correct item ("Med r" in papers).
      curve: float64 [101]. Element p, for p = 0 ... 100, is the share of the correct items of a
        query that are among the first p percent of all items, in percent, mean over queries.
      queries: number of queries.
    """

    recall: dict[int, float]
    median: float
    curve: np.ndarray
    queries: int

    def as_dict(self) -> dict[str, Any]:
        """Returns the measures as a dictionary that can be written as JSON.

        The keys are "R@1", "R@5", "R@10", "median_rank", "queries" and "curve".
        """
        return {
            **{f"R@{k}": value for k, value in self.recall.items()},
            "median_rank": self.median,
            "queries": self.queries,
            "curve": [round(float(value), 4) for value in self.curve],
        }


def ranks(scores: np.ndarray, correct: np.ndarray) -> np.ndarray:
    """Computes the ranks of the correct items of a query; the highest score has rank 1.

    A wrong item with the same score as a correct one is ranked before it.

    Args:
      scores: the score of each of P items, [P].
      correct: whether each item is correct, bool [P].

    Returns:
      The ranks of the M correct items, int64 [M], ascending.

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
      scores: log P(caption | image) of I images and N captions, natural logarithm, [I, N].
      owners: for each caption the row of `scores` of the image that it describes, int [N].
      marginal: a number for each caption, [N], which is subtracted from its scores, such as the
        result of `log_marginal` (equation 7 of Mao et al., ICLR 2015). None subtracts nothing.
      shortlists: for each image the rows of K images, int [I, K]. Only captions of these images are
        ranked for it. None ranks all captions.

    Yields:
      For each image, in the order of the rows, the ranks of its own captions. An image is left out
      if none of the ranked captions is its own.

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
    """Ranks the images for every caption.

    Args:
      scores: log P(caption | image) of I images and N captions, natural logarithm, [I, N].
      owners: for each caption the row of `scores` of the image that it describes, int [N].

    Yields:
      For each caption, in the order of the columns, the rank of its image.

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
    """Computes R@K, the median rank and the recall curve of all queries in one direction.

    Args:
      queries: what `image_to_text` or `text_to_image` yields.

    Raises:
      ValueError: there are no queries.

    Example:
      >>> summary = summarize([Query(np.array([1]), items=8), Query(np.array([6]), items=8)])
      >>> summary.recall, summary.median
      ({1: 50.0, 5: 50.0, 10: 100.0}, 3.5)
    """
    if not queries:
        raise ValueError(
            "There is nothing to rank, because no image has captions. Give images with captions."
        )
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
    """Computes ln of the sum of P(caption | image) over images, for each caption.

    The result is the argument `marginal` of `image_to_text`. Mao et al. (ICLR 2015) draw these
    images uniformly from the training images, and do not say how many they draw.

    Args:
      scores: log P(caption | image), natural logarithm, [number of images, number of captions].

    Returns:
      The value of each caption, float64 [number of captions].

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
    """Formats retrieval measures as a table with the columns R@1, R@5, R@10 and Med r.

    Args:
      summaries: name of the row, such as "image to text" -> measures of this direction.

    Returns:
      The lines of the table, as one text.
    """
    width = max(map(len, summaries))
    lines = [f"{'':{width}}  {'R@1':>6} {'R@5':>6} {'R@10':>6} {'Med r':>6}"]
    for name, summary in summaries.items():
        recalls = " ".join(f"{summary.recall[k]:6.1f}" for k in LEVELS)
        lines.append(f"{name:{width}}  {recalls} {summary.median:6g}")
    return "\n".join(lines)
