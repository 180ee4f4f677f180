"""Functions for nests of tensors with a row for each caption, and for the names of variables.

A nest is a tensor, or a list, tuple or dictionary of nests. Its leaves are the tensors in it.

Letters: N rows, M chosen rows.
"""

import contextlib
import contextvars
from collections.abc import Iterator

import keras
import tensorflow as tf

from tfcap.layers.loops import Tree
from tfcap.private_api import in_xla

_PORTABLE = contextvars.ContextVar("portable", default=False)


@contextlib.contextmanager
def portable_graphs() -> Iterator[None]:
    """Makes the graphs that are traced in this `with` block portable, to LiteRT and ONNX.

    They have no operator that replaces a slice of a tensor, so `put` uses a select. LiteRT calls no
    functions, so the blocks of a Swin are not functions.
    """
    token = _PORTABLE.set(True)
    try:
        yield
    finally:
        _PORTABLE.reset(token)


def is_portable() -> bool:
    """True inside `portable_graphs`."""
    return _PORTABLE.get()


def repeat(tree: Tree, times: int) -> Tree:
    """Repeats each row of all tensors in a nest; the copies of a row stand next to each other.

    Args:
      tree: a nest (a tensor, or a list, tuple or dictionary of nests) of tensors [N, ...].
      times: number of copies.

    Returns:
      The nest, with tensors [N * times, ...].
    """
    if isinstance(times, int) and times == 1:  # a tensor has no truth in a graph
        return tree

    def repeated(leaf):
        if not isinstance(times, int) or not leaf.shape.is_fully_defined():
            return tf.repeat(leaf, times, axis=0)
        # XLA has no gradient of `tf.repeat` inside a loop.
        rows, *rest = leaf.shape
        copies = tf.tile(leaf[:, None], [1, times] + [1] * len(rest))
        return tf.reshape(copies, [rows * times, *rest])

    return tf.nest.map_structure(repeated, tree)


def take(tree: Tree, rows: tf.Tensor) -> Tree:
    """Chooses rows of all tensors in a nest.

    Args:
      tree: a nest (a tensor, or a list, tuple or dictionary of nests) of tensors [N, ...].
      rows: indices of the chosen rows, int32 [M].

    Returns:
      The nest, with tensors [M, ...].
    """
    return tf.nest.map_structure(lambda leaf: tf.gather(leaf, rows), tree)


def put(buffer: tf.Tensor, row: tf.Tensor, index: tf.Tensor, axis: int) -> tf.Tensor:
    """Replaces the slice of `buffer` at `index` of an axis by `row`, and returns the result.

    The operation has a gradient, unlike `keras.ops.slice_update` on TensorFlow. In a loop it writes
    in place, while a select or a scatter would copy the buffer. XLA cannot compile it; in code for
    XLA, and inside `portable_graphs`, this function uses a select.

    Args:
      buffer: tensor of any shape.
      row: the shape of `buffer`, but of length 1 on `axis`.
      index: index of the slice, int32 scalar.
      axis: the axis that is indexed.
    """
    if in_xla() or _PORTABLE.get():
        here = tf.range(tf.shape(buffer)[axis]) == index
        here = tf.reshape(here, [-1] + [1] * (len(buffer.shape) - axis - 1))
        return tf.where(here, tf.cast(row, buffer.dtype), buffer)
    before = [0] * axis
    whole = (1 << axis) - 1  # a mask of all axes before `axis`
    return tf.raw_ops.TensorStridedSliceUpdate(
        input=buffer,
        begin=tf.stack([*before, index]),
        end=tf.stack([*before, index + 1]),
        strides=[1] * (axis + 1),
        value=tf.cast(row, buffer.dtype),
        begin_mask=whole,
        end_mask=whole,
    )


def named_variables(layer: keras.layers.Layer) -> dict[str, keras.Variable]:
    """Returns all variables of a layer and of the layers inside it, by name.

    A name is the path of attributes from the layer to the variable, for example
    `decoder/0/word_attn/in_proj_q/linear/kernel`. The attribute `path` of a Keras variable is not
    used: it depends on which layer was called first, and it is not unique.

    Raises:
      ValueError: a variable has no name, or two variables have the same.
    """
    names: dict[str, keras.Variable] = {}
    done = set()  # a layer also lists the variables of the layers inside it
    for path, part in named_layers(layer):
        for variable in part.variables:
            if id(variable) not in done:
                done.add(id(variable))
                names[path + variable.name] = variable
    if len(names) != len(layer.variables):  # a checkpoint would leave the others out
        raise ValueError(
            f"{layer.name} has {len(layer.variables)} variables, but only {len(names)} different "
            "names. Keep layers in public attributes, or in lists or dictionaries there, and give "
            "each weight of a layer a name of its own."
        )
    return names


def named_layers(
    layer: keras.layers.Layer, path: str = ""
) -> Iterator[tuple[str, keras.layers.Layer]]:
    """Yields pairs (path, layer) for all layers inside a layer, and at last for the layer itself.

    Layers further inside come first. A path such as `decoder/0/word_attn/` joins attributes and
    indices.

    Args:
      layer: the layer.
      path: path of `layer` itself, with which all other paths begin.
    """
    for key, child in _children(vars(layer), ""):
        yield from named_layers(child, f"{path}{key}/")
    yield path, layer


def _children(value, key):
    """Yields name and layer for the layers in an attribute, its lists, tuples and dictionaries."""
    if isinstance(value, keras.layers.Layer):
        yield key, value
    elif isinstance(value, dict):
        for name, item in value.items():
            if not str(name).startswith("_"):
                yield from _children(item, f"{key}/{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _children(item, f"{key}/{index}")


def is_seed(variable: keras.Variable) -> bool:
    """Returns True if a variable is the state of a random generator, False if it is a weight."""
    return variable.name == "seed_generator_state"


def build_when_called(layer: keras.layers.Layer) -> None:
    """Makes the first call of a layer create the variables of all layers inside it.

    Without this, Keras traces the call of each inner layer once more to create its variables, which
    doubles the time.
    """
    for _, inner in named_layers(layer):
        if type(inner).build is keras.layers.Layer.build:
            inner.built = True
