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
    """A caption and the weights of the regions for each of its words.

    Attributes:
      words: the words of the caption, without the end mark.
      weights: float32 [T', R], for each word a distribution over the regions. Contributions of a
        word are all 0 if no region has a positive contribution.
      boxes: float32 [R, 4], x1, y1, x2, y2 in 0..1; for a grid the boxes of its cells.
      kind: `attention` or `contribution`.
    """

    words: list[str]
    weights: np.ndarray
    boxes: np.ndarray
    kind: str
