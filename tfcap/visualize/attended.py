"""What a captioner looked at for each word of a caption.

Letters: R regions of an image, T' words of a caption.
"""

import dataclasses
from typing import Literal, get_args

import numpy as np

Kind = Literal["attention", "contribution"]  # of weights, see `attention.attend`
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclasses.dataclass(frozen=True, eq=False)
class Attended:
    """A caption, and for each of its words how much the captioner used each region of the image.

    Attributes:
      words: the T' words of the caption, without the end mark.
      weights: weights of the R regions for each word, float32 [T', R]: at least 0, with the sum 1
        over the regions. With the kind `contribution`, all weights of a word may be 0: then no
        region has a positive contribution.
      boxes: corners of the regions, float32 [R, 4]: x1, y1, x2, y2 as shares 0..1 of the width and
        the height of the picture. If the regions are the cells of a grid, these are the corners of
        the cells.
      kind: what the weights are: `attention`, from the decoder's attention; or `contribution`, from
        gradients. `attention.attend` says how both are computed.
      joined: the caption without the spaces that its language does not have; "" if it has spaces.
    """

    words: list[str]
    weights: np.ndarray
    boxes: np.ndarray
    kind: str
    joined: str = ""

    @property
    def caption(self) -> str:
        """The caption as people write it."""
        return self.joined or " ".join(self.words)
