"""Makes one shard: the unit of work of prepare, in this process or in any other.

A shard is a function of the settings and of its list of images. `ShardWorker` is this function. It
can be pickled. Other processes get settings and lists only, never pictures, records or networks.
Writing a shard again gives the same bytes, so a shard whose process was killed is made again.
"""

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tfcap import cli, files
from tfcap.data.record import Record
from tfcap.preparing import sidecars
from tfcap.preparing.captions import Kept
from tfcap.preparing.features.backbone import Backbone
from tfcap.preparing.features.frames import ClipFeatures, Clips, Reader, SampledFrames
from tfcap.preparing.features.pictures import Extracted, Pictures
from tfcap.preparing.features.ready import ReadyFeatures
from tfcap.preparing.finish import Sums
from tfcap.preparing.notes import print_problem
from tfcap.preparing.settings import Settings
from tfcap.preparing.shards import write_shard
from tfcap.preparing.sources import Entry
from tfcap.preparing.state import Skips

PROBES = 20  # images by which ready-made features find how the files name an image


class Task(NamedTuple):
    """One shard to write.

    Attributes:
      name: file name of the shard.
      entries: its images, without their captions.
      images: the same images with their words and the captions for the records.
      skipped: how many images of other shards are known to be unusable.
    """

    name: str
    entries: list[Entry]
    images: list[Kept]
    skipped: int


def task_of(name: str, members: Sequence[Entry], images: Mapping[int, Kept], skipped: int) -> Task:
    """Returns the task of a shard.

    Args:
      name: file name of the shard.
      members: its images.
      images: all images by their ids, tokenized.
      skipped: as in `Task`.
    """
    return Task(name, bare(members), [images[entry.id] for entry in members], skipped)


def bare(entries: Sequence[Entry]) -> list[Entry]:
    """Returns images without their captions, as a task has them."""
    return [entry._replace(captions=(), words=None, caption_ids=()) for entry in entries]


@dataclasses.dataclass(frozen=True)
class Job:
    """What all shards of a prepared directory have in common; it can be pickled.

    Attributes:
      settings: the settings of prepare, with absolute paths.
      digest: SHA-256 of the settings that the content of shards depends on.
      probes: the first images, for ready-made features.
      backbone: entry of dataset.json that names the network and its weights in the directory;
        None for ready-made features.
      limit, total, rows: as in `Skips`.
    """

    settings: Settings
    digest: str
    probes: tuple[Entry, ...]
    backbone: Mapping[str, Any] | None
    limit: int
    total: int
    rows: int

    @property
    def out(self) -> str:
        """Returns the prepared directory."""
        return self.settings.out

    def open(self) -> Reader:
        """Opens the source of features, with the weights that the prepared directory has."""
        if self.backbone is None:
            return open_reader(self.settings, self.probes)
        made_by = {"backbone": self.backbone}
        return open_reader(self.settings, self.probes, Backbone.from_fingerprint(made_by, self.out))


def absolute(settings: Settings) -> Settings:
    """Returns the settings with absolute paths, for processes with another working directory."""

    of = files.absolute
    return dataclasses.replace(
        settings,
        out=of(settings.out),
        captions=None,  # no shard depends on these files, only on the entries
        images=None if settings.images is None else of(settings.images),
        features=[of(path) for path in settings.feature_paths] or None,
    )


