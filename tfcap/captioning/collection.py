"""Searches the images of prepared data by sentences and by pictures."""

import functools
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfcap import runs
from tfcap.captioning.results import Match, Neighbour
from tfcap.data.prepared import PreparedData
from tfcap.inference.nearest import Candidates
from tfcap.inference.retrieval import Pairs, find


class Collection:
    """The images of a split of prepared data, which can be searched by text and by picture.

    `ImageCaptioner.collection` makes a collection. `len(collection)` is the number of images. The
    position of an image is its number in the split, from 0.

    Args:
      run: the run that scores the images.
      data_dir: the prepared directory; None takes the data that the run was trained on.
      split: the split to search.
      index: the directory that keeps the vectors of the images; "" takes the directory `vectors`
        inside the prepared directory, None keeps the vectors in memory only.
      batch_size: number of images scored together.
      extract: the method `encoder_inputs` of the captioner.
    """

    def __init__(
        self,
        run: runs.Run,
        data_dir: str | os.PathLike | None,
        split: str,
        *,
        index: str | None,
        batch_size: int,
        extract: Callable[[Any], dict[str, np.ndarray]],
    ):
        data = PreparedData.load(data_dir or run.data_dir)
        runs.check_vocabulary(run, data)
        self._pairs = Pairs(run, run.view(data), split, 0, batch_size)
        self._index = index
        self._extract = extract
        self._scoring = threading.Lock()  # the pairs hold the texts of one call

    def __len__(self) -> int:
        return len(self._pairs.ids)

    @functools.cached_property
    def _candidates(self) -> Candidates:
        pairs = self._pairs
        return Candidates(pairs.data, pairs.split, self._index, pairs.run.max_regions)

    @functools.cached_property
    def sources(self) -> list[str]:
        """The path of each image, by position; only the file name if the file is missing."""
        data, split = self._pairs.data, self._pairs.split
        names, paths = data.file_names(split), data.picture_paths(split)
        return [paths.get(image, names[image]) for image in self._pairs.ids]

    @functools.cached_property
    def captions(self) -> list[list[str]]:
        """The captions that the data has of each image, by position."""
        references = self._pairs.data.references(self._pairs.split)
        return [references[image] for image in self._pairs.ids]

    def search(
        self, texts: str | Sequence[str], top: int = 5, candidates: int = 0
    ) -> list[Match] | list[list[Match]]:
        """Finds the images for which a text is most probable, by log P(text | image).

        Args:
          texts: a text, or several.
          top: number of images to return for a text.
          candidates: number of images that the model scores for a text. A fast search by vectors
            (`inference.nearest.Candidates`) chooses these images; it needs data with a split train.
            0 scores all images, which is slower.

        Returns:
          A list of `Match`, most probable first, for one text; a list of such lists for several.

        Raises:
          ValueError: a text has no word of the model's vocabulary.
        """
        queries = [texts] if isinstance(texts, str) else list(texts)
        chosen = None
        if candidates:
            vectors = self._candidates.sentences(queries)
            chosen = self._candidates.nearest(vectors, candidates)
        with self._scoring:
            results, note = find(self._pairs, queries, top, chosen)
        if note:
            warnings.warn(note, stacklevel=2)
        matches = [
            [Match(self.sources[position], position, score) for position, score in images]
            for images in results
        ]
        return matches[0] if isinstance(texts, str) else matches

    def nearest(self, images: Any, top: int = 5) -> list[list[Neighbour]]:
        """Finds the images of the collection that are most similar to a picture.

        The vector of an image is the mean of its regions' features, minus the mean vector of the
        training images, so the data must have a split train. The similarity of two images is the
        cosine of the angle between their vectors.

        Args:
          images: a picture, or several, in the forms that `ImageCaptioner` accepts.
          top: number of images to return for a picture.

        Returns:
          A list of `Neighbour`, most similar first, for each picture, also if there is only one.
        """
        inputs = self._extract(images)
        vectors = self._candidates.space.vectors(inputs["features"], inputs["mask"])
        positions, distances = self._candidates.index.search(vectors, top)
        # The vectors have the length 1.
        similarities = 1 - distances**2 / 2
        return [
            [self._neighbour(*pair) for pair in zip(row.tolist(), values.tolist(), strict=True)]
            for row, values in zip(positions, similarities, strict=True)
        ]

    def _neighbour(self, position: int, similarity: float) -> Neighbour:
        captions = tuple(self.captions[position])
        return Neighbour(self.sources[position], position, similarity, captions)
