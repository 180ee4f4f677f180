"""What a captioner returns: captions with their scores, failures, and found pictures.

Letters: B pictures, K captions of a picture, R regions of a picture, F feature width, T' words of a
caption, H and W height and width of a picture.
"""

import dataclasses
import os
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from tfcap.captioning.inputs import Picture
    from tfcap.visualize import Attended, Details

_EMPTY = -1e8  # the score of a slot of the beam that no caption fills is about -1e9


class Found(NamedTuple):
    """The captions that a model finds for B pictures.

    Attributes:
      captions: K captions of each picture, best first.
      scores: their scores, [B][K].
      words: the log-probabilities of their words, or None.
      features: [B, R, F], or None from a SavedModel.
      refusals: for each picture why it has no captions; empty if it has.
    """

    captions: Sequence[Sequence[str]]
    scores: Any
    words: Sequence[Sequence[tuple[float, ...] | None]]
    features: Any
    refusals: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Caption:
    """A caption of a picture. `str(caption)` is its text.

    Attributes:
      text: the caption, words in lower case separated by spaces.
      score: the number by which the captions of a picture are ordered, best first. For plain beam
        search and plain sampling it is log P(caption | picture), natural logarithm. A length
        penalty divides it by a measure of length. With a temperature, beam search gives the
        log-probability under the tempered distribution. `order=consensus` and a reranker replace
        it by a similarity.
      words: the words of the text.
      log_probs: log P(word | words before it, picture) of the model, one for each word and one for
        the end of the caption; a caption that was cut at the largest length has no end. They sum to
        the score wherever the score is log P(caption | picture). None for an exported SavedModel,
        which does not give them.
      alternatives: the other captions that were found, best first; they have no alternatives.
      source: the path or URL of the picture; None for other pictures.
      position: the position of the picture in the input, from 0.
      picture: uint8 [H, W, 3], upright; None if no attention was asked for.
      seen: the weights and boxes; None if no attention was asked for.
    """

    text: str
    score: float
    words: tuple[str, ...]
    log_probs: tuple[float, ...] | None = dataclasses.field(default=None, repr=False)
    alternatives: tuple["Caption", ...] = dataclasses.field(default=(), repr=False)
    source: str | None = None
    position: int = dataclasses.field(default=0, repr=False)
    picture: np.ndarray | None = dataclasses.field(default=None, repr=False, compare=False)
    seen: "Attended | Details | None" = dataclasses.field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return self.text

    @property
    def weights(self) -> np.ndarray:
        """The weight of each region for each word: float32 [T', R].

        Raises:
          ValueError: no attention was asked for.
        """
        return self._attended().weights

    @property
    def boxes(self) -> np.ndarray:
        """The regions: float32 [R, 4], x1, y1, x2, y2 in 0..1.

        Raises:
          ValueError: no attention was asked for.
        """
        return self._attended().boxes

    def draw(self, path: str | os.PathLike) -> None:
        """Writes a figure of the picture with the weights of each word.

        Args:
          path: the PNG file; it appears only when it is complete.

        Raises:
          ValueError: no attention was asked for, or the name of the file does not end in .png.
        """
        self._attended()
        from tfcap import visualize

        assert self.picture is not None and self.seen is not None
        visualize.write_picture(path, self.picture, self.seen)

    def _repr_png_(self) -> bytes | None:
        """Returns the figure for a notebook; None without attention, so that the text is shown."""
        if self.seen is None:
            return None
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "caption.png")
            self.draw(path)
            with open(path, "rb") as file:
                return file.read()

    def _attended(self) -> Any:
        if self.seen is None:
            raise ValueError(
                "Weights of regions must be asked for. Received: a caption without them. Call the "
                'captioner with attention="attention" or attention="contribution".'
            )
        return getattr(self.seen, "attended", self.seen)


@dataclasses.dataclass(frozen=True)
class Failure:
    """A picture that could not be captioned.

    Attributes:
      source: its path or URL; None for other pictures.
      position: its position in the input, from 0.
      reason: a sentence that says why.
    """

    source: str | None
    position: int
    reason: str

    def __str__(self) -> str:
        return f"{self.source or f'picture {self.position}'}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class Neighbour:
    """An image of prepared data that was found for a picture by their vectors.

    Attributes:
      source: the path of its file, or its name if there is no file.
      position: its position in the split, from 0.
      similarity: the cosine of the angle between the vectors, from -1 to 1.
      captions: the captions of the image in the data.
    """

    source: str
    position: int
    similarity: float
    captions: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Match:
    """A picture that was found for a text.

    Attributes:
      source: its path or URL; None for other pictures. For a picture of a collection whose file
        is missing: the name of the file.
      position: its place in the input, from 0; for a picture of a collection, its place in the
        split.
      score: log P(text | picture), natural logarithm. From `Collection.similar` the text is the
        caption of the given picture.
    """

    source: str | None
    position: int
    score: float


def best_first(engine: Any, picture: "Picture", captions, scores, words, seen) -> Caption:
    """Makes the `Caption` of a picture from all captions that the model found for it.

    Args:
      engine: what found them.
      picture: the picture.
      captions: the texts, best first.
      scores: their scores.
      words: the log-probabilities of the words of each, or None.
      seen: what `engine.attend` returned for the first of them.
    """
    source, position = picture.source, picture.position
    each = [
        Caption(text, float(score), tuple(text.split()), log_probs, (), source, position)
        for text, score, log_probs in zip(captions, scores, words, strict=True)
    ]
    if seen and picture.content is not None:
        pixels = engine.picture(picture.content)
        for place, own in enumerate(seen):
            placed = engine.placed(own, *pixels.shape[:2])
            each[place] = dataclasses.replace(each[place], picture=pixels, seen=placed)
    first, *others = [one for one in each if one.score > _EMPTY] or each[:1]
    return dataclasses.replace(first, alternatives=tuple(others))
