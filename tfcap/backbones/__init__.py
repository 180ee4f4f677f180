"""The names of the backbones, the networks that turn a picture into the features of its regions.

The regions are the cells of a grid, or the boxes that a detector finds. This module does not import
TensorFlow, so that an error about a name comes at once.
"""

# The builder and its module in keras.applications by the name of the backbone.
NETWORKS = {
    "mobilenet_v2": ("MobileNetV2", "mobilenet_v2"),
    "resnet50": ("ResNet50", "resnet"),
    "resnet101": ("ResNet101", "resnet"),
    "resnet152": ("ResNet152", "resnet"),
    "vgg16": ("VGG16", "vgg16"),
}
DETECTOR = "bottom_up"  # it gives regions and no grid
SWINS = (
    *("swin_tiny_224", "swin_small_224", "swin_base_224", "swin_large_224"),
    *("swin_base_384", "swin_large_384"),
)
BACKBONES = (*NETWORKS, "efficientnet_lite2", "alexnet", "pixels", "small_cnn", *SWINS, DETECTOR)
WITHOUT_WEIGHTS = ("pixels", "small_cnn")  # nothing to download: no weights, or random ones
HUB = "hub:"  # what the name of a preset of keras-hub begins with


def is_hub(name: str) -> bool:
    """Returns whether the name of a backbone means a preset of keras-hub, as `hub:PRESET` does."""
    return name.startswith(HUB)


def check_name(name: str) -> None:
    """Raises ValueError if there is no backbone of this name; the message lists the names."""
    if name not in BACKBONES and (not is_hub(name) or name == HUB):
        raise ValueError(
            f"`backbone` must be one of {', '.join(BACKBONES)}, or {HUB}PRESET with a preset of "
            f"keras-hub, not {name!r}. To use another network, write its features into npz files "
            "and give them with `features`."
        )


def default_weights(name: str) -> str | None:
    """Returns the value of the setting `weights` if the user gives none.

    It is None for `pixels`, `small_cnn`, `bottom_up` and presets of keras-hub, else "imagenet".
    Networks without ImageNet weights, such as `alexnet`, get "imagenet" too: `networks.build` then
    raises an error that says which file to give.
    """
    return None if name in (*WITHOUT_WEIGHTS, DETECTOR) or is_hub(name) else "imagenet"
