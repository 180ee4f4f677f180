"""Builds the convolutional networks of keras.applications with their weights, for the backbones."""

import contextlib
import os
import re
import warnings
from collections.abc import Iterator

import keras
import tensorflow as tf

from tfcap.preparing.features import NETWORKS, VECTORS


def network(
    name: str, weights: str | os.PathLike | None, image_size: int, vector: bool = False
) -> keras.Model:
    """Builds a network of `NETWORKS` with weights.

    Args:
      name: key of `NETWORKS`.
      weights: "imagenet" (downloaded by Keras) or a file of Keras weights.
      image_size: pixels along a side.
      vector: whether networks of `VECTORS` give that layer instead of the last grid.

    Returns:
      a model of float32, from preprocessed pictures [B, H, W, 3] to its grid or vector.

    Raises:
      ValueError: no weights, or weights of another network.
    """
    if weights is None:
        raise ValueError(f"--weights of {name!r} must be 'imagenet' or a file. Received: None.")
    weights = os.fspath(weights)
    if weights != "imagenet" and not os.path.isfile(weights):
        raise ValueError(
            f"--weights of {name!r} must be an existing .h5 file, or 'imagenet' to download them. "
            f"Received: {weights}."
        )
    with_top = vector and name in VECTORS
    arguments = {"include_top": with_top, "input_shape": (image_size, image_size, 3)}
    build = getattr(keras.applications, NETWORKS[name][0])
    with _float32():
        try:
            whole = build(weights="imagenet" if weights == "imagenet" else None, **arguments)
            model = whole
            if with_top:
                model = keras.Model(whole.input, whole.get_layer(VECTORS[name][0]).output)
            if weights != "imagenet":
                _load(weights, [model, whole] if with_top else [model])
        except Exception as error:
            # Keras, h5py and urllib raise many types here, some with messages of many lines.
            _refuse(name, weights, with_top, error)
    model.trainable = False
    return model


def _load(weights: str, models: list[keras.Model]) -> None:
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
    reason = _short(str(error))
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


def _short(message: str) -> str:
    """Shortens a message of Keras, which lists every layer that does not fit."""
    text = " ".join(message.split())
    found = re.match(r"A total of (\d+) objects could not .*? object <\w+ name=([^,>]+)", text)
    if found:
        return f"{found[1]} layers have other weights, for example {found[2]}"
    return text[:300].rstrip(".")


@contextlib.contextmanager
def _float32() -> Iterator[None]:
    """Sets Keras to float32, whatever precision the captioner trains in."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)


def preprocess(name: str, images: tf.Tensor) -> tf.Tensor:
    """Scales pictures [B, H, W, 3] of 0 to 255 as the network `name` expects them."""
    return getattr(keras.applications, NETWORKS[name][1]).preprocess_input(images)
