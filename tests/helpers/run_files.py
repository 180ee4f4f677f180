"""What a run directory and its checkpoints hold."""

import pathlib

import tensorflow as tf

EXPERIMENT = "attention_lstm"
OTHER_WORDS = ["zebra", "red", "quasar", "circle", "a"]  # in another order, two of them new


def contents(folder):
    """Content of everything in a directory."""
    paths = (path for path in pathlib.Path(folder).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def weights(model):
    """The weights of a model, by name."""
    return {n: v.numpy() for n, v in model.checkpoint_items["weights"].items()}


def stored_weights(checkpoint):
    """The weights in a checkpoint, by name."""
    reader = tf.train.load_checkpoint(checkpoint)
    result = {}
    for key in reader.get_variable_to_shape_map():
        if key.startswith("weights/") and key.endswith("/.ATTRIBUTES/VARIABLE_VALUE"):
            name = key.removeprefix("weights/").removesuffix("/.ATTRIBUTES/VARIABLE_VALUE")
            result[name.replace(".S", "/")] = reader.get_tensor(key)
    return result
