"""How far counted samples are from what is expected."""

import collections

import numpy as np


def distance(tokens, expected, strict=True):
    """Of counts of sentences int [N, T] from {sentence: probability}, in standard deviations.

    The chi-square statistic less its mean, over its deviation; cells with fewer than 5 expected
    are one. With `strict` a sentence that is not expected at all is an error.
    """
    counts = collections.Counter()
    for row, number in zip(*np.unique(tokens, axis=0, return_counts=True), strict=True):
        counts[tuple(int(word) for word in row if word)] += int(number)
    if strict:
        assert set(counts) <= set(expected), set(counts) - set(expected)
    means = {sentence: len(tokens) * p for sentence, p in expected.items()}
    common = [sentence for sentence in expected if means[sentence] > 5]
    cells = [(counts[s], means[s]) for s in common]
    rest = sum(means.values()) - sum(mean for _, mean in cells)
    if rest > 1e-9:
        cells.append((len(tokens) - sum(count for count, _ in cells), rest))
    statistic = sum((result - mean) ** 2 / mean for result, mean in cells)
    freedom = max(len(cells) - 1, 1)
    return (statistic - freedom) / np.sqrt(2 * freedom)
