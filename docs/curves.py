"""Draws curves of training runs, from their TensorBoard event files.

python docs/curves.py --out=curves.png "healthy=runs/xlan_scst" "rate=runs/xlan_rate,runs/xlan_scst"

draws self-critical runs side by side. Each NAME=MODEL_DIR is a column; a second directory after a
comma is drawn in grey. Each quantity is a row, with the same limits in all columns.

python docs/curves.py --out=scores.png --tag=CIDEr --tag=loss "with=runs/a" "without=runs/b"

draws validation scores of any runs, a panel for each tag and a line for each run. Needs a checkout
of the repository; matplotlib comes with tf-models-official.
"""

import argparse
import contextlib
import glob
import itertools
import os
from collections.abc import Iterator

import matplotlib
import tensorflow as tf
from tensorflow.core.util import event_pb2

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

# Folder inside the run, label of the axis with its unit, tags of the summaries.
ROWS = (
    ("train", "CIDEr-D\n(0 to 10)", ("reward", "baseline")),
    ("train", "advantage\nspread\n(CIDEr-D)", ("advantage_spread",)),
    ("train", "entropy\n(nats per word)", ("entropy",)),
    ("train", "length\n(words)", ("length",)),
    ("train", "distinct\nsamples (%)", ("distinct_samples",)),
    ("train", "function word\nendings (%)", ("function_word_endings",)),
    ("validation", "greedy_CIDEr-D\nof validation\n(points)", ("greedy_CIDEr-D",)),
)
# With the baseline `others` both means are equal, so that the second line lies on the first.
STYLES = (dict(color="C0", lw=1.6), dict(color="C1", lw=1.6, ls=(0, (2, 2))))
GREY = dict(color="0.65", lw=1.2)  # the run to compare with


def scalars(folder: str) -> dict[str, dict[int, float]]:
    """Reads the event files in `folder`: values by tag and step.

    A step that ran twice has the value that was written last. The times of the events decide,
    because the names of files of the same second are not in the order of time.
    """
    paths = sorted(glob.glob(os.path.join(glob.escape(folder), "events.*")))
    if not paths:
        raise ValueError(f"{folder} has no event files. Give directories of training runs.")
    written = []
    for event in itertools.chain.from_iterable(map(_events, paths)):
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "scalars":
                number = float(tf.make_ndarray(value.tensor))
                name = value.tag.rpartition("/")[2]
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


def draw(columns: list[tuple[str, list[str]]], out: str) -> None:
    """Writes the figure to `out`, with a column for each title and its one or two runs."""
    size = (2.0 + 2.1 * len(columns), 1.3 * len(ROWS))
    figure, axes = plt.subplots(
        len(ROWS), len(columns), figsize=size, sharex="col", sharey="row", squeeze=False
    )
    for column, (title, runs) in zip(axes.T, columns, strict=True):
        column[0].set_title(title, fontsize=10)
        column[-1].set_xlabel("step", fontsize=9)
        for run in reversed(runs):
            last = _draw_run(column, run, grey=run is not runs[0])
        column[0].set_xlim(-0.03 * last, 1.03 * last)
        for axis in column:
            axis.grid(alpha=0.3)
            axis.tick_params(labelsize=8)
    for axis, (_, label, tags) in zip(axes[:, 0], ROWS, strict=True):
        axis.set_ylabel(label, fontsize=9)
        if len(tags) > 1:
            axis.legend(axis.lines[-len(tags) :], tags, fontsize=8, loc="lower right")
    figure.align_ylabels()
    figure.tight_layout(h_pad=0.4, w_pad=0.6)
    figure.savefig(out, dpi=110)


def _draw_run(column, run, grey):
    """Draws the curves of one run and returns its last step."""
    values = {name: scalars(os.path.join(run, name)) for name in ("train", "validation")}
    if "reward" not in values["train"]:
        raise ValueError(f"A run must be self-critical training. Received: {run}, without reward.")
    for axis, (folder, _, tags) in zip(column, ROWS, strict=True):
        for tag, style in zip(tags[:1] if grey else tags, STYLES, strict=False):
            points = sorted(values[folder].get(tag, {}).items())
            marker = "o" if folder == "validation" else ""
            axis.plot(*zip(*points, strict=True), marker=marker, ms=3, **(GREY if grey else style))
    return max(values["train"]["reward"])


def compare(runs: list[tuple[str, str]], tags: list[str], out: str) -> None:
    """Writes a figure with a panel for each tag of validation and a line for each (name, run)."""
    size = (1.2 + 4.2 * len(tags), 3.4)
    figure, axes = plt.subplots(1, len(tags), figsize=size, squeeze=False)
    for name, run in runs:
        values = scalars(os.path.join(run, "validation"))
        for axis, tag in zip(axes[0], tags, strict=True):
            if tag not in values:
                known = ", ".join(sorted(values))
                raise ValueError(f"--tag must be one of {known} for {run}. Received: {tag}.")
            points = sorted(values[tag].items())
            axis.plot(*zip(*points, strict=True), marker="o", ms=3, lw=1.6, label=name)
    for axis, tag in zip(axes[0], tags, strict=True):
        axis.set_xlabel("step", fontsize=9)
        axis.set_ylabel(f"{tag} of validation", fontsize=9)
        axis.grid(alpha=0.3)
        axis.tick_params(labelsize=8)
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(out, dpi=110)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="NAME=MODEL_DIR[,GREY]")
    parser.add_argument("--out", default="curves.png", help="PNG file to write.")
    parser.add_argument("--tag", action="append", help="Score of validation; can be repeated.")
    given = parser.parse_args()
    columns = [text.rpartition("=")[::2] for text in given.runs]
    if not all(name and runs for name, runs in columns):
        parser.error(f"Runs must have the form NAME=MODEL_DIR. Received: {' '.join(given.runs)}")
    try:
        if given.tag:
            compare(columns, given.tag, given.out)
        else:
            columns = [(name.replace("\\n", "\n"), runs.split(",")) for name, runs in columns]
            draw(columns, given.out)
    except ValueError as error:
        parser.error(str(error))
    print(given.out)


if __name__ == "__main__":
    main()
