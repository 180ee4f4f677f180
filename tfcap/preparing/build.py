"""Prepares a data set: read, split, tokenize, write the shards, finish.

If an interrupted prepare is called again, it continues where it stopped: shards that have a
description are finished, see `shards`. dataset.json is written last, so if it exists, everything is
finished.
"""

import dataclasses
import functools
import hashlib
import importlib.util
import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tfcap import errors, files, progress
from tfcap.backbones import default_weights, saved
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
from tfcap.preparing import moving_shapes, shapes, shards
from tfcap.preparing.engines import Engine, in_processes, inline
from tfcap.preparing.inputs import Inputs, check_images, local_captions, read
from tfcap.preparing.pictures import Pictures, shorter_side
from tfcap.preparing.ready import ReadyFeatures
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
_LEFTOVERS = re.compile(r"\.(tmp|old)-\d+-.*")  # of a killed prepare

_PACKAGED = ("efficientnet_lite2", 7)  # name and grid of the packaged captioner's backbone

Descriptions = Mapping[str, Mapping[str, Any]]  # of finished shards, by their names


def prepare(settings: Settings) -> pathlib.Path | str:
    """Prepares a data set. Continues an interrupted call; does nothing if all is finished."""
    settings.check()
    out = os.fspath(settings.out).rstrip("/") or "/"
    settings = dataclasses.replace(settings, out=out)
    if files.is_file(out):
        raise errors.UsageError(f"--out is a directory, and {out} is a file.")
    run_on = _engine(settings.engine, settings.workers, settings.engine_options)
    with local_captions(settings) as local:
        inputs = read(local)
        # A wrong path leaves no directory behind; pictures of a finished one may be gone.
        if settings.overwrite or not files.exists(os.path.join(out, FINGERPRINT)):
            check_images(inputs.settings, inputs.entries)
        files.make_directory(out)
        with files.lock(out, "prepare", "choose another --out"):
            _Preparation(inputs, settings.images).run(run_on)
    return out if files.is_remote(out) else pathlib.Path(out)


def _engine(name: str, workers: int, options: Sequence[str]) -> Engine:
    """Returns one of `ENGINES`; "local" with one worker works in this process."""
    if name == "local":
        return functools.partial(in_processes, workers) if workers > 1 else inline
    if importlib.util.find_spec("apache_beam") is None:
        raise errors.UsageError(
            "--engine=beam needs Apache Beam: pip install 'tfcap[beam]' installs it."
        )
    from tfcap.preparing import beam

    return beam.engine(options)


def prepare_built_in(
    source: str,
    out: str | os.PathLike,
    *,
    train: int | None = None,
    val: int | None = None,
    test: int | None = None,
    seed: int = 1,
    overwrite: bool = False,
    **settings: Any,
) -> pathlib.Path | str:
    """Draws the built-in data set "shapes" or "moving_shapes" into `out` and prepares it there.

    `train`, `val` and `test` are numbers of pictures or clips; None takes the defaults. `settings`
    are further fields of `Settings`; the default of `backbone` is "pixels" here.
    """
    drawn = shapes.DATA if source == "shapes" else moving_shapes.DATA
    given: dict[str, Any] = {"name": source, "backbone": "pixels"}
    if source == "moving_shapes":
        given["frames"] = moving_shapes.FRAMES[0]
    given |= {key: value for key, value in settings.items() if value is not None}
    ready = Settings(
        captions=os.path.join(out, drawn.caption_file),
        images=os.path.join(out, drawn.folder),
        out=os.fspath(out),
        source="karpathy",
        seed=seed,
        overwrite=overwrite,
        **{"weights": default_weights(given["backbone"]), **given},
    )
    ready.check()  # an impossible setting must not replace old pictures
    numbers = {"train": train, "val": val, "test": test}
    counts = {split: number for split, number in numbers.items() if number is not None}
    drawn.write(out, counts, seed, overwrite)
    return prepare(ready)


