"""What a captioner returns: captions, failures, and the results of a search.

Letters: R regions, T' words of a caption, H and W height and width of a picture.
"""

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from tfcap.visualize import figures
from tfcap.visualize.attended import Attended


def _computed(caption: "Caption") -> tuple[float, ...] | None:
    compute = vars(caption)["compute_log_probs"]
    return compute() if compute else None


# It is the default of a field, so that `dataclasses.asdict` has the log-probabilities.
_LOG_PROBS: Any = functools.cached_property(_computed)


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
        the end of the caption; a caption that was cut at the largest length has no end. Their sum
        is the score wherever the score is log P(caption | picture). They are computed when they are
        first read. None for an exported SavedModel.
      alternatives: the other captions of the picture, best first. Their `alternatives` are empty.
      source: the path or URL of the picture; None for other pictures.
      position: the position of the picture in the input, from 0.
      picture: the pixels of the picture, uint8 [H, W, 3], upright; None without the option
        `attention`.
      attended: the weights and the boxes of the regions; None without the option `attention`.
      compute_log_probs: the function that computes `log_probs`; None if there are none.
    """

    text: str
    score: float
    words: tuple[str, ...]
    alternatives: tuple["Caption", ...] = dataclasses.field(default=(), repr=False)
    source: str | None = None
    position: int = dataclasses.field(default=0, repr=False)
    picture: np.ndarray | None = dataclasses.field(default=None, repr=False, compare=False)
    attended: Attended | None = dataclasses.field(default=None, repr=False, compare=False)
    log_probs: tuple[float, ...] | None = dataclasses.field(
        default=_LOG_PROBS, init=False, repr=False, compare=False
    )
    compute_log_probs: dataclasses.InitVar[Callable[[], tuple[float, ...]] | None] = None

    def __post_init__(self, compute_log_probs: Callable[[], tuple[float, ...]] | None) -> None:
        vars(self)["compute_log_probs"] = compute_log_probs

    def __str__(self) -> str:
        return self.text

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"log_probs": self.log_probs, "compute_log_probs": None}

    @property
    def weights(self) -> np.ndarray:
        """The weight of each region for each word, float32 [T', R]. Needs `attention`."""
        return self._attention.weights

    @property
    def boxes(self) -> np.ndarray:
        """The corners x1, y1, x2, y2 of the regions in 0..1, float32 [R, 4]. Needs `attention`."""
        return self._attention.boxes

    def draw(self, path: str | os.PathLike) -> None:
        """Writes a figure of the picture with the weights of each word.

        Args:
          path: the file to write: .png, .pdf or .svg.
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
                "This caption has no weights of regions. Call the captioner with "
                'attention="attention" or attention="contribution".'
            )
        return self.attended


@dataclasses.dataclass(frozen=True)
class Failure:
    """A picture that could not be captioned.

    Attributes:
      source: the path or URL of the picture; None for other pictures.
      position: the position of the picture in the input, from 0.
      reason: a sentence that says why.
    """

    source: str | None
    position: int
    reason: str

    def __str__(self) -> str:
        return f"{self.source or f'picture {self.position}'}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class Neighbour:
    """An image of prepared data whose vector is near that of a picture.

    Attributes:
      source: the path of the image file, or the file name if the file is missing.
      position: the position of the image in the split, from 0.
      similarity: the cosine of the angle between the two vectors, from -1 to 1.
      captions: the captions of the image in the data.
    """

    source: str
    position: int
    similarity: float
    captions: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Match:
    """A picture that a search returns for a text.

    Attributes:
      source: the path or URL of the picture; None for other pictures. In a `Collection` it is the
        file name if the file is missing.
      position: the position of the picture in the input or in the split, from 0.
      score: log P(text | picture), natural logarithm.
    """

    source: str | None
    position: int
    score: float
