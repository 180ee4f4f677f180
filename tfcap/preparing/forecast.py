"""Prints what a prepare would write and how long it would take, without writing anything."""

import dataclasses
import tempfile
import time
from collections.abc import Sequence

from tfcap import cli
from tfcap.preparing.captions import tokenized
from tfcap.preparing.features.frames import Reader
from tfcap.preparing.inputs import Inputs, check_directories
from tfcap.preparing.notes import expected_size, print_reader
from tfcap.preparing.settings import Settings
from tfcap.preparing.shards import plan
from tfcap.preparing.sources import ImageEntry
from tfcap.preparing.work import bare, open_reader

_WARM_UP = 32  # images before the clock starts: the first ones wait for graphs and caches
_MEASURED = 128  # images that are timed
_MILLION = 1_000_000


def show(inputs: Inputs) -> None:
    """Prints shards, bytes, hours and cost of the data set, and of a million images like it.

    Raises:
      ValueError: the pictures or features cannot be read.
    """
    settings, entries = inputs.settings, inputs.entries
    with tempfile.TemporaryDirectory() as folder:  # readers of features may keep an index
        settings = dataclasses.replace(settings, out=folder)
        check_directories(settings, entries)
        reader = open_reader(settings, entries)
        print_reader(reader)
        rate = settings.rate or measured(reader, bare(entries))
    images = list(tokenized(entries, settings.tokens == "given"))
    size = expected_size(images, reader, len(images))
    per_image = size / len(images)
    kind = "given" if settings.rate else "measured"
    print(f"rate: {rate:.1f} images/s in one process ({kind})")
    shards = len(plan(entries, settings.images_per_shard))
    print(_line("this data set", len(entries), shards, size, rate, settings))
    shards = -(-_MILLION // settings.images_per_shard)
    print(_line("a million images", _MILLION, shards, per_image * _MILLION, rate, settings))


def measured(reader: Reader, entries: Sequence[ImageEntry]) -> float:
    """Measures how many images per second a source of features reads.

    Args:
      reader: the source.
      entries: images without captions; the first 160 are used.
    """
    done, start = 0, time.monotonic()
    for extracted in reader.read(entries[: _WARM_UP + _MEASURED]):
        del extracted
        done += 1
        if done == _WARM_UP and len(entries) > _WARM_UP:
            start = time.monotonic()
    timed = done - _WARM_UP if done > _WARM_UP else done
    return timed / max(time.monotonic() - start, 1e-6)


def _line(what: str, images: int, shards: int, size: float, rate: float, settings: Settings) -> str:
    seconds = images / rate
    cost = ""
    if settings.price is not None:
        cost = f", cost {seconds / 3600 * settings.price:.2f}"
    share = seconds / settings.workers
    workers = "1 worker" if settings.workers == 1 else f"{settings.workers} workers"
    return (
        f"{what}: {images} images, {shards} shards, {cli.size(size)}, "
        f"{cli.duration(share)} with {workers}{cost}"
    )
