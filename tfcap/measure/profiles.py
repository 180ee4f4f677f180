"""Profiles a compiled function: the seconds of each type of operation."""

import collections
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

_WAITING = ("KernelAndDeviceFunc::Run", "EagerKernelExecute", "FunctionRun")  # for other threads


def costliest(function: Callable[[], Any], number: int) -> list[dict[str, Any]]:
    """Calls a function once under TensorFlow's profiler, and finds its costliest operations.

    Call the function once before, because the first call also traces it.

    Args:
      function: returns tensors of a compiled function.
      number: number of types of operations to return.

    Returns:
      For each type, the longest time first: `type` of operation, `calls`, `seconds` summed over the
      threads of the host, and `share` of the seconds of all operations.
    """
    from tensorflow.tsl.profiler.protobuf import (
        xplane_pb2,
    )  # takes a moment, and only this needs it

    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            tf.nest.map_structure(lambda tensor: tensor.numpy(), function())
        (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
        trace = xplane_pb2.XSpace.FromString(path.read_bytes())
    picoseconds: collections.Counter[str] = collections.Counter()
    calls: collections.Counter[str] = collections.Counter()
    for plane in trace.planes:
        if plane.name != "/host:CPU":
            continue
        for line in plane.lines:
            events = (
                (e.offset_ps, e.duration_ps, plane.event_metadata[e.metadata_id].name)
                for e in line.events
            )
            for name, duration in own_times(events):
                kind = re.sub(r"^_Mkl(Native)?", "", name.rsplit(":", 1)[-1])
                if name not in _WAITING:
                    picoseconds[kind] += duration
                    calls[kind] += 1
    total = picoseconds.total()
    return [
        {
            "type": kind,
            "calls": calls[kind],
            "seconds": float(f"{duration / 1e12:.4g}"),
            "share": round(duration / total, 4),
        }
        for kind, duration in picoseconds.most_common(number)
    ]


def own_times(events: Iterable[tuple[int, int, str]]) -> Iterable[tuple[str, int]]:
    """Computes the time of each event of a thread, without the time of the events inside it.

    Args:
      events: start, duration and name of each.

    Yields:
      Name and time, in the unit of the events.
    """
    open_events: list[list] = []  # end, own time, name; each one inside the one before
    for start, duration, name in sorted(events, key=lambda event: (event[0], -event[1])):
        while open_events and open_events[-1][0] <= start:
            _, own, ended = open_events.pop()
            yield ended, own
        if open_events:
            open_events[-1][1] -= duration
        open_events.append([start + duration, duration, name])
    while open_events:
        _, own, ended = open_events.pop()
        yield ended, own
