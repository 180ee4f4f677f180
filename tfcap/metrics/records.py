"""Writes the values of metrics into `Scores`, and computes the metrics that are made on request.

Letters: B images.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from tfcap.metrics.registry import ON_REQUEST, Inputs, Options, Unavailable
from tfcap.metrics.results import Scores


def record(scores: Scores, key: str, corpus: float, each: Sequence[float]) -> None:
    """Records a score, times 100.

    Args:
        scores: Gets the score.
        key: Its name.
        corpus: The score of the whole set, 0 to 1.
        each: The score of each image, in the order of `scores.per_image`.
    """
    scores.corpus[key] = 100.0 * float(corpus)
    for per_image, score in zip(scores.per_image.values(), each, strict=True):
        per_image[key] = 100.0 * float(score)


def record_mean(scores: Scores, name: str, each: Sequence[float]) -> None:
    """Records a metric of `registry.FURTHER`; its corpus score is the mean.

    Raises:
        ValueError: The metric did not return a finite number for each image.
    """
    values = _check_values(name, each, len(scores.per_image))
    record(scores, name, values.mean(), values.tolist())


def record_requested(scores: Scores, name: str, inputs: Inputs) -> None:
    """Computes a metric of `registry.ON_REQUEST`, or records why that is impossible.

    Raises:
        ValueError: The metric did not return a finite number for each image, or a file is bad.
    """
    metric = ON_REQUEST[name]
    try:
        by_key, notes = metric.compute(inputs)
    except Unavailable as error:
        scores.unavailable.update(dict.fromkeys(metric.keys, str(error)))
        return
    scores.notes.extend(note for note in notes if note not in scores.notes)
    for key, values in by_key.items():
        _check_values(key, values.each, len(scores.per_image))
        record(scores, key, values.corpus, values.each)
        if values.counts is not None:
            scores.statistics[key] = np.asarray(values.counts, float)


def inputs(
    references: Mapping[int, Sequence[str]],
    predictions: Mapping[int, str],
    gold: Mapping[int, list[str]],
    tokens: Sequence[str],
    options: Options,
) -> Inputs:
    """Returns the inputs of a metric that is computed on request.

    Args:
        references: Image id -> references as they were given.
        predictions: Image id -> caption as it was given.
        gold: Image id -> tokenized references; the order of the images is that of `gold`.
        tokens: The tokenized captions in this order.
        options: The inputs besides captions.
    """
    return Inputs(
        images=list(gold),
        references=list(gold.values()),
        captions=list(tokens),
        raw_references=[list(references[image]) for image in gold],
        raw_captions=[predictions[image] for image in gold],
        options=options,
    )


def _check_values(name: str, each: Sequence[float], images: int) -> np.ndarray:
    """Returns the values [B] of a metric, or raises ValueError unless each image has one."""
    values = np.asarray(each, float)
    if values.shape != (images,) or not np.isfinite(values).all():
        raise ValueError(
            f"The metric {name} must return a finite number for each of {images} images. "
            f"Received: {each!r:.100}"
        )
    return values
