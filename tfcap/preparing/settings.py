"""The settings of prepare: the flags of `tfcap.prepare` as one object."""

import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from tfcap import cli, files
from tfcap.data import tokens
from tfcap.files import file_sha256
from tfcap.preparing.engines import ENGINES
from tfcap.preparing.features import HUB, check_name, is_hub
from tfcap.preparing.features.saved import digest
from tfcap.preparing.sources import SPLITS, Entry, containers
from tfcap.preparing.sources.splits import WAYS

Paths = str | os.PathLike | Sequence[str | os.PathLike]
# Settings with their defaults that older directories do not have, in .prepare.json or dataset.json.
NEW_KEYS = (("tokens", "raw"), ("count_splits", "train"), ("frames", None), ("frame_order", "kept"))
_LOCAL = ("features", "weights", "split_ids", "vocab", "document_frequency")  # are opened in place
_END_BYTES = 1 << 20
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
        """Returns the paths of --captions, or of --images if there is no caption file.

        A comma separates paths, unless it belongs to the name of a file.
        """
        return paths_of(self.captions) or paths_of(self.images)

    @property
    def feature_paths(self) -> tuple[pathlib.Path, ...]:
        """Returns the paths of --features; none without the flag."""
        return paths_of(self.features)

    @property
    def data_name(self) -> str:
        """Returns the name of the data set."""
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
                raise cli.UsageError(
                    f"--{key} must be one of {', '.join(choices)}. Received: {getattr(self, key)}."
                )
        if self.split_ids is not None and self.splits != "source":
            raise cli.UsageError(
                f"--split_ids cannot be used with --splits={self.splits}: the lists have the "
                "splits. Leave one of them out."
            )
        if self.frames is not None and self.frames < 1:
            raise cli.UsageError(f"--frames must be at least 1. Received: {self.frames}.")
        try:
            check_name(self.backbone)
        except ValueError as error:
            raise cli.UsageError(str(error)) from None
        if self.features is not None:
            for flag, default in (
                ("crops", 1),
                ("vector", False),
                ("image_size", None),
                ("grid", None),
            ):
                if getattr(self, flag) != default:
                    raise cli.UsageError(
                        f"--{flag} cannot be used with --features: ready-made features have no "
                        "pictures."
                    )
        elif is_hub(self.backbone) and self.weights is not None:
            raise cli.UsageError(
                f"--weights cannot be used with --backbone={self.backbone}: a preset has its own. "
                f"Received: {self.weights}."
            )
        for flag in ("grid", "image_size"):
            if getattr(self, flag) is not None and getattr(self, flag) < 1:
                raise cli.UsageError(
                    f"--{flag} must be at least 1. Received: {getattr(self, flag)}."
                )
        if self.vocab is not None and self.count_splits != "train":
            raise cli.UsageError(
                "--count_splits cannot be used with --vocab, because no words are counted then. "
                f"Received: --count_splits={self.count_splits}. Leave one of them out."
            )
        if self.keep_pictures and (self.features or self.frames or self.crops != 1):
            raise cli.UsageError(
                "--keep_pictures cannot be used with --features, --frames or --crops: the network "
                "that it is for reads one whole picture. Leave out one of them."
            )
        if self.min_count < 1 or self.images_per_shard < 1:
            raise cli.UsageError(
                "--min_count and --images_per_shard must be at least 1. Received: "
                f"{self.min_count} and {self.images_per_shard}."
            )
        if self.workers < 1:
            raise cli.UsageError(f"--workers must be at least 1. Received: {self.workers}.")
        if self.engine == "beam" and self.workers != 1:
            raise cli.UsageError(
                "--workers cannot be used with --engine=beam: its own options have the number of "
                f"workers. Received: --workers={self.workers}. Give for example -- "
                "--direct_num_workers=2."
            )
        if self.engine != "beam" and self.engine_options:
            raise cli.UsageError(
                "Arguments after -- are options of --engine=beam. Received: "
                f"{self.engine_options[0]!r} with --engine={self.engine}."
            )
        for flag in _LOCAL:
            given = getattr(self, flag)
            for path in [given] if isinstance(given, str | os.PathLike) else given or []:
                if files.is_remote(path):
                    raise cli.UsageError(
                        f"--{flag} must be on a local disk. Received: {path}. Copy it to this "
                        "machine first; --captions, --images and --out may be remote."
                    )
        if files.is_remote(self.images) and (self.features or not self.captions):
            raise cli.UsageError(
                f"--images may be remote only with --captions and without --features. Received: "
                f"{self.images}. Copy the files to a local disk first."
            )
        if self.document_frequency is not None and self.vocab is None:
            raise cli.UsageError(
                "--document_frequency needs --vocab, the vocabulary that it was counted with. "
                "Received: no --vocab. Give both."
            )
        allowed_skips(self.max_skipped, 1)

    def identity(self, entries: Sequence[Entry] = (), splits: str | None = None) -> dict[str, Any]:
        """Returns the settings that the files depend on; prepare continues only with equal ones.

        Args:
          entries: the images, which identify captions that are not one ordinary file.
          splits: digest of splits that are not those of the source, or None.
        """
        weights = self.weights
        if weights not in (None, "imagenet"):
            weights = _digest("--weights", weights)
        made = {"backbone": self.backbone, "weights": weights, "grid": self.grid}
        # A key at its default is left out, so that the settings of older directories still match.
        if self.crops != 1:
            made["crops"] = self.crops
        if self.keep_pictures:
            made["keep_pictures"] = True
        if self.vector:
            made["vector"] = True
        if self.image_size is not None:
            made["image_size"] = self.image_size
        if is_hub(self.backbone) and (preset := digest(self.backbone.removeprefix(HUB))):
            made["preset"] = preset.sha256  # of a directory, whose content may change
        more: dict[str, Any] = {}
        if self.source not in ("auto", "karpathy"):
            more["source"] = self.source
        for key, default in NEW_KEYS:
            if getattr(self, key) != default:
                more[key] = getattr(self, key)
        if splits is not None:
            more["splits"] = splits
        if self.vocab is not None:
            more["vocab"] = tokens.Vocab.load(self.vocab).sha256
        if self.document_frequency is not None:
            more["document_frequency"] = _digest("--document_frequency", self.document_frequency)
        return {
            "captions": self._captions_digest(entries, splits is None),
            "images": self._place(self.images),
            "features": self._places(),
            **(dict.fromkeys(made) if self.features else made),
            "min_count": self.min_count,
            **more,
            "images_per_shard": self.images_per_shard,
            "tokenizer": tokens.TOKENIZER,
        }

    def _captions_digest(self, entries: Sequence[Entry], own_splits: bool) -> str:
        """Returns a SHA-256 of the captions and of the splits that the source gives.

        Args:
          entries: the images.
          own_splits: whether all splits are those of the source. Else only further splits, such as
            test2014, are a part of the digest.
        """
        paths, digest = self.caption_paths, hashlib.sha256()
        if len(paths) == 1 and paths[0].is_file() and paths[0].stat().st_size <= _HASHED_BYTES:
            whole = file_sha256(paths[0])
            if self.source in ("auto", "karpathy"):
                return whole  # the file holds its splits
            digest.update(whole.encode())
        else:
            for entry in entries:
                digest.update(repr((*entry[:2], entry.captions, entry.words)).encode())
            for path in containers(entry.content for entry in entries):
                digest.update(_ends_sha256(path).encode())
        # Splits may also come from other files, from names of files, or from a draw of the reader.
        for entry in entries:
            if own_splits or entry.split not in SPLITS:
                digest.update(repr((entry.id, entry.split)).encode())
        return digest.hexdigest()

    def _places(self) -> str | list[str | None] | None:
        """Returns `_place` of --features, or a list of several."""
        places = [self._place(os.fspath(path)) for path in self.feature_paths]
        return places if len(places) > 1 else places[0] if places else None

    def _place(self, directory: str | None) -> str | None:
        """Returns the path, relative if it lies inside `out`, so that `out` can be moved."""
        if directory is None:
            return None
        path, out = (
            files.absolute(place) if files.is_remote(place) else os.path.realpath(place)
            for place in (directory, self.out)
        )
        return path.removeprefix(out + os.sep)


def paths_of(given: Paths | None) -> tuple[pathlib.Path, ...]:
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
        raise cli.UsageError(f"--max_skipped must be like 100 or 1%. Received: {text!r}.")
    return int(value * images / 100) if text.endswith("%") else int(value)


def _digest(flag: str, path: str) -> str:
    """Returns the SHA-256 of a file, or raises ValueError that names the flag."""
    if not os.path.isfile(path):
        raise ValueError(f"{flag} must be an existing file. Received: {path}. Correct the path.")
    return file_sha256(path)


def _ends_sha256(path: str | os.PathLike) -> str:
    """Returns the SHA-256 of a file's size and of its first and last MiB, in hexadecimal.

    It tells files apart that are too large to be read whole. The end of a Parquet file holds the
    sizes of all its parts.
    """
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        digest = hashlib.sha256(str(size).encode())
        for start in (0, max(0, size - _END_BYTES)):
            file.seek(start)
            digest.update(file.read(_END_BYTES))
    return digest.hexdigest()
