"""The fingerprint of the data that a run was trained on, and whether other data fits the run.

The fingerprint is the content of dataset.json, the file that describes prepared data: its
vocabulary, its features and the network that made them. A run has a copy of this file.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

from tfcap import configs, segmentation
from tfcap.data.prepared import FINGERPRINT, VOCABULARY
from tfcap.files import read_json
from tfcap.runs.build import width_of

# What must agree in the fingerprints of a run and of the data that it reads.
_CUT = "way of cutting captions into words"
_SAME: dict[str, Callable[[Mapping[str, Any], configs.Task], Any]] = {
    "vocabulary": lambda fingerprint, task: fingerprint["vocab_sha256"][:12],
    _CUT: lambda fingerprint, task: _way_of(fingerprint),
    "feature width": lambda fingerprint, task: width_of(task, fingerprint["features"]),
    "widths of feature sets": lambda fingerprint, task: _set_widths(fingerprint),
    "backbone": lambda fingerprint, task: source_of_features(fingerprint),
    "number of frames": lambda fingerprint, task: fingerprint.get("frames") or "none",
}


def read_fingerprint(directory: str) -> dict[str, Any]:
    """Returns the content of the dataset.json of a run.

    It describes the data that the run was trained on: its vocabulary, its splits, its features and
    the network that made the features.

    Args:
      directory: directory of the run.
    """
    return read_json(os.path.join(directory, FINGERPRINT), "Give the directory of a training run.")


def check_data(
    fingerprint: Mapping[str, Any],
    data_dir: str,
    *,
    of_run: Mapping[str, Any],
    directory: str,
    task: configs.Task,
) -> None:
    """Raises ValueError if data does not fit a run.

    Data fits if it has the vocabulary, the way of cutting captions into words, the widths of
    features, the backbone and the number of frames of the data that the run was trained on.

    Args:
      fingerprint: the content of the data's dataset.json.
      data_dir: directory of the data, for the error.
      of_run: the content of the run's dataset.json.
      directory: directory of the run, for the error.
      task: configuration of the run.
    """
    for name, value_in in _SAME.items():
        received = value_in(fingerprint, task)
        expected = value_in(of_run, task)
        if received == expected:
            continue
        remedy = f"Use the data that {directory} was trained on"
        if name == "vocabulary":
            words = os.path.join(directory, VOCABULARY)
            remedy += ", or prepare the data again with the words of the run: "
            remedy += f"`vocab={words}` of tfcap.prepare"
        elif name == _CUT:
            remedy += f", or prepare the data again with `tokens={expected}` of tfcap.prepare"
        raise ValueError(
            f"{data_dir} has another {name} ({received}) than {directory} ({expected}). {remedy}."
        )


def _set_widths(fingerprint: Mapping[str, Any]) -> str:
    return " ".join(map(str, fingerprint["features"].get("set_widths", ()))) or "one set"


def _way_of(fingerprint: Mapping[str, Any]) -> str:
    """Returns how the captions of data are cut; `given` and `raw` are read in the same way."""
    way = fingerprint.get("tokens", segmentation.RAW)
    return way if segmentation.is_cut(way) else segmentation.RAW


def with_any_weights(fingerprint: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a fingerprint without the SHA-256 of the backbone's weights.

    With two such fingerprints, `check_data` accepts features that the same network made with other
    weights. The result is `fingerprint` itself if the data has clips, or if its features were read
    from files.

    Args:
      fingerprint: the content of dataset.json, which describes prepared data.
    """
    made_by = fingerprint["backbone"]
    if made_by is None or fingerprint.get("frames"):
        return fingerprint
    return {**fingerprint, "backbone": {**made_by, "weights_sha256": None}}


def source_of_features(fingerprint: Mapping[str, Any]) -> str:
    """Describes in words the network that made the features of data.

    The text has the name of the network, the regions, the size of the pictures, and the beginning
    of the SHA-256 of the weights. An example is "efficientnet_lite2, grid 7 of 224 pixels, weights
    6d3f...". For features that were read from files the text is "ready features".

    Args:
      fingerprint: the content of dataset.json, which describes the data.
    """
    made_by = fingerprint["backbone"]
    if made_by is None:
        return "ready features"
    weights = (made_by["weights_sha256"] or "none")[:12]
    size = f"grid {made_by['grid']} of" if made_by["grid"] else "regions,"
    size += f" {made_by['image_size']} pixels"
    size += ", 10 crops" if made_by.get("crops", 1) > 1 else ""
    size += ", one vector" if made_by.get("vector") else ""
    size += f", scaled as in {made_by['scaling']}" if made_by.get("scaling") else ""
    return f"{made_by['name']}, {size}, weights {weights}"
