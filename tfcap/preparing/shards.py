"""Writes shards: TFRecord files, each a function of the settings and of its list of images.

`ShardWriter` is this function. It can be pickled, so that any process can call it: it gets settings
and lists, never pictures, records or networks. Beside each shard it writes a description,
`.shards/NAME.json`, after the shard has its final name. An interrupted prepare continues with the
shards that have no description.

Letters: R regions, F feature width.
"""

import dataclasses
import hashlib
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfcap import cli, files
from tfcap.data.record import FRAMING, Record, serialize
from tfcap.preparing.features.backbone import Backbone
from tfcap.preparing.features.frames import Reader, SampledFrames
from tfcap.preparing.features.pictures import ClipFeatures, Extracted, Pictures
from tfcap.preparing.features.ready import ReadyFeatures
from tfcap.preparing.settings import Settings
from tfcap.preparing.sources import SPLITS, Entry
from tfcap.preparing.vocabulary import Kept

FOLDER = ".shards"  # of the descriptions, in the prepared directory
PROBES = 20  # images by which ready-made features find how the files name an image


class Task(NamedTuple):
    """One shard to write.

    Attributes:
      name: file name of the shard.
      entries: its images, without their captions.
      images: the same images with the captions for the records.
      most_skipped: how many of them may be unusable.
    """

    name: str
    entries: list[Entry]
    images: list[Kept]
    most_skipped: int


@dataclasses.dataclass(frozen=True)
class Job:
    """What all shards of a prepared directory have in common.

    Attributes:
      settings: the settings of prepare, with absolute paths.
      digest: SHA-256 of the settings that the content of shards depends on.
      probes: the first images, for ready-made features.
      backbone: entry of dataset.json that names the network and its weights in the directory;
        None for ready-made features.
    """

    settings: Settings
    digest: str
    probes: tuple[Entry, ...]
    backbone: Mapping[str, Any] | None

    def open(self) -> Reader:
        """Opens the source of features, with the weights that the prepared directory has."""
        if self.backbone is None:
            return open_reader(self.settings, self.probes)
        made_by = {"backbone": self.backbone}
        network = Backbone.from_fingerprint(made_by, self.settings.out)
        return open_reader(self.settings, self.probes, network)


def open_reader(
    settings: Settings, entries: Sequence[Entry], backbone: Backbone | None = None
) -> Reader:
    """Opens the source of features: loads the network with its weights, or finds the files.

    Args:
      settings: the settings of prepare.
      entries: the images, at least the first `PROBES`.
      backbone: the network, if it is loaded already.
    """
    shuffled = settings.frame_order == "shuffled"
    if settings.features is not None:
        ready = ReadyFeatures(settings.feature_paths, entries, settings.images, settings.out)
        return SampledFrames(ready, settings.frames, shuffled) if settings.frames else ready
    backbone = backbone or Backbone(
        settings.backbone,
        settings.grid,
        settings.weights,
        settings.image_size,
        settings.crops,
        settings.vector or settings.frames is not None,
    )
    if settings.frames:
        clips = ClipFeatures(settings.images, backbone, settings.frames)
        return SampledFrames(clips, settings.frames, shuffled) if shuffled else clips
    return Pictures(settings.images, backbone, settings.keep_pictures)


