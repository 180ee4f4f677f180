"""How varied the captions of a model are; a falling share of distinct captions means collapse."""

from collections.abc import Mapping

from tfcap.metrics import tokenizer


def distinct_share(predictions: Mapping[int, str]) -> float:
    """Returns the share of captions that are different from each other, in percent.

    Args:
        predictions: Image id -> caption. Captions that differ in white space only are the same.

    Returns:
        100 if no two images share a caption, 100 / n if all n have the same one.

    Raises:
        ValueError: There are no predictions.
    """
    if not predictions:
        raise ValueError("no predictions to compare; received an empty mapping")
    distinct = {tokenizer.one_line(caption) for caption in predictions.values()}
    return 100.0 * len(distinct) / len(predictions)
