"""The functions that a server calls: image bytes or features in, captions out.

Letters: B images, K beams, R regions, F feature width, T `max_length`.
"""

from typing import Any

import tensorflow as tf

from tfcap import decoding
from tfcap.data.tokens import Vocab
from tfcap.models.captioner import Captioner
from tfcap.preparing.features.frames import Clips, from_fingerprint
from tfcap.runs.decoding_options import search
from tfcap.runs.run import Run


class CaptionServer(tf.Module):
    """Captions images or features with stock TensorFlow operations.

    `tfcap.caption` calls it and `tfcap.export` saves it, so that both give the same captions.

    Args:
      model: the captioner, weights restored.
      vocab: its vocabulary.
      search: finds the captions.
      backbone: a `preparing.features.backbone.Backbone`, or `preparing.features.frames.Clips` for a
        model of clips; None for a model of ready-made features.
      max_regions: further regions of an image are cut off, as in training; None keeps all.

    Attributes:
      frames: how many frames of a clip the model reads, a variable int32 [], so that an export
        keeps it; None for a model of pictures.
    """

    def __init__(
        self,
        model: Captioner,
        vocab: Vocab,
        search: decoding.Search,
        backbone=None,
        max_regions: int | None = None,
    ):
        super().__init__(name="captioner")
        self.model = model
        # A SavedModel needs each variable, but does not find those of layers in Python lists.
        self.model_variables = [variable.value for variable in model.variables]
        self.vocab = vocab
        self.search = search
        self.backbone = backbone
        self.max_regions = max_regions
        self.frames: tf.Variable | None = None
        if isinstance(backbone, Clips):
            self.frames = tf.Variable(backbone.frames, trainable=False, name="frames")

    def from_features(
        self, features: tf.Tensor, num_regions: tf.Tensor, seed: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Finds the captions of images given as features.

        Args:
          features: float32 [B, R, F], padded to the longest with anything.
          num_regions: int32 [B], real regions of each image, 1 to R.
          seed: int64 [B], one for each image, if the search samples; else None.

        Returns:
          `captions` string [B, K], best first; `scores` float32 [B, K], summed natural
          log-probabilities unless a length penalty or the consensus changes them; `tokens` int32
          [B, K, T].

        Raises:
          tf.errors.InvalidArgumentError: a count outside 1 to R, another number of counts than of
            images, no image at all, or features that are not finite.
        """
        shape = tf.shape(features)
        checks = [
            tf.debugging.assert_positive(shape[0], "a request must hold at least one image"),
            tf.debugging.assert_equal(
                tf.shape(num_regions)[0], shape[0], "num_regions must have one count per image"
            ),
            tf.debugging.assert_greater_equal(
                num_regions, 1, "num_regions must be at least 1: an image without regions"
            ),
            tf.debugging.assert_less_equal(
                num_regions, shape[1], "num_regions must be at most the regions given"
            ),
        ]
        with tf.control_dependencies([c for c in checks if c is not None]):
            mask = tf.sequence_mask(num_regions, shape[1])
        features = tf.where(mask[..., None], features, 0.0)
        finite = tf.reduce_all(tf.math.is_finite(features))
        check = tf.debugging.Assert(finite, ["features must be finite: NaN or infinity received"])
        with tf.control_dependencies([check] if check is not None else []):
            features = tf.identity(features)
        if self.max_regions:
            features, mask = features[:, : self.max_regions], mask[:, : self.max_regions]
        context = self.model.encode({"features": features, "mask": mask})
        tokens, scores = self.search(self.model, context, seed)
        return {"captions": self.vocab.detokenize(tokens), "scores": scores, "tokens": tokens}

    def from_images(self, images: tf.Tensor, seed: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Finds the captions of decoded images, float32 [B, H, W, 3] of `Backbone.decode`."""
        features = self.backbone.extract(images)
        counts = tf.fill([tf.shape(features)[0]], tf.shape(features)[1])
        return self.from_features(features, counts, seed)

    def from_bytes(
        self, image_bytes: tf.Tensor, seed: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Finds the captions of files, string [B], see `tfcap.data.pictures.decode`.

        A model of clips reads all frames of a GIF file, see `tfcap.data.clips.decode`.
        """
        images = tf.map_fn(
            self.backbone.decode,
            image_bytes,
            fn_output_signature=tf.TensorSpec(self.backbone.decoded_shape, tf.float32),
        )
        return self.from_images(images, seed)

    def signatures(self) -> dict[str, Any]:
        """Traces the functions of a SavedModel: `features`, and `serving_default` for image bytes.

        A model of ready-made features has no backbone: there `serving_default` is `features`.
        If the search samples, both have a further input `seed` int64 [B].
        """
        seed = {"seed": tf.TensorSpec([None], tf.int64, "seed")} if self.search.samples else {}
        features = tf.function(self.from_features, autograph=False).get_concrete_function(
            features=tf.TensorSpec([None, None, self.model.feature_dim], tf.float32, "features"),
            num_regions=tf.TensorSpec([None], tf.int32, "num_regions"),
            **seed,
        )
        if self.backbone is None:
            return {"serving_default": features, "features": features}
        images = tf.function(self.from_bytes, autograph=False).get_concrete_function(
            image_bytes=tf.TensorSpec([None], tf.string, "image_bytes"), **seed
        )
        return {"serving_default": images, "features": features}


def server(
    run: Run, changes: str = "", beam: int = 0, data_dir: str | None = None
) -> CaptionServer:
    """Makes the server of a run; `changes`, `beam` and `data_dir` are those of `search`.

    Raises:
      ValueError: the backbone's weights in the directory are missing or changed, or as `search`.
    """
    backbone = run.backbone
    if backbone is None and run.fingerprint["backbone"] is not None:
        backbone = from_fingerprint(run.fingerprint, run.directory, run.data_dir)
    how = search(run, changes, beam, data_dir)
    return CaptionServer(run.model, run.vocab, how, backbone, run.max_regions)
