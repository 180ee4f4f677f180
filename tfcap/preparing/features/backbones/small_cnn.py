"""A small convolutional network for drawings, whose weights are learnt with the captioner.

Letters: B pictures, H and W pixels of a picture.
"""

import os

import keras
import numpy as np
import tensorflow as tf

from tfcap.preparing.features.backbones.network import Network, cells_of, float32

_IMAGE_SIZE = 96
_STRIDE = 16  # pixels along a side of a cell of the grid
_WIDTH = 128  # F
_FILTERS = (16, 32, 64, _WIDTH)  # of the layers that halve the picture
_SEED = 1


class SmallCNN(Network):
    """Five convolutions; F = 128 and a cell for 16 x 16 pixels.

    The first weights are random, but the same every time. They are meant to be trained with the
    captioner (`task.backbone.trainable`); before training, the features are of little use.

    Args:
      weights: None for the first weights, or a file of Keras weights.
      image_size: pixels along a side, a multiple of 16; None takes 96.

    Raises:
      ValueError: the weights do not fit, or an impossible size.
    """

    def __init__(self, weights: str | os.PathLike | None, image_size: int | None = None):
        image_size = image_size or _IMAGE_SIZE
        cells = cells_of("small_cnn", image_size, _STRIDE)
        model = network(image_size)
        if weights is not None:
            try:
                model.load_weights(weights)
            except Exception as error:  # Keras and h5py raise many types
                reason = " ".join(str(error).split())[:300].rstrip(".")
                raise ValueError(
                    f"The weights in {weights} do not fit small_cnn ({reason}). Leave out "
                    "--weights to begin with random ones."
                ) from error
        model.trainable = False
        super().__init__(model, _WIDTH, cells, image_size)

    def scale(self, images: tf.Tensor) -> tf.Tensor:
        """Scales pictures of 0 to 255 to [-1, 1] and adds the place of each pixel, also in [-1, 1].

        A convolution cannot use the position of a pixel unless x and y are channels (Liu et al.,
        "An intriguing failing of convolutional neural networks and the CoordConv solution", NeurIPS
        2018).

        Args:
          images: float32 [B, H, W, 3].

        Returns:
          float32 [B, H, W, 5].
        """
        side = np.linspace(-1, 1, self.image_size)
        places = tf.constant(np.stack(np.meshgrid(side, side), -1)[None], tf.float32)  # x, y
        places = tf.tile(places, [tf.shape(images)[0], 1, 1, 1])
        return tf.concat([images * (1 / 127.5) - 1.0, places], -1)


def network(image_size: int) -> keras.Model:
    """Builds the network with its first weights, drawn as He et al. (ICCV 2015) propose.

    Four convolutions of 3 x 3 halve the picture each, and a fifth keeps its size; after each comes
    a ReLU. There is no batch normalisation.
    """
    with float32():
        inputs = x = keras.Input([image_size, image_size, 5])
        for place, filters in enumerate((*_FILTERS, _WIDTH)):
            x = keras.layers.Conv2D(
                filters,
                3,
                strides=2 if place < len(_FILTERS) else 1,
                padding="same",
                activation="relu",
                kernel_initializer=keras.initializers.HeNormal(seed=_SEED + place),
                name=f"conv{place + 1}",
            )(x)
        return keras.Model(inputs, x, name="small_cnn")
