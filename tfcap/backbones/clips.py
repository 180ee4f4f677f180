"""Features of clips: each frame is one region, in the order of the frames.

Letters: B clips, N frames of a clip, R regions, F feature width, H and W pixels of a picture.

A frame is the vector of the whole picture that the backbone gives (`Backbone(vector=True)`).
`tfcap.data.clips` has the rule that chooses N frames of a clip.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfcap.backbones.backbone import Backbone
from tfcap.backbones.detector import Detector
from tfcap.backbones.views import Views
from tfcap.data import clips


class Clips(tf.Module):
    """Turns the bytes of a clip into features: one vector per frame.

    It has the methods `decode`, `resize`, `extract` and `boxes_in` of a `Backbone`, so a server can
    use either. It uses TensorFlow operations only.

    Args:
      backbone: the network that reads a frame. It must give one vector per picture: of a grid only
        the first cell would be used.
      frames: number of frames that are taken from a clip, N.

    Example:
      >>> import tensorflow as tf
      >>> from tfcap.backbones.backbone import Backbone
      >>> from tfcap.backbones.clips import Clips
      >>> network = Clips(Backbone("pixels", vector=True), frames=4)
      >>> tuple(network.extract(tf.zeros([2, *network.decoded_shape])).shape)
      (2, 4, 768)
    """

    def __init__(self, backbone: Backbone, frames: int):
        super().__init__(name="clips")
        self.backbone = backbone
        self.frames = frames
        self.num_regions = frames
        self.feature_dim = backbone.feature_dim
        self.boxes = clips.sheet_boxes(frames)

    @property
    def decoded_shape(self) -> list[int]:
        """Shape of a clip as `decode` returns it: [N, H, W, 3] for N frames of H x W pixels."""
        return [self.frames, *self.backbone.decoded_shape]

    def boxes_in(self, height: int, width: int) -> np.ndarray:
        """Returns where each frame is on the sheet of a clip, for pictures of attention.

        The sheet is a picture of the N frames in order, row by row, see `data.clips.sheet`.

        Args:
          height: not used; here only because `Backbone.boxes_in` has it.
          width: not used, like `height`.

        Returns:
          float32 [N, 4], the corners x1, y1, x2, y2 of the frames, as fractions (0..1) of the
          sheet.
        """
        return self.boxes

    def decode(self, content: tf.Tensor) -> tf.Tensor:
        """Decodes N evenly spaced frames of a clip and resizes them for `extract`.

        If a clip has fewer than N frames, its last frame is repeated.

        Args:
          content: the bytes of a GIF file, string []. A picture file of another kind is a clip of
            one frame.

        Returns:
          float32 [N, H, W, 3] in 0..255: N frames of H x W pixels, as the network reads them.

        Raises:
          tf.errors.InvalidArgumentError: the file is damaged, or a film such as MP4.
        """
        return self.resize(clips.decode_clip(content, self.frames))

    def resize(self, pixels: tf.Tensor) -> tf.Tensor:
        """Resizes the frames of a clip for `extract`.

        Args:
          pixels: N frames, uint8 [N, height, width, 3], RGB.

        Returns:
          float32 [N, H, W, 3] in 0..255: N frames of H x W pixels, as the network reads them.
        """
        spec = tf.TensorSpec(self.backbone.decoded_shape, tf.float32)
        resized = tf.map_fn(self.backbone.resize, pixels, fn_output_signature=spec)
        return tf.ensure_shape(resized, self.decoded_shape)

    def extract(self, images: tf.Tensor) -> tf.Tensor:
        """Computes the features of B clips.

        Args:
          images: clips as `decode` returns them, float32 [B, N, H, W, 3], N frames of H x W pixels.

        Returns:
          float32 [B, N, F]: for each frame, in order, a vector of F numbers.
        """
        # One clip at a time, because a batch of clips is many pictures.
        spec = tf.TensorSpec([self.frames, self.feature_dim], tf.float32)
        return tf.map_fn(
            lambda clip: self.backbone.extract(clip)[:, 0],
            images,
            parallel_iterations=1,
            fn_output_signature=spec,
        )


def from_fingerprint(
    fingerprint: Mapping[str, Any], data_dir: str | os.PathLike
) -> Backbone | Detector | Clips | Views:
    """Builds the network that made the features of a data set, with its saved weights.

    Args:
      fingerprint: the content of dataset.json of a prepared directory, or of the copy in a run.
      data_dir: the prepared directory or the run, which has the weights.

    Returns:
      A `Clips` for data of clips, a `Views` for data whose images have several pictures, else a
      `Backbone` or a `Detector`.

    Raises:
      ValueError: the features were not made by a network, or its weights are missing or changed.
    """
    backbone = Backbone.from_fingerprint(fingerprint, data_dir)
    frames = fingerprint.get("frames")
    if frames and isinstance(backbone, Backbone):
        return Clips(backbone, frames)
    views = fingerprint.get("views", 1)
    return Views(backbone, views) if views > 1 else backbone
