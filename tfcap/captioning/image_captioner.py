"""The captioner for Python programs: pictures in, captions out.

Letters: B pictures, S texts, K captions of a picture, R regions, F feature width, H and W height
and width of a picture.
"""

import dataclasses
import functools
import itertools
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
from PIL import Image

from tfcap.captioning import inputs
from tfcap.captioning.results import Caption, CaptionedBatch, Failure, Match
from tfcap.decoding.options import first_seed
from tfcap.errors import UsageError
from tfcap.visualize.attended import KINDS, Attended, Kind

if TYPE_CHECKING:
    from tfcap.captioning.collection import Collection
    from tfcap.captioning.runtimes import Runtime, TrainedRun
    from tfcap.models.captioner import Captioner

_EMPTY = -1e8  # the score of a slot of the beam that no caption fills is about -1e9


class Prepared(NamedTuple):
    """A picture that was read, and the result of `Runtime.prepare` for it."""

    picture: inputs.Picture
    content: Any


class _Shown(NamedTuple):
    """The pixels uint8 [H, W, 3] of a picture, and the weights of its first captions."""

    pixels: np.ndarray
    attended: list[Attended]


class ImageCaptioner:
    """Captions pictures: `captioner("dog.jpg")` is a `Caption`. `tfcap.load` makes a captioner.

    For several pictures the result is a list of `Caption`s.

    A picture is the path of a file, a URL, the bytes of a file, an open file, a Pillow image, or an
    array or tensor uint8 [H, W, 3]. Several pictures are a directory, a list or another iterable of
    pictures, an array [B, H, W, 3], or a `tf.data.Dataset` of paths, bytes or arrays. Files may be
    JPEG, PNG, BMP, GIF (first frame) or WebP; the EXIF orientation is applied.

    A model that was trained on clips reads films (video files) and all frames of a GIF file. For
    such a model a directory of still pictures is one clip, and a picture is a clip that does not
    move.

    For a model that was trained on images with several pictures, a directory of pictures is one
    image, and so is a tuple of pictures in a list: `captioner([("front.png", "side.png")])`.

    Attributes:
      runtime: the loaded model, which computes the captions: a `runtimes.TrainedRun`, a
        `runtimes.ExportedModel` for a SavedModel, or a `portable_model.PortableModel`.
    """

    def __init__(self, runtime: "Runtime"):
        self.runtime = runtime

    def __repr__(self) -> str:
        return f"ImageCaptioner({self.runtime})"

    # The type of a path is that of one picture; for a directory the result is a list.
    @overload
    def __call__(
        self,
        images: str | os.PathLike | bytes | Image.Image,
        *,
        attention: Kind | None = None,
        attention_captions: int = 1,
        batch_size: int = 16,
        seed: int = 1,
    ) -> Caption: ...

    @overload
    def __call__(
        self,
        images: Sequence[Any],
        *,
        attention: Kind | None = None,
        attention_captions: int = 1,
        batch_size: int = 16,
        seed: int = 1,
    ) -> list[Caption]: ...

    @overload
    def __call__(
        self,
        images: Any,
        *,
        attention: Kind | None = None,
        attention_captions: int = 1,
        batch_size: int = 16,
        seed: int = 1,
    ) -> Any: ...

    def __call__(
        self,
        images: Any,
        *,
        attention: Kind | None = None,
        attention_captions: int = 1,
        batch_size: int = 16,
        seed: int = 1,
    ) -> Any:
        """Captions one picture or several.

        Args:
          images: a picture, or several.
          attention: what to compute for each word and region: `attention` for the attention
            weights, `contribution` for how much the region contributed to the word, by gradients.
            None computes neither, which is faster.
          attention_captions: number of captions of a picture, best first, for which `attention` is
            computed.
          batch_size: number of pictures captioned together. It does not change the captions.
          seed: random seed, for sampled captions only. The captions of a picture depend on the seed
            and on the position of the picture in the input.

        Returns:
          A `Caption` for one picture, and a list of `Caption`s for several.

        Raises:
          ValueError: a picture cannot be read. `stream` goes on with the other pictures instead.
        """
        results = self.stream(
            images,
            attention=attention,
            attention_captions=attention_captions,
            batch_size=batch_size,
            seed=seed,
        )
        captions: list[Caption] = []
        for result in results:
            if isinstance(result, Failure):
                raise ValueError(f"This picture cannot be captioned: {result}")
            captions.append(result)
        return captions[0] if inputs.is_single(images, reads(self.runtime)) else captions

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
          attention: what to compute for each word and region: `attention` for the attention
            weights, `contribution` for how much the region contributed to the word, by gradients.
            None computes neither, which is faster.
          attention_captions: number of captions of a picture, best first, for which `attention` is
            computed.
          batch_size: number of pictures captioned together. It does not change the captions.
          seed: random seed, for sampled captions only. The captions of a picture depend on the seed
            and on the position of the picture in the input.

        Yields:
          For each picture its best `Caption`, which holds the other captions as `alternatives`; or
          a `Failure` with the reason why the picture has no caption. A failure does not stop the
          other pictures.

        Raises:
          ValueError: `images` is of a type that holds no pictures; `attention` is wrong; or
            `attention` is given, but the captioner is an export.
        """
        if attention not in (None, *KINDS):
            raise ValueError(f"`attention` must be {', '.join(KINDS)} or None, not {attention!r}.")
        runtime = self.runtime.trained if attention else self.runtime  # an export raises an error
        inputs.is_single(images)  # raises an error now and not at the first caption
        return self._stream(runtime, images, attention, attention_captions, batch_size, seed)

    def _stream(
        self,
        runtime: "Runtime",
        images: Any,
        attention: Kind | None,
        attention_captions: int,
        batch_size: int,
        seed: int,
    ) -> Iterator[Caption | Failure]:
        for batch in _batches(runtime, images, batch_size):
            good = [item for item in batch if isinstance(item, Prepared)]
            seeds = [first_seed(seed) + picture.position for picture, _ in good]
            results = iter(caption_batch(runtime, good, seeds, attention, attention_captions))
            for item in batch:
                yield item if isinstance(item, Failure) else next(results)

    @property
    def model(self) -> "Captioner":
        """The Keras model of the captioner.

        Raises:
          ValueError: the captioner is an export.
        """
        return self.runtime.trained.model

    @property
    def decoding(self) -> dict[str, Any] | None:
        """The decoding options, name -> value, as in {"beam": 3}; None for a SavedModel."""
        return self.runtime.decoding

    def require_confidence(self) -> None:
        """Raises UsageError, which names `min_confidence`, if captions have no confidence."""
        if not self.runtime.calibrated:
            raise UsageError(
                f"`min_confidence` needs a calibrated model, but {self.runtime} has no "
                "confidence. Run tfcap.calibrate on its run, and export the run again if "
                "`model_dir` is an export. Ensembles and other checkpoints of the run have no "
                "confidence."
            )

    def with_decoding(self, decoding: str) -> "ImageCaptioner":
        """Returns another captioner: the same model with some decoding options changed.

        Args:
          decoding: the changes, as in `search=sample,top_p=0.9`. The name of a preset
            (`tfcap.decoding.PRESETS`) replaces all options, and may stand before other changes, as
            in `mrnn,beam=10`.

        Raises:
          ValueError: a change is wrong, or the captioner is an export.
        """
        return ImageCaptioner(self.runtime.trained.with_decoding(decoding))

    def score(self, images: Any, texts: str | Sequence[str], *, batch_size: int = 16) -> np.ndarray:
        """Computes how probable texts are as captions of pictures.

        A word outside the model's vocabulary counts as the token UNK; a warning says so.

        Args:
          images: a picture, or several.
          texts: a text, or several, as plain sentences.
          batch_size: number of pictures scored together.

        Returns:
          log P(text | picture), natural logarithm, float64 [B, S] for B pictures and S texts; also
          for one picture or one text.

        Raises:
          ValueError: a picture cannot be read, a text has no word, or the captioner is an export.
        """
        queries = [texts] if isinstance(texts, str) else list(texts)
        rows = [np.zeros((0, len(queries)))]
        for _, scores in self._scored(images, queries, batch_size, strict=True):
            rows.append(scores)
        return np.concatenate(rows)

    def search(
        self, texts: str | Sequence[str], images: Any, top: int = 5, *, batch_size: int = 16
    ) -> list[Match] | list[list[Match]]:
        """Finds the pictures for which a text is most probable, by log P(text | picture).

        A picture that cannot be read is left out; a warning names it.

        Args:
          texts: a text, or several.
          images: the pictures to search.
          top: number of pictures to return for a text.
          batch_size: number of pictures scored together.

        Returns:
          A list of `Match`, most probable first, for one text; a list of such lists for several.

        Raises:
          ValueError: a text has no word, or the captioner is an export.
        """
        queries = [texts] if isinstance(texts, str) else list(texts)
        pictures: list[inputs.Picture] = []
        rows = [np.zeros((0, len(queries)))]
        for batch, scores in self._scored(images, queries, batch_size, strict=False):
            pictures += batch
            rows.append(scores)
        matches = [
            [
                Match(pictures[index].source, pictures[index].position, float(column[index]))
                for index in np.argsort(-column, kind="stable")[:top]
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
          index: the directory that keeps the vectors of the images; "" takes the directory
            `vectors` inside the prepared directory, None keeps the vectors in memory only.
          batch_size: number of images scored together.

        Returns:
          A `Collection`, with the methods `search` (by text) and `nearest` (by picture).

        Raises:
          ValueError: the captioner is an export, the data cannot be read or does not
            fit the run, or the split has no images.
        """
        from tfcap.captioning.collection import Collection

        run = self.runtime.trained.run
        return Collection(
            run, data_dir, split, index=index, batch_size=batch_size, extract=self.encoder_inputs
        )

    def features(self, images: Any, *, batch_size: int = 16) -> np.ndarray:
        """Extracts the features of pictures, the input of the captioner.

        Args:
          images: a picture, or several.
          batch_size: number of pictures computed together.

        Returns:
          float32 [B, R, F]: for B pictures R regions each, with features of width F; B is 1 for a
          single picture. If a detector finds fewer regions in a picture, the other rows are zeros.

        Raises:
          ValueError: a picture cannot be read, or the captioner is an export.
        """
        return self.encoder_inputs(images, batch_size=batch_size)["features"]

    def encoder_inputs(self, images: Any, *, batch_size: int = 16) -> dict[str, np.ndarray]:
        """Extracts all that the captioner reads of pictures.

        Args:
          images: a picture, or several.
          batch_size: number of pictures computed together.

        Returns:
          The argument of `tfcap.models.Captioner.encode`: a dictionary with `features`, as the
          method `features` returns them; `mask` bool [B, R], False for rows without a region; and
          for a detector `boxes` float32 [B, R, 4].

        Raises:
          ValueError: a picture cannot be read, or the captioner is an export.
        """
        runtime = self.runtime.trained
        parts = [
            runtime.inputs([item.content for item in _without_failures(batch, strict=True)])
            for batch in _batches(runtime, images, batch_size)
        ]
        if not parts:
            raise ValueError("`images` has no picture in it. Give at least one picture.")
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def export(self, directory: str | os.PathLike) -> str:
        """Exports the captioner as a SavedModel for TF Serving.

        The SavedModel is written into a new subdirectory, the next version: `directory/1`, then
        `directory/2`. The result is the path of the subdirectory.

        Raises:
          ValueError: the captioner is itself an export.
        """
        return self.runtime.trained.export(os.path.expanduser(directory))

    def _scored(
        self, images: Any, texts: Sequence[str], batch_size: int, strict: bool
    ) -> Iterator[tuple[list[inputs.Picture], np.ndarray]]:
        """Yields the pictures of each batch and their scores float64 [B, S]."""
        for batch in _batches(self.runtime.trained, images, batch_size):
            if items := _without_failures(batch, strict):
                prepared = [item.content for item in items]
                scores, note = self.runtime.trained.score(prepared, texts)
                if note:
                    warnings.warn(note, stacklevel=3)
                pictures = [item.picture._replace(content=None) for item in items]
                yield pictures, scores.astype(np.float64)


