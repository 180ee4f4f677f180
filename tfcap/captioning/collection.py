"""Searches the images of prepared data by sentences and by pictures, in two stages.

Letters: Q queries, D width of a vector, n candidates.
"""

import functools
import os
import threading
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfcap import runs
from tfcap.captioning import inputs
from tfcap.captioning.captions import Match, Neighbour
from tfcap.data.prepared import PreparedData
from tfcap.scoring.nearest import Candidates
from tfcap.scoring.retrieval import Pairs, find

if TYPE_CHECKING:
    from tfcap.captioning.captioner import ImageCaptioner


class Collection:
    """The images of a split of prepared data; made by `ImageCaptioner.collection`.

    Args:
      captioner: scores the images.
      data_dir: the prepared directory; None takes that of the run.
      split: its split.
      index: the directory that keeps the vectors; "" takes the one beside the prepared data, None
        keeps them in memory.
      approximate: whether a graph finds the nearest vectors, which may miss some.
      batch_size: images scored together.
      images: a further directory with the picture files.

    Raises:
      ValueError: the data is not of the run's words and features.
    """

    def __init__(
        self,
        captioner: "ImageCaptioner",
        data_dir: str | os.PathLike | None = None,
        split: str = "val",
        index: str | None = "",
        approximate: bool = False,
        batch_size: int = 8,
        images: str | os.PathLike | None = None,
    ):
        run = captioner.engine.run
        data = PreparedData.load(data_dir or run.data_dir)
        runs.check_vocabulary(run, data)
        self._captioner = captioner
        self._pairs = Pairs(run, run.view(data), split, 0, batch_size)
        self._options = index, run.max_regions, approximate
        self._images = images
        self._scoring = threading.Lock()  # the pairs hold the texts of one call

    def __len__(self) -> int:
        """Returns the number of images."""
        return len(self._pairs.ids)

    @functools.cached_property
    def _first(self) -> Candidates:
        pairs = self._pairs
        return Candidates(pairs.data, pairs.split, *self._options)

    @functools.cached_property
    def sources(self) -> list[str]:
        """The path of each image, in the order of the split; its name if there is no file."""
        names = self._pairs.data.file_names(self._pairs.split)
        pairs = zip(self._pairs.ids, self.files, strict=True)
        return [file or names[image] for image, file in pairs]

    @functools.cached_property
    def files(self) -> list[str | None]:
        """The path of each image, in the order of the split; None if there is no file.

        Only files inside the directory of the pictures count, whatever the data names.
        """
        data, split = self._pairs.data, self._pairs.split
        paths = data.picture_paths(split)
        if self._images:
            paths |= data.picture_paths(split, self._images)
        return [paths.get(image) for image in self._pairs.ids]

    @functools.cached_property
    def captions(self) -> list[list[str]]:
        """The captions of each image, in the order of the split."""
        references = self._pairs.data.references(self._pairs.split)
        return [references[image] for image in self._pairs.ids]

    def search(
        self, texts: str | Sequence[str], top: int = 5, candidates: int = 0
    ) -> list[Match] | list[list[Match]]:
        """Finds the images for which a text is most probable, by log P(text | image).

        Args:
          texts: a text, or several.
          top: number of images to find for each text.
          candidates: number of images that are scored for each text, those with the nearest
            vectors; 0 scores all.

        Returns:
          For a text a list of `Match`, best first; for several texts a list of such lists. The
          position of a match is that in the split.

        Raises:
          ValueError: `top` or `candidates` is too small, or a text has no word that the model
            knows.
        """
        _check(top, candidates)
        wanted = [texts] if isinstance(texts, str) else list(texts)
        chosen = self._first.of_sentences(wanted, candidates) if candidates else None
        found, note = self._find(wanted, top, chosen)
        if note:
            warnings.warn(note, stacklevel=2)
        return found[0] if isinstance(texts, str) else found

    def similar(self, images: Any, top: int = 5, candidates: int = 0) -> list[list[Match]]:
        """Captions pictures, and finds the images for which these captions are most probable.

        Args:
          images: a picture or several, as the captioner takes them.
          top: number of images to find for each picture.
          candidates: number of images that are scored for each picture, those with the nearest
            vectors; 0 scores all.

        Returns:
          For each picture a list of `Match`, best first.

        Raises:
          ValueError: a picture cannot be read, or `top` or `candidates` is too small.
        """
        _check(top, candidates)
        if candidates:
            images = inputs.lasting(images)
        results = self._captioner(images)
        captions = [str(one) for one in (results if isinstance(results, list) else [results])]
        chosen = None
        if candidates:
            vectors = self._first.space.vectors(self._captioner.features(images))
            chosen = self._first.nearest(vectors, candidates)
        return self._find(captions, top, chosen)[0]

    def nearest(self, images: Any, top: int = 5) -> list[list[Neighbour]]:
        """Finds the images whose vectors are nearest to those of pictures.

        Args:
          images: a picture or several, as the captioner takes them.
          top: number of images to find for each picture; if there are fewer, all are returned.

        Returns:
          For each picture a list of `Neighbour`, most similar first.

        Raises:
          ValueError: a picture cannot be read, or `top` is below 1.
        """
        _check(top, 0)
        vectors = self._first.space.vectors(self._captioner.features(images))
        places, distances = self._first.index.search(vectors, top)
        # The vectors have the length 1.
        similarities = 1 - distances**2 / 2
        return [
            [
                Neighbour(self.sources[place], place, similarity, tuple(self.captions[place]))
                for place, similarity in zip(own.tolist(), alike.tolist(), strict=True)
            ]
            for own, alike in zip(places, similarities, strict=True)
        ]

    def _find(
        self, texts: list[str], top: int, chosen: np.ndarray | None
    ) -> tuple[list[list[Match]], str]:
        """Returns the matches of each text, and a note on words that are not known."""
        with self._scoring:
            matches, note = find(self._pairs, texts, top, chosen)
        sources = self.sources
        found = [[Match(sources[place], place, score) for place, score in own] for own in matches]
        return found, note


def _check(top: int, candidates: int) -> None:
    if top < 1 or candidates < 0:
        raise ValueError(
            "top must be at least 1, and candidates at least 0. Received: "
            f"top {top}, candidates {candidates}."
        )
