"""What the tests of training share: nested overrides, TensorBoard files and checkpoints as data."""

import copy
import glob
import json
import os

import numpy as np
import tensorflow as tf
from tensorflow.core.util import event_pb2

from tfcap import configs
from tfcap.training.stages import train


def merged(base, extra):
    """`base` with the nested dictionary `extra` laid over it."""
    result = copy.deepcopy(base)
    for key, value in extra.items():
        inner = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if inner else value
    return result


def run(overrides, folder, mode="train_and_eval", experiment="attention_lstm"):
    """Trains in this process and returns the task."""
    params = configs.resolve(experiment, override=json.dumps(overrides))
    return train(params, experiment, str(folder), mode)


def files(folder):
    """The event files below `folder` from oldest to newest, each a list of (step, tag, value)."""
    result = []
    for path in glob.glob(os.path.join(folder, "events.*")):
        rows, times = [], []
        for raw in tf.data.TFRecordDataset(path).as_numpy_iterator():
            event = event_pb2.Event.FromString(raw)
            times.append(event.wall_time)
            rows += [(event.step, v.tag, tf.make_ndarray(v.tensor)) for v in event.summary.value]
        result.append((min(times, default=0.0), rows))
    return [rows for _, rows in sorted(result, key=lambda file: file[0])]


def curve(folder, tag="loss"):
    """The scalars of a tag by step, in any group; a step that was run twice keeps the last one."""
    rows = [row for file in files(folder) for row in file]
    return {step: float(v) for step, name, v in rows if name.rpartition("/")[2] == tag}


def tensors(checkpoint):
    """Every array of a checkpoint by its key."""
    reader = tf.train.load_checkpoint(str(checkpoint))
    names = [n for n in reader.get_variable_to_shape_map() if n != "_CHECKPOINTABLE_OBJECT_GRAPH"]
    return {name: np.asarray(reader.get_tensor(name)) for name in names}
