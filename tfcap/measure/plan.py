"""Forecasts size, hours and cost of preparing and training from rates that were measured.

Letters: n images, W workers.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfcap import cli

IMAGES = (113_287, 1_000_000, 100_000_000)  # COCO's training images of Karpathy's split, and more
WORKERS = (1, 8, 64)


@dataclasses.dataclass(frozen=True)
class Assumptions:
    """The numbers that a forecast is computed from; each rate is that of one worker.

    The defaults were measured on two cores of one x86-64 machine, except `efficiency` and `price`,
    which are guesses.

    Attributes:
      prepare: images a second of a whole prepare with MobileNetV2.
      record: bytes of the record of an image, with 49 regions of 1,280 numbers in float16.
      shard: images of a shard.
      xe: images a second of a training step with cross-entropy (X-LAN, 5 captions, bfloat16).
      scst: the same for self-critical training (5 samples).
      xe_epochs: epochs of cross-entropy.
      scst_epochs: epochs of self-critical training.
      efficiency: share of its rate that a worker keeps when several train together.
      vector: bytes of the vector of an image in a search index (1,024 numbers in float32).
      price: cost of a worker for an hour.
    """

    prepare: float = 92.0
    record: float = 126_700.0
    shard: float = 512.0
    xe: float = 8.4
    scst: float = 6.4
    xe_epochs: float = 20.0
    scst_epochs: float = 20.0
    efficiency: float = 0.9
    vector: float = 4096.0
    price: float = 0.1


def assumptions(changes: Sequence[str]) -> Assumptions:
    """Returns the defaults with changes such as `price=0.5`.

    Raises:
      cli.UsageError: a change has no such name, or no number above 0.
    """
    names = [field.name for field in dataclasses.fields(Assumptions)]
    given: dict[str, float] = {}
    for change in changes:
        name, _, text = change.partition("=")
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if name not in names or not 0 < value < float("inf"):
            raise cli.UsageError(
                f"--assume must be NAME=NUMBER with a number above 0 and a NAME of "
                f"{', '.join(names)}. Received: {change!r}."
            )
        given[name] = value
    return Assumptions(**given)


def point(images: int, workers: int, given: Assumptions) -> dict[str, Any]:
    """Computes the forecast of n images on W workers.

    Returns:
      `images`, `workers`, `shards`, gigabytes of the `records` and of the search `index`, hours of
      `prepare`, `xe` and `scst` on the clock, and `cost` of all three.
    """
    together = workers * (given.efficiency if workers > 1 else 1.0)
    hours = {
        "prepare": images / given.prepare / workers / 3600,
        "xe": images * given.xe_epochs / given.xe / together / 3600,
        "scst": images * given.scst_epochs / given.scst / together / 3600,
    }
    return {
        "images": images,
        "workers": workers,
        "shards": -int(-images // given.shard),
        "records": images * given.record / 1e9,
        "index": images * given.vector / 1e9,
        **hours,
        "cost": sum(hours.values()) * workers * given.price,
    }


def table(points: Sequence[dict[str, Any]]) -> str:
    """Writes the forecasts as Markdown."""
    head = "images | workers | shards | records, GB | index, GB | prepare, h | cross-entropy, h"
    rows = [f"| {head} | self-critical, h | cost |", f"|{'---|' * 9}"]
    for one in points:
        sizes = (f"{one[key]:,}" for key in ("images", "workers", "shards"))
        keys = ("records", "index", "prepare", "xe", "scst", "cost")
        rows.append(f"| {' | '.join([*sizes, *(_number(one[key]) for key in keys)])} |")
    return "\n".join(rows)


def _number(value: float) -> str:
    """Writes a number with two significant digits, or as a whole number."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
