"""The settings of prepare: the flags of `tfcap.prepare` as one object."""

import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from tfcap import cli, files
from tfcap.data import tokens
from tfcap.preparing.engines import ENGINES
from tfcap.preparing.features import HUB, check_name, is_hub
from tfcap.preparing.features.saved import digest
from tfcap.preparing.sources import SPLITS, Entry
from tfcap.preparing.sources.splits import WAYS

Paths = str | os.PathLike | Sequence[str | os.PathLike]
# Settings with their defaults that older directories do not have, in .prepare.json or dataset.json.
NEW_KEYS = (("tokens", "raw"), ("count_splits", "train"), ("frames", None), ("frame_order", "kept"))
_HASHED_BYTES = 1 << 30  # a larger caption file holds pictures, and its entries identify it


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of prepare, under the names of the flags of `tfcap.prepare`.

    Attributes:
      captions: caption file, or several of them, or a directory; commas may separate paths. None
        for a source that reads the directory of images only.
      out: directory to write; it is made if it does not exist. It may be remote, such as
        gs://bucket/data, as `images` and the files of `captions` may; see `tfcap.files`.
      source: layout of the caption file, one of `sources.READERS`, or "auto", which finds it.
      images: directory of the image files; needed unless `features` is given or the source holds
        the pictures itself.
      backbone: network that extracts the features, one of `features.BACKBONES` or `hub:PRESET`.
      weights: "imagenet", a file, or None for the backbone "pixels" and for presets.
      grid: cells along a side of the feature grid; None takes the backbone's own grid.
      crops: 10 makes one vector of ten crops of a picture.
      vector: whether a picture becomes one vector, see `features.backbone.Backbone`.
      image_size: side in pixels to which pictures are resized; None takes the backbone's own.
      frames: how many frames of each clip are read; None reads pictures, unless the source is one
        of videos.
      frame_order: "kept", or "shuffled", which puts the frames of each clip into a random order.
      keep_pictures: whether the records also hold the pictures, for end-to-end training.
      features: ready-made features instead of a backbone: a file or directory, or several with
        commas between them.
      min_count: smallest number of times that a word of the vocabulary occurs in the training
        captions.
      vocab: a vocab.txt to use instead of counting words, for example that of a trained model.
      document_frequency: a document_frequency.npz of that vocabulary, instead of counting.
      splits: where the splits come from, one of `sources.splits.WAYS`.
      split_ids: lists of the images of each split, which replace those of the source.
      seed: random seed of splits that are drawn.
      tokens: "raw" makes words of the raw captions; "given" takes the words of the caption file.
      count_splits: "train" or "all": the splits whose words the vocabulary counts.
      name: name of the data set; None takes the name of the caption file.
      max_skipped: how many bad images are skipped before prepare stops, 100 or "1%".
      images_per_shard: images per TFRecord file.
      overwrite: whether to prepare everything in `out` again, also what has other settings.
      engine: where the shards are written, one of `engines.ENGINES`.
      workers: processes of the engine "local"; 1 works in this process.
      engine_options: options of the engine "beam".
    """

    captions: Paths | None
    out: str
    source: str = "auto"
    images: str | None = None
    backbone: str = "mobilenet_v2"
    weights: str | None = "imagenet"
    grid: int | None = None
    crops: int = 1
    vector: bool = False
    image_size: int | None = None
    frames: int | None = None
    frame_order: str = "kept"
    keep_pictures: bool = False
    features: Paths | None = None
    min_count: int = 5
    vocab: str | None = None
    document_frequency: str | None = None
    splits: str = "source"
    split_ids: str | None = None
    seed: int = 1
    tokens: str = "raw"
    count_splits: str = "train"
    name: str | None = None
    max_skipped: str | int = "100"
    images_per_shard: int = 512
    overwrite: bool = False
    engine: str = "local"
    workers: int = 1
    engine_options: Sequence[str] = ()

    @property
    def caption_paths(self) -> tuple[pathlib.Path, ...]:
        """The paths of --captions, or of --images if there is no caption file."""
        return _paths(self.captions) or _paths(self.images)

    @property
    def feature_paths(self) -> tuple[pathlib.Path, ...]:
        """The paths of --features; none without the flag."""
        return _paths(self.features)

    @property
    def data_name(self) -> str:
        """The name of the data set."""
        return self.name or self.caption_paths[0].stem

    def check(self) -> None:
        """Raises UsageError for settings that cannot work."""
        for key, choices in (
            ("splits", WAYS),
            ("frame_order", ("kept", "shuffled")),
            ("tokens", ("raw", "given")),
            ("count_splits", ("train", "all")),
            ("engine", ENGINES),
        ):
            if getattr(self, key) not in choices:
                raise cli.UsageError(f"--{key} is one of {', '.join(choices)}.")
        for key in ("frames", "grid", "image_size", "min_count", "images_per_shard", "workers"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise cli.UsageError(f"--{key} is {value}, and at least 1 is needed.")
        try:
            check_name(self.backbone)
        except ValueError as error:
            raise cli.UsageError(str(error)) from None
        of_pictures = self.crops != 1 or self.vector or self.keep_pictures
        if self.features and (of_pictures or self.image_size or self.grid):
            raise cli.UsageError(
                "--crops, --vector, --image_size, --grid and --keep_pictures are for a backbone, "
                "and --features replaces it. Leave them out."
            )
        if self.keep_pictures and (self.frames or self.crops != 1):
            raise cli.UsageError(
                "--keep_pictures cannot be used with --frames or --crops: the network that it is "
                "for reads one whole picture."
            )
        if self.split_ids is not None and self.splits != "source":
            raise cli.UsageError("--split_ids and --splits both divide the images. Give one.")
        if self.document_frequency is not None and self.vocab is None:
            raise cli.UsageError(
                "--document_frequency needs --vocab, the vocabulary that it was counted with."
            )
        allowed_skips(self.max_skipped, 1)

    def identity(self, entries: Sequence[Entry] = (), splits: str | None = None) -> dict[str, Any]:
        """Settings that invalidate finished shards, as JSON.

        Args:
          entries: the images, which identify captions that are not one ordinary file.
          splits: digest of splits that are not those of the source, or None.
        """
        weights = self.weights
        if weights not in (None, "imagenet"):
            weights = _file_sha256("--weights", weights)
        made = {"backbone": self.backbone, "weights": weights, "grid": self.grid}
        # A key at its default is left out, so that the settings of older directories still match.
        for key, default in (("crops", 1), ("keep_pictures", False), ("vector", False)):
            if getattr(self, key) != default:
                made[key] = getattr(self, key)
        if self.image_size is not None:
            made["image_size"] = self.image_size
        if is_hub(self.backbone) and (preset := digest(self.backbone.removeprefix(HUB))):
            made["preset"] = preset.sha256  # of a directory, whose content may change
        more: dict[str, Any] = {}
        if self.source not in ("auto", "karpathy"):
            more["source"] = self.source
        more |= self.newer_keys
        if splits is not None:
            more["splits"] = splits
        if self.vocab is not None:
            more["vocab"] = tokens.Vocab.load(self.vocab).sha256
        if self.document_frequency is not None:
            more["document_frequency"] = _file_sha256(
                "--document_frequency", self.document_frequency
            )
        places = [self._place(os.fspath(path)) for path in self.feature_paths]
        return {
            "captions": self._captions_sha256(entries, splits is None),
            "images": None if self.images is None else self._place(self.images),
            "features": places if len(places) > 1 else places[0] if places else None,
            **(dict.fromkeys(made) if self.features else made),
            "min_count": self.min_count,
            **more,
            "images_per_shard": self.images_per_shard,
            "tokenizer": tokens.TOKENIZER,
        }

    @property
    def newer_keys(self) -> dict[str, Any]:
        """Those of `NEW_KEYS` that are not at their defaults."""
        values = {key: getattr(self, key) for key, _ in NEW_KEYS}
        return {key: values[key] for key, default in NEW_KEYS if values[key] != default}

    def _captions_sha256(self, entries: Sequence[Entry], own_splits: bool) -> str:
        """Returns a SHA-256 of the captions and of the splits that the source gives."""
        paths, digest = self.caption_paths, hashlib.sha256()
        if len(paths) == 1 and paths[0].is_file() and paths[0].stat().st_size <= _HASHED_BYTES:
            whole = files.file_sha256(paths[0])
            if self.source in ("auto", "karpathy"):
                return whole  # the file holds its splits
            digest.update(whole.encode())
        else:
            for entry in entries:
                digest.update(repr((*entry[:2], entry.captions, entry.words)).encode())
        # Splits may also come from other files, from names of files, or from a draw of the reader.
        for entry in entries:
            if own_splits or entry.split not in SPLITS:
                digest.update(repr((entry.id, entry.split)).encode())
        return digest.hexdigest()

    def _place(self, directory: str) -> str:
        """Returns the path, relative if it lies inside `out`, so that `out` can be moved."""
        path, out = (
            files.absolute(place) if files.is_remote(place) else os.path.realpath(place)
            for place in (directory, self.out)
        )
        return path.removeprefix(out + os.sep)


def _paths(given: Paths | None) -> tuple[pathlib.Path, ...]:
    """Returns the paths of a flag that can hold several, also with commas between them.

    A comma in the name of an existing file does not separate paths.
    """
    several = [given] if isinstance(given, str | os.PathLike) else given or []
    paths: list[str] = []
    for path in map(os.path.expanduser, several):
        paths += [path] if os.path.exists(path) else filter(None, path.split(","))
    return tuple(pathlib.Path(os.path.expanduser(path)) for path in paths)


def allowed_skips(given: str | int, images: int) -> int:
    """Returns how many images may be skipped: `given` is like `100`, or `1%` of `images`."""
    text = str(given)
    number = text.removesuffix("%").strip()
    try:
        value = float(number) if text.endswith("%") else int(number)
    except ValueError:
        value = -1
    if not 0 <= value < float("inf"):
        raise cli.UsageError(f"--max_skipped is like 100 or 1%, and not {text!r}.")
    return int(value * images / 100) if text.endswith("%") else int(value)


def _file_sha256(flag: str, path: str) -> str:
    if not os.path.isfile(path):
        raise ValueError(f"{flag}: there is no file {path}.")
    return files.file_sha256(path)
