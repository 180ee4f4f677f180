"""The convolutional networks of keras.applications.

Letters: B images, H and W pixels of an image.
"""

import os
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfcap.preparing.features import NETWORKS, VECTORS
from tfcap.preparing.features.backbones import state_dict
from tfcap.preparing.features.backbones.network import (
    Network,
    cells_of,
    check_weights,
    float32,
    one_line,
    torch_scaled,
)
from tfcap.released import torch_file

_IMAGE_SIZE = 224
# The convolutions of VGG-16 in a state dict of torchvision are `features.N`.
_VGG16_CONVOLUTIONS = (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)
_VGG16_LAST_CHANNELS = 512


class Application(Network):
    """A network of keras.applications without its top, or `vgg16` up to its layer fc7.

    `vgg16` also reads a state dict of torchvision. Its pictures are then scaled as torchvision
    scales them, and the entry `scaling` of dataset.json says so.

    Args:
      name: key of `NETWORKS`.
      weights: "imagenet" (downloaded by Keras), a file of Keras weights, or, for `vgg16`, a state
        dict of PyTorch.
      image_size: pixels along a side; None takes 224.
      vector: whether a network in `VECTORS` gives the layer named there and not its last grid.
      scaling: "torch" for Keras weights that came from torchvision; None otherwise.

    Raises:
      ValueError: no weights, weights of another network, or an impossible size.
    """

    def __init__(
        self,
        name: str,
        weights: str | os.PathLike | None,
        image_size: int | None = None,
        vector: bool = False,
        scaling: str | None = None,
    ):
        image_size = image_size or _IMAGE_SIZE
        cells = cells_of(name, image_size)
        weights = check_weights(name, weights)
        from_torch = state_dict.is_state_dict(weights)
        if scaling not in (None, "torch") or ((from_torch or scaling) and name != "vgg16"):
            raise ValueError(
                f"Of keras.applications only vgg16 reads a state dict of PyTorch. Received: {name}"
                f" with {weights}. Give a .weights.h5 or .h5 file of Keras."
            )
        is_vector = vector and name in VECTORS
        width = VECTORS[name][1] if is_vector else NETWORKS[name][2]
        model = _network(name, weights, image_size, is_vector)
        super().__init__(model, width, 1 if is_vector else cells, image_size, is_vector)
        self.name = name
        if from_torch or scaling:
            self.more["scaling"] = "torch"

    def scale(self, images: tf.Tensor) -> tf.Tensor:
        """Scales pictures [B, H, W, 3] of 0 to 255 as the network expects them."""
        if self.more:
            return torch_scaled(images)
        return getattr(keras.applications, NETWORKS[self.name][1]).preprocess_input(images)


def _network(name: str, weights: str, image_size: int, with_top: bool) -> keras.Model:
    """Builds a network of float32 with weights, from scaled pictures to its grid or vector."""
    arguments = {"include_top": with_top, "input_shape": (image_size, image_size, 3)}
    build = getattr(keras.applications, NETWORKS[name][0])
    with float32():
        try:
            whole = build(weights="imagenet" if weights == "imagenet" else None, **arguments)
            model = whole
            if with_top:
                model = keras.Model(whole.input, whole.get_layer(VECTORS[name][0]).output)
            if state_dict.is_state_dict(weights):
                _assign_vgg16(model, weights)
            elif weights != "imagenet":
                _load(weights, [model, whole] if with_top else [model])
        except Exception as error:
            # Keras, h5py and urllib raise many types here, some with messages of many lines.
            _refuse(name, weights, with_top, error)
    model.trainable = False
    return model


def _assign_vgg16(model: keras.Model, path: str) -> None:
    """Assigns a state dict of torchvision's VGG-16 to the layers that the model has."""
    tensors = torch_file.load(path)
    convolutions = [one for one in model.layers if isinstance(one, keras.layers.Conv2D)]
    for layer, number in zip(convolutions, _VGG16_CONVOLUTIONS, strict=True):
        state_dict.assign(layer, tensors, f"features.{number}")
    dense = [one for one in model.layers if isinstance(one, keras.layers.Dense)]
    for layer, number, channels in zip(dense, (0, 3), (_VGG16_LAST_CHANNELS, 1), strict=False):
        state_dict.assign(layer, tensors, f"classifier.{number}", channels)


def _load(weights: str, models: Sequence[Any]) -> None:
    """Loads a file of weights into the first model that it fits; the models share their layers.

    Files of prepare end at the layer of the vector; files of Keras also have the classes.
    """
    for number, model in enumerate(models):
        try:
            with warnings.catch_warnings():
                # Keras warns of each layer that the file lacks, then raises for all of them.
                warnings.simplefilter("ignore", UserWarning)
                model.load_weights(weights)
            return
        except Exception:
            if number + 1 == len(models):
                raise


def _refuse(name: str, weights: str, with_top: bool, error: Exception) -> None:
    """Raises a ValueError with one readable line."""
    reason = one_line(str(error))
    kind = "file with its top" if with_top else "'notop' file"
    if weights == "imagenet":
        raise ValueError(
            f"The ImageNet weights of {name} could not be downloaded ({reason}). Download the"
            f" {kind} of keras.applications elsewhere and give its path with --weights."
        ) from error
    top = "with" if with_top else "without"
    raise ValueError(
        f"The weights in {weights} do not fit {name} {top} its top ({reason}). Give the"
        f" {kind} of that network, ending in .weights.h5 or .h5."
    ) from error
