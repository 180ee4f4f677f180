"""Prepares a data set: turns captions and images into records, words and references.

An interrupted prepare continues where it stopped when it is called again: `.prepare.json` holds
the finished shards. dataset.json is written last, so its presence means that everything is there.
"""

import dataclasses
import itertools
import os
import pathlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tfcap import console
from tfcap.data.pictures import DECODER
from tfcap.data.record import Record
from tfcap.files import write_json
from tfcap.preparing import shapes, vocabulary
from tfcap.preparing.captions import Kept, tokenized
from tfcap.preparing.features.backbone import Backbone
from tfcap.preparing.features.backbones import saved
from tfcap.preparing.features.frames import ClipFeatures, Clips, Reader, SampledFrames
from tfcap.preparing.features.kept import shorter_side
from tfcap.preparing.features.pictures import Extracted, Pictures
from tfcap.preparing.features.ready import ReadyFeatures
from tfcap.preparing.finish import Sums, finish
from tfcap.preparing.inputs import Inputs, check_directories, read
from tfcap.preparing.notes import print_dropped, print_forecast, print_notes, print_problem
from tfcap.preparing.settings import NEW_KEYS, Settings, allowed_skips
from tfcap.preparing.shards import plan, write_shard
from tfcap.preparing.sources import ImageEntry
from tfcap.preparing.state import SPLIT_LISTS, Skips, State, is_whole, locked


def prepare(settings: Settings) -> pathlib.Path:
    """Prepares a data set; continues an interrupted one and leaves a finished one as it is.

    Returns:
      `settings.out`.

    Raises:
      ValueError: bad input, too many images skipped, or `out` holds files of other settings.
    """
    settings.check()
    inputs = read(settings)
    settings = inputs.settings
    identity = settings.identity(inputs.entries, inputs.divided.digest)
    out = pathlib.Path(settings.out)
    if not out.exists():
        check_directories(settings, inputs.entries)  # a wrong path leaves no directory behind
    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        state = State(out, identity, settings.overwrite)
        if not state.replaces and is_whole(out):
            print(f"{out} is prepared already", flush=True)
            return out
        _prepare(inputs, state)
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
    given: dict[str, Any] = {"name": "shapes", "backbone": "pixels", "weights": None, **settings}
    given["source"] = "karpathy"
    return prepare(Settings(captions=str(captions), out=str(out), images=images, **given))


def _prepare(inputs: Inputs, state: State) -> None:
    """Writes the shards that are not finished, and then everything else.

    All that can be wrong with the input is checked before the first file is written.
    """
    settings, entries = inputs.settings, inputs.entries
    shards = plan(entries, settings.images_per_shard)
    left = _left(shards, state)
    if left and settings.features is None:
        state.require_decoder(DECODER)
        left = _left(shards, state)
    if left:
        check_directories(settings, entries)
    images = {image.id: image for image in tokenized(entries, settings.tokens == "given")}
    dropped = print_dropped(entries, images)
    vocab, frequencies = vocabulary.load(settings, entries, list(images.values()))
    reader = _open_features(settings, entries)
    print_forecast(state.folder, list(images.values()), reader, len(shards), left)
    state.begin()
    if inputs.divided.written is not None:
        write_json(state.folder / SPLIT_LISTS, inputs.divided.written)
    backbone = _save_backbone(reader, state)
    skips = Skips(
        allowed_skips(settings.max_skipped, len(entries)), len(entries), len(inputs.skipped)
    )
    writer = _ShardWriter(state.folder, images, reader, skips, left)
    writer.expect([members for name, members in shards if state.shard(name) is None])
    finished: dict[str, list[dict[str, Any]]] = {}
    for number, (name, members) in enumerate(shards, 1):
        known = state.shard(name)
        if known is None:
            known = writer.write(name, members, f"shard {number} of {len(shards)}")
            state.save(shards={**state.content["shards"], name: known})
        else:
            skips.items += known["skipped"]
        finished.setdefault(members[0].split or "", []).append(known)
    print_notes(finished)
    skipped = {item["id"] for item in skips.items}
    kept = [image for image in images.values() if image.id not in skipped]
    words = vocabulary.choose(kept, settings.min_count, vocab, frequencies, settings.count_splits)
    fingerprint = {
        "name": settings.data_name,
        "images": None if settings.images is None else os.path.abspath(settings.images),
        "backbone": backbone,
        "skipped": skips.items,
        "dropped_captions": dropped,
    }
    # These keys are new, so that older directories lack them.
    if inputs.skipped:
        fingerprint["skipped_rows"] = [row._asdict() for row in inputs.skipped]
    for key, default in NEW_KEYS:
        if getattr(settings, key) != default:
            fingerprint[key] = getattr(settings, key)
    if isinstance(reader, Pictures) and reader.keep:
        fingerprint["pictures"] = {"shorter_side": shorter_side(reader.backbone.image_size)}
    finish(state.folder, kept, finished, reader.dim, words, fingerprint, reader.image_dim)
    seconds = console.duration(time.monotonic() - writer.start)
    speed = f", {writer.rate():.0f} images/s" if writer.done else ""
    print(
        f"{state.folder} is prepared: {len(kept)} images, {len(skips.items)} skipped,"
        f" vocabulary {len(words.vocab)}; {seconds}{speed}",
        flush=True,
    )


