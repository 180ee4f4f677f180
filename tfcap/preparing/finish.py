"""Writes the files beside the shards: vocabulary, references, indices and dataset.json.

Letters: R regions, F feature width.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfcap import files
from tfcap.data import tokens
from tfcap.data.document_frequency import DOCUMENT_FREQUENCY, write_document_frequencies
from tfcap.data.prepared import VOCABULARY, references_path, write_fingerprint, write_references
from tfcap.files import file_sha256
from tfcap.preparing.captions import Kept, lengths
from tfcap.preparing.shards import ShardInfo, write_index
from tfcap.preparing.vocabulary import Words


@dataclasses.dataclass
class Sums:
    """Sums over features, which give their statistics."""

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

    def merge(self, other: "Sums") -> None:
        """Adds the sums of another part of the data."""
        self.regions += other.regions
        self.most_regions = max(self.most_regions, other.most_regions)
        self.total += other.total
        self.squares += other.squares
        self.norms += other.norms

    def statistics(self, dim: int) -> dict[str, float]:
        """Returns mean and standard deviation of all numbers, and the mean norm of a region."""
        mean = self.total / (self.regions * dim)
        variance = max(self.squares / (self.regions * dim) - mean * mean, 0.0)
        return {"mean": mean, "std": variance**0.5, "mean_norm": self.norms / self.regions}


def finish(
    folder: str,
    kept: Sequence[Kept],
    shards: Mapping[str, Sequence[Mapping[str, Any]]],
    dim: int,
    words: Words,
    extra: Mapping[str, Any],
    image_dim: int | None = None,
) -> None:
    """Writes vocabulary, document frequencies, references, indices and, last, dataset.json.

    Args:
      folder: the prepared directory.
      kept: the images with a record.
      shards: per split the finished shards, as `.prepare.json` describes them.
      dim: F.
      words: the vocabulary and its document frequencies.
      extra: further entries of dataset.json.
      image_dim: width of the vectors of whole images, or None without them.

    Raises:
      ValueError: no image is left.
    """
    if not kept:
        raise ValueError(f"{folder}: at least one image must be usable. Received: none.")
    words.vocab.save(os.path.join(folder, VOCABULARY))
    if words.frequencies is None:  # an older file was counted over other captions
        files.remove(os.path.join(folder, DOCUMENT_FREQUENCY))
    else:
        write_document_frequencies(folder, words.frequencies)
    fingerprint: dict[str, Any] = {
        "tokenizer": tokens.TOKENIZER,
        "min_count": words.min_count,
        "vocab_size": len(words.vocab),
        "vocab_sha256": words.vocab.sha256,
        "splits": {
            split: _write_split(folder, split, members, kept)
            for split, members in shards.items()
            if any(member["records"] for member in members)
        },
        "features": _statistics(shards, dim),
        **extra,
    }
    if image_dim is not None:  # the key is new: older directories lack it
        fingerprint["features"]["image_dim"] = image_dim
    if words.origin != "train":  # the key is new: older directories lack it
        fingerprint["document_frequency"] = words.origin
    write_fingerprint(folder, fingerprint)


def _write_split(
    folder: str, split: str, members: Sequence[Mapping[str, Any]], kept: Sequence[Kept]
) -> dict[str, Any]:
    """Writes references and index of a split; returns its entry of dataset.json."""
    infos = [_info(member) for member in members if member["records"]]
    images = [image for image in kept if image.split == split]
    captions = write_references(
        folder, split, ((image.id, image.file_name, image.captions) for image in images)
    )
    write_index(folder, split, infos)
    entries = [info.entry for info in infos]
    # Older directories lack the digest and the lengths.
    digest = file_sha256(references_path(folder, split))
    counts = {"images": len(images), "captions": captions, "lengths": lengths(images)}
    return {**counts, "references_sha256": digest, "shards": entries}


def _statistics(shards: Mapping[str, Sequence[Mapping[str, Any]]], dim: int) -> dict[str, Any]:
    """Returns the statistics of the training features, or of all features if there are none."""
    parts = {split: [Sums(**m["sums"]) for m in members] for split, members in shards.items()}
    every = [part for split in parts.values() for part in split]
    train = [part for part in parts.get("train", []) if part.regions]
    sums = Sums()
    for part in train or every:
        sums.merge(part)
    most_regions = max(part.most_regions for part in every)
    return {"dim": dim, "max_regions": most_regions, **sums.statistics(dim)}


def _info(member: Mapping[str, Any]) -> ShardInfo:
    offsets, ids = (np.array(member[key], np.int64) for key in ("offsets", "ids"))
    return ShardInfo(member["file"], member["records"], member["bytes"], offsets, ids)
