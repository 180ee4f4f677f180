"""Writes shards: TFRecord files whose content depends only on the settings and a list of images.

`ShardWriter` writes a shard. It can be pickled until it has opened its source of features, so that
any process can call it. When a shard is complete, it also writes the description
`.shards/NAME.json`. An interrupted prepare continues with the shards that have no description.

Letters: R regions, F feature width.
"""

import dataclasses
import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfcap import errors, files, progress
from tfcap.backbones import DETECTOR, detector
from tfcap.backbones.backbone import Backbone
from tfcap.data.record import FRAMING, Record, serialize
from tfcap.preparing.pictures import ClipFeatures, DetectedRegions, Extracted, Pictures
from tfcap.preparing.ready import FeatureSets, ReadyFeatures
from tfcap.preparing.settings import Settings
from tfcap.preparing.sources.entry import SPLITS, Entry
from tfcap.preparing.sources.splits import FURTHER

FOLDER = ".shards"  # of the descriptions, in the prepared directory
PROBES = 20  # images that are enough to find how feature files name the images
_log = logging.getLogger(__name__)

Reader = Pictures | ReadyFeatures | FeatureSets  # all have `dim`, `image_dim`, `regions` and `read`


class Task(NamedTuple):
    """The work of writing one shard, that is, one TFRecord file.

    Attributes:
      name: file name of the shard.
      images: the images of the shard, with the captions to store.
    """

    name: str
    images: list[Entry]


def open_reader(
    settings: Settings, entries: Sequence[Entry], backbone: Backbone | None = None
) -> Reader:
    """Opens the source of features: a network that reads pictures, or feature files.

    Args:
      settings: the settings of prepare.
      entries: the images; the first 20 (`PROBES`) are enough. `ReadyFeatures` looks for these
        images in the feature files, to learn whether the key of an image is its id or its file
        name.
      backbone: the network, if it is loaded already; None loads it if there are no feature files.

    Returns:
      A `Pictures`, a `ReadyFeatures` or, for several feature sets, a `FeatureSets`. The method
      `read` of all takes images and yields an `Extracted` for each.
    """
    if settings.features is not None:
        readers = [
            ReadyFeatures(
                paths,
                entries,
                images=settings.images,
                cache=None if number else settings.out,  # one set has an index there
                frames=settings.frames,
            )
            for number, paths in enumerate(settings.feature_sets)
        ]
        return readers[0] if len(readers) == 1 else FeatureSets(readers)
    if settings.backbone_name == DETECTOR:
        network = backbone or detector.load(settings.weights or "")
        return DetectedRegions(settings.images, network, settings.objects)
    backbone = backbone or Backbone(
        settings.backbone_name,
        settings.grid,
        settings.weights,
        settings.image_size,
        settings.crops,
        settings.vector or settings.frames is not None,
    )
    if settings.frames:
        return ClipFeatures(settings.images, backbone, settings.frames)
    return Pictures(settings.images, backbone, settings.keep_pictures)


def plan(entries: Sequence[Entry], size: int) -> dict[str, list[Entry]]:
    """Divides the images of each split into shards.

    Images whose pictures cannot be read are counted, too. So the plan depends only on the
    arguments, and a later run plans the same shards.

    Args:
      entries: the images; each has a split.
      size: the largest number of images of a shard.

    Returns:
      File name of the shard -> its images; train, val and test come first.

    Raises:
      ValueError: the name of a split cannot be part of a file name.
    """
    by_split: dict[str, list[Entry]] = {}
    for entry in entries:
        by_split.setdefault(entry.split or "", []).append(entry)
    shards = {}
    usual = [split for split in SPLITS if split in by_split]
    for split in usual + [split for split in by_split if split not in SPLITS]:
        if not FURTHER.fullmatch(split):
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
    """Returns the file name of a shard, such as ``train-00000-of-00004.tfrecord``.

    Args:
      split: name of the split.
      number: index of the shard in the split, from 0.
      total: number of shards of the split.
    """
    return f"{split}-{number:05d}-of-{total:05d}.tfrecord"


