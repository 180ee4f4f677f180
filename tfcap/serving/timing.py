"""Measures how long batches take, and chooses the batch sizes of a server.

Letters: B pictures of a batch.
"""

import dataclasses
import os
import time
from collections.abc import Callable, Sequence

SIZES = (1, 2, 4, 8, 16, 32)
_REPEATS = 3
_ENOUGH = 0.9  # of the highest throughput
_SLOW = 5.0  # seconds of a batch after which no larger one is measured
_QUEUED = 10.0  # seconds of work that may wait


@dataclasses.dataclass(frozen=True)
class Batching:
    """How a server makes batches.

    Attributes:
      seconds: the shortest time of a batch of each measured size.
      sizes: the sizes that are served, in rising order.
      timeout: seconds that the first request of a batch waits for others.
      threads: how many batches are computed at once.
      queue: how many batches may wait; further requests are refused.
    """

    seconds: dict[int, float]
    sizes: tuple[int, ...]
    timeout: float
    threads: int
    queue: int

    @property
    def largest(self) -> int:
        """The largest batch."""
        return self.sizes[-1]


def measure(call: Callable[[int], object], sizes: Sequence[int] = SIZES) -> dict[int, float]:
    """Measures batches of rising sizes; it ends after a batch that takes more than 5 seconds.

    Args:
      call: computes a batch of a size.
      sizes: the sizes.

    Returns:
      Size -> seconds of the fastest of three calls, because other work on the machine disturbs
      the fastest call least. A call before the three is not counted.
    """
    seconds: dict[int, float] = {}
    for size in sizes:
        call(size)
        times = []
        for _ in range(_REPEATS):
            begin = time.perf_counter()
            call(size)
            times.append(time.perf_counter() - begin)
        seconds[size] = min(times)
        if seconds[size] > _SLOW:
            break
    return seconds


def choose(seconds: dict[int, float], cores: int | None = None) -> Batching:
    """Chooses the largest batch: the smallest one with 90 % of the highest measured throughput.

    A larger batch would make each request wait longer and answer hardly more of them. A request
    waits for others at most a tenth of the time that it takes alone, but at least 1 and at most 20
    milliseconds. The queue holds what the measured machine answers in ten seconds.

    Args:
      seconds: of a batch by its size, see `measure`.
      cores: how many processor cores the server has; None takes those of this machine.
    """
    best = max(size / taken for size, taken in seconds.items())
    largest = min(size for size, taken in seconds.items() if size / taken >= _ENOUGH * best)
    cores = cores or os.cpu_count() or 1
    return Batching(
        seconds=seconds,
        sizes=tuple(size for size in sorted(seconds) if size <= largest),
        timeout=min(max(seconds[min(seconds)] / 10, 0.001), 0.02),
        threads=cores,
        queue=max(2 * cores, round(_QUEUED / seconds[largest])),
    )
