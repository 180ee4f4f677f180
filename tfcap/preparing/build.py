"""Prepares a data set: read, split, tokenize, write the shards, finish.

If an interrupted prepare is called again, it continues where it stopped: shards that have a
description are finished, see `shards`. dataset.json is written last, so if it exists, everything is
finished.
"""

import collections
import dataclasses
import hashlib
import json
import logging
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tfcap import errors, files, progress
from tfcap.backbones import saved
from tfcap.data import tokens
from tfcap.data.document_frequency import DOCUMENT_FREQUENCY, write_document_frequencies
from tfcap.data.prepared import (
    FINGERPRINT,
    VOCABULARY,
    PreparedData,
    references_path,
    write_fingerprint,
    write_references,
)
from tfcap.preparing import engine_choice, moving_shapes, shapes, shards
from tfcap.preparing.engines import Engine, inline
from tfcap.preparing.inputs import Inputs, check_images, local_captions, read
from tfcap.preparing.mirror import exchanged, with_mirrored
from tfcap.preparing.pictures import Pictures, shorter_side
from tfcap.preparing.ready import FeatureSets, ReadyFeatures
from tfcap.preparing.settings import Settings, allowed_skips
from tfcap.preparing.shards import ShardInfo, ShardWriter, Task
from tfcap.preparing.sources.entry import Entry
from tfcap.preparing.vocabulary import Vocabulary, lengths, tokenize

STATE = ".prepare.json"  # the settings of an unfinished or finished directory
SPLIT_LISTS = "splits.json"  # the images of each split, where the source itself has no splits
# What prepare writes into a directory. The fingerprint first: without it the rest does not look
# like a finished data set.
_WRITTEN = [FINGERPRINT, f"{shards.FOLDER}/*", "*-of-[0-9]*.tfrecord", "*.index.npz"]
_WRITTEN += [DOCUMENT_FREQUENCY, "references_*.json", SPLIT_LISTS, STATE, *saved.SAVED]

_PACKAGED = ("efficientnet_lite2", 7)  # name and grid of the packaged captioner's backbone
_log = logging.getLogger(__name__)

Descriptions = Mapping[str, Mapping[str, Any]]  # of finished shards, by their names


def prepare(settings: Settings) -> pathlib.Path | str:
    """Prepares a data set: writes its features and captions as shards, and its vocabulary.

    It continues where an interrupted call stopped. If `out` is already finished, it writes nothing.

    Args:
      settings: what to prepare, how, and the directory `out` to write.

    Returns:
      The path of the directory `out`: a Path, or a string if it is remote, as gs://bucket/data.

    Raises:
      UsageError: a setting has a wrong value or is missing, or two settings exclude each other.
      ValueError: the data cannot be used, or `out` was prepared with other settings.
    """
    settings = settings.checked()
    out = os.fspath(settings.out).rstrip("/") or "/"
    settings = dataclasses.replace(settings, out=out)
    if files.is_file(out):
        raise errors.UsageError(f"`out={out}` is a file. Name a directory.")
    run_on = engine_choice.choose(settings.engine, settings.workers, settings.engine_options)
    if settings.is_built_in:
        settings = _draw(settings)
    with local_captions(settings) as local:
        inputs = read(local)
        # A wrong path leaves no directory behind; pictures of a finished one may be gone.
        if settings.overwrite or not files.exists(os.path.join(out, FINGERPRINT)):
            check_images(inputs.settings, inputs.entries)
        files.make_directory(out)
        with files.lock(out, "prepare", "choose another `out`"):
            _Preparation(inputs, settings.images).run(run_on)
    return out if files.is_remote(out) else pathlib.Path(out)


