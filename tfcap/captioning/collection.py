"""Searches the images of prepared data by sentences and by pictures."""

import functools
import os
import threading
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tfcap import runs
from tfcap.captioning.image_captioner import Match, Neighbour
from tfcap.data.prepared import PreparedData
from tfcap.inference.nearest import Candidates
from tfcap.inference.retrieval import Pairs, find

if TYPE_CHECKING:
    from tfcap.captioning.image_captioner import ImageCaptioner


class Collection:
    """The images of a split of prepared data; made by `ImageCaptioner.collection`."""

    def __init__(
        self,
        captioner: "ImageCaptioner",
        data_dir: str | os.PathLike | None,
        split: str,
        index: str | None,
        batch_size: int,
    ):
        run = captioner.engine.run
        data = PreparedData.load(data_dir or run.data_dir)
        runs.check_vocabulary(run, data)
        self._captioner = captioner
        self._pairs = Pairs(run, run.view(data), split, 0, batch_size)
        self._options = index, run.max_regions
        self._scoring = threading.Lock()  # the pairs hold the texts of one call

    def __len__(self) -> int:
        return len(self._pairs.ids)

    @functools.cached_property
    def _first(self) -> Candidates:
        pairs = self._pairs
        return Candidates(pairs.data, pairs.split, *self._options)

    @functools.cached_property
    def sources(self) -> list[str]:
        """The path of each image in split order; the file name if the file is missing."""
        data, split = self._pairs.data, self._pairs.split
        names, paths = data.file_names(split), data.picture_paths(split)
        return [paths.get(image, names[image]) for image in self._pairs.ids]

    @functools.cached_property
    def captions(self) -> list[list[str]]:
        """The captions of each image, in the order of the split."""
        references = self._pairs.data.references(self._pairs.split)
        return [references[image] for image in self._pairs.ids]

    def search(
        self, texts: str | Sequence[str], top: int = 5, candidates: int = 0
    ) -> list[Match] | list[list[Match]]:
        """Finds the `top` images for which a text is most probable, by log P(text | image).

        Only the `candidates` images whose vectors are nearest to a text are scored; 0 scores all
        images. Returns what `ImageCaptioner.search` returns; positions are those in the split.
        """
        wanted = [texts] if isinstance(texts, str) else list(texts)
        chosen = None
        if candidates:
            chosen = self._first.nearest(self._first.sentences(wanted), candidates)
        with self._scoring:
            found, note = find(self._pairs, wanted, top, chosen)
        if note:
            warnings.warn(note, stacklevel=2)
        matches = [
            [Match(self.sources[place], place, score) for place, score in images]
            for images in found
        ]
        return matches[0] if isinstance(texts, str) else matches

    def nearest(self, images: Any, top: int = 5) -> list[list[Neighbour]]:
        """Finds the `top` images whose vectors are nearest to the vector of each picture.

        Returns a list of `Neighbour` for each picture, most similar first.
        """
        features = self._captioner.features(images)
        mask = self._captioner.engine.server.mask(features)
        vectors = self._first.space.vectors(features, mask)
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
