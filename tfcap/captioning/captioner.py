"""The captioner for Python programs: pictures in, captions out.

Letters: B pictures, S texts, R regions, F feature width.
"""

import itertools
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from PIL import Image

from tfcap import visualize
from tfcap.captioning import inputs
from tfcap.captioning.captions import Caption, Failure, Match, best_first
from tfcap.captioning.gallery import Gallery, best_matches, check_positive
from tfcap.decoding.options import LARGEST_SEED, first_seed

if TYPE_CHECKING:
    import keras

    from tfcap.captioning.collection import Collection

_KINDS = (*visualize.KINDS, "details")


class ImageCaptioner:
    """Captions pictures; made by `tfcap.load`.

    A picture is the path of a file, a URL, the bytes of a file, an open file, a Pillow image, or an
    array or tensor uint8 [H, W, 3]. Several pictures are a folder, a list or another iterable of
    pictures, an array [B, H, W, 3], or a `tf.data.Dataset` of paths, bytes or arrays. Files may be
    JPEG, PNG, BMP, GIF (first frame) or WebP; the EXIF orientation is applied.

    A model that was trained on clips reads all of a GIF file. For such a model a folder of still
    pictures is one clip, and a picture is a clip that does not move.

    Attributes:
      engine: what computes: `TrainedRuns` or `ExportedModel`.
    """

    def __init__(self, engine: Any):
        self.engine = engine

    def __repr__(self) -> str:
        return f"ImageCaptioner({self.engine})"

    @overload
    def __call__(
        self,
        images: str | os.PathLike | bytes | Image.Image,
        *,
        attention: str | None = None,
        attention_captions: int = 1,
        batch_size: int = 16,
        seed: int = 1,
    ) -> Caption: ...

    @overload
    def __call__(
        self,
        images: Sequence[Any],
        *,
        attention: str | None = None,
        attention_captions: int = 1,
        batch_size: int = 16,
        seed: int = 1,
    ) -> list[Caption]: ...

    @overload
    def __call__(
        self,
        images: Any,
        *,
        attention: str | None = None,
        attention_captions: int = 1,
        batch_size: int = 16,
        seed: int = 1,
    ) -> Any: ...

    def __call__(
        self,
        images: Any,
        *,
        attention: str | None = None,
        attention_captions: int = 1,
        batch_size: int = 16,
        seed: int = 1,
    ) -> Any:
        """Captions one picture or several.

        Args:
          images: a picture, or several.
          attention: `attention` also computes the attention weights, `contribution` how much each
            region contributed, by gradients, and `details` all layers, which only `Caption.draw`
            shows.
          attention_captions: for how many captions of a picture, best first, this is computed.
          batch_size: pictures captioned together; the captions do not depend on it.
          seed: random seed for sampling; it and the position of a picture give the picture's seed.

        Returns:
          A `Caption` for one picture, a list of them for several. (The type of a path is that of
          one picture; for a folder the result is a list.)

        Raises:
          ValueError: a picture cannot be read. `stream` goes on with the others.
        """
        results = self.stream(
            images,
            attention=attention,
            attention_captions=attention_captions,
            batch_size=batch_size,
            seed=seed,
        )
        captions = []
        for result in results:
            if isinstance(result, Failure):
                raise ValueError(str(result))
            captions.append(result)
        return captions[0] if inputs.is_single(images, self.engine.reads_clips) else captions

    def stream(
        self,
        images: Any,
        *,
        attention: str | None = None,
        attention_captions: int = 1,
        batch_size: int = 16,
        seed: int = 1,
        log_probs: bool = True,
    ) -> Iterator[Caption | Failure]:
        """Captions pictures one batch after the other, in the order of the input.

        Args:
          images: a picture, or several; an iterator is read as the captions are asked for.
          attention: as in `__call__`.
          attention_captions: as in `__call__`.
          batch_size: as in `__call__`.
          seed: as in `__call__`.
          log_probs: whether to compute the log-probabilities of the words.

        Yields:
          For each picture a `Caption`, or a `Failure` with the reason why it has none. A failure
          does not stop the other pictures.

        Raises:
          ValueError: an argument is bad.
        """
        if attention is not None and attention not in _KINDS:
            raise ValueError(
                f"attention must be None or one of {', '.join(_KINDS)}. Received: {attention!r}."
            )
        if attention and self.engine.exported:
            self.engine.attend()
        check_positive(attention_captions=attention_captions, batch_size=batch_size)
        if not isinstance(seed, int | np.integer) or not 0 <= seed <= LARGEST_SEED:
            raise ValueError(f"seed must be an integer from 0 to {LARGEST_SEED}. Received: {seed}.")
        inputs.is_single(images)  # raises an error now and not at the first caption
        shown = (attention, attention_captions)
        return self._stream(images, shown, batch_size, seed, log_probs)

    def _stream(self, images, shown, batch_size, seed, log_probs):
        for batch in self.prepared(images, batch_size):
            good = [item for item in batch if isinstance(item, tuple)]
            results = iter(self._caption(good, shown, seed, log_probs))
            for item in batch:
                yield item if isinstance(item, Failure) else next(results)

    def prepared(
        self, images: Any, batch_size: int
    ) -> Iterator[list[Failure | tuple[inputs.Picture, Any]]]:
        """Yields lists of (picture, prepared picture); a picture that fails gives a `Failure`."""
        check_positive(batch_size=batch_size)
        pictures = inputs.read(images, self.engine.reads_clips)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            while part := list(itertools.islice(pictures, batch_size)):
                yield list(pool.map(self._prepare, part))

    def _prepare(self, picture: inputs.Picture) -> Failure | tuple[inputs.Picture, Any]:
        if picture.content is None:
            return Failure(picture.source, picture.position, picture.reason)
        try:
            return picture, self.engine.prepare(picture.content)
        except ValueError as error:
            return Failure(picture.source, picture.position, str(error))

    def _caption(
        self, batch: Sequence[tuple[inputs.Picture, Any]], shown, seed, log_probs
    ) -> Iterable[Caption | Failure]:
        """Captions the prepared pictures of a batch; a SavedModel may refuse some of them."""
        if not batch:
            return []
        seeds = [first_seed(seed) + picture.position for picture, _ in batch]
        try:
            result = self.engine.find([ready for _, ready in batch], seeds, log_probs)
        except ValueError as error:
            if len(batch) == 1:
                picture = batch[0][0]
                return [Failure(picture.source, picture.position, str(error))]
            parts = [self._caption([one], shown, seed, log_probs) for one in batch]
            return list(itertools.chain.from_iterable(parts))
        seen: Sequence[Any] = [[]] * len(batch)
        kind, number = shown
        if kind:
            own = [each[:number] for each in result.captions]
            seen = self.engine.attend(result.features, own, kind)
        rows = zip(batch, result.captions, result.scores, result.words, seen, strict=True)
        return [
            Failure(picture.source, picture.position, refusal)
            if refusal
            else best_first(self.engine, picture, *row)
            for ((picture, _), *row), refusal in zip(rows, result.refusals, strict=True)
        ]

    @property
    def model(self) -> "keras.Model":
        """The Keras model of a run. Raises ValueError for a SavedModel, which has none."""
        if self.engine.exported:
            self.engine.model()
        return self.engine.run.model

    @property
    def decoding(self) -> dict[str, Any] | None:
        """The decoding options by their keys in `task.decoding`; None for a SavedModel."""
        return self.engine.decoding

    def with_decoding(self, decoding: str) -> "ImageCaptioner":
        """Returns a captioner with the same weights and another decoding.

        Args:
          decoding: changes to the decoding of this captioner, as in `tfcap.load`.

        Raises:
          ValueError: an option is bad, or this is a SavedModel.
        """
        return ImageCaptioner(self.engine.with_decoding(decoding))

    def score(self, images: Any, texts: str | Sequence[str], *, batch_size: int = 16) -> np.ndarray:
        """Computes log P(text | picture) for every picture and every text.

        A word that the model does not know counts as the unknown word; a warning says so.

        Args:
          images: a picture, or several.
          texts: a text, or several; they need not be tokenized.
          batch_size: pictures scored together.

        Returns:
          float64 [B, S], natural logarithm.

        Raises:
          ValueError: a picture cannot be read, a text has no words, or this is a SavedModel.
        """
        wanted = [texts] if isinstance(texts, str) else list(texts)
        scored = self._scored(images, wanted, batch_size, strict=True)
        return np.concatenate([np.zeros((0, len(wanted))), *(scores for _, scores in scored)])

    def search(
        self, texts: str | Sequence[str], images: Any, top: int = 5, *, batch_size: int = 16
    ) -> list[Match] | list[list[Match]]:
        """Finds the pictures for which a text is most probable, by log P(text | picture).

        Pictures that cannot be read are left out; a warning names each.

        Args:
          texts: a text, or several.
          images: the pictures to search.
          top: number of pictures to find for each text.
          batch_size: pictures scored together.

        Returns:
          For a text a list of `Match`, best first; for several texts a list of such lists.

        Raises:
          ValueError: a text has no words, `top` is below 1, or this is a SavedModel.
        """
        check_positive(top=top)
        wanted = [texts] if isinstance(texts, str) else list(texts)
        pictures: list[inputs.Picture] = []
        rows = [np.zeros((0, len(wanted)))]
        for batch, batch_scores in self._scored(images, wanted, batch_size, strict=False):
            pictures += batch
            rows.append(batch_scores)
        matches = best_matches(pictures, np.concatenate(rows), top)
        return matches[0] if isinstance(texts, str) else matches

    def gallery(self, images: Any, *, batch_size: int = 16) -> Gallery:
        """Reads pictures once and keeps their features in memory, to search them by many texts.

        Args:
          images: the pictures.
          batch_size: pictures read together.

        Raises:
          ValueError: this is a SavedModel.
        """
        return Gallery(self, images, batch_size)

    def collection(
        self,
        data_dir: str | os.PathLike | None = None,
        split: str = "val",
        *,
        index: str | None = "",
        approximate: bool = False,
        batch_size: int = 8,
        images: str | os.PathLike | None = None,
    ) -> "Collection":
        """Opens the images of prepared data, to search them by texts and pictures.

        Args:
          data_dir: the prepared directory; None takes that of the run.
          split: its split.
          index: the directory that keeps the vectors of the images, which are computed at the first
            search with candidates; "" takes one beside the prepared data, None keeps them in
            memory.
          approximate: whether a graph finds the nearest vectors, which may miss some. It needs the
            extra `tfcap[search]`.
          batch_size: images scored together.
          images: a further directory with the picture files.

        Raises:
          ValueError: the data is not of the run's words and features, or this is a SavedModel.
        """
        if self.engine.exported:
            self.engine.score()
        from tfcap.captioning.collection import Collection

        return Collection(self, data_dir, split, index, approximate, batch_size, images)

    def _scored(self, images, texts, batch_size, strict):
        """Yields the pictures of each batch and their scores float64 [B, S]."""
        if self.engine.exported:
            self.engine.score()
        noted = False
        for batch in self.prepared(images, batch_size):
            ready = self._ready(batch, strict)
            if not ready:
                continue
            features = self.engine.features([one for _, one in ready])
            scores, note = self.engine.score(features, texts)
            if note and not noted:
                warnings.warn(note, stacklevel=3)
            noted = True
            read = [picture._replace(content=None) for picture, _ in ready]
            yield read, scores.astype(np.float64)

    def _ready(self, batch, strict):
        for item in batch:
            if isinstance(item, Failure):
                if strict:
                    raise ValueError(str(item))
                warnings.warn(f"left out: {item}", stacklevel=4)
        return [item for item in batch if isinstance(item, tuple)]

    def features(self, images: Any, *, batch_size: int = 16) -> np.ndarray:
        """Extracts the features that the model reads.

        Args:
          images: a picture, or several.
          batch_size: pictures read together.

        Returns:
          float32 [B, R, F].

        Raises:
          ValueError: a picture cannot be read, or this is a SavedModel.
        """
        if self.engine.exported:
            self.engine.features()
        batches = self.prepared(images, batch_size)
        ready = ([one for _, one in self._ready(batch, strict=True)] for batch in batches)
        features = [self.engine.features(batch).numpy() for batch in ready]
        if not features:
            raise ValueError("images must hold at least one picture. Received: none.")
        return np.concatenate(features)

    def export(self, directory: str | os.PathLike) -> str:
        """Writes the next version of a SavedModel for TF Serving.

        Args:
          directory: the directory of all versions; it is made if it does not exist.

        Returns:
          The path of the version, `directory/1` at first.

        Raises:
          ValueError: this is a SavedModel already.
        """
        return self.engine.export(os.path.expanduser(directory))
