"""Several backbones as one: it joins their features to longer vectors."""

from collections.abc import Sequence

import tensorflow as tf

from tfcap.backbones.backbone import Backbone


class Backbones(tf.Module):
    """The backbones of an ensemble as one: the same network several times, with different weights.

    The methods `decode`, `resize`, `extract` and `boxes_in` are used like those of `Backbone`. The
    feature vectors of the members are joined to one long vector.

    Args:
      members: the backbones. Pictures are decoded and resized as the first one does it.
    """

    def __init__(self, members: Sequence[Backbone]):
        super().__init__(name="backbones")
        self.members = list(members)
        first = self.members[0]
        self.decode = first.decode
        self.resize = first.resize
        self.resizing = first.resizing
        self.boxes = first.boxes
        self.boxes_in = first.boxes_in
        self.decoded_shape = first.decoded_shape
        self.num_regions = first.num_regions
        self.feature_dim = first.feature_dim * len(self.members)

    def extract(self, images: tf.Tensor) -> tf.Tensor:
        """Computes the features of B pictures with every member.

        Args:
          images: B pictures as `decode` returns them, float32 [B, *decoded_shape].

        Returns:
          float32 [B, R, M * F]: for each of R regions the numbers of all M members one after the
          other, F numbers of each member.
        """
        return tf.concat([member.extract(images) for member in self.members], -1)
