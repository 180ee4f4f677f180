"""Features of images that have several pictures: the regions of one picture after the other.

Letters: B images, P most pictures of an image, V pictures of one image, R regions of a picture, F
feature width, H and W pixels of a picture.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfcap.backbones.backbone import Backbone
from tfcap.backbones.detector import Detector
from tfcap.backbones.side_by_side import Backbones
from tfcap.data import clips


class Views(tf.Module):
    """Turns up to P pictures of an image into features: the regions of one after the other.

    The pictures may be the views of an X-ray study. An image with fewer pictures has fewer regions.
    It has the methods of a `Backbone`, so that a server can use either. It uses TensorFlow
    operations only.

    Args:
      backbone: the network that reads a picture.
      most: the largest number of pictures of an image, P.

    Example:
      >>> import tensorflow as tf
      >>> from tfcap.backbones.backbone import Backbone
      >>> from tfcap.backbones.views import Views
      >>> network = Views(Backbone("pixels", grid=3), most=2)
      >>> tuple(network.extract(tf.zeros([5, *network.decoded_shape])).shape)
      (5, 18, 194)
    """

    def __init__(self, backbone: Backbone | Backbones | Detector, most: int):
        super().__init__(name="views")
        self.backbone = backbone
        self.most = most
        # Each number of a picture that an image lacks. A grid has no negative ones, and a detector
        # finds no region in zeros.
        self._missing = 0.0 if isinstance(backbone, Detector) else -1.0
        self.num_regions = most * backbone.num_regions
        self.feature_dim = backbone.feature_dim

    @property
    def decoded_shape(self) -> list[int]:
        """Shape of an image as `stack` returns it: [P, H, W, 3] for pictures of H x W pixels."""
        return [self.most, *self.backbone.decoded_shape]

    @property
    def boxes(self) -> np.ndarray:
        """The boxes of P pictures, which only say that there are boxes; see `on_sheet`."""
        assert not isinstance(self.backbone, Detector)
        return np.tile(self.backbone.boxes, (self.most, 1))

    def resize(self, image: tf.Tensor) -> tf.Tensor:
        """Resizes one picture, uint8 [height, width, 3], as the backbone does."""
        return self.backbone.resize(image)

    def stack(self, pictures: Sequence[tf.Tensor]) -> tf.Tensor:
        """Joins the pictures of an image, and fills the places of those that it lacks.

        Args:
          pictures: 1 to P results of `resize`.

        Returns:
          float32 of the shape `decoded_shape`.
        """
        missing = tf.fill(self.backbone.decoded_shape, self._missing)
        return tf.stack([*pictures, *[missing] * (self.most - len(pictures))])

    def without(self, images: tf.Tensor, missing: tf.Tensor) -> tf.Tensor:
        """Marks pictures as missing.

        Args:
          images: float32 [B, *decoded_shape].
          missing: bool [B, P].
        """
        shape = [-1, self.most, *[1] * len(self.backbone.decoded_shape)]
        return tf.where(tf.reshape(missing, shape), self._missing, images)

    def extract(self, images: tf.Tensor) -> tf.Tensor:
        """Computes the features of B images.

        Args:
          images: float32 [B, *decoded_shape], as `stack` returns them.

        Returns:
          float32 [B, P * R, F]: for each picture in order its regions. Those of a missing picture
          are zeros.
        """
        assert not isinstance(self.backbone, Detector)
        flat = tf.reshape(images, [-1, *self.backbone.decoded_shape])
        features = self.backbone.extract(tf.maximum(flat, 0.0))
        there = tf.reduce_max(flat, list(range(1, len(flat.shape)))) >= 0
        features = features * tf.cast(there, tf.float32)[:, None, None]
        return tf.reshape(features, [-1, self.num_regions, self.feature_dim])

    def regions(self, images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Computes the features and boxes of B images, those of missing regions last.

        Args:
          images: float32 [B, *decoded_shape], as `stack` returns them.

        Returns:
          The features float32 [B, P * R, F], and None. For a detector, float32 [B, P * R, 5] takes
          the place of None: the boxes in pixels, and the number of the picture of each, from 0.
        """
        if not isinstance(self.backbone, Detector):
            return self._in_order(self.extract(images)), None
        flat = tf.reshape(images, [-1, *self.backbone.decoded_shape])
        found = self.backbone.regions(flat)
        features = tf.reshape(found.features, [-1, self.num_regions, self.feature_dim])
        numbers = tf.range(tf.shape(flat)[0]) % self.most
        places = tf.repeat(tf.cast(numbers, tf.float32), self.backbone.num_regions)
        boxes = tf.reshape(found.boxes, [-1, self.num_regions, 4])
        boxes = tf.concat([boxes, tf.reshape(places, [-1, self.num_regions, 1])], -1)
        order = self._order(features)
        return tf.gather(features, order, batch_dims=1), tf.gather(boxes, order, batch_dims=1)

    def _order(self, features: tf.Tensor) -> tf.Tensor:
        return tf.argsort(tf.cast(~self.mask(features), tf.int32), stable=True)

    def _in_order(self, features: tf.Tensor) -> tf.Tensor:
        return tf.gather(features, self._order(features), batch_dims=1)

    def mask(self, features: tf.Tensor) -> tf.Tensor:
        """Tells which regions are real and which are padding: bool [B, R'], True for real ones.

        Args:
          features: the first R' of the features that `extract` or `regions` returns, [B, R', F].
        """
        if isinstance(self.backbone, Detector):
            return self.backbone.mask(features)
        # A region may have only zeros, but not all regions of a picture.
        count = features.shape[1] or tf.shape(features)[1]
        size = tf.reduce_max(tf.abs(features), -1)
        padded = tf.pad(size, [[0, 0], [0, self.num_regions - count]])
        pictures = tf.reshape(padded, [-1, self.most, self.backbone.num_regions])
        sizes = tf.repeat(tf.reduce_max(pictures, -1), self.backbone.num_regions, 1)[:, :count]
        return (sizes > 0) | (tf.range(count) < self.backbone.num_regions)  # there is always one

    def on_sheet(self, boxes: np.ndarray, sizes: Sequence[tuple[int, int]]) -> np.ndarray:
        """Returns where the regions of an image are on the sheet of its pictures.

        Args:
          boxes: the boxes of its real regions, as `regions` returns them for a detector; their
            values do not matter for a grid.
          sizes: height and width of each of its V pictures, in pixels.

        Returns:
          float32 [R', 4], the corners x1, y1, x2, y2 as fractions (0..1) of the sheet, see
          `tfcap.data.clips.sheet`.
        """
        own = [self.backbone.boxes_in(*size) for size in sizes]
        if isinstance(self.backbone, Detector):
            own = [
                np.clip(boxes[boxes[:, 4] == number, :4] / sides, 0, 1)
                for number, sides in enumerate(own)
            ]
        return clips.on_sheet(own)
