"""Prints what prepare finds: dropped captions, the size of the result, notes on pictures."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tfcap import cli, files
from tfcap.preparing.captions import Kept
from tfcap.preparing.features.frames import Reader, SampledFrames
from tfcap.preparing.features.pictures import Pictures, expected_bytes
from tfcap.preparing.features.ready import ReadyFeatures
from tfcap.preparing.sources import Entry


def print_dropped(entries: Sequence[Entry], images: Mapping[int, Kept]) -> int:
    """Prints a line for each caption without words; returns their number."""
    dropped = 0
    for entry in entries:
        for _ in range(len(entry.captions) - len(images[entry.id].captions)):
            dropped += 1
            print_problem(f"dropped an empty caption of image {entry.id} ({entry.file_name})")
    return dropped


def print_notes(finished: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Prints once how many images lost their boxes, and how many are animated."""
    shards = [shard for members in finished.values() for shard in members]
    number = sum(shard.get("dropped_boxes", 0) for shard in shards)
    if number:
        print(
            f"note: the boxes of {number} images were dropped: they are in pixels, and the size of "
            "the images is unknown. Give their pictures with --images to keep the boxes.",
            flush=True,
        )
    number = sum(shard.get("animated", 0) for shard in shards)
    if number:
        print(f"note: animated GIF files: {number}. Only their first frame is used.", flush=True)


def print_reader(reader: Reader) -> None:
    """Prints which files the ready-made features come from."""
    ready = reader.reader if isinstance(reader, SampledFrames) else reader
    if isinstance(ready, ReadyFeatures):
        print(f"features: {ready.about()}", flush=True)


def print_forecast(
    out: str,
    images: Sequence[Kept],
    reader: Reader,
    shards: int,
    left: int,
) -> None:
    """Prints how many bytes will be written, and raises ValueError if the disk is too small.

    The free space at a remote path is not known.
    """
    captions = sum(len(image.captions) for image in images)
    total, needed = (expected_size(images, reader, number) for number in (len(images), left))
    free = float("inf") if files.is_remote(out) else shutil.disk_usage(out).free
    room = "" if files.is_remote(out) else f" ({cli.size(free)} free)"
    print(
        f"{len(images)} images with {captions} captions, about"
        f" {reader.regions} x {reader.dim} features each; {shards} shards, about"
        f" {cli.size(total)} in {out}{room}",
        flush=True,
    )
    if left < len(images):
        print(f"finished already: {len(images) - left} images", flush=True)
    if needed > free:
        raise ValueError(
            f"{out} must have {cli.size(needed)} of free space. Received: "
            f"{cli.size(free)}. Free some space, choose another --out or take a smaller --grid."
        )


def expected_size(images: Sequence[Kept], reader: Reader, left: int) -> int:
    """Returns the approximate size of the records and references, in bytes.

    Args:
      images: the images.
      reader: the source of features.
      left: how many records will be written.
    """
    per_image = reader.regions * (reader.dim * 2 + 16) + 2 * (reader.image_dim or 0) + 200
    if isinstance(reader, Pictures) and reader.keep:
        per_image += expected_bytes(reader.backbone.image_size)
    # Captions are written into the records, their descriptions and the references.
    text = sum(len(caption.encode()) for image in images for caption in image.captions)
    return left * per_image + 3 * text


def print_problem(text: str) -> None:
    """Prints a line on standard error."""
    cli.say(cli.escaped(text), sys.stderr)
