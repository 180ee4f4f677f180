"""Computes captions, with the model of a trained run or with an exported SavedModel.

Only `TrainedRun` imports the models, so that an export starts faster.

Letters: B pictures, K captions of a picture, R regions, F feature width, S texts, H and W height
and width of a picture.
"""

import copy
import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import tensorflow as tf

from tfcap import decoding, pretrained, visualize
from tfcap.captioning.inputs import ClipPath
from tfcap.data import clips, pictures
from tfcap.ids import EOS, PAD
from tfcap.images import refusal

if TYPE_CHECKING:
    from tfcap import runs


class Found(NamedTuple):
    """The captions that a model finds for B pictures."""

    captions: Sequence[Sequence[str]]  # [B][K], best first
    scores: Any  # [B][K]
    features: Any  # [B, R, F], or None from a SavedModel
    refusals: Sequence[str]  # why a picture has no captions; empty if it has
    boxes: Any = None  # [B, R, 4] in pixels of the pictures, of a detector


class TrainedRun:
    """The captioner of a run, or of an ensemble of runs; `data_dir` is that of `load`.

    If there is a `reranker` (a `ConsensusReranker`), it orders the captions again.
    """

    exported = False

    def __init__(self, run: "runs.Run", data_dir: str | None = None):
        from tfcap.serving import saved_model

        self.run, self.model = run, run.model
        self.server = saved_model.server(run, data_dir=data_dir)
        self._data_dir = data_dir
        self.reranker: Any = None
        if self.server.backbone is None:
            raise ValueError(
                f"{run.directory} cannot read pictures, because it was trained on ready-made "
                f"features. {_remedy(run.fingerprint)}"
            )
        self.reads_clips = self.server.frames is not None
        regions = self.server.backbone.num_regions
        self.regions = min(regions, self.server.max_regions or regions)  # R
        self._extract = _traced(self._features_of)
        self._find = _traced(self._captions_of)
        self._score_words = _traced(self._word_scores)
        self._scorer: Any = None
        self._scoring = threading.Lock()  # the scorer holds the texts of one call

    def __str__(self) -> str:
        options = self.server.search.options
        how = f"beam {options.beam}" if options.search == "beam" else f"{options.samples} samples"
        return f"{self.model.name} of {pretrained.shown(self.run.checkpoint)}, {how}"

    @property
    def decoding(self) -> dict[str, Any]:
        return self.run.params.task.decoding.as_dict()

    def with_decoding(self, changes: str) -> "TrainedRun":
        """Returns an engine with the same weights and with some decoding options changed."""
        from tfcap.serving import saved_model

        other, server = copy.copy(self), self.server
        other.run = self.run.with_decoding(changes)
        search = other.run.search(data_dir=self._data_dir)
        rest = server.backbone, server.max_regions, server.max_pixels
        other.server = saved_model.CaptionServer(server.model, server.vocab, search, *rest)
        other._find = _traced(other._captions_of)
        return other

    def prepare(self, content: bytes | np.ndarray | ClipPath) -> tf.Tensor:
        """Decodes a picture or clip and resizes it to the backbone's `decoded_shape`.

        `content` is the bytes of a file, a picture uint8 [H, W, 3], or a clip.
        """
        try:
            if not self.reads_clips:
                return self.server.backbone.resize(self.picture(content))
            resize = self.server.backbone.backbone.resize
            return tf.stack([resize(frame) for frame in self._frames(content)])
        except OSError as error:
            raise ValueError(error.strerror or str(error)) from None
        except tf.errors.OpError as error:
            raise ValueError(str(error).splitlines()[0]) from error

    def picture(self, content: bytes | np.ndarray | ClipPath) -> np.ndarray:
        """Returns the picture over which figures draw the regions, upright: uint8 [H, W, 3].

        For a clip it is one picture of all frames that the model reads, row by row.
        """
        if self.reads_clips:
            return clips.sheet(self._frames(content))
        assert not isinstance(content, ClipPath)  # only a model of clips gets one
        if isinstance(content, np.ndarray):
            return content
        return pictures.read(content)

    def _frames(self, content: bytes | np.ndarray | ClipPath) -> clips.Frames:
        frames = self.server.backbone.frames
        if isinstance(content, ClipPath):
            return clips.read_path(content.path, frames)
        if isinstance(content, np.ndarray):
            return [content] * frames
        return clips.read(content, frames)

    def features(self, prepared: Sequence[tf.Tensor]) -> tf.Tensor:
        """Extracts the features of prepared pictures, float32 [B, R, F]."""
        return self._extract(tf.stack(prepared))[0]

    def find(self, prepared: Sequence[tf.Tensor], seeds: Sequence[int]) -> Found:
        """Finds the captions of B results of `prepare`. `seeds` has B seeds, for sampling only."""
        features, boxes = self._extract(tf.stack(prepared))
        results = self._find(features, tf.constant(seeds, tf.int64))
        captions = [[text.decode() for text in row] for row in results["captions"].numpy()]
        scores = results["scores"].numpy()
        if self.reranker is not None:
            vectors = self.reranker.vectors(features, self.server.mask(features))
            ranked = self.reranker.rerank(vectors, captions)
            captions, scores = [r.captions for r in ranked], [r.scores for r in ranked]
        return Found(captions, scores, features, _refusals(results), boxes)

    def word_log_probs(
        self, features: tf.Tensor, captions: Sequence[Sequence[str]]
    ) -> list[list[tuple[float, ...]]]:
        """Computes the log-probability of each word and of the end of each caption [B][K]."""
        longest = self.server.search.max_length
        tokens = np.full((len(captions), max(map(len, captions)), longest), PAD, np.int32)
        for rows, texts in zip(tokens, captions, strict=True):
            for row, text in zip(rows, texts, strict=False):
                ids = [*self.run.vocab.ids(text.split()), EOS][:longest]
                row[: len(ids)] = ids
        flat = tokens.reshape(-1, longest)
        scores = self._score_words(features, tf.constant(flat)).numpy().reshape(tokens.shape)
        lengths = np.count_nonzero(tokens, axis=-1)
        return [
            [tuple(scores[b, k, : lengths[b, k]].tolist()) for k in range(len(texts))]
            for b, texts in enumerate(captions)
        ]

    def attend(
        self, found: Found, captions: Sequence[Sequence[str]], kind: str
    ) -> list[list["visualize.Attended"]]:
        """Computes the weights of the regions for captions [B][K], from a result of `find`.

        `kind` is `attention` or `contribution`. Returns one result for each caption.
        """
        rows = [row for row, texts in enumerate(captions) for _ in texts]
        features = tf.gather(found.features, rows)
        if found.boxes is None:
            boxes = np.tile(self.server.backbone.boxes[None, : self.regions], (len(rows), 1, 1))
        else:
            boxes = tf.gather(found.boxes, rows).numpy()
        inputs = {"features": features, "mask": self.server.mask(features)}
        texts = [text for texts in captions for text in texts]
        seen = iter(visualize.attended(self.model, self.run.vocab, inputs, boxes, texts, kind))
        return [[next(seen) for _ in texts] for texts in captions]

    def placed(self, seen: "visualize.Attended", height: int, width: int) -> "visualize.Attended":
        """Returns a result of `attend` whose boxes are relative to the whole picture."""
        boxes = self.server.backbone.boxes_in(height, width)
        if boxes.ndim == 1:  # the sides of the picture, for a detector's boxes in pixels
            boxes = np.clip(seen.boxes / boxes, 0, 1)
        return dataclasses.replace(seen, boxes=boxes[: self.regions])

    def score(self, features: tf.Tensor, texts: Sequence[str]) -> tuple[np.ndarray, str]:
        """Computes log P(text | picture) float32 [B, S], and a note on unknown words."""
        from tfcap.inference.likelihood import PairScorer, encode_captions

        encoded = encode_captions(self.run.vocab, texts, self.model.max_length)
        mask = self.server.mask(features)
        with self._scoring:
            if self._scorer is None:
                self._scorer = PairScorer(self.model, self.model.feature_dim, encoded)
            self._scorer.use(encoded)
            return self._scorer(features, mask), encoded.note()

    def export(self, directory: str) -> str:
        """Writes the next version of a SavedModel; returns its path."""
        from tfcap.serving import saved_model

        return saved_model.export(self.server, directory)

    def _features_of(self, images):
        features, boxes = self.server.regions(images)
        return features[:, : self.regions], None if boxes is None else boxes[:, : self.regions]

    def _captions_of(self, features, seeds):
        return self.server.from_regions(features, seeds)

    def _word_scores(self, features, tokens):
        context = self.model.encode({"features": features, "mask": self.server.mask(features)})
        return decoding.score(self.model, context, tokens)