def reads(runtime: "Runtime") -> inputs.Reads:
    """Returns what a model reads."""
    if runtime.reads_clips:
        return "clips"
    return "views" if runtime.views > 1 else "pictures"


def _batches(
    runtime: "Runtime", images: Any, batch_size: int
) -> Iterator[list[Prepared | Failure]]:
    """Yields the pictures in batches; a picture that cannot be read gives a `Failure`."""

    pictures = inputs.read(images, reads(runtime))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        while part := list(itertools.islice(pictures, batch_size)):
            yield list(pool.map(functools.partial(prepare, runtime), part))


def prepare(runtime: "Runtime", picture: inputs.Picture) -> Prepared | Failure:
    """Prepares a picture for `caption_batch`; returns a `Failure` if it cannot be read."""
    if picture.content is None:
        return Failure(picture.source, picture.position, picture.reason)
    try:
        return Prepared(picture, runtime.prepare(picture.content))
    except (ValueError, OSError) as error:  # OSError: of a file in a folder
        reason = getattr(error, "strerror", None) or str(error)
        return Failure(picture.source, picture.position, reason)


def caption_batch(
    runtime: "Runtime",
    batch: Sequence[Prepared],
    seeds: Sequence[int],
    attention: Kind | None = None,
    attention_captions: int = 1,
) -> list[Caption | Failure]:
    """Captions a batch of pictures.

    Args:
      runtime: the loaded model.
      batch: the pictures, results of `prepare`; it may be empty.
      seeds: a random seed for each picture, for sampled captions only.
      attention, attention_captions: as for `ImageCaptioner.stream`.

    Returns:
      For each picture its best caption, with the others as alternatives, or why it has none.
    """
    if not batch:
        return []
    result = runtime.caption([content for _, content in batch], seeds)
    shown: Sequence[_Shown | None] = [None] * len(batch)
    if attention:
        shown = _attend(runtime.trained, batch, result, attention, attention_captions)
    outcomes: list[Caption | Failure] = []
    for row, (picture, _) in enumerate(batch):
        if reason := result.refusals[row]:
            outcomes.append(Failure(picture.source, picture.position, reason))
        else:
            outcomes.append(_best_caption(picture, result, row, shown[row], runtime.shown))
    return outcomes


