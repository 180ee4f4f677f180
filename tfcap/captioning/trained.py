"""Captions pictures with the models of trained runs.

Letters: B pictures, K captions of a picture, N = B K captions of a batch, R regions, F feature
width, S texts, H and W height and width of a picture, T `max_length`, T' words of a caption.
"""

import copy
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfcap import decoding, pretrained, runs, visualize
from tfcap.captioning.captions import Found
from tfcap.captioning.inputs import FrameFolder
from tfcap.data import clips, pictures
from tfcap.ids import EOS, PAD
from tfcap.images import refusal
from tfcap.scoring.likelihood import PairScorer, encode
from tfcap.scoring.rerank import Consensus


class TrainedRuns:
    """The captioner of a run, or of several as an ensemble.

    Args:
      run: the result of `runs.load_together`.
      changes: changes to its decoding, as `--decoding`.
      beam: the beam width; 0 keeps that of the run.
      data_dir: prepared data with the document frequencies of `order=consensus`.

    Raises:
      ValueError: the run was trained on ready-made features, or as `runs.server`.
    """

    exported = False

    def __init__(
        self, run: runs.Run, changes: str = "", beam: int = 0, data_dir: str | None = None
    ):
        self.run = run.with_decoding(changes, beam)
        self.server = runs.server(self.run, data_dir=data_dir)
        self._data_dir = data_dir
        self.reranker: Consensus | None = None
        if self.server.backbone is None:
            raise ValueError(
                f"{run.directory} cannot read pictures, because it was trained on ready-made "
                "features. Use tfcap.evaluate on prepared features."
            )
        self._extract = _traced(self._features_of)
        self._find = _traced(self._captions_of)
        self._score_words = _traced(self._word_scores)
        self._scorer: PairScorer | None = None
        self._scoring = threading.Lock()  # the scorer holds the texts of one call

    def __str__(self) -> str:
        options = self.server.search.options
        how = f"beam {options.beam}" if options.search == "beam" else f"{options.samples} samples"
        return f"{self.run.model.name} of {pretrained.shown(self.run.checkpoint)}, {how}"

    @property
    def decoding(self) -> dict[str, Any]:
        """The decoding options, by the names of the keys `task.decoding`."""
        return self.run.params.task.decoding.as_dict()

    def with_decoding(self, changes: str) -> "TrainedRuns":
        """Returns a captioner with the same weights that decodes in another way.

        Args:
          changes: changes to the decoding of this captioner, as `--decoding`.

        Raises:
          ValueError: as `Run.search`.
        """
        other, server = copy.copy(self), self.server
        other.run = self.run.with_decoding(changes)
        search = other.run.search(data_dir=self._data_dir)
        other.server = runs.CaptionServer(
            server.model,
            server.vocab,
            search,
            server.backbone,
            server.max_regions,
            server.max_pixels,
        )
        other._find = _traced(other._captions_of)
        return other

    @property
    def regions(self) -> int:
        """R, the number of regions of a picture that the model reads."""
        regions = self.server.backbone.num_regions
        return min(regions, self.server.max_regions or regions)

    @property
    def reads_clips(self) -> bool:
        """Whether the model reads clips."""
        return self.server.frames is not None

    def prepare(self, content: bytes | np.ndarray | FrameFolder) -> tf.Tensor:
        """Decodes a picture or clip and resizes it to the backbone's `decoded_shape`.

        Args:
          content: bytes of a file, uint8 [H, W, 3], or a folder of frames.

        Raises:
          ValueError: the file is no picture that can be decoded.
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

    def picture(self, content: bytes | np.ndarray | FrameFolder) -> np.ndarray:
        """Returns the picture on which regions are shown: uint8 [H, W, 3].

        For a clip it is a sheet with the frames that the model reads, in reading order.
        """
        if self.reads_clips:
            return clips.sheet(self._frames(content))
        assert not isinstance(content, FrameFolder)  # only a model of clips gets one
        return upright_pixels(content)

    def _frames(self, content: bytes | np.ndarray | FrameFolder) -> clips.Frames:
        """Returns the frames of a clip that the model reads: pictures uint8 [H, W, 3]."""
        frames = self.server.backbone.frames
        if isinstance(content, FrameFolder):
            return clips.read_folder(content.path, frames)
        if isinstance(content, np.ndarray):
            return [content] * frames
        return clips.read(content, frames)

    def features(self, prepared: Sequence[tf.Tensor]) -> tf.Tensor:
        """Extracts the features of prepared pictures, float32 [B, R, F]."""
        return self._extract(tf.stack(prepared))

    def find(self, prepared: Sequence[tf.Tensor], seeds: Sequence[int], words: bool) -> Found:
        """Finds the captions of B pictures.

        Args:
          prepared: results of `prepare`.
          seeds: a seed for each picture; only sampling reads them.
          words: whether to compute the log-probability of each word.

        Raises:
          ValueError: the backbone gives features that are not finite.
        """
        features = self.features(prepared)
        results = self._find(features, tf.constant(seeds, tf.int64))
        if bad := [text for text in results["status"].numpy() if text != b"ok"]:
            raise ValueError(f"{bad[0].decode()}. Check the run with python -m tfcap.doctor.")
        captions = [[text.decode() for text in row] for row in results["captions"].numpy()]
        scores = results["scores"].numpy()
        if self.reranker is not None:
            ranked = self.reranker.rerank(self.reranker.vectors(features), captions)
            captions, scores = [r.captions for r in ranked], [r.scores for r in ranked]
        log_probs: Any = [[None] * len(row) for row in captions]
        if words:
            log_probs = self.word_log_probs(features, captions)
        return Found(captions, scores, log_probs, features, [""] * len(captions))

    def word_log_probs(
        self, features: tf.Tensor, captions: Sequence[Sequence[str]]
    ) -> list[list[tuple[float, ...] | None]]:
        """Computes the log-probability of each word and of the end of each caption.

        Args:
          features: [B, R, F].
          captions: the same number of captions for each of the B pictures.
        """
        longest = self.server.search.max_length
        tokens = np.full((len(captions), max(map(len, captions)), longest), PAD, np.int32)
        for row, own in zip(tokens, captions, strict=True):
            for place, text in zip(row, own, strict=False):
                ids = [*self.run.vocab.ids(text.split()), EOS][:longest]
                place[: len(ids)] = ids
        flat = tokens.reshape(-1, longest)
        scores = self._score_words(features, tf.constant(flat)).numpy().reshape(tokens.shape)
        lengths = np.count_nonzero(tokens, axis=-1)
        return [
            [tuple(scores[b, k, : lengths[b, k]].tolist()) for k in range(len(own))]
            for b, own in enumerate(captions)
        ]

    def attend(
        self, features: tf.Tensor, captions: Sequence[Sequence[str]], kind: str
    ) -> list[list[visualize.Attended | visualize.Details]]:
        """Computes what the model looked at for captions of B pictures.

        Args:
          features: [B, R, F].
          captions: the captions of each picture, at least one in all.
          kind: `attention`, `contribution` or `details`.

        Returns:
          For each picture a list with one entry for each of its captions.

        Raises:
          ValueError: `kind` is none of these.
        """
        owners = [place for place, own in enumerate(captions) for _ in own]
        features = tf.gather(features, owners)
        boxes = np.tile(self.server.backbone.boxes[None, : self.regions], (len(owners), 1, 1))
        inputs = {"features": features, "mask": tf.ones(features.shape[:2], tf.bool)}
        texts = [text for own in captions for text in own]
        arguments = (self.run.model, self.run.vocab, inputs, boxes, texts)
        seen: Sequence[visualize.Attended | visualize.Details]
        if kind == "details":
            seen = visualize.details(*arguments)
        else:
            seen = visualize.attended(*arguments, kind)
        each: Iterator[visualize.Attended | visualize.Details] = iter(seen)
        return [[next(each) for _ in own] for own in captions]

    def placed(
        self, seen: visualize.Attended | visualize.Details, height: int, width: int
    ) -> visualize.Attended | visualize.Details:
        """Returns a result of `attend` with the boxes, in 0..1, of a picture of this size.

        The boxes differ from the cells of the grid if the backbone crops the picture.
        """
        boxes = self.server.backbone.boxes_in(height, width)[: self.regions]
        if isinstance(seen, visualize.Details):
            attended = dataclasses.replace(seen.attended, boxes=boxes)
            return dataclasses.replace(seen, attended=attended)
        return dataclasses.replace(seen, boxes=boxes)

    def score(self, features: tf.Tensor, texts: Sequence[str]) -> tuple[np.ndarray, str]:
        """Computes log P(text | picture) float32 [B, S], and a note on words that are not known.

        Raises:
          ValueError: a text has no words, or a probability is 0 or NaN.
        """
        encoded = encode(self.run.vocab, texts, self.run.model.max_length)
        mask = tf.ones(features.shape[:2], tf.bool)
        with self._scoring:
            if self._scorer is None:
                model = self.run.model
                self._scorer = PairScorer(model, model.feature_dim, encoded)
            self._scorer.use(encoded)
            return self._scorer(features, mask), encoded.note()

    def export(self, directory: str) -> str:
        """Writes the next version of a SavedModel; returns its path."""
        from tfcap.runs.server import export

        return export(self.server, directory)

    def _features_of(self, images):
        return self.server.backbone.extract(images)[:, : self.regions]

    def _captions_of(self, features, seeds):
        counts = tf.fill(tf.shape(features)[:1], self.regions)
        return self.server.from_features(features, counts, seeds)

    def _word_scores(self, features, tokens):
        mask = tf.ones(tf.shape(features)[:2], tf.bool)
        context = self.run.model.encode({"features": features, "mask": mask})
        return decoding.score(self.run.model, context, tokens)


def _traced(function: Callable) -> Any:
    """Returns a graph of a function.

    The first batch is traced with its own size, which is fast for one picture; with a batch of
    another size the function is traced once more, for all sizes.
    """
    return tf.function(function, autograph=False, reduce_retracing=True)


def upright_pixels(content: bytes | np.ndarray) -> np.ndarray:
    """Returns the pixels uint8 [H, W, 3] of a picture file, turned upright by its EXIF orientation.

    Pixels are returned as they are.

    Raises:
      ValueError: the file is no picture that can be decoded.
    """
    if isinstance(content, np.ndarray):
        return content
    try:
        return pictures.decode(tf.constant(content)).numpy()
    except tf.errors.InvalidArgumentError:
        raise ValueError(refusal(content)) from None
