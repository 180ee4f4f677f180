"""Features of clips: each frame is one region, in the order of the frames.

Letters: B clips, N frames of a clip, R regions, F feature width, H and W pixels of a picture.

A frame is the vector of the whole picture that the backbone gives (`Backbone(vector=True)`).
`tfcap.data.clips` has the rule that chooses N frames of a clip.
"""

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfcap.data import clips
from tfcap.preparing.features.backbone import Backbone
from tfcap.preparing.features.pictures import Extracted, Pictures
from tfcap.preparing.features.ready import ReadyFeatures
from tfcap.preparing.sources import Entry


class Clips(tf.Module):
    """Turns the bytes of a clip into features, with TensorFlow operations only.

    It has the interface of `Backbone`, so that a server takes either.

    Args:
      backbone: the network; it gives one vector per picture.
      frames: N.
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
        """Returns `boxes`, the place of each frame on a sheet of frames, whatever its size."""
        return self.boxes

    def decode(self, content: tf.Tensor) -> tf.Tensor:
        """Decodes a clip string [] as `clips.decode` does, and resizes its frames."""
        return self.resize(clips.decode(content, self.frames))

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
) -> Backbone | Clips:
    """Builds the `Backbone` or `Clips` of prepared data, as `Backbone.from_fingerprint` does."""
    backbone = Backbone.from_fingerprint(fingerprint, data_dir)
    frames = fingerprint.get("frames")
    return Clips(backbone, frames) if frames else backbone


class SampledFrames:
    """Keeps N regions of each clip, by the rule of `tfcap.data.clips`; may shuffle them.

    Args:
      reader: gives the features of the clips; each region is a frame, in the order of the frames.
      frames: N.
      shuffled: whether the frames of each clip are put into a random order, which depends on the id
        of the clip alone. So a model that uses the order of the frames gets a lower score.

    Attributes:
      dim: F.
      regions: N.
    """

    def __init__(self, reader: Any, frames: int, shuffled: bool = False):
        self.reader, self.frames, self.shuffled = reader, frames, shuffled
        self.dim, self.image_dim, self.regions = reader.dim, reader.image_dim, frames
        self.backbone = getattr(reader, "backbone", None)

    def read(self, entries: Sequence[Entry]) -> Iterator[Extracted]:
        """Yields an `Extracted` per entry, in order."""
        boxes = clips.sheet_boxes(self.frames)
        for extracted in self.reader.read(entries):
            if extracted.features is not None:
                kept = clips.places(len(extracted.features), self.frames).numpy()
                if self.shuffled:
                    draw = random.Random(f"frames of {extracted.entry.id}")
                    kept = kept[draw.sample(range(self.frames), self.frames)]
                extracted = extracted._replace(features=extracted.features[kept], boxes=boxes)
            yield extracted


Reader = Pictures | ReadyFeatures | SampledFrames  # all have `dim`, `regions`, `read`
