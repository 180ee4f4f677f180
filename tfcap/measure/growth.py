"""Measures how the cost of training, beam search and retrieval grows with the size of the work.

One size (axis) changes at a time; the other sizes are those of the flags. A point is skipped, with
the reason, if its operations would take longer than the limit at the rate measured before, or if a
training step needs more memory than the machine has free.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tfcap import cli, configs
from tfcap.files import replacing
from tfcap.health.machine import available_memory
from tfcap.measure import AXES, operations, timing, workloads
from tfcap.training.memory import PROCESS

NAMES = {
    "xe": "training step",
    "beam": "beam search",
    "retrieval": "retrieval of all pairs",
}
TRAINED = ("xe", "beam")
DONE = {"beam": ("beam",), "sentences": ("retrieval",), "images": (*TRAINED, "retrieval")}
WORDS = {"images": "images of a batch", "length": "longest caption", "beam": "beams"}
COLUMNS = 3  # panels in a row of the picture
FIRST_RATE = 20e9  # operations per second assumed before the first measurement


class Options(NamedTuple):
    """Options of `measure`."""

    paper_size: bool  # use the sizes of the papers, not the small ones of the experiments
    repeats: int  # timed calls after the warm-up
    limit: float  # longest call in seconds
    points: Sequence[int]  # replace the points of AXES, unless empty


def measure(
    params: configs.Experiment,
    systems: Sequence[str],
    axes: Sequence[str],
    sizes: workloads.Sizes,
    options: Options,
) -> Iterator[dict[str, Any]]:
    """Measures every point.

    Yields:
      A dictionary with `system`, `axis`, `value`, `what` and `gflop`, and either `seconds` or
      `skipped`, the reason.

    Raises:
      cli.UsageError: if an axis or a system does not exist.
    """
    for flag, given, known in (("grow", axes, AXES), ("systems", systems, configs.SYSTEMS)):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise cli.UsageError(
                f"--{flag} must be among {', '.join(known)}. Received: {unknown[0]!r}"
            )
    for system in systems:
        rates = dict.fromkeys(NAMES, FIRST_RATE)
        for axis in axes:
            for value in options.points or AXES[axis]:
                for what in DONE.get(axis, TRAINED):
                    point = {"system": system, "axis": axis, "value": value, "what": what}
                    changed, its_sizes = _changed(params, system, sizes, axis, value, options)
                    yield point | _measure(what, changed, its_sizes, rates, options)


def _changed(params, system, sizes, axis, value, options):
    """Returns the configuration and the sizes of a point."""
    if options.paper_size:
        model = configs.Model(type=system)
    else:
        model = configs.resolve(system).task.model
    task = {"model": model.as_dict()}
    if axis == "length":
        task["max_length"] = value
        return params.replace(task=task), sizes
    return params.replace(task=task), sizes._replace(**{axis: value})


def _measure(what, params, sizes, rates, options):
    """Measures the seconds and operations of a point, or gives the reason to skip it."""
    work = workloads.build(what, params, sizes, stages=False)
    ((_, function),) = work.prefixes.items()
    flops = operations.flops(function).flops
    expected = flops / rates[what]
    if expected > options.limit:
        return {"gflop": _short(flops / 1e9), "skipped": f"about {_short(expected)} s"}
    needed = work.memory.total + PROCESS if work.memory else 0
    free = available_memory()
    if free is not None and needed > free:
        return {"gflop": _short(flops / 1e9), "skipped": f"{_short(needed / 2**30)} GiB of memory"}
    times = timing.timed({what: function}, options.repeats)[what]
    rates[what] = flops / times.median
    return {
        "gflop": _short(flops / 1e9),
        "seconds": times.as_dict(),
        "captions_per_second": _short(work.captions / times.median),
        **(
            {"seconds_per_pair": _short(times.median / work.captions)}
            if what == "retrieval"
            else {}
        ),
    }


def _short(number: float) -> float:
    """Rounds to four significant digits."""
    return float(f"{number:.4g}")


def table(points: Sequence[dict[str, Any]]) -> str:
    """Writes the points as Markdown: a table for each axis and work, with a row for each size."""
    systems = list(dict.fromkeys(point["system"] for point in points))
    parts = []
    for axis, what in dict.fromkeys((point["axis"], point["what"]) for point in points):
        of_kind = [p for p in points if (p["axis"], p["what"]) == (axis, what)]
        head = f"{WORDS.get(axis, axis)} | {' | '.join(systems)}"
        rows = [f"| {head} |", f"|{'---|' * (len(systems) + 1)}"]
        for value in dict.fromkeys(point["value"] for point in of_kind):
            by_system = {p["system"]: _cell(p) for p in of_kind if p["value"] == value}
            cells = [by_system.get(system, "") for system in systems]
            rows.append(f"| {value} | {' | '.join(cells)} |")
        parts.append(f"Seconds of a {NAMES[what]} (GFLOP):\n\n" + "\n".join(rows))
    return "\n\n".join(parts)


def _cell(point):
    """Writes the cell of a point in a table."""
    if "skipped" in point:
        return f"not run: {point['skipped']}"
    cell = f"{point['seconds']['median']:.3g} ({point['gflop']:.3g})"
    each = point.get("seconds_per_pair")
    return cell if each is None else f"{cell}, {1e6 * each:.3g} µs a pair"


def kept(points: Iterable[dict[str, Any]], folder: str) -> Iterator[dict[str, Any]]:
    """Yields the points, and writes growth.md and growth.png into `folder`.

    The table is written after every point, so that it holds what is measured wherever the work is
    killed. The plot takes longer: it is drawn at the end, or where an error or Ctrl-C ends the
    work. Each file is written completely or not at all.
    """
    os.makedirs(folder, exist_ok=True)
    done: list[dict[str, Any]] = []
    try:
        for point in points:
            done.append(point)
            with replacing(os.path.join(folder, "growth.md")) as temporary:
                _save_text(temporary, table(done))
            yield point
    finally:
        if done:
            with replacing(os.path.join(folder, "growth.png")) as temporary:
                _save_plot(temporary, done)


def _save_text(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text + "\n")


def _save_plot(path, points):
    """Draws a panel for each axis and work, with logarithmic scales and a line for each system.

    The legend stands in the place after the last panel, or below all panels, so that it covers no
    line.
    """
    from matplotlib import figure  # imported here, because it is slow to load

    kinds = list(dict.fromkeys((point["axis"], point["what"]) for point in points))
    kinds.sort(key=lambda kind: list(NAMES).index(kind[1]))
    systems = list(dict.fromkeys(point["system"] for point in points))
    columns = min(COLUMNS, len(kinds))
    lines = -(-len(kinds) // columns)
    drawing = figure.Figure((3.4 * columns, 3.1 * lines), layout="constrained")
    panels = list(drawing.subplots(lines, columns, squeeze=False).flat)
    for panel, kind in zip(panels, kinds, strict=False):
        _draw_panel(panel, [p for p in points if (p["axis"], p["what"]) == kind], systems)
    handles = [panels[0].plot([], [], f"C{place}o-")[0] for place in range(len(systems))]
    free = panels[len(kinds) :]
    for panel in free:
        panel.set_axis_off()
    if free:
        free[0].legend(handles, systems, loc="center", fontsize=12)
    else:
        drawing.legend(handles, systems, loc="outside lower center", ncols=len(systems))
    drawing.savefig(path, format="png", dpi=120)


def _draw_panel(panel, points, systems):
    """Draws the lines of one axis and work; the label gives the reason for missing points."""
    axis, what = points[0]["axis"], points[0]["what"]
    label = WORDS.get(axis, axis)
    for place, system in enumerate(systems):  # a system has the same colour in all panels
        own = [p for p in points if p["system"] == system]
        line = [(p["value"], p["seconds"]["median"]) for p in own if "seconds" in p]
        if line:
            panel.plot(*zip(*line, strict=True), f"C{place}o-")
        for skipped in [p for p in own if "skipped" in p][:1]:
            label += f"\n{system} at {skipped['value']} not run:\n{skipped['skipped']}"
    panel.set(xscale="log", yscale="log", xlabel=label, title=NAMES[what])
    values = sorted({p["value"] for p in points})
    panel.set_xticks(values, map(str, values))
    panel.set_xticks([], minor=True)
    panel.set_ylabel("seconds")
    panel.grid(True, which="both", alpha=0.3)