def read_description(folder: str | os.PathLike, digest: str, name: str) -> dict[str, Any] | None:
    """Reads the description of a finished shard, a JSON file that `ShardWriter` wrote.

    If no image of the shard can be used, the shard has a description but no shard file.

    Args:
      folder: the prepared directory.
      digest: SHA-256 of the settings, see `ShardWriter`.
      name: file name of the shard.

    Returns:
      A dictionary. None if the shard must be written, because its description is missing or has
      another digest, or because its file is missing or has another size. The dictionary has

      * the fields of `ShardInfo`;
      * `sums`: sums over the features;
      * `skipped`: the unusable images with their reasons;
      * `dropped_boxes`: the number of images whose boxes were dropped;
      * `notes`: what is said of picture files -> their number;
      * `settings`: the digest.
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


def _description_path(folder: str | os.PathLike, name: str) -> str:
    return os.path.join(folder, FOLDER, os.path.splitext(name)[0] + ".json")


@dataclasses.dataclass
class ShardWriter:
    """Writes shards and their descriptions: call it with a `Task` for each shard.

    Engines may send the writer to worker processes. Then each process opens its own `reader`.

    Attributes:
      settings: the settings of prepare, with absolute paths.
      digest: SHA-256 of `Settings.identity`, the settings that determine the content of shards.
      probes: the first 20 (`PROBES`) images of the data set, with which `open_reader` opens feature
        files.
      backbone: the entry `backbone` of dataset.json: the name and settings of the network, and the
        file of its weights in the prepared directory; None for ready-made features.
      reader: the source of features, see `open_reader`; with None it is opened at the first call.
      bar: the progress bar, which counts images that are done; None shows no progress.
    """

    settings: Settings
    digest: str
    probes: Sequence[Entry]
    backbone: Mapping[str, Any] | None
    reader: Reader | None = None
    bar: progress.Bar | None = None

    def __call__(self, task: Task) -> None:
        """Writes the shard and its description, unless both exist already."""
        folder = self.settings.out
        if read_description(folder, self.digest, task.name) is not None:
            return  # another worker has written it: engines may repeat a task
        description = _Description()
        records = self._records(task, description)
        first = next(records, None)
        info = ShardInfo(task.name, 0, 0, [], [])
        if first is not None:  # a shard without a usable image gets no file
            info = write_shard(os.path.join(folder, task.name), itertools.chain([first], records))
        path = _description_path(folder, task.name)
        files.make_directory(os.path.dirname(path))
        content = info._asdict() | dataclasses.asdict(description) | {"settings": self.digest}
        files.write_json(path, content, indent=None)

    def _records(self, task: Task, description: "_Description") -> Iterator[Record]:
        """Yields the records of the usable images, and adds them to the description."""
        if self.reader is None:
            self.reader = self._open_reader()
        bare = [Extracted(e, None, None, "no captions") for e in task.images if not e.usable]
        usable = [entry for entry in task.images if entry.usable]
        for extracted in itertools.chain(bare, self.reader.read(usable)):
            record = None
            reason = extracted.reason
            if extracted.features is not None:
                try:
                    record = _record(extracted)
                except ValueError as error:
                    reason = str(error)
            entry = extracted.entry
            # An unreadable picture is told once, not again for its mirrored copy.
            if record is None and not (entry.mirrored and extracted.features is None):
                text = f"skipped image {entry.id} ({entry.file_name}): {reason}"
                _log.warning(errors.escaped(text))
                skipped = {"id": entry.id, "file_name": entry.file_name, "reason": reason}
                description.skipped.append(skipped)
            if self.bar is not None:
                self.bar.update()
            if record is not None:
                description.sums.add(record.features)
                description.dropped_boxes += extracted.boxes_dropped
                for note in extracted.notes:
                    description.notes[note] = description.notes.get(note, 0) + 1
                yield record

    def _open_reader(self) -> Reader:
        """Opens the source of features with the weights in the prepared directory."""
        network = None
        if self.backbone is not None:
            network = Backbone.from_fingerprint({"backbone": self.backbone}, self.settings.out)
        return open_reader(self.settings, self.probes, network)


def _record(extracted: Extracted) -> Record:
    """Returns the record of an image that has features."""
    entry = extracted.entry
    assert extracted.features is not None
    return Record(
        entry.id,
        entry.file_name,
        extracted.features,
        extracted.boxes,
        list(entry.captions if entry.stored is None else entry.stored),
        extracted.image,
        picture=extracted.picture,
        objects=extracted.objects,
    )


class ShardInfo(NamedTuple):
    """What a finished shard holds.

    Attributes:
      file: name of the shard file.
      records: number of records.
      bytes: size of the file in bytes.
      offsets: the position in bytes at which each record starts.
      ids: the image id of each record.
    """

    file: str
    records: int
    bytes: int
    offsets: list[int]
    ids: list[int]

    @property
    def entry(self) -> dict[str, Any]:
        """The entry of the shard in dataset.json, with the keys `file`, `records` and `bytes`."""
        return {"file": self.file, "records": self.records, "bytes": self.bytes}


def write_shard(path: str | os.PathLike, records: Iterable[Record]) -> ShardInfo:
    """Writes records into one TFRecord file, which appears only when it is complete.

    If `records` raises an error, the error is passed on and no file is left.

    Args:
      path: path of the shard file.
      records: the records, in the order of the file.

    Returns:
      The name and size of the file, and the number, positions and image ids of the records.
    """
    offsets = []
    ids = []
    end = 0
    with files.replacing(path) as temporary, tf.io.TFRecordWriter(temporary) as writer:
        for record in records:
            data = serialize(record)
            writer.write(data)
            offsets.append(end)
            ids.append(record.image_id)
            end += len(data) + FRAMING
    name = os.path.basename(os.fspath(path))
    return ShardInfo(name, len(ids), end, offsets, ids)


def write_index(folder: str | os.PathLike, split: str, shards: Sequence[ShardInfo]) -> None:
    """Writes the index of a split, <split>.index.npz, with one row per record.

    It has three arrays: `shard`, the position of the shard in `shards`; `offset`, the byte of the
    shard file at which the record starts; and `id`, the image id.

    Args:
      folder: the prepared directory.
      split: name of the split.
      shards: the shards of the split, in their order.
    """
    files.write_npz(
        os.path.join(folder, f"{split}.index.npz"),
        shard=np.repeat(np.arange(len(shards), dtype=np.int32), [s.records for s in shards]),
        offset=np.array([offset for shard in shards for offset in shard.offsets], np.int64),
        id=np.array([number for shard in shards for number in shard.ids], np.int64),
    )


@dataclasses.dataclass
class _Sums:
    """Running sums over features, for their mean and standard deviation."""

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


@dataclasses.dataclass
class _Description:
    """What the description of a shard says beside its `ShardInfo`.

    Attributes:
      sums: sums over the features.
      skipped: `id`, `file_name` and `reason` of each image that cannot be used.
      dropped_boxes: number of images whose boxes were dropped, see `Extracted`.
      notes: what is said of picture files -> their number.
    """

    sums: _Sums = dataclasses.field(default_factory=_Sums)
    skipped: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    dropped_boxes: int = 0
    notes: dict[str, int] = dataclasses.field(default_factory=dict)
