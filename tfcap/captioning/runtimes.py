"""Computes captions, with the model of a trained run or with an exported SavedModel.

Only `TrainedRun` imports the models, so that an export starts faster.

Letters: B pictures, K captions of a picture, R regions, F feature width, S texts, H and W height
and width of a picture, N frames of a clip.
"""

import copy
import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import tensorflow as tf

from tfcap import pretrained
from tfcap.captioning.inputs import ClipPath, Content, View, views_of
from tfcap.captioning.results import CaptionedBatch
from tfcap.data import clips, pictures
from tfcap.images import TIFF, readable, refusal
from tfcap.visualize.attended import Attended
from tfcap.visualize.attention import attend

if TYPE_CHECKING:
    from tfcap.inference.likelihood import PairScorer
    from tfcap.inference.rerank import ConsensusReranker
    from tfcap.models.captioner import Captioner
    from tfcap.runs import Run


class Runtime(Protocol):
    """The protocol of a loaded model that an `ImageCaptioner` captions pictures with.

    `TrainedRun`, `ExportedModel` and `PortableModel` implement it: a class supplies these
    properties, `prepare` for one picture and `caption` for a batch. `str(runtime)` names the model
    for the user.
    """

    @property
    def exported(self) -> bool:
        """Whether the model is an export. Then `trained` raises ValueError."""

    @property
    def reads_clips(self) -> bool:
        """Whether the model reads clips. If True, a directory of pictures is one clip."""

    @property
    def views(self) -> int:
        """The largest number of pictures of an image that the model reads; usually 1."""

    @property
    def samples(self) -> bool:
        """Whether the captions are sampled. If True, they depend on the seeds of `caption`."""

    @property
    def calibrated(self) -> bool:
        """Whether captions have a confidence."""

    @property
    def threads(self) -> int:
        """Number of threads that may call `caption`, with a picture each; 1 for batches."""

    @property
    def decoding(self) -> dict[str, Any] | None:
        """The decoding options, name -> value, as in {"beam": 3}; None for a SavedModel."""

    @property
    def trained(self) -> "TrainedRun":
        """The runtime itself, for what only a `TrainedRun` can do.

        That is to compute features, scores and attention, and to export.

        Raises:
          ValueError: the runtime is an export, from which no run can be loaded.
        """

    def prepare(self, content: Content) -> Any:
        """Prepares a picture, so that `caption` accepts it.

        Args:
          content: the bytes of a picture file, pixels uint8 [H, W, 3], the path of a clip, or
            several pictures of one image.

        Returns:
          The prepared picture, whose type depends on the runtime.

        Raises:
          ValueError: the picture cannot be decoded.
        """

    def caption(self, prepared: Sequence[Any], seeds: Sequence[int]) -> CaptionedBatch:
        """Captions a batch of pictures.

        Args:
          prepared: B prepared pictures, results of `prepare`.
          seeds: a random seed for each picture. They have an effect only if `samples` is True.
        """

    def shown(self, caption: str) -> str:
        """Returns a caption as people write it.

        Args:
          caption: a caption of `caption`, with spaces between its words.
        """


