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
from tfcap.data import clips


class Clips(tf.Module):
    """Turns the bytes of a clip into features, with TensorFlow operations only.

    It has the interface of `Backbone`, so a server can use either.

    Args:
      backbone: the network; it gives one vector per picture.
      frames: number of frames of a clip, N.
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
        """Shape of a clip as `decode` returns it: [N, H, W, 3]."""
        return [self.frames, *self.backbone.decoded_shape]

    def boxes_in(self, height: int, width: int) -> np.ndarray:
        """Returns `boxes`, the position of each frame on a sheet of frames."""
        return self.boxes

    def decode(self, content: tf.Tensor) -> tf.Tensor:
        """Decodes a clip string [] as `clips.decode_clip` does, and resizes its frames."""
        return self.resize(clips.decode_clip(content, self.frames))

    def resize(self, pixels: tf.Tensor) -> tf.Tensor:
        """Resizes the frames uint8 [N, H', W', 3] of a clip for `extract`."""
        spec = tf.TensorSpec(self.backbone.decoded_shape, tf.float32)
        resized = tf.map_fn(self.backbone.resize, pixels, fn_output_signature=spec)
        return tf.ensure_shape(resized, self.decoded_shape)

    def extract(self, images: tf.Tensor) -> tf.Tensor:
        """Extracts the features float32 [B, N, F] of decoded clips [B, N, H, W, 3]."""
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
) -> Backbone | Detector | Clips:
    """Builds the network that made the features of a prepared directory or of a run's data.

    Args:
      fingerprint: the content of its dataset.json.
      data_dir: the directory.
    """
    backbone = Backbone.from_fingerprint(fingerprint, data_dir)
    frames = fingerprint.get("frames")
    if frames and isinstance(backbone, Backbone):
        return Clips(backbone, frames)
    return backbone
