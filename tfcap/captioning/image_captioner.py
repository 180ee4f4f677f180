"""The captioner for Python programs: pictures in, captions out.

Letters: B pictures, S texts, K captions of a picture, R regions, F feature width, T' words of a
caption, H and W height and width of a picture.
"""

import dataclasses
import functools
import itertools
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import numpy as np
from PIL import Image

from tfcap.captioning import inputs
from tfcap.decoding.options import first_seed
from tfcap.visualize import figures
from tfcap.visualize.attended import KINDS, Attended

if TYPE_CHECKING:
    import keras
    from typing_extensions import Unpack  # of `typing` from Python 3.11

    from tfcap.captioning.collection import Collection

_EMPTY = -1e8  # the score of a slot of the beam that no caption fills is about -1e9
_UNREAD = 256  # captions of one call that keep features until their log-probabilities are read


Kind = Literal["attention", "contribution"]  # `KINDS`


class _Options(TypedDict, total=False):
    """The options of `ImageCaptioner.stream`."""

    attention: Kind | None
    attention_captions: int
    batch_size: int
    seed: int


class _WhenRead:
    """The attribute `Caption.log_probs`, computed when it is first read."""

    def __get__(self, caption: Any, owner: type | None = None) -> Any:
        if caption is None:
            return self
        value = caption.__dict__["log_probs"]
        if callable(value):
            value = caption.__dict__["log_probs"] = value()
        return value

    def __set__(self, caption: Any, value: Any) -> None:
        caption.__dict__["log_probs"] = None if value is self else value


