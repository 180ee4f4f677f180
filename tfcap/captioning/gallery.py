"""Keeps the features of pictures in memory, to search the pictures by many texts.

Letters: B pictures, S texts, R regions, F feature width.
"""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfcap.captioning import inputs
from tfcap.captioning.captions import Failure, Match

if TYPE_CHECKING:
    from tfcap.captioning.captioner import ImageCaptioner


class Gallery:
    """Pictures whose features are kept in memory; made by `ImageCaptioner.gallery`.

    Args:
      captioner: computes the features and the scores.
      images: the pictures.
      batch_size: pictures read together.

    Attributes:
      sources: the path of each picture that was read; None for other pictures.
      failures: the pictures that could not be read, a `Failure` for each.

    Raises:
      ValueError: `captioner` is a SavedModel.
    """

    def __init__(self, captioner: "ImageCaptioner", images: Any, batch_size: int = 16):
        self._engine: Any = captioner.engine
        if self._engine.exported:
            self._engine.features()
        self._pictures: list[inputs.Picture] = []
        self._features: list[Any] = []  # float32 [b, R, F] of each batch
        self.failures: list[Failure] = []
        for batch in captioner.prepared(images, batch_size):
            self.failures += [item for item in batch if isinstance(item, Failure)]
            ready = [item for item in batch if not isinstance(item, Failure)]
            if ready:
                self._pictures += [picture._replace(content=None) for picture, _ in ready]
                self._features.append(self._engine.features([one for _, one in ready]))
        self.sources = [picture.source for picture in self._pictures]

    def __len__(self) -> int:
        """Returns the number of pictures that were read."""
        return len(self._pictures)

    def search(self, texts: str | Sequence[str], top: int = 5) -> list[Match] | list[list[Match]]:
        """Finds the pictures for which a text is most probable, as `ImageCaptioner.search`.

        Args:
          texts: a text, or several.
          top: number of pictures to find for each text.

        Returns:
          For a text a list of `Match`, best first; for several texts a list of such lists. The
          position of a match is that in the input.

        Raises:
          ValueError: a text has no words, or `top` is below 1.
        """
        check_positive(top=top)
        wanted = [texts] if isinstance(texts, str) else list(texts)
        rows, notes = [np.zeros((0, len(wanted)))], set()
        for features in self._features:
            scores, note = self._engine.score(features, wanted)
            rows.append(scores.astype(np.float64))
            notes.add(note)
        for note in filter(None, notes):
            warnings.warn(note, stacklevel=2)
        matches = best_matches(self._pictures, np.concatenate(rows), top)
        return matches[0] if isinstance(texts, str) else matches


def best_matches(
    pictures: Sequence[inputs.Picture], scores: np.ndarray, top: int
) -> list[list[Match]]:
    """Returns for each text the pictures with the largest scores.

    Args:
      pictures: B pictures.
      scores: float [B, S].
      top: number of pictures for each text.
    """
    return [
        [
            Match(pictures[place].source, pictures[place].position, float(column[place]))
            for place in np.argsort(-column, kind="stable")[:top]
        ]
        for column in scores.T
    ]


def check_positive(**values: int) -> None:
    """Raises ValueError if a value is below 1; the message has the name of the argument."""
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1. Received: {value}.")
