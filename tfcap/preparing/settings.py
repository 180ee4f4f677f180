"""The settings of prepare; each field is a flag of `tfcap.prepare`.

TensorFlow is imported only where a method needs it, so that a wrong flag is answered at once.
"""

import dataclasses
import hashlib
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from tfcap import errors, files
from tfcap.backbones import BACKBONES, DETECTOR, HUB, check_name, is_hub
from tfcap.preparing.engines import ENGINES
from tfcap.preparing.sources.entry import SPLITS, Entry
from tfcap.preparing.sources.splits import shares

Paths = str | os.PathLike | Sequence[str | os.PathLike]
_HASHED_BYTES = 1 << 30  # a larger caption file holds pictures, and its entries identify it


def _flag(default: Any, text: str, choices: Sequence[str] = ()) -> Any:
    """Returns a field that is also a flag of `tfcap.prepare`."""
    return dataclasses.field(default=default, metadata={"help": text, "choices": choices})


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of prepare; the command makes its flags from the fields.

    Attributes:
      captions: caption file, or several of them, or a directory; commas may separate paths. None
        for a source that reads the directory of images only.
      out: directory to write; it is made if it does not exist. It may be remote, such as
        gs://bucket/data, as `images` and the files of `captions` may; see `tfcap.files`.
      source: layout of the caption file, a name in `sources.READERS`, or "auto" to detect it.
      engine_options: options of the engine "beam".
    """

    captions: Paths | None
    out: str
    source: str = "auto"
    images: str | None = _flag(None, "Directory of the image files.")
    backbone: str = _flag(
        "mobilenet_v2",
        f"Network that extracts the features: {', '.join(BACKBONES)}, or hub:PRESET of keras-hub.",
    )
    weights: str | None = _flag(
        "imagenet",
        "Weights of the network: 'imagenet' (downloaded, but efficientnet_lite2 has them in the "
        "extra 'lite'), a file, or the directory of a converted detector.",
    )
    grid: int | None = _flag(None, "Cells along a side of the feature grid, for example 7 or 4.")
    crops: int = _flag(1, "10: one feature vector per picture, the mean of ten crops (vgg16: fc7).")
    vector: bool = _flag(False, "One feature vector of the whole picture (vgg16: fc7).")
    image_size: int | None = _flag(None, "Pixels along a side that pictures are resized to.")
    frames: int | None = _flag(None, "Read clips, this many frames of each; 16 for gif and msrvtt.")
    keep_pictures: bool = _flag(
        False, "Store the pictures in the records, too, so that training can change the network."
    )
    objects: bool = _flag(
        False, f"{DETECTOR}: store the names of classes and attributes of regions, too."
    )
    features: Paths | None = _flag(
        None,
        "Ready-made features instead of a network: a file or directory, or several with commas "
        "between them (npz, npy, bottom-up or VinVL tsv, HDF5, LMDB, a matrix with ids).",
    )
    min_count: int = _flag(5, "Words that are counted less often are left out of the vocabulary.")
    vocab: str | None = _flag(
        None, "A vocab.txt to use instead of counting words, e.g. of a converted model."
    )
    document_frequency: str | None = _flag(
        None,
        "A document_frequency.npz of the words of --vocab to use instead of counting n-grams.",
    )
    splits: str = _flag(
        "source",
        "source: the splits of the caption file, or random ones if it has none; random: 90 % "
        "train, 5 % val, 5 % test; random:70,15,15: other shares; mrnn: the sizes of m-RNN's split "
        "of COCO.",
    )
    split_ids: str | None = _flag(
        None,
        "Directory with a list of ids or file names per split, or a JSON file such as splits.json.",
    )
    seed: int = _flag(1, "Random seed of random splits and of the built-in shapes.")
    tokens: str = _flag("raw", "given: use the words that the caption file has.", ("raw", "given"))
    count_splits: str = _flag(
        "train", "Splits whose words the vocabulary counts.", ("train", "all")
    )
    name: str | None = _flag(None, "Name of the data set; default: name of the caption file.")
    max_skipped: str | int = _flag(
        "100", "Largest number of bad images to skip, or their largest share, as in 1%."
    )
    images_per_shard: int = _flag(512, "Images per TFRecord file.")
    overwrite: bool = _flag(False, "Prepare everything in --out again.")
    engine: str = _flag(
        "local",
        "local: processes of this machine; beam: Apache Beam, with its own options after --.",
        ENGINES,
    )
    workers: int = _flag(1, "Processes of --engine=local.")
    engine_options: Sequence[str] = ()

    @property
    def caption_paths(self) -> tuple[pathlib.Path, ...]:
        """The paths of --captions, or of --images if there is no caption file."""
        return _paths(self.captions) or _paths(self.images)

    @property
    def feature_paths(self) -> tuple[pathlib.Path, ...]:
        return _paths(self.features)

    @property
    def data_name(self) -> str:
        return self.name or self.caption_paths[0].stem

    def check(self) -> None:
        """Raises UsageError for settings that cannot work."""
        for field in dataclasses.fields(self):
            choices = field.metadata.get("choices")
            if choices and getattr(self, field.name) not in choices:
                raise errors.UsageError(f"--{field.name} must be one of {', '.join(choices)}.")
        try:
            shares(self.splits)
        except ValueError as error:
            raise errors.UsageError(f"--splits {error}.") from None
        for key in ("frames", "grid", "image_size", "min_count", "images_per_shard", "workers"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise errors.UsageError(f"--{key} must be at least 1, not {value}.")
        try:
            check_name(self.backbone)
        except ValueError as error:
            raise errors.UsageError(str(error)) from None
        if self.backbone == DETECTOR and not self.features:
            if self.weights is None:
                raise errors.UsageError(
                    f"--weights of {DETECTOR} is missing: give the directory of a converted "
                    "detector, see docs/prepare.md."
                )
            if self.grid or self.crops != 1 or self.vector or self.image_size or self.frames:
                raise errors.UsageError(
                    f"{DETECTOR} gives regions of whole pictures. Leave out --grid, --crops, "
                    "--vector, --image_size and --frames."
                )
            if self.keep_pictures:
                raise errors.UsageError(f"{DETECTOR} cannot be trained: leave out --keep_pictures.")
        elif self.objects:
            raise errors.UsageError(f"--objects needs --backbone={DETECTOR}.")
        of_pictures = self.crops != 1 or self.vector or self.keep_pictures
        if self.features and (of_pictures or self.image_size or self.grid):
            raise errors.UsageError(
                "--crops, --vector, --image_size, --grid and --keep_pictures are for a backbone, "
                "and --features replaces it. Leave them out."
            )
        if self.keep_pictures and self.crops != 1:
            raise errors.UsageError(
                "--keep_pictures cannot be used with --crops: the network that it is for reads one "
                "whole picture."
            )
        if self.frames and (self.grid or self.crops != 1 or self.keep_pictures):
            raise errors.UsageError(
                "--grid, --crops and --keep_pictures cannot be used with clips: each frame is one "
                "vector. Leave them out."
            )
        if self.split_ids is not None and self.splits != "source":
            raise errors.UsageError("--split_ids and --splits both divide the images. Give one.")
        if self.document_frequency is not None and self.vocab is None:
            raise errors.UsageError(
                "--document_frequency needs --vocab, the vocabulary that it was counted with."
            )
        allowed_skips(self.max_skipped, 1)

    def identity(self, entries: Sequence[Entry] = (), splits: str | None = None) -> dict[str, Any]:
        """Settings that invalidate finished shards, as JSON.

        `entries` are hashed if the captions are not one ordinary file; `splits` is the digest of
        splits that do not come from the source.
        """
        from tfcap.backbones.saved import digest
        from tfcap.data import tokens

        weights = self.weights
        if weights not in (None, "imagenet"):
            found = digest(weights)  # of a file, or of the directory of a detector
            if found is None:
                raise ValueError(f"--weights: there is no file {weights}.")
            weights = found.sha256
        made = {"backbone": self.backbone, "weights": weights, "grid": self.grid}
        # A key at its default is left out, so that the settings of older directories still match.
        made |= self._changed("crops", "keep_pictures", "vector", "objects", "image_size")
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
            more["document_frequency"] = files.file_sha256(self.document_frequency)
        features = [self._place(os.fspath(path)) for path in self.feature_paths]
        return {
            "captions": self._captions_sha256(entries, splits is None),
            "images": None if self.images is None else self._place(self.images),
            "features": features if len(features) > 1 else next(iter(features), None),
            **(dict.fromkeys(made) if self.features else made),
            "min_count": self.min_count,
            **more,
            "images_per_shard": self.images_per_shard,
            "tokenizer": tokens.TOKENIZER,
        }

    @property
    def newer_keys(self) -> dict[str, Any]:
        """Settings that older directories do not have, if they are not at their defaults."""
        return self._changed("tokens", "count_splits", "frames")

    def _changed(self, *keys: str) -> dict[str, Any]:
        """Returns the settings in `keys` that are not at their defaults."""
        return {
            key: value for key in keys if (value := getattr(self, key)) != getattr(Settings, key)
        }

    def _captions_sha256(self, entries: Sequence[Entry], own_splits: bool) -> str:
        """Returns a SHA-256 of the captions, and of the splits if the source has them."""
        paths, digest = self.caption_paths, hashlib.sha256()
        if len(paths) == 1 and paths[0].is_file() and paths[0].stat().st_size <= _HASHED_BYTES:
            whole = files.file_sha256(paths[0])
            if self.source in ("auto", "karpathy"):
                return whole  # the file holds its splits
            digest.update(whole.encode())
        else:
            for entry in entries:
                digest.update(repr((*entry[:2], entry.captions, entry.words or None)).encode())
        # Splits may also come from other files, from names of files, or from a draw of the reader.
        for entry in entries:
            if own_splits or entry.split not in SPLITS:
                digest.update(repr((entry.id, entry.split)).encode())
        return digest.hexdigest()

    def _place(self, directory: str) -> str:
        """Returns the path, relative if it is inside `out`, so that `out` can be moved."""
        path, out = (
            files.absolute(place) if files.is_remote(place) else os.path.realpath(place)
            for place in (directory, self.out)
        )
        return path.removeprefix(out + os.sep)


def _paths(given: Paths | None) -> tuple[pathlib.Path, ...]:
    """Returns the paths in a flag: a path, several paths, or paths separated by commas.

    A comma in the name of an existing file is not a separator.
    """
    several = [given] if isinstance(given, str | os.PathLike) else given or []
    paths: list[str] = []
    for path in map(os.path.expanduser, several):
        paths += [path] if os.path.exists(path) else filter(None, path.split(","))
    return tuple(pathlib.Path(os.path.expanduser(path)) for path in paths)


def allowed_skips(given: str | int, images: int) -> int:
    """Returns how many images may be skipped, from `100`, or from `1%` of `images`."""
    match = re.fullmatch(r"(\d+)|(\d+(?:\.\d+)?) ?%", str(given))
    if match is None:
        raise errors.UsageError(
            f"--max_skipped must be a number or a share such as 1%, not {given!r}."
        )
    return int(match[1]) if match[1] else int(float(match[2]) * images / 100)