def _draw(settings: Settings) -> Settings:
    """Draws the built-in data set; returns the settings that prepare it like any other."""
    data = shapes.DATA if settings.source == "shapes" else moving_shapes.DATA
    numbers = {"train": settings.train, "val": settings.val, "test": settings.test}
    counts = {split: number for split, number in numbers.items() if number is not None}
    data.write(settings.out, counts, settings.seed, settings.overwrite)
    return dataclasses.replace(
        settings,
        source="karpathy",
        captions=os.path.join(settings.out, data.caption_file),
        images=os.path.join(settings.out, data.folder),
        name=settings.name or settings.source,
        train=None,
        val=None,
        test=None,
    )


class _Preparation:
    """The steps of prepare in one directory.

    Args:
      inputs: what `inputs.read` has read.
      images: the setting `images` as the user gave it.
    """

    def __init__(self, inputs: Inputs, images: str | os.PathLike | None):
        self.inputs = inputs
        self.settings = inputs.settings
        self.out = os.fspath(inputs.settings.out)
        # Not the folder that `read` takes for captions beside their pictures: it may be moved.
        settings = dataclasses.replace(self.settings, images=images)
        identity = settings.identity(inputs.entries, inputs.divided.digest)
        text = json.dumps(identity, sort_keys=True)
        self.digest = hashlib.sha256(text.encode()).hexdigest()
        self.state_path = os.path.join(self.out, STATE)
        self.state: dict[str, Any] = {"settings": identity}
        self.views: int = identity.get("views", 1)  # the largest number of pictures of an image
        self.is_new = True
        if not self.settings.overwrite:
            self._continue(identity)
        entries = self._with_mirrored(inputs.entries)
        self.shards = shards.plan(entries, self.settings.images_per_shard)

    def _with_mirrored(self, images: list[Entry]) -> list[Entry]:
        return with_mirrored(images) if self.settings.flip else images

    def _continue(self, identity: Mapping[str, Any]) -> None:
        """Checks that the directory was prepared with the same settings, and reuses what it has."""
        remedy = "Choose another `out`, or give `overwrite` to replace what is there."
        if files.exists(self.state_path):
            self.state = files.read_json(self.state_path, remedy)
            self.is_new = False
            old = self.state["settings"]
            keys = [key for key in {**old, **identity} if old.get(key) != identity.get(key)]
            if keys:
                raise ValueError(
                    f"{self.out} was prepared with other settings ({', '.join(keys)}). {remedy}"
                )
            return
        for path in [path for pattern in _WRITTEN for path in files.matching(self.out, pattern)]:
            name = os.path.basename(path)
            raise ValueError(f"{self.out} has {name}, which prepare did not write. {remedy}")

    def _is_finished(self) -> bool:
        """True if dataset.json and all files that it names exist."""
        try:
            data = PreparedData.load(self.out)
            for split in data.fingerprint["splits"]:
                data.index(split)
                data.references(split)
            if data.has_document_frequencies:
                data.document_frequencies()
            if data.fingerprint["backbone"] is not None:
                saved.checked_weights(data.fingerprint["backbone"], self.out)
        except ValueError:
            return False
        return True

    def run(self, run_on: Engine) -> None:
        """Writes the unfinished shards, and then everything else."""
        finished = {} if self.is_new else self._descriptions()
        left = {name: members for name, members in self.shards.items() if name not in finished}
        if not left and self._is_finished():
            _log.info(f"{self.out} is prepared already")
            return
        # Words and n-grams are counted once, so that both files are those without `flip`.
        self.originals = tokenize(self.inputs.entries, self.settings.tokens)
        vocabulary = Vocabulary(self.settings, self.originals)
        self.images = self._with_mirrored(self.originals)
        self.reader = shards.open_reader(self.settings, self.images)
        self._say_plan(left, len(_skipped(finished)))
        self._begin()
        self.writer = self._writer()
        with progress.Bar(sum(map(len, left.values())), "preparing", "image") as bar:
            self._write_shards(left, finished, bar, run_on)
        finished = self._descriptions()
        _say_notes(finished)
        self._finish(finished, vocabulary, bar)

    def _descriptions(self) -> dict[str, dict[str, Any]]:
        """Returns the descriptions of the finished shards, in the order of the plan."""
        shard_of = {n: shards.read_description(self.out, self.digest, n) for n in self.shards}
        return {name: shard for name, shard in shard_of.items() if shard is not None}

    def _say_plan(self, left: Mapping[str, Sequence[Entry]], skipped: int) -> None:
        """Says what will be written; `skipped` images of finished shards could not be used."""
        reader = self.reader
        if isinstance(reader, ReadyFeatures | FeatureSets):
            _log.info(f"features: {reader.about()}")
        regions = reader.regions * self.views
        _log.info(
            f"{len(self.images)} images with {_captions(self.images)} captions, about "
            f"{regions} x {reader.dim} features each; {len(self.shards)} shards in {self.out}"
        )
        if self.settings.flip:
            copies = [image for image in self.images if image.mirrored]
            sides = sum(exchanged(text) != text for image in copies for text in image.captions)
            _log.info(
                f"note: {len(copies)} of them are mirrored images of train; left and right are "
                f"exchanged in {sides} of their {_captions(copies)} captions"
            )
        if done := len(self.images) - sum(map(len, left.values())):
            again = f", {skipped} skipped: `overwrite` reads them again" if skipped else ""
            _log.info(f"finished already: {done} images{again}")

    def _begin(self) -> None:
        """Removes unfinished files and files of other settings, and writes the settings."""
        for folder in (self.out, os.path.join(self.out, shards.FOLDER)):
            for name in files.names(folder) if files.is_directory(folder) else ():
                if files.LEFTOVERS.fullmatch(name):
                    files.remove(os.path.join(folder, name))
        for pattern in _WRITTEN if self.is_new else [FINGERPRINT]:
            for path in files.matching(self.out, pattern):
                files.remove(path)
        files.make_directory(os.path.join(self.out, shards.FOLDER))
        files.write_json(self.state_path, self.state)
        if self.inputs.divided.written is not None:
            files.write_json(os.path.join(self.out, SPLIT_LISTS), self.inputs.divided.written)

    def _writer(self) -> ShardWriter:
        """Saves the weights of the backbone, and returns the `ShardWriter`."""
        images = self.settings.images
        absolute = [[*map(files.absolute, paths)] for paths in self.settings.feature_sets]
        settings = dataclasses.replace(
            self.settings,
            out=files.absolute(self.out),
            captions=None,  # no shard depends on these files, only on the entries
            images=None if images is None else files.absolute(images),
            features=absolute[0] if absolute else None,
            further_features=[path for paths in absolute[1:] for path in paths] or None,
        )
        probes = self.images[: shards.PROBES]
        return ShardWriter(settings, self.digest, probes, self._save_backbone())

    def _save_backbone(self) -> dict[str, Any] | None:
        """Saves the weights of the backbone once; returns the entry for dataset.json."""
        backbone = getattr(self.reader, "backbone", None)
        if backbone is None:
            return None
        if backbone.model is None:
            return backbone.made_by(None, None)
        sha256 = self.state.get("weights_sha256")
        name, digest = saved.save(backbone.network, self.out, sha256)
        if digest.sha256 != sha256:
            self.state["weights_sha256"] = digest.sha256
            files.write_json(self.state_path, self.state)
        return backbone.made_by(name, digest)

    def _write_shards(
        self,
        left: Mapping[str, Sequence[Entry]],
        finished: Descriptions,
        bar: progress.Bar,
        run_on: Engine,
    ) -> None:
        """Writes the shards `left` with the engine."""
        images = {image.id: image._replace(words=()) for image in self.images}  # a small task
        tasks = (Task(name, [images[e.id] for e in members]) for name, members in left.items())
        skipped = _skipped(finished)
        self._check_skipped(skipped)
        if run_on is inline:
            self.writer = dataclasses.replace(self.writer, reader=self.reader, bar=bar)
        for name in run_on(self.writer, tasks):
            shard = shards.read_description(self.out, self.digest, name)
            if shard is None:
                raise ValueError(
                    f"A worker has finished the shard {name}, but it is not in {self.out}. All "
                    "workers must write to one directory: give one in shared storage as `out`."
                )
            skipped += shard["skipped"]
            if run_on is not inline:
                bar.update(len(left[name]))
            self._check_skipped(skipped)

    def _check_skipped(self, skipped: Sequence[Mapping[str, Any]]) -> None:
        """Raises ValueError if more images are skipped than `max_skipped` allows."""
        most = allowed_skips(self.settings.max_skipped, len(self.originals))
        if skipped and len(skipped) + len(self.inputs.skipped) > most:
            last = skipped[-1]
            rows = " and rows" if self.inputs.skipped else ""
            raise ValueError(
                f"Images{rows} that cannot be used: {len(skipped) + len(self.inputs.skipped)}, but "
                f"`max_skipped` allows {most}. The last image is {last['file_name']}: "
                f"{last['reason'].rstrip('.')}. Raise `max_skipped` and give the same command "
                "again, which keeps finished shards. Or repair the images and add `overwrite`, "
                "which reads all images again."
            )

    def _finish(self, finished: Descriptions, vocabulary: Vocabulary, bar: progress.Bar) -> None:
        """Writes vocabulary, document frequencies, references, indices and, last, dataset.json."""
        written = {number for shard in finished.values() for number in shard["ids"]}
        kept = [image for image in self.images if image.id in written]
        if not kept:
            raise ValueError(
                f"No image can be used, so {self.out} is not finished. The reasons are printed "
                "above. Repair the images and add `overwrite`."
            )
        vocab, frequencies = vocabulary.finish([image for image in kept if not image.mirrored])
        vocab.save(os.path.join(self.out, VOCABULARY))
        if frequencies is not None:
            write_document_frequencies(self.out, frequencies)
        splits: dict[str, list[ShardInfo]] = {}
        for name, members in self.shards.items():
            if (shard := finished[name])["records"]:
                info = ShardInfo(*(shard[key] for key in ShardInfo._fields))
                splits.setdefault(members[0].split or "", []).append(info)
        fingerprint = self._fingerprint(finished, kept, splits, vocab)
        if frequencies is None:
            fingerprint["document_frequency"] = None
        elif self.settings.document_frequency is not None:
            fingerprint["document_frequency"] = "file"
        write_fingerprint(self.out, fingerprint)
        speed = f", {bar.done / bar.seconds:.0f} images/s" if bar.done else ""
        _log.info(
            f"{self.out} is prepared: {len(kept)} images, {len(_skipped(finished))} skipped, "
            f"vocabulary {len(vocab)}; {errors.duration(bar.seconds)}{speed}"
        )
        backbone = self.writer.backbone
        if "train" in splits and backbone and (backbone["name"], backbone["grid"]) == _PACKAGED:
            name = os.path.basename(os.path.normpath(self.out))
            _log.info(
                "to train the packaged captioner further on it: python -m tfcap.train "
                f"--experiment=finetune --params_override=task.data_dir={self.out} "
                f"--model_dir runs/{name}"
            )

    def _fingerprint(
        self,
        finished: Descriptions,
        kept: Sequence[Entry],
        splits: Mapping[str, Sequence[ShardInfo]],
        vocab: tokens.Vocab,
    ) -> dict[str, Any]:
        """Writes references and indices; returns the content of dataset.json.

        Args:
          finished: the descriptions of all shards.
          kept: the images that have a record.
          splits: the shards with a record of each split.
          vocab: the vocabulary.
        """
        result: dict[str, Any] = {
            "tokenizer": tokens.TOKENIZER,
            "min_count": None if self.settings.vocab else self.settings.min_count,
            "vocab_size": len(vocab),
            "vocab_sha256": vocab.sha256,
            "splits": {
                split: _write_split(self.out, split, infos, kept) for split, infos in splits.items()
            },
            "features": self._statistics(finished),
            "name": self.settings.data_name,
            "images": files.absolute(self.settings.images) if self.settings.images else None,
            "backbone": self.writer.backbone,
            "skipped": _skipped(finished),
            "dropped_captions": _captions(self.inputs.entries) - _captions(self.originals),
            # What is at its default is left out.
            **self.settings.changed("tokens", "count_splits", "frames", "flip"),
            **self.settings.segmenter,
        }
        if self.views > 1:
            result["views"] = self.views
        if rows := self.inputs.skipped:
            result["skipped_rows"] = [{"place": r.location, "reason": r.reason} for r in rows]
        if isinstance(self.reader, Pictures) and self.reader.keep:
            side = shorter_side(self.reader.backbone.image_size)
            result["pictures"] = {"shorter_side": side}
        return result

    def _statistics(self, finished: Descriptions) -> dict[str, Any]:
        """Returns the statistics of the training features, or of all features if there are none."""
        parts = {name: shard["sums"] for name, shard in finished.items()}
        train = [part for name, part in parts.items() if self.shards[name][0].split == "train"]
        used = train if any(part["regions"] for part in train) else list(parts.values())
        sums = {"regions": 0, "total": 0.0, "squares": 0.0, "norms": 0.0}
        for part in used:  # not `sum`: its last bit depends on the version of Python
            for key in sums:
                sums[key] += part[key]
        dim = self.reader.dim
        mean = sums["total"] / (sums["regions"] * dim)
        features = {
            "dim": dim,
            "max_regions": max(part["most_regions"] for part in parts.values()),
            "mean": mean,
            "std": max(sums["squares"] / (sums["regions"] * dim) - mean * mean, 0.0) ** 0.5,
            "mean_norm": sums["norms"] / sums["regions"],  # of a region
        }
        if self.reader.image_dim is not None:
            features["image_dim"] = self.reader.image_dim
        if isinstance(self.reader, FeatureSets):
            features["set_widths"] = self.reader.set_widths
        return features


