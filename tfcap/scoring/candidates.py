"""Chooses the images that a captioner scores for a query: the first stage of retrieval.

Letters: I images of the split, Q queries, D width of a vector, n candidates.

Scoring a query with every image takes a step of the captioner for each pair. The first stage
compares vectors instead, and only the nearest images are scored.
"""

import functools
import os
from collections.abc import Sequence

import numpy as np

from tfcap.data.prepared import PreparedData, stored_captions
from tfcap.nearest.index import load
from tfcap.nearest.neighbours import Neighbours
from tfcap.nearest.sentences import SentenceVectors
from tfcap.nearest.space import Space

REFERENCES = "train"  # the split whose captions give sentences their vectors


class Candidates:
    """Finds the images of a split that are nearest to a sentence or to another image.

    Nearness is the cosine of the angle between vectors from which the mean over the training images
    is subtracted: without this, all vectors of images have nearly the same direction.

    Args:
      data: the prepared directory; it must have training images.
      split: the split that is searched.
      space: computes the vectors of images.
      folder: the directory that holds the indices, named after their splits; "" takes directories
        beside the prepared data, None keeps the vectors in memory.
      max_regions: regions of an image beyond this number are ignored; None keeps all.
      limit: number of images from the start of the split; 0 takes all.
      approximate: whether a graph finds the nearest, which may miss some of them.

    Raises:
      ValueError: as `nearest.index.load`; or `limit` with `approximate`.
    """

    def __init__(
        self,
        data: PreparedData,
        split: str,
        space: Space,
        folder: str | None = "",
        max_regions: int | None = None,
        limit: int = 0,
        approximate: bool = False,
    ):
        if limit and approximate:
            raise ValueError(
                f"An approximate search needs all images of a split. Received: limit={limit}. "
                "Search exactly, or without a limit."
            )
        self._data = data
        self._references = of_split(data, REFERENCES, space, folder, max_regions)
        mean = np.asarray(np.mean(self._references.vectors, 0, np.float64))
        self.space = space.centred(mean)
        self.index = of_split(data, split, self.space, folder, max_regions, limit, approximate)

    @functools.cached_property
    def _captions(self) -> SentenceVectors:
        """The captions of the training images, from which sentences get their vectors."""
        captions = stored_captions(self._data, REFERENCES)
        index = self._references
        return SentenceVectors([captions[int(image)] for image in index.ids], index.vectors)

    def sentences(self, texts: Sequence[str]) -> np.ndarray:
        """Computes the vectors of sentences, float32 [Q, D]."""
        return self.space.centre(self._captions(texts))

    def nearest(self, vectors: np.ndarray, number: int) -> np.ndarray:
        """Finds the nearest images.

        Args:
          vectors: float32 [Q, D].
          number: n; with fewer images all of them are returned.

        Returns:
          Positions in the split, int64 [Q, n], nearest first.
        """
        return self.index.search(vectors, number)[0]

    def of_sentences(self, texts: Sequence[str], number: int) -> np.ndarray:
        """Finds the images nearest to sentences, as `nearest`."""
        return self.nearest(self.sentences(texts), number)

    def among_sentences(
        self, texts: Sequence[str], number: int, vectors: np.ndarray | None = None
    ) -> np.ndarray:
        """Finds the sentences nearest to images.

        Args:
          texts: Q sentences.
          number: n; with fewer sentences all of them are returned.
          vectors: float32 [I, D], the images, from `space.vectors`; None takes those of the index.

        Returns:
          Positions in `texts`, int64 [I, n], nearest first.
        """
        index = Neighbours(self.sentences(texts), np.arange(len(texts)))
        return index.search(self.index.vectors if vectors is None else vectors, number)[0]


def of_split(
    data: PreparedData,
    split: str,
    space: Space,
    folder: str | None,
    max_regions: int | None = None,
    limit: int = 0,
    approximate: bool = False,
) -> Neighbours:
    """Opens or makes the index of the first images of a split; arguments as of `Candidates`."""
    if folder:
        folder = os.path.join(folder, f"{split}-{space.name}")
    index = load(data, space, folder, max_regions, (split,), approximate)
    if not limit or limit >= len(index.ids):
        return index
    return Neighbours(index.vectors[:limit], index.ids[:limit], index.squares[:limit])


def neighbourhoods(index: Neighbours, number: int) -> np.ndarray:
    """Finds the nearest images of each image, the image itself included.

    This is the shortlist for IAPR TC-12 (Mao et al., supplement 10.2, after Kiros,
    Salakhutdinov and Zemel, "Multimodal Neural Language Models", ICML 2014): for an image only
    the captions of its 100 nearest neighbours are ranked. The task becomes harder, because
    similar images have similar captions. [GUESS] The distance is Euclidean, and an image is
    among its own neighbours, because its own captions must be in the list. The paper mentions
    no shortlist for the other direction, which ranks all images.

    Args:
      index: the I images.
      number: K, at least 1.

    Returns:
      int64 [I, min(K, I)]: the image itself, then the others by distance.
    """
    own = np.arange(len(index.ids))[:, None]
    if number == 1:
        return own
    others = index.search(index.vectors, number - 1, index.ids)[0]
    return np.concatenate([own, others], 1)