_WHEN_READ: Any = _WhenRead()


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
      picture: uint8 [H, W, 3], upright; None without the option `attention`.
      seen: the weights and boxes of the regions; None without the option `attention`.
    """

    text: str
    score: float
    words: tuple[str, ...]
    log_probs: tuple[float, ...] | None = dataclasses.field(default=_WHEN_READ, repr=False)
    alternatives: tuple["Caption", ...] = dataclasses.field(default=(), repr=False)
    source: str | None = None
    position: int = dataclasses.field(default=0, repr=False)
    picture: np.ndarray | None = dataclasses.field(default=None, repr=False, compare=False)
    seen: Attended | None = dataclasses.field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return self.text

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"log_probs": self.log_probs}

    @property
    def weights(self) -> np.ndarray:
        """float32 [T', R], the weight of each region for each word. Needs `attention`."""
        return self._attended().weights

    @property
    def boxes(self) -> np.ndarray:
        """float32 [R, 4], x1, y1, x2, y2 of the regions in 0..1. Needs `attention`."""
        return self._attended().boxes

    def draw(self, path: str | os.PathLike) -> None:
        """Writes a figure of the picture with the weights of each word: .png, .pdf or .svg."""
        seen = self._attended()
        assert self.picture is not None
        figures.write_figure(path, self.picture, seen)

    def _repr_png_(self) -> bytes | None:
        """Returns the figure for a notebook; without attention None, so that the text is shown."""
        if self.seen is None or self.picture is None:
            return None
        return figures.figure(self.picture, self.seen)

    def _attended(self) -> Attended:
        if self.seen is None:
            raise ValueError(
                "This caption has no weights of regions. Call the captioner with "
                'attention="attention" or attention="contribution".'
            )
        return self.seen


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
      source: the path or URL of the picture; None for other pictures. In a `Collection` it is the
        file name if the file is missing.
      position: the position of the picture in the input or in the split, from 0.
      score: log P(text | picture), natural logarithm.
    """

    source: str | None
    position: int
    score: float


class ImageCaptioner:
    """Captions pictures; made by `tfcap.load`.

    A picture is the path of a file, a URL, the bytes of a file, an open file, a Pillow image, or an
    array or tensor uint8 [H, W, 3]. Several pictures are a folder, a list or another iterable of
    pictures, an array [B, H, W, 3], or a `tf.data.Dataset` of paths, bytes or arrays. Files may be
    JPEG, PNG, BMP, GIF (first frame) or WebP; the EXIF orientation is applied.

    A model that was trained on clips reads all of a GIF file. For such a model a folder of still
    pictures is one clip, and a picture is a clip that does not move.

    Attributes:
      engine: what computes: `engines.TrainedRun` or `engines.ExportedModel`.
    """

    def __init__(self, engine: Any):
        self.engine = engine

    def __repr__(self) -> str:
        return f"ImageCaptioner({self.engine})"

    # The type of a path is that of one picture; for a folder the result is a list.
    @overload
    def __call__(
        self, images: str | os.PathLike | bytes | Image.Image, **options: "Unpack[_Options]"
    ) -> Caption: ...

    @overload
    def __call__(self, images: Sequence[Any], **options: "Unpack[_Options]") -> list[Caption]: ...

    @overload
    def __call__(self, images: Any, **options: "Unpack[_Options]") -> Any: ...

    def __call__(self, images: Any, **options: "Unpack[_Options]") -> Any:
        """Captions one picture or several; the options are those of `stream`.

        Returns a `Caption` for one picture, and a list of `Caption`s for several. A picture that
        cannot be read raises ValueError; `stream` would go on with the other pictures.
        """
        captions: list[Caption] = []
        for result in self.stream(images, **options):
            if isinstance(result, Failure):
                raise ValueError(str(result))
            captions.append(result)
            if len(captions) > _UNREAD:
                _ = captions[-_UNREAD].log_probs  # from here on they need no features
        return captions[0] if inputs.is_single(images, self.engine.reads_clips) else captions

    def stream(
        self,
        images: Any,
        *,
        attention: Kind | None = None,
        attention_captions: int = 1,
        batch_size: int = 16,
        seed: int = 1,
    ) -> Iterator[Caption | Failure]:
        """Captions pictures one batch after the other, in the order of the input.

        Args:
          images: a picture, or several. An iterator is read one batch at a time.
          attention: `attention` also computes the attention weights; `contribution` computes how
            much each region contributed, by gradients.
          attention_captions: number of captions of a picture, best first, that get these weights.
          batch_size: number of pictures captioned together. It does not change the captions.
          seed: random seed for sampling. A caption depends on it and on the picture's position.

        Yields:
          For each picture a `Caption`, or a `Failure` with the reason why it has none. A failure
          does not stop the other pictures. A `Caption` holds the features of its batch in memory
          until its `log_probs` are read.
        """
        if attention not in (None, *KINDS):
            known = ", ".join(KINDS)
            raise ValueError(f"attention must be one of {known}, not {attention!r}.")
        if attention and self.engine.exported:
            self.engine.attend()
        inputs.is_single(images)  # raises an error now and not at the first caption
        return self._stream(images, attention, attention_captions, batch_size, seed)

    def _stream(self, images, attention, attention_captions, batch_size, seed):
        for batch in self._batches(images, batch_size):
            good = [item for item in batch if isinstance(item, tuple)]
            results = iter(self._caption(good, attention, attention_captions, seed))
            for item in batch:
                yield item if isinstance(item, Failure) else next(results)

    def _batches(
        self, images: Any, batch_size: int
    ) -> Iterator[list[Failure | tuple[inputs.Picture, Any]]]:
        """Yields lists of (picture, prepared picture); a picture that fails gives a `Failure`."""

        def prepare(picture):
            if picture.content is None:
                return Failure(picture.source, picture.position, picture.reason)
            try:
                return picture, self.engine.prepare(picture.content)
            except ValueError as error:
                return Failure(picture.source, picture.position, str(error))

        pictures = inputs.read(images, self.engine.reads_clips)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            while part := list(itertools.islice(pictures, batch_size)):
                yield list(pool.map(prepare, part))

    def _caption(
        self, batch: Sequence[tuple[inputs.Picture, Any]], attention, attention_captions, seed
    ) -> list[Caption | Failure]:
        if not batch:
            return []
        seeds = [first_seed(seed) + picture.position for picture, _ in batch]
        found = self.engine.find([ready for _, ready in batch], seeds)
        shown = [
            [] if refusal else texts[:attention_captions]
            for texts, refusal in zip(found.captions, found.refusals, strict=True)
        ]
        seen: Sequence[Any] = [[]] * len(batch)
        if attention and any(shown):
            seen = self.engine.attend(found, shown, attention)
        log_probs = _LogProbs(self.engine, found.features, found.captions)
        return [
            Failure(picture.source, picture.position, found.refusals[row])
            if found.refusals[row]
            else self._best_first(picture, found, row, seen[row], log_probs)
            for row, (picture, _) in enumerate(batch)
        ]

    def _best_first(self, picture, found, row, seen, log_probs: "_LogProbs") -> Caption:
        texts, scores = found.captions[row], found.scores[row]
        pixels: Any = self.engine.picture(picture.content) if seen else None
        captions: list[Caption] = []
        for place, (text, score) in enumerate(zip(texts, scores, strict=True)):
            if captions and score <= _EMPTY:
                continue
            words = tuple(text.split())
            later: Any = None
            if found.features is not None:
                later = functools.partial(lambda k: log_probs.values[row][k], place)
            caption = Caption(
                text, float(score), words, later, (), picture.source, picture.position
            )
            if place < len(seen):
                object.__setattr__(caption, "picture", pixels)
                placed = self.engine.placed(seen[place], *pixels.shape[:2])
                object.__setattr__(caption, "seen", placed)
            captions.append(caption)
        first, *others = captions
        object.__setattr__(first, "alternatives", tuple(others))
        return first

    @property
    def model(self) -> "keras.Model":
        """The Keras model of a run. Raises ValueError for a SavedModel."""
        return self.engine.model

    @property
    def decoding(self) -> dict[str, Any] | None:
        """The values of the keys of `task.decoding`; None for a SavedModel."""
        return self.engine.decoding

    def with_decoding(self, decoding: str) -> "ImageCaptioner":
        """Returns a captioner with the same weights and with some decoding options changed."""
        return ImageCaptioner(self.engine.with_decoding(decoding))

    def score(self, images: Any, texts: str | Sequence[str], *, batch_size: int = 16) -> np.ndarray:
        """Computes log P(text | picture) of B pictures and S texts: float64 [B, S].

        The texts need not be tokenized. A word that the model does not know counts as the unknown
        word; a warning says so.
        """
        wanted = [texts] if isinstance(texts, str) else list(texts)
        rows = [np.zeros((0, len(wanted)))]
        for _, batch_scores in self._scored(images, wanted, batch_size, strict=True):
            rows.append(batch_scores)
        return np.concatenate(rows)

    def search(
        self, texts: str | Sequence[str], images: Any, top: int = 5, *, batch_size: int = 16
    ) -> list[Match] | list[list[Match]]:
        """Finds the `top` pictures for which a text is most probable, by log P(text | picture).

        Pictures that cannot be read are left out; a warning names each. Returns a list of `Match`,
        best first, for a text, and a list of such lists for several texts.
        """
        wanted = [texts] if isinstance(texts, str) else list(texts)
        pictures: list[inputs.Picture] = []
        rows = [np.zeros((0, len(wanted)))]
        for batch, batch_scores in self._scored(images, wanted, batch_size, strict=False):
            pictures += batch
            rows.append(batch_scores)
        matches = [
            [
                Match(pictures[place].source, pictures[place].position, float(column[place]))
                for place in np.argsort(-column, kind="stable")[:top]
            ]
            for column in np.concatenate(rows).T
        ]
        return matches[0] if isinstance(texts, str) else matches

    def collection(
        self,
        data_dir: str | os.PathLike | None = None,
        split: str = "val",
        *,
        index: str | None = "",
        batch_size: int = 8,
    ) -> "Collection":
        """Opens the images of prepared data, to search them by text or by picture.

        Args:
          data_dir: the prepared directory; None takes the data that the run was trained on.
          split: the split to search.
          index: the directory in which the vectors of the images are stored; "" takes a directory
            beside the prepared data, None holds the vectors in memory.
          batch_size: number of images scored together.
        """
        from tfcap.captioning.collection import Collection

        return Collection(self, data_dir, split, index, batch_size)

    def _scored(self, images, texts, batch_size, strict):
        """Yields the pictures of each batch and their scores float64 [B, S]."""
        for batch in self._batches(images, batch_size):
            if ready := self._ready(batch, strict):
                features = self.engine.features([one for _, one in ready])
                scores, note = self.engine.score(features, texts)
                if note:
                    warnings.warn(note, stacklevel=3)
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
        """Extracts the features of one picture or several: float32 [B, R, F]."""
        batches = self._batches(images, batch_size)
        ready = ([one for _, one in self._ready(batch, strict=True)] for batch in batches)
        features = [self.engine.features(batch).numpy() for batch in ready]
        if not features:
            raise ValueError("images holds no picture.")
        return np.concatenate(features)

    def export(self, directory: str | os.PathLike) -> str:
        """Writes a SavedModel as the next version `directory/N`; returns its path."""
        return self.engine.export(os.path.expanduser(directory))


class _LogProbs:
    """The log-probabilities of all words of a batch, computed when the first is read."""

    def __init__(self, engine: Any, features: Any, captions: Sequence[Sequence[str]]):
        self._engine, self._features, self._captions = engine, features, captions

    @functools.cached_property
    def values(self) -> list[list[tuple[float, ...]]]:
        values = self._engine.word_log_probs(self._features, self._captions)
        self._features = None  # the largest part of what a caption keeps
        return values