def _traced(function: Callable) -> Any:
    # Traced for the size of the first batch, which is fast for one picture, then for all sizes.
    return tf.function(function, autograph=False, reduce_retracing=True)


class ExportedModel:
    """An exported SavedModel. It captions pictures; scores and attention need the run."""

    exported = True
    decoding = None  # its options are not in the file

    def __init__(self, path: str):
        self.path = path
        try:
            self._loaded: Any = tf.saved_model.load(path)
        except Exception as error:  # a damaged graph raises errors of all kinds
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(f"The SavedModel {path} cannot be loaded: {reason}.") from error
        self._function = self._loaded.signatures.get("serving_default")
        inputs = self._function.structured_input_signature[1] if self._function else {}
        if "image_bytes" not in inputs:
            raise ValueError(
                f"{path} takes no pictures. Export a run that was trained on pictures."
            )
        self.samples = "seed" in inputs
        self.reads_clips = hasattr(self._loaded, "frames")  # see `serving.saved_model`

    def __str__(self) -> str:
        return f"the SavedModel {self.path}"

    def prepare(self, content: bytes | np.ndarray | ClipPath) -> bytes:
        """Returns the bytes of a picture file; an array uint8 [H, W, 3] becomes a PNG file."""
        if isinstance(content, ClipPath):
            raise ValueError(
                "an exported SavedModel reads no films and no folders of frames. Save it as a GIF "
                "file, or load the run directory."
            )
        if isinstance(content, bytes):
            return content
        return tf.io.encode_png(content, compression=0).numpy()

    def find(self, prepared: Sequence[bytes], seeds: Sequence[int]) -> Found:
        """See `TrainedRun.find`. Exports of earlier versions of tfcap return no `status`."""
        inputs = {"image_bytes": tf.constant(prepared)}
        if self.samples:
            inputs["seed"] = tf.constant(seeds, tf.int64)
        results = self._function(**inputs)
        captions = [[text.decode() for text in row] for row in results["captions"].numpy()]
        refusals = [""] * len(captions)
        if "status" in results:
            known = ("features", "no region", "too many")
            refusals = [
                # Of a file that the decoder refuses, `refusal` also says what to do.
                reason if not reason or reason.startswith(known) else refusal(content)
                for content, reason in zip(prepared, _refusals(results), strict=True)
            ]
        return Found(captions, results["scores"].numpy(), None, refusals)

    def _refuse(self, *_) -> NoReturn:
        raise ValueError(
            f"An exported SavedModel only captions pictures: {self.path}. Load the run directory "
            "that it was exported from."
        )

    attend = features = score = export = with_decoding = _refuse
    run = model = property(_refuse)


def _remedy(fingerprint: Mapping[str, Any]) -> str:
    """Says what to do with a run that reads features and no pictures."""
    if "converted" in fingerprint:
        return (
            "Convert it again with --regions DETECTOR, the directory of a detector of the same "
            "regions; or use tfcap.evaluate on prepared features."
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
