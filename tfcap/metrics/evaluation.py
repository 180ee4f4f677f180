"""Scores captions against references, from files or from Python: `tfcap.evaluate`."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfcap.metrics import hypotheses, results
from tfcap.metrics.coco import CocoScorer
from tfcap.metrics.registry import Options
from tfcap.metrics.results import Scores


def evaluate(
    predictions: str | os.PathLike | Mapping[int, Any] | Sequence[Any],
    references: str | os.PathLike | Mapping[int, Sequence[str]] | Sequence[Sequence[str]],
    metrics: str | Sequence[str] | None = None,
    *,
    reference_set: str = "all",
    partial: bool = False,
    scorer: CocoScorer | None = None,
    options: Options | None = None,
) -> Scores:
    """Computes the official scores of COCO, those of pycocoevalcap, times 100.

    A score that needs Java is left out where there is no Java; `Scores.unavailable` says why.

    Args:
      predictions: a file of captions in COCO's result format or of `--hypotheses`; or the caption
        of each image, by image id or as a list. A caption is text or a `tfcap.Caption`.
      references: a COCO annotation file; or the reference captions of each image, by image id or as
        a list in the order of the predictions. A reference is text or a `tfcap.Caption`.
      metrics: some of "BLEU", "METEOR", "ROUGE-L", "CIDEr", "SPICE", "scene-graph-F", "CHAIR" and
        "CLIPScore", or a metric that a module registered; None computes the first five and those
        that modules registered.
      reference_set: "all", "c5" (the first five references of each image) or "c40".
      partial: score only the images that have predictions and references, in place of an error.
      scorer: a scorer to use instead of a new one; its metrics are computed.
      options: labelled objects for CHAIR; pictures and an encoder for CLIPScore.

    Returns:
      The scores; `scores.corpus["CIDEr"]` is one of them.

    Raises:
      ValueError: a file or an argument is bad, or predictions and references are not of the same
        images.
    """
    captions = _captions(predictions)
    wanted = _references(references)
    if partial:
        images = results.common(wanted, [captions])
        captions = {image: captions[image] for image in images}
        wanted = {image: wanted[image] for image in images}
    wanted = results.reference_set(wanted, reference_set)
    if scorer is not None:
        return scorer.score(wanted, captions)
    with CocoScorer(metrics, options=options) as scorer:
        return scorer.score(wanted, captions)


def _captions(given: Any) -> dict[int, str]:
    if isinstance(given, str | os.PathLike):
        return hypotheses.load_results_or_hypotheses(given).best()
    captions = {}
    for image, caption in _by_image(given, "predictions"):
        captions[image] = getattr(caption, "text", caption)
        if not isinstance(captions[image], str):
            raise ValueError(
                f"predictions must be texts or captions. Received: {caption!r:.200} for image "
                f"{image}. Leave out images without a caption, in the references too."
            )
    return captions


def _references(given: Any) -> dict[int, list[str]]:
    if isinstance(given, str | os.PathLike):
        return results.load_references(given)
    return {image: _texts(captions, image) for image, captions in _by_image(given, "references")}


def _texts(given: Any, image: int) -> list[str]:
    """Returns the reference captions of an image as text."""
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise ValueError(
            f"references must be a list of captions for each image. Received: {given!r:.200} for "
            f"image {image}. Put one caption into a list, and leave out images without a caption, "
            "in the predictions too."
        )
    captions = []
    for caption in given:
        text = getattr(caption, "text", caption)
        if not isinstance(text, str):  # None or NaN is a missing one, and no word of a caption
            raise ValueError(
                f"references must be texts or captions. Received: {caption!r:.200} for image "
                f"{image}. Leave out captions that are missing."
            )
        captions.append(text)
    return captions


def _by_image(given: Any, name: str):
    if isinstance(given, Mapping):
        return given.items()
    if isinstance(given, Sequence):
        return enumerate(given)
    raise ValueError(
        f"{name} must be a file, a dictionary or a list. Received: {type(given).__name__}."
    )
