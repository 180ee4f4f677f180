"""Reads captions and references that a caller gives as files, dictionaries or lists."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from tfcap.metrics import results
from tfcap.metrics.results import Hypotheses


class HasText(Protocol):
    """Protocol of an object that stands for a caption, such as `tfcap.Caption`.

    Its attribute `text` is the caption. Functions for scores accept such objects and strings.
    """

    @property
    def text(self) -> str: ...


Path = str | os.PathLike
Caption = str | HasText
Predictions = Path | Mapping[int, Caption] | Sequence[Caption]
References = Path | Mapping[int, Sequence[Caption]] | Sequence[Sequence[Caption]]


def read_predictions(predictions: Predictions) -> Hypotheses:
    """Reads captions of images from a file or from Python objects.

    Args:
      predictions: the path of a file, see `results.load_hypotheses`; or a dictionary, image id ->
        caption; or a list of captions, whose positions, from 0, are the image ids. A caption is a
        string or an object with the attribute `text`.

    Returns:
      The captions of each image. A file may have several captions of an image; a dictionary and a
      list have one.

    Raises:
      ValueError: a caption is not text, or the file cannot be read.
    """
    if isinstance(predictions, str | os.PathLike):
        return results.load_hypotheses(predictions)
    items = _by_image(predictions)
    return Hypotheses({image: _texts([caption], image) for image, caption in items})


def read_references(references: References, partial: bool = False) -> dict[int, list[str]]:
    """Reads reference captions of images from a file or from Python objects.

    Args:
      references: the path of a file, see `results.load_references`; or a dictionary, image id ->
        list of references; or a list of such lists, whose positions, from 0, are the image ids.
      partial: whether images without references are left out. If False, an image without references
        is an error in a file, and keeps its empty list in a dictionary or a list.

    Returns:
      Image id -> references.

    Raises:
      ValueError: a reference is not text, the references of an image are not a list, the file
        cannot be read, or the file has an image without references and `partial` is False.
    """
    if isinstance(references, str | os.PathLike):
        return results.load_references(references, partial)
    texts = {image: _texts(captions, image) for image, captions in _by_image(references)}
    return {image: captions for image, captions in texts.items() if captions or not partial}


def _texts(captions: Any, image: int) -> list[str]:
    """Returns the texts of the captions of an image."""
    if isinstance(captions, str | Mapping) or not isinstance(captions, Iterable):
        raise ValueError(
            f"The references of image {image} must be a list of captions, even if it has one."
        )
    texts: list[Any] = [getattr(caption, "text", caption) for caption in captions]
    for text in texts:
        if not isinstance(text, str):  # None or NaN is a missing caption, and no word
            raise ValueError(
                f"A caption of image {image} is not text: {text!r:.200}. Give a text, or leave "
                "this caption out."
            )
    return texts


def _by_image(values: Any) -> Iterator[tuple[int, Any]]:
    return iter(values.items() if isinstance(values, Mapping) else enumerate(values))