def open_reader(
    settings: Settings, entries: Sequence[Entry], backbone: Backbone | None = None
) -> Reader:
    """Opens the source of features: loads the network with its weights, or finds the files.

    Args:
      settings: the settings of prepare.
      entries: the images, at least the first `PROBES`.
      backbone: the network, if it is loaded already.

    Raises:
      ValueError: the weights or the files cannot be used.
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
        clips = ClipFeatures(settings.images, Clips(backbone, settings.frames))
        return SampledFrames(clips, settings.frames, shuffled) if shuffled else clips
    return Pictures(settings.images, backbone, settings.keep_pictures)


class ShardWorker:
    """Writes the shard of a task and its description.

    A pickle holds the job only. The source of features is opened at the first task.

    Args:
      job: what all shards have in common.
      reader: the source of features, if it is open already.
      bar: counts the images that are done.
    """

    def __init__(self, job: Job, reader: Reader | None = None, bar: cli.Bar | None = None):
        self.job, self._reader, self._bar = job, reader, bar

    def __reduce__(self) -> tuple[Callable[..., "ShardWorker"], tuple[Job]]:
        return ShardWorker, (self.job,)

    def __call__(self, task: Task) -> dict[str, Any]:
        """Writes a shard, unless it is there already.

        Returns:
          The description: `file`, `records`, `bytes`, `offsets`, `ids`, `sums` of the features,
          `skipped` images, `words` with their counts, and for the split train `captions`: per
          image and caption the words, as positions in `words`.

        Raises:
          ValueError: too many images are skipped.
        """
        job = self.job
        known = sidecars.read(job.out, job.digest, task.name)
        if known is None:
            if self._reader is None:
                self._reader = job.open()
            known = _Shard(task, job, self._reader, self._bar).write()
            sidecars.write(job.out, job.digest, known)
        return known


class _Shard:
    """Writes one shard and collects its description."""

    def __init__(self, task: Task, job: Job, reader: Reader, bar: cli.Bar | None):
        self.task, self.job, self.reader, self.bar = task, job, reader, bar
        self.images = {image.id: image for image in task.images}
        self.skips = Skips(job.limit, job.total, job.rows, task.skipped)
        self.sums, self.dropped, self.animated = Sums(), 0, 0
        self.kept: list[Kept] = []

    def write(self) -> dict[str, Any]:
        """Writes the shard; returns its description."""
        name = self.task.name
        known: dict[str, Any] = {"file": name, "records": 0, "bytes": 0, "offsets": [], "ids": []}
        stream = self._records()
        first = next(stream, None)
        if first is not None:  # a shard without a usable image gets no file
            info = write_shard(os.path.join(self.job.out, name), itertools.chain([first], stream))
            known |= {**info.entry, "offsets": info.offsets.tolist(), "ids": info.ids.tolist()}
        known |= {"sums": dataclasses.asdict(self.sums), "skipped": self.skips.items}
        if self.dropped:
            known["dropped_boxes"] = self.dropped
        if self.animated:
            known["animated"] = self.animated
        return known | described_words(self.kept)

    def _records(self) -> Iterator[Record]:
        for extracted in self._extract():
            record = self._record(extracted)
            if self.bar:
                self.bar.update()
            if record is not None:
                self.sums.add(record.features)
                self.dropped += extracted.boxes_dropped
                self.animated += extracted.animated
                self.kept.append(self.images[record.image_id])
                yield record

    def _extract(self) -> Iterator[Extracted]:
        """Yields the features of the images; skips images without a needed caption."""
        usable = []
        for entry in self.task.entries:
            if self.images[entry.id].usable:
                usable.append(entry)
            else:
                if self.bar:
                    self.bar.update()
                self._skip(entry, "no captions")
        yield from self.reader.read(usable)

    def _record(self, extracted: Extracted) -> Record | None:
        """Returns the record of an image; skips an image that has none."""
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
        print_problem(f"skipped image {entry.id} ({entry.file_name}): {reason}")
        self.skips.add(entry, reason)


def described_words(images: Sequence[Kept]) -> dict[str, Any]:
    """Returns the entries `words` and `captions` of a shard's description, see `ShardWorker`."""
    words: dict[str, int] = {}
    places: dict[str, int] = {}
    captions = []
    for image in images:
        own = []
        for caption in image.words:
            for word in caption:
                words[word] = words.get(word, 0) + 1
            own.append([places.setdefault(word, len(places)) for word in caption])
        captions.append(own)
    trained = bool(images) and images[0].split == "train"
    return {"words": words, **({"captions": captions} if trained else {})}