def _attend(
    trained: "TrainedRun",
    batch: Sequence[Prepared],
    result: CaptionedBatch,
    kind: Kind,
    number: int,
) -> "list[_Shown | None]":
    """Computes the weights of the regions for the first `number` captions of each picture."""
    captions = [
        [] if refusal else texts[:number]
        for texts, refusal in zip(result.captions, result.refusals, strict=True)
    ]
    if not any(captions):
        return [None] * len(batch)
    shown: list[_Shown | None] = []
    for (picture, _), rows in zip(batch, trained.attend(result, captions, kind), strict=True):
        if not rows or picture.content is None:
            shown.append(None)
            continue
        pixels, sizes = trained.picture(picture.content)
        shown.append(_Shown(pixels, [trained.in_picture(row, sizes) for row in rows]))
    return shown


def _without_failures(batch: Sequence[Prepared | Failure], strict: bool) -> list[Prepared]:
    """Returns the pictures that could be read; a failure is an error if `strict`, or a warning."""
    items = []
    for item in batch:
        if isinstance(item, Prepared):
            items.append(item)
        elif strict:
            raise ValueError(f"This picture cannot be read: {item}")
        else:
            warnings.warn(f"left out: {item}", stacklevel=4)
    return items


def _best_caption(
    picture: inputs.Picture,
    result: CaptionedBatch,
    row: int,
    shown: _Shown | None,
    text_of: Callable[[str], str],
) -> Caption:
    """Returns the best caption of a picture, with the others as its alternatives.

    Args:
      picture: the picture.
      result: the captions of its batch.
      row: the position of the picture in the batch.
      shown: the weights of the regions for the first captions; None without weights.
      text_of: a function of a caption with spaces between its words, which returns it as people
        write it.
    """
    captions: list[Caption] = []
    scored = zip(result.captions[row], result.scores[row], strict=True)
    for index, (text, score) in enumerate(scored):
        if captions and score <= _EMPTY:
            continue
        attended = shown.attended[index] if shown and index < len(shown.attended) else None
        caption = Caption(
            text_of(text),
            float(score),
            tuple(text.split()),
            None if result.confidences is None else float(result.confidences[row][index]),
            source=picture.source,
            position=picture.position,
            picture=shown.pixels if shown and attended else None,
            attended=attended,
            log_probs=None if result.log_probs is None else result.log_probs[row][index],
        )
        captions.append(caption)
    best, *others = captions
    return dataclasses.replace(best, alternatives=tuple(others))
