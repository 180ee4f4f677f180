"""The convolutional networks behind the backbones, of keras.applications, and their weights.

F feature width.
"""

import contextlib
import os
import warnings
from collections.abc import Iterator

import keras

# The builder, its module with `preprocess_input`, F of its last grid.
NETWORKS = {
    "mobilenet_v2": (keras.applications.MobileNetV2, keras.applications.mobilenet_v2, 1280),
    "resnet101": (keras.applications.ResNet101, keras.applications.resnet, 2048),
    "vgg16": (keras.applications.VGG16, keras.applications.vgg16, 512),
}
# Networks whose vector for a whole picture is not the mean of their grid: layer, F.
VECTORS = {"vgg16": ("fc2", 4096)}


def network(
    name: str, weights: str | os.PathLike | None, image_size: int, vector: bool = False
) -> keras.Model:
    """A network of `NETWORKS` with weights.

    Args:
      name: which.
      weights: "imagenet" (downloaded by Keras) or a file of Keras weights.
      image_size: pixels along a side.
      vector: of the networks of `VECTORS` take the layer there in place of the last grid.

    Returns:
      a model of float32, from preprocessed pictures [B, H, W, 3] to its grid or vector.

    Raises:
      ValueError: no weights, or weights of something else.
    """
    if weights is None:
        raise ValueError(f"the backbone {name!r} needs weights: 'imagenet' or a file of them")
    weights = os.fspath(weights)
    if weights != "imagenet" and not os.path.isfile(weights):
        raise ValueError(
            f"no file of weights {weights} for {name}; give an existing .h5 file, or 'imagenet' to"
            " download them"
        )
    with_top = vector and name in VECTORS
    arguments = {"include_top": with_top, "input_shape": (image_size, image_size, 3)}
    build = NETWORKS[name][0]
    with _float32():
        try:
            whole = build(weights="imagenet" if weights == "imagenet" else None, **arguments)
            model = whole
            if with_top:
                model = keras.Model(whole.input, whole.get_layer(VECTORS[name][0]).output)
            if weights != "imagenet":
                _load(weights, [model, whole] if with_top else [model])
        except Exception as error:
            # Keras, h5py and urllib raise a dozen types here, some with messages of many lines.
            _refuse(name, weights, with_top, error)
    model.trainable = False
    return model


def _load(weights: str, models: list[keras.Model]) -> None:
    """Loads a file into the first model that it fits; they share their layers.

    What prepare wrote ends where the vector is taken, what Keras publishes has the classes too.
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
    """Raises the ValueError that a person should read."""
    reason = " ".join(str(error).split())[:300]
    kind = "file with its top" if with_top else "'notop' file"
    if weights == "imagenet":
        raise ValueError(
            f"the ImageNet weights of {name} could not be downloaded ({reason}); fetch the"
            f" {kind} of keras.applications elsewhere and give its path"
        ) from error
    top = "with" if with_top else "without"
    raise ValueError(
        f"the weights in {weights} do not fit {name} {top} its top ({reason}); give the"
        f" {kind} of that network, ending in .weights.h5 or .h5"
    ) from error


@contextlib.contextmanager
def _float32() -> Iterator[None]:
    """Features are made in float32 whatever precision the captioner trains in."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)
