"""Times functions on a machine that others may use too.

A repetition during which the threads of this process often had to wait for a processor measures
the others' work as well. Linux counts that waiting; such repetitions are dropped.
"""

import glob
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

# A repetition is dropped if its threads waited for more than this share of their time beyond the
# quietest one's share (threads of one process wait for each other too),
CONTENDED = 0.1
LEAST = 3  # if at least so many remain.


class Repetition(NamedTuple):
    """One call."""

    seconds: float
    waiting: float | None  # share of the threads' runnable time that they waited; None: not known


class Times(NamedTuple):
    """Calls of one function."""

    first: float  # seconds of the first call, with whatever it compiles
    kept: list[Repetition]
    dropped: int

    @property
    def median(self) -> float:
        """Seconds."""
        return statistics.median(r.seconds for r in self.kept)

    def as_dict(self) -> dict[str, Any]:
        """For a line of JSON."""
        seconds = [r.seconds for r in self.kept]
        least, lower, median, upper, most = np.percentile(seconds, (0, 25, 50, 75, 100))
        waiting = [r.waiting for r in self.kept if r.waiting is not None]
        return {
            "first": _rounded(self.first),
            "median": _rounded(median),
            "min": _rounded(least),
            "lower_quartile": _rounded(lower),
            "upper_quartile": _rounded(upper),
            "max": _rounded(most),
            "repetitions": len(seconds),
            "dropped": self.dropped,
            "waiting": round(max(waiting), 3) if waiting else None,
        }


def timed(functions: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, Times]:
    """Calls every function once and once more to warm up, then all in turn `repeats` times.

    In turn, so that a machine that slows down slows all of them down. Repetitions whose threads
    waited are dropped, see `CONTENDED`.
    """
    first, found = {}, {name: [] for name in functions}
    for name, function in functions.items():
        first[name] = _call(function).seconds
        _call(function)
    for _ in range(repeats):
        for name, function in functions.items():
            found[name].append(_call(function))
    return {name: _choose(first[name], found[name]) for name in functions}


def _call(function):
    before, start = _scheduled(), time.perf_counter()
    function()
    tf.test.experimental.sync_devices()
    seconds, after = time.perf_counter() - start, _scheduled()
    if before is None or after is None:
        return Repetition(seconds, None)
    # A thread that ended meanwhile took its counts along.
    common = before.keys() & after.keys()
    ran, waited = (sum(after[task][i] - before[task][i] for task in common) for i in (0, 1))
    return Repetition(seconds, waited / (ran + waited) if ran + waited else 0.0)


def _choose(first, repetitions):
    limit = CONTENDED + min((r.waiting for r in repetitions if r.waiting is not None), default=0.0)
    quiet = [r for r in repetitions if r.waiting is None or r.waiting <= limit]
    kept = quiet if len(quiet) >= LEAST else repetitions
    return Times(first, kept, len(repetitions) - len(kept))


def _scheduled() -> dict[str, tuple[int, int]] | None:
    """Nanoseconds that each thread ran, and waited though it could have run; None but on Linux."""
    found = {}
    for path in glob.glob("/proc/self/task/*/schedstat"):
        try:
            with open(path, encoding="ascii") as file:
                ran, waited, _ = map(int, file.read().split())
        except (OSError, ValueError):  # ended just now
            continue
        found[path] = (ran, waited)
    return found or None


def matrix_peak(dtype: str, size: int = 0) -> float:
    """Operations per second of a square matrix product, median of three; size 0 chooses one."""
    size = size or (8192 if tf.config.list_physical_devices("GPU") else 2048)
    seed = tf.constant([1, 2])
    matrix = tf.cast(tf.random.stateless_normal((size, size), seed), dtype)
    product = tf.function(lambda: tf.matmul(matrix, matrix), autograph=False)
    return 2 * size**3 / timed({"": product}, 3)[""].median


def peak_memory() -> tuple[int, int | None]:
    """Bytes: the most that this process has taken, and the most that tensors took on the GPU."""
    gpu = None
    if tf.config.list_physical_devices("GPU"):
        gpu = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, gpu


def memory() -> dict[str, float | None]:
    """`peak_memory` in gibibytes, for a line of JSON; TensorFlow itself takes about 0.7 of them."""
    process, gpu = peak_memory()
    return {
        "peak_memory_gib": round(process / 2**30, 3),
        "gpu_peak_memory_gib": None if gpu is None else round(gpu / 2**30, 3),
    }


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.4g}")  # microseconds and minutes alike