def plan(entries: Sequence[Entry], size: int) -> dict[str, list[Entry]]:
    """Returns the images of each shard, at most `size`, by the name of the shard.

    The result depends only on the captions. Unusable images count too, so that later runs plan the
    same shards.
    """
    by_split: dict[str, list[Entry]] = {}
    for entry in entries:
        by_split.setdefault(entry.split or "", []).append(entry)
    shards = {}
    usual = [split for split in SPLITS if split in by_split]
    for split in usual + [split for split in by_split if split not in SPLITS]:
        if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9_-]{0,63}", split):
            raise ValueError(
                f"The split {split!r:.80} cannot be part of a file name. Use letters, digits, _ "
                "and -, as in test2014."
            )
        members = by_split[split]
        total = -(-len(members) // size)
        for number in range(total):
            name = shard_name(split, number, total)
            shards[name] = members[number * size : (number + 1) * size]
    return shards


def shard_name(split: str, number: int, total: int) -> str:
    """Returns the file name of a shard: ``train-00000-of-00004.tfrecord``."""
    return f"{split}-{number:05d}-of-{total:05d}.tfrecord"


def settings_digest(identity: Mapping[str, Any]) -> str:
    """Computes the SHA-256 of the settings that the content of shards depends on, as JSON."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def read_description(folder: str, digest: str, name: str) -> dict[str, Any] | None:
    """Reads the description of a shard that `ShardWriter` wrote.

    Returns:
      The description; None if there is none, if it belongs to other settings, or if the file of
      the shard has changed since. A shard without a record has no file.
    """
    try:
        shard = files.read_json(_description_path(folder, name), "")
        if shard["settings"] != digest or shard["file"] != name:
            return None
        if shard["records"] and files.size(os.path.join(folder, name)) != shard["bytes"]:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return shard


def _description_path(folder: str, name: str) -> str:
    return os.path.join(folder, FOLDER, os.path.splitext(name)[0] + ".json")


class ShardWriter:
    """Writes the shard of a task and its description.

    A pickle holds the job only. The source of features is opened at the first task.

    Args:
      job: what all shards have in common.
      reader: the source of features, if it is open already.
      bar: counts the images that are done.
    """

    def __init__(self, job: Job, reader: Reader | None = None, bar: cli.Bar | None = None):
        self.job, self._reader, self._bar = job, reader, bar

    def __reduce__(self) -> tuple[Callable[..., "ShardWriter"], tuple[Job]]:
        return ShardWriter, (self.job,)

    def __call__(self, task: Task) -> None:
        """Writes a shard, unless it is there already.

        The description has `file`, `records`, `bytes`, `offsets`, `ids`, `sums` of the features,
        the `skipped` images, and the numbers of `animated` pictures and of `dropped_boxes`.
        """
        folder = self.job.settings.out
        if read_description(folder, self.job.digest, task.name) is not None:
            return  # another worker has written it: engines may repeat a task
        if self._reader is None:
            self._reader = self.job.open()
        shard = Shard(task, self._reader, self._bar)
        known = {"file": task.name, "records": 0, "bytes": 0, "offsets": [], "ids": []}
        records = shard.records()
        first = next(records, None)
        if first is not None:  # a shard without a usable image gets no file
            info = write_shard(os.path.join(folder, task.name), itertools.chain([first], records))
            known |= info._asdict() | {"offsets": info.offsets.tolist(), "ids": info.ids.tolist()}
        known |= {"sums": dataclasses.asdict(shard.sums), "skipped": shard.skipped}
        known |= {"dropped_boxes": shard.dropped_boxes, "animated": shard.animated}
        path = _description_path(folder, task.name)
        files.make_directory(os.path.dirname(path))
        files.write_json(path, known | {"settings": self.job.digest}, indent=None)


class Shard:
    """The records of a shard, and what is counted while they are made.

    Attributes:
      sums: of the features of the records.
      skipped: id, file name and reason of each image that cannot be used.
      dropped_boxes: how many images lost their boxes.
      animated: how many pictures are animated.
    """

    def __init__(self, task: Task, reader: Reader, bar: cli.Bar | None):
        self.task, self.reader, self.bar = task, reader, bar
        self.images = {image.id: image for image in task.images}
        self.sums, self.skipped = Sums(), list[dict[str, Any]]()
        self.dropped_boxes = self.animated = 0

    def records(self) -> Iterator[Record]:
        """Yields the records of the images that can be used."""
        usable = []
        for entry in self.task.entries:
            if self.images[entry.id].usable:
                usable.append(entry)
            else:
                self._skip(entry, "no captions")
                self._count()
        for extracted in self.reader.read(usable):
            record = self._record(extracted)
            self._count()
            if record is not None:
                self.sums.add(record.features)
                self.dropped_boxes += extracted.boxes_dropped
                self.animated += extracted.animated
                yield record

    def _count(self) -> None:
        if self.bar is not None:
            self.bar.update()

    def _record(self, extracted: Extracted) -> Record | None:
        image, reason = self.images[extracted.entry.id], extracted.reason
        if reason is None and extracted.features is not None:
            try:
                return Record(
                    image.id,
                    image.file_name,
                    extracted.features,
                    extracted.boxes,
                    image.captions if image.stored is None else image.stored,
                    extracted.image,
                    picture=extracted.picture,
                )
            except ValueError as error:
                reason = str(error)
        self._skip(extracted.entry, reason or "it has no features")
        return None

    def _skip(self, entry: Entry, reason: str) -> None:
        text = f"skipped image {entry.id} ({entry.file_name}): {reason}"
        cli.say(cli.escaped(text), sys.stderr)
        self.skipped.append({"id": entry.id, "file_name": entry.file_name, "reason": reason})
        if len(self.skipped) > self.task.most_skipped:
            raise too_many_skipped(self.skipped[-1])


def too_many_skipped(last: Mapping[str, Any]) -> ValueError:
    """Returns the error of more skipped images than --max_skipped allows."""
    reason = last["reason"].rstrip(".")
    return ValueError(
        "More images cannot be used than --max_skipped allows. The last one is "
        f"{last['file_name']}: {reason}. Raise --max_skipped and give the same command "
        "again: finished shards are kept. Or repair the images and add --overwrite."
    )


class ShardInfo(NamedTuple):
    """A finished shard."""

    file: str
    records: int
    bytes: int
    offsets: np.ndarray  # int64 [records], where each record starts
    ids: np.ndarray  # int64 [records], image ids

    @property
    def entry(self) -> dict[str, Any]:
        """The entry of the shard in dataset.json."""
        return {"file": self.file, "records": self.records, "bytes": self.bytes}


def write_shard(path: str | os.PathLike, records: Iterable[Record]) -> ShardInfo:
    """Writes one shard atomically. Errors of `records` are raised; no file is left behind."""
    offsets, ids, end = [], [], 0
    with files.replacing(path) as temporary, tf.io.TFRecordWriter(temporary) as writer:
        for record in records:
            data = serialize(record)
            writer.write(data)
            offsets.append(end)
            ids.append(record.image_id)
            end += len(data) + FRAMING
    name = os.path.basename(os.fspath(path))
    return ShardInfo(name, len(ids), end, np.array(offsets, np.int64), np.array(ids, np.int64))


def write_index(folder: str | os.PathLike, split: str, shards: Sequence[ShardInfo]) -> None:
    """Writes <split>.index.npz from the split's shards, in their order."""
    nothing = np.zeros([0], np.int64)
    files.write_npz(
        os.path.join(folder, f"{split}.index.npz"),
        shard=np.repeat(np.arange(len(shards), dtype=np.int32), [s.records for s in shards]),
        offset=np.concatenate([nothing, *(shard.offsets for shard in shards)]),
        id=np.concatenate([nothing, *(shard.ids for shard in shards)]),
    )


@dataclasses.dataclass
class Sums:
    """Sums over features, which give their statistics."""

    regions: int = 0
    most_regions: int = 0
    total: float = 0.0
    squares: float = 0.0
    norms: float = 0.0

    def add(self, features: np.ndarray) -> None:
        """Adds the features [R, F] of one image."""
        squares = np.square(features, dtype=np.float32).sum(axis=1, dtype=np.float64)
        self.regions += len(features)
        self.most_regions = max(self.most_regions, len(features))
        self.total += float(features.sum(dtype=np.float64))
        self.squares += float(squares.sum())
        self.norms += float(np.sqrt(squares).sum())

    def merge(self, other: "Sums") -> None:
        """Adds the sums of another part of the data."""
        self.regions += other.regions
        self.most_regions = max(self.most_regions, other.most_regions)
        self.total += other.total
        self.squares += other.squares
        self.norms += other.norms

    def statistics(self, dim: int) -> dict[str, float]:
        """Returns mean and standard deviation of all numbers, and the mean norm of a region."""
        mean = self.total / (self.regions * dim)
        variance = max(self.squares / (self.regions * dim) - mean * mean, 0.0)
        return {"mean": mean, "std": variance**0.5, "mean_norm": self.norms / self.regions}
