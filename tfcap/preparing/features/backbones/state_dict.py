"""Assigns the tensors of a PyTorch state dict to Keras layers.

Letters: O output channels, C input channels, k size of a kernel, N cells of a flattened grid.
"""

import os
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np


def is_state_dict(path: str | os.PathLike) -> bool:
    """Returns whether the name of a file ends in .pth or .pt, as files of torch.save do."""
    return os.fspath(path).endswith((".pth", ".pt"))


def assign(layer: Any, tensors: Mapping[str, np.ndarray], name: str, channels: int = 1) -> None:
    """Assigns the tensors of `values` to a Keras layer; arguments and errors are the same."""
    layer.set_weights(values(layer, tensors, name, channels))


def values(
    layer: Any, tensors: Mapping[str, np.ndarray], name: str, channels: int = 1
) -> list[np.ndarray]:
    """Returns the tensors `name.weight`, `name.bias` and statistics as a Keras layer has them.

    Args:
      layer: a convolution, a dense layer or a batch normalization.
      tensors: the state dict.
      name: the name of the layer in it.
      channels: for a dense layer that reads a flattened grid [C, N] in PyTorch and [N, C] in
        Keras: C.

    Returns:
      float32 arrays in the order and with the shapes of `layer.weights`.

    Raises:
      ValueError: a tensor is missing, not floating point or of another shape.
    """
    parts = ["weight", "bias"][: len(layer.weights)]
    if isinstance(layer, keras.layers.BatchNormalization):
        parts = ["weight", "bias", "running_mean", "running_var"]
    found = []
    for part, variable in zip(parts, layer.weights, strict=True):
        value = tensors.get(f"{name}.{part}")
        if value is None:
            raise ValueError(f"the file has no tensor {name}.{part}")
        if value.dtype.kind != "f":
            raise ValueError(
                f"the tensor {name}.{part} must be floating point. Received: {value.dtype}"
            )
        own = tuple(variable.shape)
        if part == "weight":
            value = _weight(layer, value, channels)
        if value.shape != own:
            raise ValueError(
                f"the tensor {name}.{part} must give the shape {list(own)}. Received: "
                f"{list(value.shape)}"
            )
        found.append(value.astype(np.float32))
    return found


def _weight(layer: Any, value: np.ndarray, channels: int) -> np.ndarray:
    """Returns a weight with its axes in the order of Keras."""
    if isinstance(layer, keras.layers.DepthwiseConv2D):
        order = (2, 3, 0, 1)  # [C, 1, k, k] to [k, k, C, 1]
    elif isinstance(layer, keras.layers.Conv2D):
        order = (2, 3, 1, 0)  # [O, C, k, k] to [k, k, C, O]
    elif isinstance(layer, keras.layers.Dense) and value.ndim == 2:
        if value.shape[1] % channels:
            return value.T  # the caller names the shape
        # [O, C N] to [N C, O]
        split = value.reshape(len(value), channels, -1)
        return split.transpose(2, 1, 0).reshape(-1, len(value))
    else:
        return value
    return value.transpose(order) if value.ndim == 4 else value
