"""What `prepare` keeps while it works and writes at the end.

R regions, F feature width.
"""

import contextlib
import dataclasses
import fcntl
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfcap.data import features, records, sources, storage, tokens

STATE = ".prepare.json"
WEIGHTS = "backbone.weights.h5"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to prepare; the flags of `tfcap.prepare` under the same names.

    Attributes:
      captions: caption file in Karpathy's layout.
      out: directory to write, made if need be.
      images: directory of the image files; needed unless `features` is given.
      backbone: one of `features.BACKBONES`.
      weights: "imagenet", a file, or None for the backbone "pixels".
      grid: cells along a side of the feature grid; None takes the backbone's own.
      crops: 10 makes one vector of ten crops of a picture.
      features: directory of ready features, one npz per image, instead of a backbone.
      min_count: a word of the training captions enters the vocabulary if it occurs so often.
      vocab: a vocab.txt to take instead, for example of a model that is to be trained further.
      name: of the data set; None takes the name of the caption file.
      max_skipped: how many bad images are skipped before prepare stops, "100" or "1%".
      images_per_shard: images per TFRecord file.
      overwrite: replace what a prepare with other settings left in `out`.
    """

    captions: str
    out: str
    images: str | None = None
    backbone: str = "mobilenet_v2"
    weights: str | None = "imagenet"
    grid: int | None = None
    crops: int = 1
    features: str | None = None
    min_count: int = 5
    vocab: str | None = None
    name: str | None = None
    max_skipped: str = "100"
    images_per_shard: int = 512
    overwrite: bool = False

    def identity(self) -> dict[str, Any]:
        """What the shards depend on. Work goes on only in a directory that has the same."""
        weights = self.weights
        if weights not in (None, "imagenet"):
            if not os.path.isfile(weights):
                raise ValueError(f"no file of weights {weights}; see --weights")
            weights = features.file_sha256(weights)
        made = {"backbone": self.backbone, "weights": weights, "grid": self.grid}
        if self.crops != 1:  # named only then: see the vocabulary below
            made["crops"] = self.crops
        return {
            "captions": features.file_sha256(self.captions),
            "images": self._place(self.images),
            "features": self._place(self.features),
            **(dict.fromkeys(made) if self.features else made),
            "min_count": self.min_count,
            # Named only if given: directories prepared without one stay what they are.
            **({"vocab": tokens.Vocab.load(self.vocab).sha256} if self.vocab else {}),
            "images_per_shard": self.images_per_shard,
            "tokenizer": tokens.TOKENIZER,
        }

    def _place(self, directory: str | None) -> str | None:
        """Relative if it lies inside `out`, so that the whole may be moved."""
        if directory is None:
            return None
        path, out = os.path.realpath(directory), os.path.realpath(self.out)
        return os.path.relpath(path, out) if path.startswith(out + os.sep) else path


class Kept(NamedTuple):
    """An image with those of its captions that have words."""

    id: int
    file_name: str
    split: str
    captions: list[str]
    words: list[list[str]]


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[None]:
    """Keeps a second prepare out of the directory; the lock ends with the process, however."""
    with open(folder / ".prepare.lock", "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another prepare is writing to {folder}; wait for it, or choose another --out"
            ) from None
        yield


class State:
    """Which shards are finished, kept in `.prepare.json`.

    Args:
      folder: the directory that is being prepared.
      identity: all that the content of the shards depends on, as JSON.
      overwrite: whether files of another identity are removed or refused.

    Raises:
      ValueError: the directory was prepared with another identity.
    """

    def __init__(self, folder: pathlib.Path, identity: Mapping[str, Any], overwrite: bool):
        self.folder = folder
        self.path = folder / STATE
        self.content: dict[str, Any] = {"settings": dict(identity), "shards": {}}
        for leftover in folder.glob(".tmp-[0-9]*"):  # of a killed prepare, by its process number
            if leftover.is_file():
                leftover.unlink()
        if not self.path.exists() and not (folder / storage.FINGERPRINT).exists():
            return
        try:
            old = storage.read_json(self.path)
            before, _ = old["settings"], old["shards"]
        except (ValueError, KeyError, TypeError):
            before = {}
        if before == identity:
            self.content = old
            return
        if not overwrite:
            every = {**before, **identity}
            keys = [key for key in every if before.get(key) != identity.get(key)]
            raise ValueError(
                f"{folder} was prepared with other settings ({', '.join(keys)} differ); choose"
                " another --out, or give --overwrite to replace it"
            )
        # The fingerprint first: without it nobody takes the rest for a finished data set.
        for pattern in (storage.FINGERPRINT, STATE, "*.tfrecord", "*.index.npz", WEIGHTS):
            for file in folder.glob(pattern):
                file.unlink()
        for file in folder.glob("references_*.json"):
            file.unlink()

    def shard(self, name: str) -> dict[str, Any] | None:
        """What is known of a finished shard, if its file is there and of the right size."""
        known = self.content["shards"].get(name)
        if known is None or not known["records"]:
            return known
        path = self.folder / name
        return known if path.exists() and path.stat().st_size == known["bytes"] else None

    def save(self, **changes: Any) -> None:
        """Takes over `changes` and writes the state."""
        self.content.update(changes)
        storage.write_json(self.path, self.content)


def is_whole(folder: pathlib.Path) -> bool:
    """Whether a finished directory still has all its files, as they were written."""
    try:
        data = records.PreparedData.load(folder)
        data.document_frequencies()
        for split in data.fingerprint["splits"]:
            data.file_names(split)
        made_by = data.fingerprint["backbone"]
    except (ValueError, KeyError):
        return False
    return made_by is None or made_by["weights"] is None or (folder / WEIGHTS).is_file()


def plan(
    entries: Sequence[sources.ImageEntry], size: int
) -> list[tuple[str, list[sources.ImageEntry]]]:
    """Names and images of all shards of at most `size` images.

    A function of the caption file alone, bad images included, so that a later run cuts at the same
    places.
    """
    shards = []
    for split in sources.SPLITS:
        members = [entry for entry in entries if entry.split == split]
        total = -(-len(members) // size)
        for number in range(total):
            name = records.shard_name(split, number, total)
            shards.append((name, members[number * size : (number + 1) * size]))
    return shards


def tokenized(entries: Sequence[sources.ImageEntry]) -> Iterator[Kept]:
    """Finds the words of all captions; a caption without any is left out."""
    texts = [caption for entry in entries for caption in entry.captions]
    lists = iter(tokens.tokenize_all(texts))
    for entry in entries:
        pairs = [(caption, next(lists)) for caption in entry.captions]
        captions = [caption for caption, words in pairs if words]
        # One string per different word: a large data set has millions of them.
        words = [[sys.intern(word) for word in words] for _, words in pairs if words]
        yield Kept(entry.id, entry.file_name, entry.split, captions, words)


class Skips:
    """The images that cannot be used, and how many of them there may be.

    Args:
      limit: more than so many end the run.
      total: images of the data set.
    """

    def __init__(self, limit: int, total: int):
        self.limit, self.total = limit, total
        self.items: list[dict[str, Any]] = []

    def add(self, entry: sources.ImageEntry, reason: str) -> None:
        """Notes an image. Raises ValueError if it is one too many."""
        self.items.append({"id": entry.id, "file_name": entry.file_name, "reason": reason})
        if len(self.items) > self.limit:
            raise ValueError(
                f"{len(self.items)} of {self.total} images cannot be used, --max_skipped allows"
                f" {self.limit}; the last was {entry.file_name}: {reason}; mend the images or allow"
                " more, then give the same command again: finished shards are kept"
            )


@dataclasses.dataclass
class Sums:
    """Sums over features, from which their statistics follow."""

    regions: int = 0
    most_regions: int = 0
    total: float = 0.0
    squares: float = 0.0
    norms: float = 0.0

    def add(self, features: np.ndarray) -> None:
        """Counts the features [R, F] of one image."""
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
        """Mean and standard deviation of all numbers, and the mean norm of a region."""
        mean = self.total / (self.regions * dim)
        variance = max(self.squares / (self.regions * dim) - mean * mean, 0.0)
        return {"mean": mean, "std": variance**0.5, "mean_norm": self.norms / self.regions}


def finish(
    folder: pathlib.Path,
    kept: Sequence[Kept],
    shards: Mapping[str, Sequence[Mapping[str, Any]]],
    dim: int,
    min_count: int,
    extra: Mapping[str, Any],
    vocab: tokens.Vocab | None = None,
) -> int:
    """Writes vocabulary, document frequencies, references, indices and, last, dataset.json.

    Vocabulary, document frequencies and statistics come from the training split alone.

    Args:
      folder: the prepared directory.
      kept: the images with a record.
      shards: per split the finished shards, as `.prepare.json` knows them.
      dim: F.
      min_count: threshold of the vocabulary.
      extra: further entries of dataset.json.
      vocab: the vocabulary; None takes the frequent words of the training split.

    Returns:
      V, the size of the vocabulary.

    Raises:
      ValueError: no image of the training split is left.
    """
    train = [image for image in kept if image.split == "train"]
    if not train:
        raise ValueError(
            f"{folder}: no usable image in the split 'train', so no words for a vocabulary; the"
            " caption file must name training images"
        )
    if vocab is None:
        vocab = tokens.Vocab.build((words for image in train for words in image.words), min_count)
    else:
        min_count = None
    vocab.save(folder / storage.VOCABULARY)
    table = storage.document_frequencies([vocab.ids(w) for w in i.words] for i in train)
    storage.write_document_frequencies(folder, table)
    splits, sums, most_regions = {}, Sums(), 0
    for split, members in shards.items():
        infos = [_info(member) for member in members if member["records"]]
        if not infos:
            continue
        images = [image for image in kept if image.split == split]
        captions = storage.write_references(
            folder, split, ((image.id, image.file_name, image.captions) for image in images)
        )
        records.write_index(folder, split, infos)
        entries = [info.entry for info in infos]
        splits[split] = {"images": len(images), "captions": captions, "shards": entries}
        for member in members:
            part = Sums(**member["sums"])
            most_regions = max(most_regions, part.most_regions)
            if split == "train":
                sums.merge(part)
    statistics = {"dim": dim, "max_regions": most_regions, **sums.statistics(dim)}
    storage.write_fingerprint(
        folder,
        {
            "tokenizer": tokens.TOKENIZER,
            "min_count": min_count,
            "vocab_size": len(vocab),
            "vocab_sha256": vocab.sha256,
            "splits": splits,
            "features": statistics,
            **extra,
        },
    )
    return len(vocab)


def _info(member: Mapping[str, Any]) -> records.ShardInfo:
    offsets, ids = (np.array(member[key], np.int64) for key in ("offsets", "ids"))
    return records.ShardInfo(member["file"], member["records"], member["bytes"], offsets, ids)
