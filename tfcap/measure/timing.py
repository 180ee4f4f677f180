"""Times functions on a machine that other processes may use too.

If the threads of this process often waited for a processor during a repetition, its time includes
the work of other processes. Linux counts the waiting time; such repetitions are dropped.
"""

import glob
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfcap import cli

# A repetition is dropped if the share of time that its threads waited exceeds the smallest share of
# all repetitions by more than this. The smallest share need not be 0: the threads of one process
# wait for each other too.
CONTENDED = 0.1
LEAST = 3  # nothing is dropped if fewer repetitions would remain


def limit_threads(threads: int) -> None:
    """Limits TensorFlow to this many threads; TensorFlow must not have started yet.

    Raises:
      UsageError: TensorFlow has started in this process.
    """
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError as error:
        raise cli.UsageError(
            "--threads must be set before TensorFlow starts. Received: "
            f"{threads}, in a process that computes already. Use a new process."
        ) from error


class Repetition(NamedTuple):
    """One call of a function."""

    seconds: float
    waiting: float | None  # share of runnable time that the threads waited; None: not known


class Times(NamedTuple):
    """Times of the calls of one function."""

    first: float  # seconds of the first call, compilation included
    kept: list[Repetition]
    dropped: int

    @property
    def median(self) -> float:
        """The median of the kept repetitions in seconds."""
        return statistics.median(r.seconds for r in self.kept)

    @property
    def least(self) -> float:
        """The seconds of the fastest kept repetition."""
        return min(r.seconds for r in self.kept)

    def speed_beside(self, other: "Times") -> float:
        """Returns how many times as fast as `other` this is, by the fastest repetitions."""
        return other.least / self.least

    def as_dict(self) -> dict[str, Any]:
        """Returns the statistics for a line of JSON."""
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
    """Times functions: two calls of each for warm-up, then `repeats` calls of each.

    The timed calls alternate between the functions, so that a slower machine slows all of them.
    Repetitions whose threads waited are dropped, see `CONTENDED`.
    """
    first: dict[str, float] = {}
    repetitions: dict[str, list[Repetition]] = {name: [] for name in functions}
    for name, function in functions.items():
        first[name] = _call(function).seconds
        _call(function)
    for _ in range(repeats):
        for name, function in functions.items():
            repetitions[name].append(_call(function))
    return {name: _choose(first[name], repetitions[name]) for name in functions}


def _call(function):
    """Calls a function, waits for its results on all devices, and returns the `Repetition`."""
    before, start = _scheduled(), time.perf_counter()
    function()
    tf.test.experimental.sync_devices()
    seconds, after = time.perf_counter() - start, _scheduled()
    if before is None or after is None:
        return Repetition(seconds, None)
    # The counts of a thread that ended during the call are gone.
    common = before.keys() & after.keys()
    ran, waited = (sum(after[task][i] - before[task][i] for task in common) for i in (0, 1))
    return Repetition(seconds, waited / (ran + waited) if ran + waited else 0.0)


def _choose(first, repetitions):
    """Drops the repetitions whose threads waited too long."""
    limit = CONTENDED + min((r.waiting for r in repetitions if r.waiting is not None), default=0.0)
    quiet = [r for r in repetitions if r.waiting is None or r.waiting <= limit]
    kept = quiet if len(quiet) >= LEAST else repetitions
    return Times(first, kept, len(repetitions) - len(kept))


def _scheduled() -> dict[str, tuple[int, int]] | None:
    """Reads for each thread the nanoseconds it ran and waited for a processor; Linux only."""
    by_thread = {}
    for path in glob.glob("/proc/self/task/*/schedstat"):
        try:
            with open(path, encoding="ascii") as file:
                ran, waited, _ = map(int, file.read().split())
        except (OSError, ValueError):  # the thread has just ended
            continue
        by_thread[path] = (ran, waited)
    return by_thread or None


def matrix_peak(dtype: str, size: int = 0) -> float:
    """Measures the operations per second of a square matrix product; `size` 0 chooses a size."""
    size = size or (8192 if tf.config.list_physical_devices("GPU") else 2048)
    return 2 * size**3 / timed({"": _square_product(dtype, size)}, 3)[""].median


def relative_peak(dtype: str, other: str, size: int) -> float:
    """Measures the speed of a square matrix product in `dtype`, as a multiple of that in `other`.

    The calls alternate, and the fastest ones count, so that other programs hardly change the ratio.
    """
    times = timed({name: _square_product(name, size) for name in (dtype, other)}, 7)
    return times[dtype].speed_beside(times[other])


def _square_product(dtype, size):
    matrix = tf.cast(tf.random.stateless_normal((size, size), tf.constant([1, 2])), dtype)
    return tf.function(lambda: tf.matmul(matrix, matrix), autograph=False)


def peak_memory() -> tuple[int, int | None]:
    """Returns the peak memory of this process and of the GPU, in bytes; None without a GPU."""
    gpu = None
    if tf.config.list_physical_devices("GPU"):
        gpu = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    return _process_peak(), gpu


def _process_peak() -> int:
    """Returns the peak of the memory of this process, in bytes.

    `getrusage` also counts the program that started this one, if that was larger, since the number
    survives fork and exec. Linux counts anew for each program in /proc.
    """
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            (line,) = [line for line in file if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory() -> dict[str, float | None]:
    """Returns `peak_memory` in GiB for a line of JSON; TensorFlow itself needs about 0.7 GiB."""
    process, gpu = peak_memory()
    return {
        "peak_memory_gib": round(process / 2**30, 3),
        "gpu_peak_memory_gib": None if gpu is None else round(gpu / 2**30, 3),
    }


def _rounded(seconds: float) -> float:
    """Rounds to four significant digits, because times range from microseconds to minutes."""
    return float(f"{seconds:.4g}")
