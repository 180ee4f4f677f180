"""What a captioner returns: captions, failures, and the results of a search.

Letters: B pictures, K captions of a picture, R regions, F feature width, T' words of a caption, H
and W height and width of a picture.
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tfcap.visualize import figures
from tfcap.visualize.attended import Attended

if TYPE_CHECKING:
    import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Caption:
    """A caption of a picture. `str(caption)` is its text.

    Attributes:
      text: the caption, words in lower case separated by spaces. In a language without spaces there
        are none, if the data of the model was prepared with `tokens` of tfcap.prepare.
      score: the number that orders the captions of a picture; the best caption has the highest. By
        default it is log P(caption | picture), natural logarithm. Decoding options change it. With
        `length_power` it is divided by a measure of the length, see
        `decoding.scores.normalise_by_length`. With `temperature` a beam search computes it from
        logits divided by the temperature. With `order=consensus` it is the mean CIDEr-D to the
        other samples. A reranker replaces it by the mean similarity to captions of similar images.
      words: the words of the text. An exported SavedModel does not tell them; the words of its
        captions are what stands between spaces.
      confidence: the estimated probability that the caption is usable, 0 to 1; None if the model
        was not calibrated (`tfcap.calibrate`), which also says what usable means.
      log_probs: log P(word | words before it, picture) of the model, one for each word and one for
        the end of the caption; a caption that was cut at the largest length has no end. The sum of
        `log_probs` is log P(caption | picture). None for a SavedModel that does not return them.
      alternatives: the other captions of the picture, best first. Their `alternatives` are empty.
      source: the path or URL of the picture; None if it came as bytes, pixels or an open file.
      position: the position of the picture in the input, from 0.
      picture: the pixels of the picture, uint8 [H, W, 3], upright; None if the captioner was called
        without `attention`.
      attended: the attention weights or contributions, and the boxes of the regions; None if the
        captioner was called without `attention`. `weights` and `boxes` read them from here.
    """

    text: str
    score: float
    words: tuple[str, ...]
    confidence: float | None = None
    alternatives: tuple["Caption", ...] = dataclasses.field(default=(), repr=False)
    source: str | None = None
    position: int = dataclasses.field(default=0, repr=False)
    picture: np.ndarray | None = dataclasses.field(default=None, repr=False, compare=False)
    attended: Attended | None = dataclasses.field(default=None, repr=False, compare=False)
    log_probs: tuple[float, ...] | None = dataclasses.field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return self.text

    @property
    def weights(self) -> np.ndarray:
        """How much each region matters for each word, float32 [T', R]: T' words and R regions.

        The argument `attention` of the captioner selected attention weights or contributions. The
        values of a word have the sum 1. Contributions to a word are all 0 if no region contributed
        positively.

        Raises:
          ValueError: the captioner was called without `attention`.
        """
        return self._attention.weights

    @property
    def boxes(self) -> np.ndarray:
        """The boxes of the R regions, float32 [R, 4].

        They are corners x1, y1, x2, y2, as fractions (0..1) of the width and height of the picture.

        Raises:
          ValueError: the captioner was called without `attention`.
        """
        return self._attention.boxes

    def draw(self, path: str | os.PathLike) -> None:
        """Writes a figure that shows, for each word, which regions of the picture matter for it.

        Args:
          path: the file to write; it ends with .png, .pdf or .svg.

        Raises:
          ValueError: the captioner was called without `attention`.
        """
        attention = self._attention
        assert self.picture is not None
        figures.write_figure(path, self.picture, attention)

    def _repr_png_(self) -> bytes | None:
        """Returns the figure for a notebook; without attention None, so that the text is shown."""
        if self.attended is None or self.picture is None:
            return None
        return figures.figure(self.picture, self.attended)

    @property
    def _attention(self) -> Attended:
        if self.attended is None:
            raise ValueError(
                "This caption has no attention weights, because they were not computed. Call the "
                'captioner with attention="attention" or attention="contribution".'
            )
        return self.attended


@dataclasses.dataclass(frozen=True)
class Failure:
    """A picture that could not be captioned. `str(failure)` names the picture and the reason.

    Attributes:
      source: the path or URL of the picture; None if it came as bytes, pixels or an open file.
      position: the position of the picture in the input, from 0.
      reason: why the picture could not be captioned, as text.
    """

    source: str | None
    position: int
    reason: str

    def __str__(self) -> str:
        return f"{self.source or f'picture {self.position}'}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class Neighbour:
    """An image of prepared data that is similar to a picture: a result of `Collection.nearest`.

    Attributes:
      source: the path of the image file, or only the file name if the file is missing.
      position: the position of the image in the split, from 0.
      similarity: the cosine of the angle between the vectors of the image and of the picture, from
        -1 to 1; 1 is most similar.
      captions: the captions of the image in the data.
    """

    source: str
    position: int
    similarity: float
    captions: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Match:
    """A picture that a search returns for a text: a result of a method `search`.

    Attributes:
      source: the path or URL of the picture; None if it came as bytes, pixels or an open file. For
        an image of a `Collection` it is only the file name if the file is missing.
      position: the position of the picture in the input of `ImageCaptioner.search`, or in the split
        of the `Collection`, from 0.
      score: log P(text | picture), natural logarithm.
    """

    source: str | None
    position: int
    score: float


class CaptionedBatch(NamedTuple):
    """The captions of B pictures, with what they were computed from.

    Attributes:
      captions: K texts of each picture, best first, with spaces between all words.
      scores: the scores of these texts. If fewer than K captions exist, the empty texts at the end
        have scores of about -1e9.
      refusals: for each picture the reason why it has no captions; "" if it has captions.
      log_probs: log P(word | words before it, picture) of each word of each caption, and of its
        end, natural logarithms; None if a SavedModel does not return them.
      features: the features of the pictures, float32 [B, R, F], R regions of width F; None if an
        export made the captions.
      boxes: the boxes of regions that a detector found, float32 [B, R, 4]: corners x1, y1, x2, y2
        as fractions (0..1) of the picture; of an image with several pictures as
        `backbones.views.Views.regions` returns them. None if the regions are a grid, which has the
        same boxes in every picture.
      confidences: the confidence in each caption; None if the model was not calibrated.
    """

    captions: Sequence[Sequence[str]]
    scores: Sequence[np.ndarray] | np.ndarray
    refusals: Sequence[str]
    log_probs: Sequence[Sequence[tuple[float, ...]]] | None = None
    features: "tf.Tensor | None" = None
    boxes: "tf.Tensor | None" = None
    confidences: Sequence[Sequence[float]] | np.ndarray | None = None
