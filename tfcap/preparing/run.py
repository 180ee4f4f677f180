"""Prepares a data set: captions and images become records, words and references.

R regions, F feature width.

Killed at any moment, it goes on where it stopped when it is called again: `.prepare.json` remembers
the finished shards. dataset.json is written last: its presence says that everything is there.
"""

import dataclasses
import itertools
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any

from tfcap import console
from tfcap.data import tokens
from tfcap.data.fingerprint import FINGERPRINT
from tfcap.data.record import Record
from tfcap.files import file_sha256, replacing
from tfcap.ids import UNK
from tfcap.preparing import shapes
from tfcap.preparing.captions import Kept, tokenized
from tfcap.preparing.features.backbone import Backbone
from tfcap.preparing.features.pictures import Extracted, Pictures
from tfcap.preparing.features.ready import ReadyFeatures
from tfcap.preparing.finish import Sums, finish
from tfcap.preparing.settings import Settings
from tfcap.preparing.shards import plan, write_shard
from tfcap.preparing.sources import SPLITS, ImageEntry, karpathy
from tfcap.preparing.state import WEIGHTS, Skips, State, is_whole, locked


def _check(settings: Settings) -> None:
    """Raises UsageError for settings that cannot work."""
    if settings.features is None and settings.images is None:
        raise console.UsageError("give --images (a directory of image files) or --features")
    if settings.features is not None and settings.crops != 1:
        raise console.UsageError("--crops is about pictures, ready --features have none")
    if settings.min_count < 1 or settings.images_per_shard < 1:
        raise console.UsageError(
            f"--min_count and --images_per_shard must be at least 1, got {settings.min_count} and"
            f" {settings.images_per_shard}"
        )
    allowed_skips(settings.max_skipped, 1)


def allowed_skips(text: str, images: int) -> int:
    """The number of images that may be skipped: `100`, or `1%` of `images`."""
    number = text.removesuffix("%").strip()
    try:
        value = float(number) if text.endswith("%") else int(number)
    except ValueError:
        value = -1
    if not 0 <= value < float("inf"):
        raise console.UsageError(f"--max_skipped must be like 100 or 1%, got {text!r}")
    return int(value * images / 100) if text.endswith("%") else int(value)


def prepare(settings: Settings) -> pathlib.Path:
    """Prepares a data set, or goes on with it, or finds it done.

    Returns:
      `settings.out`.

    Raises:
      ValueError: bad input, too many images skipped, another prepare's files in `out`.
    """
    _check(settings)
    entries = karpathy(settings.captions)
    out = pathlib.Path(settings.out)
    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        state = State(out, settings.identity(), settings.overwrite)
        if is_whole(out):
            print(f"{out} is prepared already", flush=True)
            return out
        (out / FINGERPRINT).unlink(missing_ok=True)
        _Preparation(settings, entries, state).run()
    return out


def prepare_shapes(
    out: str | os.PathLike,
    *,
    train: int = 3000,
    val: int = 200,
    test: int = 200,
    seed: int = 1,
    **settings: Any,
) -> pathlib.Path:
    """Writes the built-in data set into `out` and prepares it there with the backbone `pixels`.

    Args:
      out: directory to write.
      train, val, test, seed: as in `shapes.write`.
      **settings: further fields of `Settings`.

    Returns:
      `out`.
    """
    overwrite = settings.get("overwrite", False)
    captions = shapes.write(out, train, val, test, seed, overwrite=overwrite)
    images = str(captions.parent / "images")
    fixed = {"captions": str(captions), "out": str(out), "images": images}
    given = {"name": "shapes", "backbone": "pixels", "weights": None, **settings}
    return prepare(Settings(**fixed, **given))


