"""AlexNet up to its layer fc7, with the weights of torchvision.

torchvision's AlexNet is the one of Krizhevsky, "One weird trick for parallelizing convolutional
neural networks", 2014: without local response normalization, with convolutions in one group.

Letters: B images, H and W pixels of an image.
"""

import os

import keras
import tensorflow as tf

from tfcap.preparing.features.backbones import state_dict
from tfcap.preparing.features.backbones.network import (
    Network,
    check_weights,
    float32,
    one_line,
    torch_scaled,
)
from tfcap.released import torch_file

_IMAGE_SIZE = 224
_WIDTH = 4096
# Number in the state dict, width, kernel, stride and padding of each convolution, and whether the
# largest of 3 x 3 numbers is taken after it, with stride 2.
_CONVOLUTIONS = (
    (0, 64, 11, 4, 2, True),
    (3, 192, 5, 1, 2, True),
    (6, 384, 3, 1, 1, False),
    (8, 256, 3, 1, 1, False),
    (10, 256, 3, 1, 1, True),
)
_LAST_CHANNELS = 256
_DENSE = (1, 4)


class AlexNet(Network):
    """The layer fc7 of AlexNet after its ReLU: one vector of 4096 numbers for a picture.

    Args:
      weights: a state dict of torchvision's `alexnet`, or Keras weights that prepare saved.
      image_size: 224, or None, which also means 224.

    Raises:
      ValueError: no weights, weights that do not fit, or another size.
    """

    def __init__(self, weights: str | os.PathLike | None, image_size: int | None = None):
        if image_size not in (None, _IMAGE_SIZE):
            raise ValueError(
                f"image_size of alexnet must be {_IMAGE_SIZE}. Received: {image_size}."
            )
        if weights is None or os.fspath(weights) == "imagenet":
            raise ValueError(
                "--weights of alexnet must be a file, because Keras has no weights of it. "
                f"Received: {weights}. Give the state dict of torchvision's alexnet, a .pth file."
            )
        weights = check_weights("alexnet", weights, "an existing .pth or .h5 file")
        model = network()
        try:
            if state_dict.is_state_dict(weights):
                tensors = torch_file.load(weights)
                for number, *_ in _CONVOLUTIONS:
                    state_dict.assign(
                        model.get_layer(f"conv{number}"), tensors, f"features.{number}"
                    )
                for number, channels in zip(_DENSE, (_LAST_CHANNELS, 1), strict=True):
                    layer = model.get_layer(f"fc{number}")
                    state_dict.assign(layer, tensors, f"classifier.{number}", channels)
            else:
                model.load_weights(weights)
        except Exception as error:  # Keras and h5py raise many types
            raise ValueError(
                f"The weights in {weights} do not fit alexnet ({one_line(str(error))}). Give the "
                "state dict of torchvision's alexnet, a .pth file."
            ) from error
        model.trainable = False
        super().__init__(model, _WIDTH, 1, _IMAGE_SIZE, is_vector=True)

    def scale(self, images: tf.Tensor) -> tf.Tensor:
        """Scales pictures [B, H, W, 3] of 0 to 255 as torchvision does."""
        return torch_scaled(images)


def network() -> keras.Model:
    """Builds the network, from [B, 224, 224, 3] to fc7 [B, 4096]; its weights are zeros.

    Random weights would take seconds to draw, and all are replaced.
    """
    options = {"activation": "relu", "kernel_initializer": "zeros"}
    with float32():
        pictures = keras.Input((_IMAGE_SIZE, _IMAGE_SIZE, 3))
        x = pictures
        for number, width, kernel, stride, padding, pooled in _CONVOLUTIONS:
            x = keras.layers.ZeroPadding2D(padding)(x)
            name = f"conv{number}"
            x = keras.layers.Conv2D(width, kernel, stride, name=name, **options)(x)
            if pooled:
                x = keras.layers.MaxPooling2D(3, 2)(x)
        x = keras.layers.Flatten()(x)  # 6 x 6 x 256, the size to which torchvision pools
        for number in _DENSE:
            x = keras.layers.Dense(_WIDTH, name=f"fc{number}", **options)(x)
        return keras.Model(pictures, x, name="alexnet")
