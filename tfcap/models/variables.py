"""Names the variables and the layers of a model by the attributes that lead to them.

`build_when_called` lets the first call create the variables.
"""

from collections.abc import Iterator

import keras


def named_variables(layer: keras.layers.Layer) -> dict[str, keras.Variable]:
    """Returns every variable of `layer`, by the chain of attributes that leads to it.

    For example `decoder/0/word_attn/in_proj_q/linear/kernel`. The `path` of Keras is not used: it
    depends on which layer was called first, and it is not unique.

    Raises:
      ValueError: two variables have the same name, or a variable has none.
    """
    names, known = {}, set()
    for path, part in named_layers(layer):
        for variable in part.variables:
            if id(variable) not in known:
                known.add(id(variable))
                names[path + variable.name] = variable
    if len(names) != len(layer.variables):
        raise ValueError(
            f"The {len(layer.variables)} variables of {layer.name} must all have different "
            f"names. Received: {len(names)} different names. Keep sub-layers in public attributes, "
            "lists or dictionaries, and give the weights of a layer different names."
        )
    return names


def named_layers(
    layer: keras.layers.Layer, path: str = ""
) -> Iterator[tuple[str, keras.layers.Layer]]:
    """Yields path and layer for every layer inside `layer`, inner layers first, `layer` last.

    A path is for example `decoder/0/word_attn/`. The path of `layer` itself is `path`.
    """
    for key, child in _children(vars(layer), ""):
        yield from named_layers(child, f"{path}{key}/")
    yield path, layer


def build_when_called(layer: keras.layers.Layer) -> None:
    """Lets the first call create the variables of a layer that is made of layers.

    Keras builds a layer that has no `build` by tracing its call twice, and each layer inside it
    again. The first call runs through all layers anyway, and takes half of the time.
    """
    for _, inner in named_layers(layer):
        if type(inner).build is keras.layers.Layer.build:
            inner.built = True


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
    """Returns whether a variable is the state of a random generator and not a weight."""
    return variable.name == "seed_generator_state"