class _Preparation:
    """One run of prepare."""

    def __init__(self, settings: Settings, entries: list[ImageEntry], state: State):
        self.settings = settings
        self.out = pathlib.Path(settings.out)
        self.state = state
        self.entries = entries
        limit = allowed_skips(settings.max_skipped, len(entries))
        self.skips = Skips(limit, len(entries))
        self.dropped = 0
        self.line = console.Line()
        self.kept: dict[int, Kept] = {}

    def run(self) -> None:
        """Prepares what is not finished yet."""
        self._tokenize()
        self.vocab = self._given_vocabulary()
        self.reader = self._reader()
        shards = plan(self.entries, self.settings.images_per_shard)
        self.left = sum(len(e) for name, e in shards if self.state.shard(name) is None)
        self._forecast(len(shards))
        self.start, self.fresh = time.monotonic(), 0
        infos: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
        for number, (name, entries) in enumerate(shards, 1):
            known = self.state.shard(name)
            if known is None:
                known = self._write(name, entries, f"shard {number} of {len(shards)}")
                if not self.line.visible:
                    print(f"{name}: {known['records']} images, {self._rate():.0f}/s", flush=True)
            else:
                self.skips.items += known["skipped"]
            infos[entries[0].split].append(known)
        self.line.clear()
        speed = f", {self._rate():.0f} images/s" if self.fresh else ""
        vocabulary = self._finish(infos)
        print(
            f"{self.out} is prepared: {len(self.entries) - len(self.skips.items)} images,"
            f" {len(self.skips.items)} skipped, vocabulary {vocabulary};"
            f" {console.duration(time.monotonic() - self.start)}{speed}",
            flush=True,
        )

    def _rate(self) -> float:
        """Images per second of this run."""
        return self.fresh / max(time.monotonic() - self.start, 1e-3)

    def _tokenize(self) -> None:
        for entry, kept in zip(self.entries, tokenized(self.entries), strict=True):
            self.kept[entry.id] = kept
            for _ in range(len(entry.captions) - len(kept.captions)):
                self.dropped += 1
                self._complain(f"dropped an empty caption of image {entry.id} ({entry.file_name})")

    def _reader(self) -> Pictures | ReadyFeatures:
        """The source of features; saves the backbone's weights at the first run."""
        settings = self.settings
        self.backbone = None
        if settings.features is not None:
            return ReadyFeatures(settings.features, self.entries)
        backbone = Backbone(
            settings.backbone, settings.grid, settings.weights, crops=settings.crops
        )
        digest = None
        if backbone.model is not None:
            path = self.out / WEIGHTS
            digest = self.state.content.get("weights_sha256")
            if not path.exists() or file_sha256(path) != digest:
                with replacing(path) as temporary:
                    backbone.save_weights(temporary)
                digest = file_sha256(path)
                self.state.save(weights_sha256=digest)
        self.backbone = backbone.made_by(WEIGHTS if digest else None, digest)
        return Pictures(settings.images, backbone)

    def _forecast(self, shards: int) -> None:
        """Says how much there will be, and refuses what the disk has no room for."""
        captions = [caption for kept in self.kept.values() for caption in kept.captions]
        text = sum(len(caption.encode()) for caption in captions)
        per_image = self.reader.regions * (self.reader.dim * 2 + 16) + 200
        # Captions stand in the records and in the references.
        total, needed = (number * per_image + 3 * text for number in (len(self.entries), self.left))
        free = shutil.disk_usage(self.out).free
        print(
            f"{len(self.entries)} images with {len(captions)} captions, about"
            f" {self.reader.regions} x {self.reader.dim} features each; {shards} shards, about"
            f" {total / 1e6:.0f} MB in {self.out} ({free / 1e6:.0f} MB free)",
            flush=True,
        )
        if self.left < len(self.entries):
            print(f"finished before: {len(self.entries) - self.left} images", flush=True)
        if needed > free:
            raise ValueError(
                f"{self.out} needs {needed / 1e6:.0f} MB more, but its disk has {free / 1e6:.0f} MB"
                " free; make room, choose another --out, or take a smaller --grid"
            )

    def _write(self, name: str, entries: list, label: str) -> dict[str, Any]:
        """Writes one shard and remembers it."""
        before, sums = len(self.skips.items), Sums()

        def examples() -> Iterator[Record]:
            for entry in [e for e in entries if not self.kept[e.id].captions]:
                self.fresh += 1
                self._skip(entry, "no captions")
            for found in self.reader.read([e for e in entries if self.kept[e.id].captions]):
                self.fresh += 1
                if self.fresh % 16 == 0:
                    rest = console.duration((self.left - self.fresh) / self._rate())
                    self.line.show(f"{label}: {self._rate():.0f} images/s, {rest} left")
                record = self._record(found)
                if record is not None:
                    sums.add(record.features)
                    yield record

        known = {"file": name, "records": 0, "bytes": 0, "offsets": [], "ids": []}
        stream = examples()
        first = next(stream, None)
        if first is not None:  # a shard in which nothing is usable gets no file
            info = write_shard(self.out / name, itertools.chain([first], stream))
            known |= {**info.entry, "offsets": info.offsets.tolist(), "ids": info.ids.tolist()}
        known |= {"sums": dataclasses.asdict(sums), "skipped": self.skips.items[before:]}
        self.state.save(shards={**self.state.content["shards"], name: known})
        return known

    def _record(self, found: Extracted) -> Record | None:
        if found.reason is not None:
            return self._skip(found.entry, found.reason)
        image_id, name, _, captions, _ = self.kept[found.entry.id]
        try:
            return Record(image_id, name, found.features, found.boxes, captions)
        except ValueError as error:
            return self._skip(found.entry, str(error))

    def _skip(self, entry: ImageEntry, reason: str) -> None:
        self._complain(f"skipped image {entry.id} ({entry.file_name}): {reason}")
        self.skips.add(entry, reason)

    def _complain(self, text: str) -> None:
        self.line.clear()
        print(text, file=sys.stderr, flush=True)

    def _finish(self, shards: dict[str, list[dict[str, Any]]]) -> int:
        """Writes everything that is not a shard; returns the size of the vocabulary."""
        lost = {item["id"] for item in self.skips.items}
        kept = [image for image in self.kept.values() if image.id not in lost]
        images = self.settings.images
        fingerprint = {
            "name": self.settings.name or pathlib.Path(self.settings.captions).stem,
            "images": None if images is None else os.path.abspath(images),
            "backbone": self.backbone,
            "skipped": self.skips.items,
            "dropped_captions": self.dropped,
        }
        dim, min_count = self.reader.dim, self.settings.min_count
        return finish(self.out, kept, shards, dim, min_count, fingerprint, self.vocab)

    def _given_vocabulary(self) -> tokens.Vocab | None:
        """That of `--vocab`, with a word on how well it suits the captions."""
        if self.settings.vocab is None:
            return None
        vocab = tokens.Vocab.load(self.settings.vocab)
        train = [image for image in self.kept.values() if image.split == "train"]
        ids = [i for image in train for words in image.words for i in vocab.ids(words)]
        known = 100 * (1 - ids.count(UNK) / max(len(ids), 1))
        print(
            f"{self.settings.vocab} has {known:.1f} % of the words of the training captions",
            flush=True,
        )
        return vocab