def _left(shards: Sequence[tuple[str, list[ImageEntry]]], state: State) -> int:
    """Returns how many images are in shards that are not finished."""
    return sum(len(members) for name, members in shards if state.shard(name) is None)


def _open_features(settings: Settings, entries: list[ImageEntry]) -> Reader:
    """Opens the source of features: loads the network with its weights, or finds the files."""
    shuffled = settings.frame_order == "shuffled"
    if settings.features is not None:
        ready = ReadyFeatures(settings.feature_paths, entries, settings.images, settings.out)
        print(f"features: {ready.about()}", flush=True)
        return SampledFrames(ready, settings.frames, shuffled) if settings.frames else ready
    backbone = Backbone(
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


def _save_backbone(reader: Reader, state: State) -> dict[str, Any] | None:
    """Saves the weights of the backbone in the first run; returns its entry of dataset.json."""
    backbone = getattr(reader, "backbone", None)
    if backbone is None:
        return None
    if backbone.model is None:
        return backbone.made_by(None, None)
    known = state.content.get("weights_sha256")
    name, digest = saved.save(backbone.network, state.folder, known)
    if digest.sha256 != known:
        state.save(weights_sha256=digest.sha256)
    return backbone.made_by(name, digest)


class _ShardWriter:
    """Writes shards and shows the progress.

    Attributes:
      done: images that this run has processed.
      start: when it began, seconds of `time.monotonic`.
    """

    def __init__(
        self,
        out: pathlib.Path,
        images: dict[int, Kept],
        reader: Reader,
        skips: Skips,
        left: int,
    ):
        self.out, self.images, self.reader, self.skips = out, images, reader, skips
        self.left, self.done, self.start = left, 0, time.monotonic()
        self.line = console.Line()

    def rate(self) -> float:
        """Returns images per second of this run."""
        return self.done / max(time.monotonic() - self.start, 1e-3)

    def expect(self, shards: Sequence[Sequence[ImageEntry]]) -> None:
        """Gives the reader the images of all shards that will be written, in their order."""
        if len(shards) > 1 and isinstance(self.reader, Pictures):
            usable = (filter(self._is_usable, members) for members in shards)
            self.reader.expect([list(members) for members in usable])

    def _is_usable(self, entry: ImageEntry) -> bool:
        return self.images[entry.id].usable

    def write(self, name: str, entries: Sequence[ImageEntry], label: str) -> dict[str, Any]:
        """Writes one shard; returns its entry for `.prepare.json`."""
        before, sums = len(self.skips.items), Sums()
        known = {"file": name, "records": 0, "bytes": 0, "offsets": [], "ids": []}
        dropped, animated = [], []

        def records() -> Iterator[Record]:
            for extracted in self._extract(entries, label):
                record = self._record(extracted)
                if record is not None:
                    sums.add(record.features)
                    dropped.append(extracted.boxes_dropped)
                    animated.append(extracted.animated)
                    yield record

        stream = records()
        first = next(stream, None)
        if first is not None:  # a shard without a usable image gets no file
            info = write_shard(self.out / name, itertools.chain([first], stream))
            known |= {**info.entry, "offsets": info.offsets.tolist(), "ids": info.ids.tolist()}
        known |= {"sums": dataclasses.asdict(sums), "skipped": self.skips.items[before:]}
        if any(dropped):
            known["dropped_boxes"] = sum(dropped)
        if any(animated):
            known["animated"] = sum(animated)
        if self.line.visible:
            self.line.clear()
        else:
            print(f"{name}: {known['records']} images, {self.rate():.0f}/s", flush=True)
        return known

    def _extract(self, entries: Sequence[ImageEntry], label: str) -> Iterator[Extracted]:
        """Yields the features of the images of a shard; skips images without a needed caption."""
        usable = []
        for entry in entries:
            if self._is_usable(entry):
                usable.append(entry)
            else:
                self.done += 1
                self._skip(entry, "no captions")
        for extracted in self.reader.read(usable):
            self.done += 1
            if self.done % 16 == 0:
                seconds = time.monotonic() - self.start
                pace = console.pace(self.done, self.left, seconds, "images")
                self.line.show(f"{label}: {self.done} of {self.left}, {pace}")
            yield extracted

    def _record(self, extracted: Extracted) -> Record | None:
        """Returns the record of an image; skips an image that has none."""
        image, reason = self.images[extracted.entry.id], extracted.reason
        if reason is None and extracted.features is not None:
            try:
                captions = image.captions if image.stored is None else image.stored
                return Record(
                    image.id,
                    image.file_name,
                    extracted.features,
                    extracted.boxes,
                    captions,
                    extracted.image,
                    picture=extracted.picture,
                )
            except ValueError as error:
                reason = str(error)
        self._skip(extracted.entry, reason or "it has no features")
        return None

    def _skip(self, entry: ImageEntry, reason: str) -> None:
        self.line.clear()
        print_problem(f"skipped image {entry.id} ({entry.file_name}): {reason}")
        self.skips.add(entry, reason)
