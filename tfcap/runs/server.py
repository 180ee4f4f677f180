"""The functions that a server calls: image bytes or features in, captions out.

Letters: B images, K beams, R regions, F feature width, T `max_length`.
"""

import types
from typing import Any

import tensorflow as tf

from tfcap import decoding
from tfcap.data.tokens import Vocab
from tfcap.images import SERVED_PIXELS
from tfcap.models.captioner import Captioner
from tfcap.preparing.features.frames import Clips, from_fingerprint
from tfcap.runs import requests
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
      max_pixels: how many pixels a picture may claim, in all frames of a GIF file.

    Attributes:
      limit: `max_pixels` as a variable int64 [], so that an export keeps it.
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
        max_pixels: int = SERVED_PIXELS,
    ):
        super().__init__(name="captioner")
        # Of what Keras tracks, a SavedModel gets copies, and TensorFlow's session loader, which TF
        # Serving uses, restores the copies only. Therefore the networks are hidden in a plain
        # object here, and `signatures` tracks the variables that the graphs read.
        self._hidden = types.SimpleNamespace(model=model, backbone=backbone)
        self.model_variables = [variable.value for variable in model.variables]
        self.read_variables: list[tf.Variable] = []
        self.vocab = vocab
        self.search = search
        self.max_regions = max_regions
        self.max_pixels = max_pixels
        self.limit = tf.Variable(max_pixels, trainable=False, dtype=tf.int64, name="max_pixels")
        self.frames: tf.Variable | None = None
        if isinstance(backbone, Clips):
            self.frames = tf.Variable(backbone.frames, trainable=False, name="frames")

    @property
    def model(self) -> Captioner:
        """The captioner."""
        return self._hidden.model

    @property
    def backbone(self) -> Any:
        """The backbone; None for a model of ready-made features."""
        return self._hidden.backbone

    def from_features(
        self, features: tf.Tensor, num_regions: tf.Tensor, seed: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Finds the captions of images given as features.

        Args:
          features: float32 [B, R, F], padded with any values to the most regions of an image.
          num_regions: int32 [B], real regions of each image, 1 to R.
          seed: int64 [B], one for each image, if the search samples; else None.

        Returns:
          `captions` string [B, K], best first; `scores` float32 [B, K], summed natural
          log-probabilities unless a length penalty or the consensus changes them; `tokens` int32
          [B, K, T]; `status` string [B], "ok" or why an image has no captions: a count outside
          1 to R, or numbers that are not finite also as float16. Such an image has empty captions,
          scores of 0 and tokens of 0, and does not change the others.

        Raises:
          tf.errors.InvalidArgumentError: no image at all, no region at all, or another number of
            counts than of images.
        """
        features, num_regions, status = requests.check_features(features, num_regions)
        return requests.blank(self._captions(features, num_regions, seed), status)

    def _captions(self, features, num_regions, seed) -> dict[str, tf.Tensor]:
        mask = tf.sequence_mask(num_regions, tf.shape(features)[1])
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

        A model of clips reads all frames of a GIF file, see `tfcap.data.clips.decode`. The results
        are those of `from_features`; `status` is why a file cannot be read. A bad file does not
        change the captions of the others.

        Raises:
          tf.errors.InvalidArgumentError: no file at all.
        """
        shape = self.backbone.decoded_shape
        images, status = requests.decode(image_bytes, self.backbone.decode, shape, self.max_pixels)
        results = self.from_images(images, seed)
        status = tf.where(status == requests.OK, results.pop("status"), status)
        return requests.blank(results, status)

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
        self.read_variables = list(features.variables)
        if self.backbone is None:
            return {"serving_default": features, "features": features}
        images = tf.function(self.from_bytes, autograph=False).get_concrete_function(
            image_bytes=tf.TensorSpec([None], tf.string, "image_bytes"), **seed
        )
        every = (*features.variables, *images.variables)
        self.read_variables = list({id(variable): variable for variable in every}.values())
        return {"serving_default": images, "features": features}


def server(
    run: Run,
    changes: str = "",
    beam: int = 0,
    data_dir: str | None = None,
    max_pixels: int = SERVED_PIXELS,
) -> CaptionServer:
    """Makes the server of a run; `changes`, `beam` and `data_dir` are those of `search`.

    Raises:
      ValueError: the backbone's weights in the directory are missing or changed, or as `search`.
    """
    backbone = run.backbone
    if backbone is None and run.fingerprint["backbone"] is not None:
        backbone = from_fingerprint(run.fingerprint, run.directory, run.data_dir)
    how = search(run, changes, beam, data_dir)
    return CaptionServer(run.model, run.vocab, how, backbone, run.max_regions, max_pixels)
