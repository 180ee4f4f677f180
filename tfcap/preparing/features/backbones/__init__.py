"""The networks of the backbones, one file per family.

`network` has the interface that `backbone.Backbone` calls. `applications` reads keras.applications,
`efficientnet`, `alexnet` and `small_cnn` define their own, `hub` reads presets of keras-hub, and
`pixels` has no weights.
"""

import os

from tfcap.preparing.features import HUB, check_name, is_hub
from tfcap.preparing.features.backbones.network import Network


def build(
    name: str,
    weights: str | os.PathLike | None,
    image_size: int | None = None,
    vector: bool = False,
    scaling: str | None = None,
) -> Network:
    """Builds the network of a backbone with its weights.

    Args:
      name: one of `features.BACKBONES`, or `hub:PRESET`.
      weights: "imagenet", a file, the directory of a preset, or None, as the network needs.
      image_size: side of the square that the network reads, in pixels; None takes its own.
      vector: whether to build the layer that gives one vector of a picture, if that vector is
        not the mean of the grid.
      scaling: how pictures are scaled, where the weights do not show it: "torch" or None.

    Raises:
      ValueError: an unknown name, a size that the network cannot have, or wrong weights.
    """
    check_name(name)
    # Each family is imported when it is needed: keras-hub is an extra and takes seconds.
    if is_hub(name):
        from tfcap.preparing.features.backbones.hub import Hub

        return Hub(name.removeprefix(HUB), weights, image_size, vector)
    if name == "pixels":
        from tfcap.preparing.features.backbones.pixels import Pixels, SmallPicture

        return (SmallPicture if vector else Pixels)(weights, image_size)
    if name == "small_cnn":
        from tfcap.preparing.features.backbones.small_cnn import SmallCNN

        return SmallCNN(weights, image_size)
    if name == "efficientnet_lite2":
        from tfcap.preparing.features.backbones.efficientnet import EfficientNetLite2

        return EfficientNetLite2(weights, image_size)
    if name == "alexnet":
        from tfcap.preparing.features.backbones.alexnet import AlexNet

        return AlexNet(weights, image_size)
    from tfcap.preparing.features.backbones.applications import Application

    return Application(name, weights, image_size, vector, scaling)