class _Preparation:
    """The steps of prepare in one directory."""

    def __init__(self, inputs: Inputs, images: str | None):
        self.inputs, self.settings, self.out = inputs, inputs.settings, inputs.settings.out
        # With --images as it was given: older directories lack the folder that `read` takes.
        asked = dataclasses.replace(self.settings, images=images)
        identity = asked.identity(inputs.entries, inputs.divided.digest)
        text = json.dumps(identity, sort_keys=True)
        self.digest = hashlib.sha256(text.encode()).hexdigest()
        self.state_path = os.path.join(self.out, STATE)
        self.state: dict[str, Any] = {"settings": identity}
        self.is_new = True
        if not self.settings.overwrite:
            self._continue(identity)
        self.shards = shards.plan(inputs.entries, self.settings.images_per_shard)

    def _continue(self, identity: Mapping[str, Any]) -> None:
        """Checks that the directory was prepared with the same settings, and reuses what it has."""
        remedy = "Choose another --out, or give --overwrite to replace what is there."
        if files.exists(self.state_path):
            self.state = files.read_json(self.state_path, remedy)
            self.is_new, old = False, self.state["settings"]
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
            print(f"{self.out} is prepared already", flush=True)
            return
        self.images = tokenize(self.inputs.entries, self.settings.tokens == "given")
        vocabulary = Vocabulary(self.settings, self.images)
        self.reader = shards.open_reader(self.settings, self.images)
        self._print_plan(left, sum(len(known["skipped"]) for known in finished.values()))
        self._begin()
        self.writer = self._writer()
        with progress.Bar(sum(map(len, left.values())), "preparing", "image") as bar:
            self._write_shards(left, finished, bar, run_on)
        finished = self._descriptions()
        _print_notes(finished)
        self._finish(finished, vocabulary, bar)

    def _descriptions(self) -> dict[str, dict[str, Any]]:
        """Returns the descriptions of the finished shards, in the order of the plan."""
        found = {name: shards.read_description(self.out, self.digest, name) for name in self.shards}
        return {name: known for name, known in found.items() if known is not None}

    def _print_plan(self, left: Mapping[str, Sequence[Entry]], skipped: int) -> None:
        images, reader = self.images, self.reader
        if isinstance(reader, ReadyFeatures):
            print(f"features: {reader.about()}", flush=True)
        print(
            f"{len(images)} images with {_captions(images)} captions, about {reader.regions} x "
            f"{reader.dim} features each; {len(self.shards)} shards in {self.out}",
            flush=True,
        )
        if done := len(images) - sum(map(len, left.values())):
            again = f", {skipped} skipped: --overwrite reads them again" if skipped else ""
            print(f"finished already: {done} images{again}", flush=True)

    def _begin(self) -> None:
        """Removes unfinished files and files of other settings, and writes the settings."""
        for folder in (self.out, os.path.join(self.out, shards.FOLDER)):
            for name in files.names(folder) if files.is_directory(folder) else ():
                if _LEFTOVERS.fullmatch(name):
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
        absolute, settings = files.absolute, self.settings
        settings = dataclasses.replace(
            settings,
            out=absolute(settings.out),
            captions=None,  # no shard depends on these files, only on the entries
            images=None if settings.images is None else absolute(settings.images),
            features=[absolute(path) for path in settings.feature_paths] or None,
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
        known = self.state.get("weights_sha256")
        name, digest = saved.save(backbone.network, self.out, known)
        if digest.sha256 != known:
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
        skipped = [item for known in finished.values() for item in known["skipped"]]
        self._check_skipped(skipped)
        if run_on is inline:
            self.writer = dataclasses.replace(self.writer, reader=self.reader, bar=bar)
        for name in run_on(self.writer, tasks):
            known = shards.read_description(self.out, self.digest, name)
            if known is None:
                raise ValueError(
                    f"{os.path.join(self.out, name)} was not written. All workers must see "
                    "--out under the same path."
                )
            skipped += known["skipped"]
            if run_on is not inline:
                bar.update(len(left[name]))
            self._check_skipped(skipped)

    def _check_skipped(self, skipped: Sequence[Mapping[str, Any]]) -> None:
        """Raises ValueError if more images are skipped than --max_skipped allows."""
        most = allowed_skips(self.settings.max_skipped, len(self.images))
        if skipped and len(skipped) + len(self.inputs.skipped) > most:
            last = skipped[-1]
            raise ValueError(
                "More images cannot be used than --max_skipped allows. The last one is "
                f"{last['file_name']}: {last['reason'].rstrip('.')}. Raise --max_skipped and give "
                "the same command again: finished shards are kept. Or repair the images and add "
                "--overwrite."
            )

    def _finish(self, finished: Descriptions, vocabulary: Vocabulary, bar: progress.Bar) -> None:
        """Writes vocabulary, document frequencies, references, indices and, last, dataset.json."""
        skipped = [item for known in finished.values() for item in known["skipped"]]
        unusable = {item["id"] for item in skipped}
        kept = [image for image in self.images if image.id not in unusable]
        if not kept:
            raise ValueError(f"{self.out}: no image can be used; the reasons are printed above.")
        vocab, frequencies = vocabulary.finish(kept)
        vocab.save(os.path.join(self.out, VOCABULARY))
        if frequencies is not None:
            write_document_frequencies(self.out, frequencies)
        splits: dict[str, list[ShardInfo]] = {}
        for name, members in self.shards.items():
            if (known := finished[name])["records"]:
                info = ShardInfo(*(known[key] for key in ShardInfo._fields))
                splits.setdefault(members[0].split or "", []).append(info)
        fingerprint: dict[str, Any] = {
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
            "skipped": skipped,
            "dropped_captions": _captions(self.inputs.entries) - _captions(self.images),
        }
        # Keys that directories of older versions lack.
        if self.inputs.skipped:
            fingerprint["skipped_rows"] = [row._asdict() for row in self.inputs.skipped]
        fingerprint |= self.settings.newer_keys
        if isinstance(self.reader, Pictures) and self.reader.keep:
            side = shorter_side(self.reader.backbone.image_size)
            fingerprint["pictures"] = {"shorter_side": side}
        if frequencies is None:
            fingerprint["document_frequency"] = None
        elif self.settings.document_frequency is not None:
            fingerprint["document_frequency"] = "file"
        write_fingerprint(self.out, fingerprint)
        speed = f", {bar.done / bar.seconds:.0f} images/s" if bar.done else ""
        print(
            f"{self.out} is prepared: {len(kept)} images, {len(skipped)} skipped, vocabulary "
            f"{len(vocab)}; {errors.duration(bar.seconds)}{speed}",
            flush=True,
        )
        backbone = self.writer.backbone
        if "train" in splits and backbone and (backbone["name"], backbone["grid"]) == _PACKAGED:
            name = os.path.basename(os.path.normpath(self.out))
            print(
                "to train the packaged captioner further on it: python -m tfcap.train "
                f"--experiment=finetune --params_override=task.data_dir={self.out} "
                f"--model_dir runs/{name}",
                flush=True,
            )

    def _statistics(self, finished: Descriptions) -> dict[str, Any]:
        """Returns the statistics of the training features, or of all features if there are none."""
        parts = {name: known["sums"] for name, known in finished.items()}
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
        return features


def _captions(images: Sequence[Entry]) -> int:
    """Returns the number of captions."""
    return sum(len(image.captions) for image in images)


def _print_notes(finished: Descriptions) -> None:
    """Prints how many images lost their boxes, and how many are animated."""
    if number := sum(known.get("dropped_boxes", 0) for known in finished.values()):
        print(
            f"note: the boxes of {number} images were dropped: they are in pixels, and the size of "
            "the images is unknown. Give their pictures with --images to keep the boxes.",
            flush=True,
        )
    if number := sum(known.get("animated", 0) for known in finished.values()):
        print(f"note: animated GIF files: {number}. Only their first frame is used.", flush=True)


def _write_split(
    folder: str, split: str, infos: Sequence[ShardInfo], kept: Sequence[Entry]
) -> dict[str, Any]:
    """Writes references and index of a split; returns its entry of dataset.json."""
    images = [image for image in kept if image.split == split]
    captions = write_references(
        folder, split, ((image.id, image.file_name, image.captions) for image in images)
    )
    shards.write_index(folder, split, infos)
    return {
        "images": len(images),
        "captions": captions,
        "lengths": lengths(images),
        "references_sha256": files.file_sha256(references_path(folder, split)),
        "shards": [info.entry for info in infos],
    }
