"""The scale of weights that are drawn over a picture, in figures and in the report page."""

import numpy as np

TIMES_UNIFORM = 4  # full strength is at least so many times the weight of a uniform distribution


def full_strength(weights: np.ndarray) -> float:
    """Returns the weight that is drawn at full strength, the same for all words of a caption.

    It is the largest weight of any word, but at least 4 / R (at most 1), so that small differences
    between nearly uniform weights are not drawn strongly. If each word had its own scale, a weight
    of 0.03 among weights of 0.02 would be as red as 0.9.

    Args:
      weights: [..., R], weights over R regions; NaN counts as 0.
    """
    largest = float(np.nan_to_num(np.asarray(weights, np.float64)).max(initial=0.0))
    return max(largest, min(1.0, TIMES_UNIFORM / max(1, np.shape(weights)[-1])))


def spread_evenly(weights: np.ndarray) -> bool:
    """Whether the weights of a word are nearly uniform, so that no region stands out.

    The largest weight is then below twice the uniform weight 1 / R (below 0.75 for two regions).
    Such a word would darken the whole picture; the picture is shown as it is. `attention.js` has
    the same rule.

    Args:
      weights: [R], weights over R regions; NaN counts as 0.
    """
    uniform = 1 / max(1, np.size(weights))
    largest = float(np.nan_to_num(np.asarray(weights, np.float64)).max(initial=0.0))
    return 0 < largest < uniform * (2 - uniform)
