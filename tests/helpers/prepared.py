"""Small prepared directories for tests, written with the public writers."""

import collections
import dataclasses
import itertools
import json
import os
import shutil

import numpy as np

from tfcap.data import tokens
from tfcap.data.document_frequency import document_frequencies, write_document_frequencies
from tfcap.data.prepared import VOCABULARY, write_fingerprint, write_references
from tfcap.data.record import Record
from tfcap.data.tokens import Vocab
from tfcap.preparing.shards import shard_name, write_index, write_shard

WIDTH = 6


def make_record(number: int, regions: int = 3, captions=("A dog .", "one Cat")) -> Record:
    """Returns image 10 + number with random features; odd numbers have boxes."""
    values = np.random.default_rng(number).normal(size=[regions, WIDTH]).astype(np.float32)
    boxes = np.linspace(0, 1, regions * 4).reshape(regions, 4) if number % 2 else None
    return Record(10 + number, f"{number}.jpg", values, boxes, list(captions))


def write_directory(
    folder: str, change=lambda features: features, image_dim: int | None = None
) -> list[Record]:
    """A prepared directory of seven images in two shards, through the public writers.

    `change` maps the features of an image to other ones. With `image_dim` there are random vectors
    of whole images.
    """
    made = [make_record(i, regions=1 + i % 3) for i in range(7)]
    made = [dataclasses.replace(r, features=change(r.features.copy())) for r in made]
    whole = {}
    if image_dim is not None:
        whole = {"image_dim": image_dim}
        vectors = np.random.default_rng(8).normal(size=[7, image_dim])
        made = [dataclasses.replace(r, image=v) for r, v in zip(made, vectors, strict=True)]
    words = tokens.tokenize_all([caption for record in made for caption in record.captions])
    vocab = tokens.Vocab.from_counts(collections.Counter(itertools.chain(*words)), 1)
    per_image = [[vocab.ids(words[2 * i]), vocab.ids(words[2 * i + 1])] for i in range(7)]
    write_document_frequencies(folder, document_frequencies(per_image))
    features = {"dim": WIDTH, "max_regions": 3} | whole
    write_splits(folder, {"train": made}, vocab, name="small", features=features, images=None)
    return made


def write_splits(folder: str, splits: dict[str, list[Record]], vocab: Vocab, **entries) -> None:
    """Writes each split in two shards, the first of four images; `entries` of the fingerprint."""
    result = {}
    for split, made in splits.items():
        shards = [
            write_shard(os.path.join(folder, shard_name(split, i, 2)), part)
            for i, part in enumerate((made[:4], made[4:]))
        ]
        write_index(folder, split, shards)
        texts = [(r.image_id, r.file_name, r.captions) for r in made]
        count = write_references(folder, split, texts)
        entry = {"images": len(made), "captions": count}
        result[split] = entry | {"shards": [shard.entry for shard in shards]}
    vocab.save(os.path.join(folder, VOCABULARY))
    words = {"vocab_size": len(vocab), "vocab_sha256": vocab.sha256, "min_count": 1}
    fixed = {"tokenizer": tokens.TOKENIZER, "splits": result}
    write_fingerprint(folder, words | fixed | entries)


def without_training_images(source, folder) -> str:
    """A copy of a prepared directory whose only split is `val`."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("train*", "references_train*"))
    path = os.path.join(folder, "dataset.json")
    with open(path, encoding="utf-8") as file:
        fingerprint = json.load(file)
    fingerprint["splits"] = {"val": fingerprint["splits"]["val"]}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(fingerprint, file)
    return str(folder)


def with_other_vocabulary(source: str | os.PathLike, target: str | os.PathLike) -> str:
    """Copies a prepared directory and leaves the last word out of its vocabulary."""
    folder = shutil.copytree(source, target)
    words = Vocab.load(folder / "vocab.txt").words
    vocab = Vocab(words[:-1])
    vocab.save(folder / "vocab.txt")
    fingerprint = json.loads((folder / "dataset.json").read_text())
    fingerprint |= {"vocab_size": len(vocab), "vocab_sha256": vocab.sha256}
    (folder / "dataset.json").write_text(json.dumps(fingerprint))
    return str(folder)
