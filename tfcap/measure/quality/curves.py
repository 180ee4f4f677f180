"""Reads the scores of validations over the steps of a run, and draws them."""

import contextlib
import csv
import glob
import itertools
import os
from collections.abc import Iterator, Mapping

import tensorflow as tf
from tensorflow.core.util import event_pb2

from tfcap.files import replacing


def scalars(folder: str) -> dict[str, dict[int, float]]:
    """Reads the event files in `folder`: values by tag and step.

    A step that ran twice has the value that was written last. The times of the events decide,
    because the names of files of the same second are not in the order of time.

    Raises:
      ValueError: there are no event files.
    """
    paths = sorted(glob.glob(os.path.join(glob.escape(folder), "events.*")))
    if not paths:
        raise ValueError(
            f"A run must have event files. Received: {folder}. Give a --model_dir of training."
        )
    written = []
    for event in itertools.chain.from_iterable(map(_events, paths)):
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "scalars":
                number = float(tf.make_ndarray(value.tensor))
                name = value.tag.rpartition("/")[2]  # earlier versions wrote no group
                written.append((event.wall_time, name, event.step, number))
    values: dict[str, dict[int, float]] = {}
    for _, name, step, number in sorted(written):
        values.setdefault(name, {})[step] = number
    return values


def _events(path: str) -> Iterator[event_pb2.Event]:
    """Yields the events of a file; the end of a killed run may be damaged."""
    with contextlib.suppress(tf.errors.DataLossError):
        for raw in tf.data.TFRecordDataset(path).as_numpy_iterator():
            yield event_pb2.Event.FromString(raw)


def write(folder: str, curves: Mapping[str, Mapping[int, float]]) -> None:
    """Writes `curves.csv` and `curves.png`.

    Args:
      folder: where the files go.
      curves: name of a run -> step -> CIDEr of the half of `val` that chooses.
    """
    from matplotlib import figure

    with replacing(os.path.join(folder, "curves.csv")) as temporary:
        with open(temporary, "w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(("run", "step", "CIDEr"))
            rows.writerows(
                (name, step, f"{value:.2f}")
                for name, curve in curves.items()
                for step, value in sorted(curve.items())
            )
    picture = figure.Figure(figsize=(9, 6), layout="constrained")
    panel = picture.add_subplot(xlabel="training step", ylabel="CIDEr")
    for place, (name, curve) in enumerate(curves.items()):
        steps = sorted(curve)
        style = ("-", "--", ":")[place // 10 % 3]
        panel.plot(steps, [curve[step] for step in steps], style, marker=".", label=name)
    if curves:
        picture.legend(loc="outside right upper", fontsize="small")
    with replacing(os.path.join(folder, "curves.png")) as temporary:
        picture.savefig(temporary, dpi=100, format="png")
