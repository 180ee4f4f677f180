"""Writes what stands beside the shards: vocabulary, references, indices and dataset.json.

R regions, F feature width.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfcap.data import tokens
from tfcap.data.document_frequency import document_frequencies, write_document_frequencies
from tfcap.data.fingerprint import VOCABULARY, write_fingerprint
from tfcap.data.references import write_references
from tfcap.preparing.captions import Kept
from tfcap.preparing.shards import ShardInfo, write_index


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
    vocab.save(folder / VOCABULARY)
    table = document_frequencies([vocab.ids(w) for w in i.words] for i in train)
    write_document_frequencies(folder, table)
    splits, sums, most_regions = {}, Sums(), 0
    for split, members in shards.items():
        infos = [_info(member) for member in members if member["records"]]
        if not infos:
            continue
        images = [image for image in kept if image.split == split]
        captions = write_references(
            folder, split, ((image.id, image.file_name, image.captions) for image in images)
        )
        write_index(folder, split, infos)
        entries = [info.entry for info in infos]
        splits[split] = {"images": len(images), "captions": captions, "shards": entries}
        for member in members:
            part = Sums(**member["sums"])
            most_regions = max(most_regions, part.most_regions)
            if split == "train":
                sums.merge(part)
    statistics = {"dim": dim, "max_regions": most_regions, **sums.statistics(dim)}
    write_fingerprint(
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


def _info(member: Mapping[str, Any]) -> ShardInfo:
    offsets, ids = (np.array(member[key], np.int64) for key in ("offsets", "ids"))
    return ShardInfo(member["file"], member["records"], member["bytes"], offsets, ids)