def _captions(images: Sequence[Entry]) -> int:
    """Returns the number of captions."""
    return sum(len(image.captions) for image in images)


def _skipped(finished: Descriptions) -> list[dict[str, Any]]:
    """Returns the images of finished shards that could not be used, with the reasons."""
    return [item for shard in finished.values() for item in shard["skipped"]]


def _say_notes(finished: Descriptions) -> None:
    """Says how many images lost their boxes, and what was seen in pictures."""
    if number := sum(shard["dropped_boxes"] for shard in finished.values()):
        _log.info(
            f"note: the boxes of {number} images were dropped: they are in pixels, and the size of "
            "the images is unknown. Give their pictures with `images` to keep the boxes."
        )
    notes: collections.Counter[str] = collections.Counter()
    for shard in finished.values():
        notes.update(shard.get("notes", {}))
    for note, number in notes.items():
        _log.info(f"note: {number} {note}")


def _write_split(
    folder: str, split: str, infos: Sequence[ShardInfo], kept: Sequence[Entry]
) -> dict[str, Any]:
    """Writes references and index of a split; returns its entry of dataset.json."""
    images = [image for image in kept if image.split == split]
    captions = write_references(
        folder,
        split,
        ((image.id, image.file_name, image.captions) for image in images),
        {image.id: image.domain for image in images if image.domain},
        {image.id: image.pictures for image in images if image.further},
        {image.id for image in images if image.mirrored},
    )
    shards.write_index(folder, split, infos)
    return {
        "images": len(images),
        "captions": captions,
        "lengths": lengths(images),
        "references_sha256": files.file_sha256(references_path(folder, split)),
        "shards": [info.entry for info in infos],
    }
