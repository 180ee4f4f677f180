"""Ranks captions for images and images for captions: R@K, median rank, recall curves.

Letters: I images, N captions, P items (images or captions) that a query is compared with, M correct
items among them, Q queries.

Ranks begin at 1 and are exact. A tie counts against the model: a wrong item with the same score as
a correct item is ranked first.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

LEVELS = (1, 5, 10)  # K of R@K
PERCENT = np.arange(101)
COLUMNS = 256  # number of captions whose scores are transposed together


class Query(NamedTuple):
    """The result of a query: ranks of the correct items int64 [M], ascending, and P."""

    ranks: np.ndarray
    items: int


class Summary(NamedTuple):
    """Statistics of all queries in one direction."""

    recall: dict[int, float]  # by K: percentage of queries with a correct item among the first K
    median: float  # of the rank of the first correct item ("Med r" in papers)
    # Float64 [101], recall in percent within the first 0, 1, ... 100 percent of the items: the
    # share of a query's correct items, mean over queries.
    curve: np.ndarray
    queries: int  # Q

    def as_dict(self) -> dict:
        """Returns the statistics as a dictionary for JSON."""
        return {
            **{f"R@{k}": value for k, value in self.recall.items()},
            "median_rank": self.median,
            "queries": self.queries,
            "curve": [round(float(value), 4) for value in self.curve],
        }


def ranks(scores: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Computes the ranks int64 [M], ascending, of the items `right` bool [P] by `scores` [P]."""
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
    """Ranks the captions for every image that has captions, by `scores` [I, N].

    `owners` int [N] is the position of the image of each caption. `marginal` [N] is the log of the
    mean, or of the sum, of P(caption | I') over other images; it is subtracted from every row
    (equation 7 of Mao et al., ICLR 2015). If `shortlists` int [I, K] is set, only the captions of
    these K images are ranked for an image.
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
    """Ranks the images for every caption; arguments as in `image_to_text`."""
    images = np.arange(len(scores))
    for start in range(0, len(owners), COLUMNS):
        columns = np.ascontiguousarray(scores[:, start : start + COLUMNS].T)
        for owner, row in zip(owners[start : start + COLUMNS], columns, strict=True):
            yield Query(ranks(row, images == owner), len(row))


def summarize(queries: Sequence[Query]) -> Summary:
    """Computes recall, median rank and recall curve of the queries."""
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
    """Computes log sum_I' P(s | I'), float64 [N], from `scores` [I', N] by log-sum-exp.

    The paper draws the images I' uniformly from the training images; it does not say how many.
    """
    best = np.max(scores, axis=0).astype(np.float64)
    total = np.zeros_like(best)
    for row in scores:
        total += np.exp(row - best)
    return best + np.log(total)


def format_table(summaries: dict[str, Summary]) -> str:
    """Returns a table with one row per direction and the columns of the papers."""
    width = max(map(len, summaries))
    lines = [f"{'':{width}}  {'R@1':>6} {'R@5':>6} {'R@10':>6} {'Med r':>6}"]
    for name, summary in summaries.items():
        recalls = " ".join(f"{summary.recall[k]:6.1f}" for k in LEVELS)
        lines.append(f"{name:{width}}  {recalls} {summary.median:6g}")
    return "\n".join(lines)
