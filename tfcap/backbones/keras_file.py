"""Reads a file of weights that Keras wrote, with fewer copies than `Model.load_weights`.

Keras copies each weight three times, and the largest network has 0.8 GB of them. Here h5py reads a
weight into the memory that its variable keeps.
"""

import collections
import mmap

import h5py
import keras
import numpy as np
import tensorflow as tf

from tfcap.layers.trees import named_layers


def load(path: str, model: keras.Model) -> None:
    """Sets all weights of a model to those in a file that `Model.save_weights` wrote.

    Args:
      path: the file, of float32 weights.
      model: the model. Its layers have the names that they had when it was saved.

    Raises:
      Exception: the file is another one, and some weights may have been set. `Model.load_weights`
        may still be able to read it; if not, its error says why.
    """
    layers = {
        f"{layer.name}/{inner}": part
        for layer in model.layers
        for inner, part in named_layers(layer)
    }
    missing = len(model.weights)
    with h5py.File(path) as file:
        datasets: dict[str, dict[str, h5py.Dataset]] = collections.defaultdict(dict)

        def add(name: str, item: h5py.Group | h5py.Dataset) -> None:
            if isinstance(item, h5py.Dataset):
                layer, rest = name.split("/", 1)
                inner, number = rest.split("vars/")
                datasets[f"{file['layers'][layer]['vars'].attrs['name']}/{inner}"][number] = item

        file["layers"].visititems(add)
        scratch = _memory(max(item.size for items in datasets.values() for item in items.values()))
        for name, items in datasets.items():
            layer = layers.pop(name)
            dtype = layer.variable_dtype
            values = {number: _tensor(item, dtype, scratch) for number, item in items.items()}
            layer.load_own_variables(values)  # which checks number and shapes
            missing -= len(values)
    if missing:
        raise ValueError(f"{path} lacks {missing} weights of {model.name}")


def _memory(count: int) -> mmap.mmap:
    """Returns memory for `count` float32 numbers.

    It is whole pages, because TensorFlow needs addresses that are multiples of 64. NumPy would ask
    for huge pages. If memory is in use, the system makes room for them first, and that can take a
    second for 0.8 GB.
    """
    return mmap.mmap(-1, 4 * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _tensor(dataset: h5py.Dataset, dtype: str, scratch: mmap.mmap) -> tf.Tensor:
    """Reads a weight. A tensor in float32 keeps the memory; others are cast in `scratch`."""
    if dataset.dtype != np.float32:
        raise ValueError(f"{dataset.name} is {dataset.dtype} and not float32")
    memory = _memory(dataset.size) if dtype == "float32" else scratch
    array = np.frombuffer(memory, np.float32, dataset.size).reshape(dataset.shape)
    dataset.read_direct(array)
    tensor = tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    return tensor if dtype == "float32" else tf.cast(tensor, dtype)
