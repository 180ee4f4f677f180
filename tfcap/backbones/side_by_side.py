"""Several backbones as one: their features stand side by side."""

from collections.abc import Sequence

import tensorflow as tf

from tfcap.backbones.backbone import Backbone
from tfcap.backbones.detector import Detector


class Backbones(tf.Module):
    """The backbones of an ensemble: the same network with different weights.

    It has the interface of `Backbone`. The features of an image are the features of all members,
    one after the other.

    Args:
      members: the backbones, M. Pictures are decoded and resized as the first one does it.
    """

    def __init__(self, members: Sequence[Backbone | Detector]):
        super().__init__(name="backbones")
        self.members = list(members)
        first = self.members[0]
        self.decode = first.decode
        self.resize = first.resize
        self.boxes = first.boxes
        self.boxes_in = first.boxes_in
        self.decoded_shape = first.decoded_shape
        self.num_regions = first.num_regions
        self.feature_dim = first.feature_dim * len(self.members)

    def extract(self, images: tf.Tensor) -> tf.Tensor:
        """Extracts the features float32 [B, R, M F] of decoded pictures."""
        return tf.concat([member.extract(images) for member in self.members], -1)