class TrainedRun:
    """Captions pictures with the model of a run, or of an ensemble of runs; a `Runtime`.

    Args:
      run: the run.
      data_dir: a prepared directory whose captions give the document frequencies of CIDEr. Only the
        decoding option `order=consensus` uses them. None takes those of the training captions.

    Attributes:
      reranker: puts the captions of each picture into a new order; None keeps the order of their
        scores.
      regions: largest number of regions of a picture, R.

    Raises:
      ValueError: the run reads ready-made features and has no network for pictures.
    """

    exported = False
    threads = 1

    def __init__(self, run: "Run", data_dir: str | None = None):
        from tfcap.serving import saved_model

        self.run = run
        self.model: Captioner = run.model
        self.server = saved_model.server(run, data_dir=data_dir)
        self.reranker: ConsensusReranker | None = None
        self._data_dir = data_dir
        backbone = self.server.backbone
        if backbone is None:
            raise ValueError(
                f"The run {run.directory} cannot read pictures, because it was trained on "
                f"ready-made features. {_remedy(run.fingerprint)}"
            )
        self._backbone = backbone
        self.reads_clips = self.server.frames is not None
        self.views = self.server.views
        regions = backbone.num_regions
        self.regions = min(regions, self.server.max_regions or regions)
        self._extract = _traced(self._features_of)
        self._search = _traced(self.server.from_regions)
        self._search_is_ready = False
        self._scorer: PairScorer | None = None
        self._scoring = threading.Lock()  # the scorer holds the texts of one call

    def __str__(self) -> str:
        options = self.server.search.options
        how = f"beam {options.beam}" if options.search == "beam" else f"{options.samples} samples"
        return f"{self.model.name} of {pretrained.shown(self.run.checkpoint)}, {how}"

    @property
    def trained(self) -> "TrainedRun":
        return self

    @property
    def samples(self) -> bool:
        return self.server.search.samples

    @property
    def calibrated(self) -> bool:
        return self.server.confidence is not None

    @property
    def decoding(self) -> dict[str, Any]:
        return self.run.params.task.decoding.as_dict()

    def with_decoding(self, changes: str) -> "TrainedRun":
        """Returns another runtime: the same model with some decoding options changed.

        Args:
          changes: the changes, as in `search=sample,top_p=0.9`. The name of a preset
            (`tfcap.decoding.PRESETS`) replaces all options, and may stand before other changes, as
            in `mrnn,beam=10`.
        """
        from tfcap.serving import saved_model

        server = self.server
        other = copy.copy(self)
        other.run = self.run.with_decoding(changes)
        other.server = saved_model.CaptionServer(
            server.model,
            server.vocab,
            other.run.search(data_dir=self._data_dir),
            self._backbone,
            server.max_regions,
            server.max_pixels,
            server.confidence,
        )
        other._search = _traced(other.server.from_regions)
        other._search_is_ready = False
        return other

    def prepare(self, content: Content) -> tf.Tensor:
        """Decodes a picture or clip and resizes it for the backbone; see `Runtime.prepare`.

        Returns the pixels as a tensor in the shape that the backbone reads; a clip has the frames
        as its first dimension.
        """
        try:
            views = self._pictures(content)
            if self.reads_clips:
                return tf.stack([self._backbone.backbone.resize(frame) for frame in views])
            resized = [self._backbone.resize(view) for view in views]
            return self._backbone.stack(resized) if self.views > 1 else resized[0]
        except OSError as error:
            reason = error.strerror or error
            raise ValueError(f"the picture cannot be read: {reason}. Check the path.") from None
        except tf.errors.OpError as error:
            raise ValueError(
                f"the picture is too large to decode: {str(error).splitlines()[0]}. Save it "
                "smaller."
            ) from error

    def picture(self, content: Content) -> tuple[np.ndarray, list[tuple[int, int]]]:
        """Returns the upright pixels on which a figure draws the regions, uint8 [H, W, 3].

        For a clip they are one large picture of all frames that the model reads, in rows, and for
        an image with several pictures one of these.

        Args:
          content: what `prepare` reads.

        Returns:
          The pixels, and height and width of each picture or frame in pixels.
        """
        views = self._pictures(content)
        sizes = [(view.shape[0], view.shape[1]) for view in views]
        return views[0] if len(views) == 1 else clips.sheet(views), sizes

    def _pictures(self, content: Content) -> clips.Frames:
        """Returns the frames of a clip, or the pictures of an image."""
        if not self.reads_clips:
            views = views_of(content, self.views)
            return [v if isinstance(v, np.ndarray) else pictures.read(v) for v in views]
        frames = self._backbone.frames
        if isinstance(content, ClipPath):
            return clips.read_clip(content.path, frames)
        if isinstance(content, tuple):
            raise ValueError("a list, but the model reads clips. Save its frames into a folder.")
        if isinstance(content, np.ndarray):
            return [content] * frames
        return clips.read_clip_bytes(content, frames)

    def inputs(self, prepared: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
        """Extracts what the model reads of pictures, the argument of `Captioner.encode`.

        Args:
          prepared: B prepared pictures, results of `prepare`.
        """
        return self.server.inputs(*self._extract(tf.stack(prepared)))

    def caption(self, prepared: Sequence[tf.Tensor], seeds: Sequence[int]) -> CaptionedBatch:
        """Captions a batch of prepared pictures, see `Runtime.caption`."""
        images, seed = tf.stack(prepared), tf.constant(seeds, tf.int64)
        if len(prepared) == 1 and not self._search_is_ready:
            features, boxes = self._first_features(images, seed)
        else:
            features, boxes = self._extract(images)
        results = dict(self._search(features, seed, boxes))
        if self.run.vocab.joins:
            results["captions"] = self.run.vocab.detokenize(results["tokens"], joined=False)
        batch = _batch(results, _refusals(results))._replace(features=features, boxes=boxes)
        if self.reranker is None:
            return batch
        vectors = self.reranker.vectors(features, self.server.mask(features))
        ranked = self.reranker.rerank(vectors, batch.captions)

        def moved(values):
            of_texts = map(dict, map(zip, batch.captions, values))
            pairs = zip(of_texts, ranked, strict=True)
            return [[of_text[text] for text in row.captions] for of_text, row in pairs]

        return batch._replace(
            captions=[row.captions for row in ranked],
            scores=[row.scores for row in ranked],
            log_probs=moved(batch.log_probs),
            confidences=batch.confidences and moved(batch.confidences),
        )

    def _first_features(
        self, images: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Extracts the features of one picture, while another thread makes the search ready.

        To trace and prepare the search takes as long as to prepare and run a large backbone. The
        thread searches in features of ones, and the result is not used. Nor is an error: if it is
        not due to these features, the search of the picture raises it again.
        """
        self._search_is_ready = True
        features, boxes = self._extract.get_concrete_function(images).structured_outputs
        if boxes is not None or not features.shape[1:].is_fully_defined():
            return self._extract(images)  # a detector: the number of regions is not known before
        with ThreadPoolExecutor(1) as pool:
            pool.submit(self._search, tf.ones([1, *features.shape[1:]]), seed, None)
            return self._extract(images)

    def shown(self, caption: str) -> str:
        """Returns a caption as people write it, see `Runtime.shown`."""
        return self.run.vocab.shown(caption)

    def attend(
        self, batch: CaptionedBatch, captions: Sequence[Sequence[str]], kind: str
    ) -> list[list[Attended]]:
        """Computes how much each region matters for each word of captions.

        Args:
          batch: a result of `caption`, for B pictures.
          captions: the captions of each picture. Pictures may have different numbers of captions.
          kind: `attention` for the attention weights, `contribution` for how much the region
            contributed to the word, by gradients.

        Returns:
          For each picture and each of its captions an `Attended`. `in_picture` moves its boxes to
          where they are in the whole picture.
        """
        rows = [row for row, texts in enumerate(captions) for _ in texts]
        features = tf.gather(batch.features, rows)
        found = None if batch.boxes is None else tf.gather(batch.boxes, rows)
        if found is None:
            boxes = np.tile(self._backbone.boxes[None, : self.regions], (len(rows), 1, 1))
        else:
            boxes = found.numpy()
        inputs = self.server.inputs(features, found)
        flat = [text for texts in captions for text in texts]
        results = iter(attend(self.model, self.run.vocab, inputs, boxes, flat, kind))
        return [[next(results) for _ in texts] for texts in captions]

    def in_picture(self, attended: Attended, sizes: Sequence[tuple[int, int]]) -> Attended:
        """Returns a result of `attend` with boxes as fractions (0..1) of the whole picture.

        A backbone may read only a part of the picture. In the result of `attend`, the boxes of a
        grid are fractions of this part.

        Args:
          attended: a result of `attend` for one caption.
          sizes: height and width of each picture of the image in pixels, as `picture` returns them.
        """
        if self.views > 1:
            boxes = self._backbone.on_sheet(attended.boxes, sizes)
            return dataclasses.replace(attended, boxes=boxes[: self.regions])
        boxes = self._backbone.boxes_in(*sizes[0])
        if boxes.ndim == 1:  # a detector, whose boxes already are fractions of the whole picture
            boxes = attended.boxes
        return dataclasses.replace(attended, boxes=boxes[: self.regions])

    def score(self, prepared: Sequence[tf.Tensor], texts: Sequence[str]) -> tuple[np.ndarray, str]:
        """Computes how probable texts are as captions of pictures.

        Args:
          prepared: B prepared pictures, results of `prepare`.
          texts: S texts, as plain sentences.

        Returns:
          log P(text | picture), natural logarithm, float32 [B, S]; and a line of text that names
          unknown words and cut texts, "" if there are none.

        Raises:
          ValueError: a text has no word.
        """
        from tfcap.inference.likelihood import PairScorer, encode_captions

        encoded = encode_captions(self.run.vocab, texts, self.model.max_length)
        inputs = self.inputs(prepared)
        with self._scoring:
            if self._scorer is None:
                specs = {
                    name: tf.TensorSpec([None, None, *value.shape[2:]], value.dtype)
                    for name, value in inputs.items()
                }
                self._scorer = PairScorer(self.model, specs, encoded)
            self._scorer.use(encoded)
            return self._scorer(**inputs), encoded.note()

    def export(self, directory: str) -> str:
        """Writes a SavedModel into a new subdirectory, the next version such as `directory/2`.

        Returns the path of the subdirectory.
        """
        from tfcap.serving import saved_model

        return saved_model.export(self.server, directory)

    def _features_of(self, images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
        features, boxes = self.server.regions(images)
        return features[:, : self.regions], None if boxes is None else boxes[:, : self.regions]


def _traced(function: Callable) -> Any:
    # Traced for the size of the first batch, which is fast for one picture, then for all sizes.
    return tf.function(function, autograph=False, reduce_retracing=True)


class ExportedModel:
    """Captions pictures with an exported SavedModel; a `Runtime` that can do nothing else.

    Args:
      path: the directory of the SavedModel.

    Raises:
      ValueError: the SavedModel cannot be loaded, or it takes features and no pictures.
    """

    exported = True
    threads = 1
    decoding = None  # its options are not in the file

    def __init__(self, path: str):
        self.path = path
        try:
            self._loaded: Any = tf.saved_model.load(path)
        except Exception as error:  # a damaged graph raises errors of all kinds
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(
                f"The SavedModel {path} cannot be loaded: {reason}. Export the run again."
            ) from error
        self._function = self._loaded.signatures.get("serving_default")
        inputs = self._function.structured_input_signature[1] if self._function else {}
        if "image_bytes" not in inputs:
            raise ValueError(
                f"The SavedModel {path} reads features, not pictures. Export a run whose data was "
                "prepared from pictures, not from ready-made features."
            )
        if "status" not in self._function.structured_outputs:
            raise ValueError(
                f"The SavedModel {path} does not return a status for each picture. Export the run "
                "again."
            )
        self.samples = "seed" in inputs
        self.calibrated = "confidences" in self._function.structured_outputs
        self.reads_clips = hasattr(self._loaded, "frames")  # see `serving.saved_model`
        shape = inputs["image_bytes"].shape
        self.views: int = shape[1] if shape.rank == 2 else 1

    def __str__(self) -> str:
        return f"the SavedModel {self.path}"

    @property
    def trained(self) -> TrainedRun:
        raise ValueError(
            f"{self.path} is an exported SavedModel, which only captions pictures. For anything "
            "else load the run directory that it was exported from."
        )

    def prepare(self, content: Content) -> bytes | list[bytes]:
        """Returns the bytes of a picture file, which the SavedModel decodes.

        For a model of images with several pictures they are the bytes of each, and empty for those
        that the image lacks.

        Args:
          content: the bytes of a picture file, which stay as they are, but for TIFF; or pixels
            uint8 [H, W, 3]. TIFF and pixels become a PNG file.

        Raises:
          ValueError: `content` is the path of a clip, or no picture.
        """
        if self.views > 1:
            files = [self._file(view) for view in views_of(content, self.views)]
            return [*files, *[b""] * (self.views - len(files))]
        if isinstance(content, ClipPath | tuple):
            raise ValueError(
                "an exported SavedModel reads no films (video files) and no directories of frames. "
                "Save the clip as a GIF file, or load the run directory that the SavedModel was "
                "exported from."
            )
        return self._file(content)

    def _file(self, content: View) -> bytes:
        if isinstance(content, bytes):
            return readable(content) if content.startswith(TIFF) else content
        return tf.io.encode_png(content, compression=0).numpy()

    def caption(
        self, prepared: Sequence[bytes | list[bytes]], seeds: Sequence[int]
    ) -> CaptionedBatch:
        """Captions a batch of prepared pictures, see `Runtime.caption`."""
        inputs = {"image_bytes": tf.constant(prepared)}
        if self.samples:
            inputs["seed"] = tf.constant(seeds, tf.int64)
        results = self._function(**inputs)
        complete = ("features", "no region", "too many")
        refusals = [
            # Of a file that the decoder refuses, `refusal` also says what to do.
            refusal(content)
            if isinstance(content, bytes) and reason and not reason.startswith(complete)
            else reason
            for content, reason in zip(prepared, _refusals(results), strict=True)
        ]
        return _batch(results, refusals)

    def shown(self, caption: str) -> str:
        """Returns the caption itself: the SavedModel returns captions as people write them."""
        return caption


def _batch(results: Mapping[str, tf.Tensor], refusals: Sequence[str]) -> CaptionedBatch:
    """Returns the results of a server, and why pictures have no captions, as a batch."""
    values = {name: value.numpy() for name, value in results.items()}
    log_probs = confidences = None
    if "log_probs" in values:  # an older SavedModel returns none
        lengths = np.count_nonzero(values["tokens"], axis=-1)
        log_probs = [
            [tuple(row[:length].tolist()) for row, length in zip(*rows, strict=True)]
            for rows in zip(values["log_probs"], lengths, strict=True)
        ]
    if "confidences" in values:
        confidences = values["confidences"].tolist()
    return CaptionedBatch(
        [[text.decode() for text in row] for row in values["captions"]],
        values["scores"],
        refusals,
        log_probs,
        confidences=confidences,
    )


def _remedy(fingerprint: Mapping[str, Any]) -> str:
    """Says what to do with a run that reads features and no pictures."""
    if "converted" in fingerprint:
        return (
            "Convert it again with `regions=DETECTOR` of tfcap.convert, the directory of a "
            "detector of the same regions; or use tfcap.evaluate on prepared features."
        )
    return "Use tfcap.evaluate on prepared features."


def _refusals(results: Mapping[str, tf.Tensor]) -> list[str]:
    """Says why pictures have no captions; "" for those that have."""
    hints = {
        "features": " Check the run with python -m tfcap.doctor.",
        "too": " Save the picture smaller.",
    }
    statuses = [text.decode() for text in results["status"].numpy()]
    return [
        "" if status == "ok" else f"{status}.{hints.get(status.partition(' ')[0], '')}"
        for status in statuses
    ]
