"""A prepared directory whose captions tell which image and which caption they are."""

import os

import numpy as np

from tfcap.data import tokens
from tfcap.data.prepared import VOCABULARY, PreparedData, write_fingerprint, write_references
from tfcap.data.record import Record
from tfcap.preparing.shards import shard_name, write_index, write_shard

WIDTH, IMAGES, VAL = 4, 23, 7
NUMBERS = "zero one two three four five six seven eight nine".split()


def words_of(number: int) -> str:
    return " ".join(NUMBERS[int(digit)] for digit in str(number))


def make_records(count: int, first: int) -> list[Record]:
    """Images whose captions tell which image and which caption they are."""
    made = []
    for i in range(first, first + count):
        features = np.full([1 + i % 5, WIDTH], i + 1, np.float32)
        captions = [f"Image {words_of(i)}, caption {words_of(c)}!" for c in range(1 + i % 6)]
        made.append(Record(i, f"{i}.jpg", features, None, captions))
    return made


def prepare(folder: str) -> PreparedData:
    """Writes splits train and val with 1 to 6 captions and 1 to 5 regions per image."""
    splits = {}
    for split, made in {"train": make_records(IMAGES, 0), "val": make_records(VAL, 50)}.items():
        shards = [
            write_shard(os.path.join(folder, shard_name(split, i, 2)), part)
            for i, part in enumerate((made[:4], made[4:]))
        ]
        write_index(folder, split, shards)
        splits[split] = {
            "images": len(made),
            "captions": write_references(
                folder, split, [(r.image_id, r.file_name, r.captions) for r in made]
            ),
            "shards": [shard.entry for shard in shards],
        }
    vocab = tokens.Vocab([*tokens.SPECIALS, *sorted(["image", "caption", *NUMBERS])])
    vocab.save(os.path.join(folder, VOCABULARY))
    write_fingerprint(
        folder,
        {
            "name": "numbers",
            "tokenizer": tokens.TOKENIZER,
            "min_count": 1,
            "vocab_size": len(vocab),
            "vocab_sha256": vocab.sha256,
            "splits": splits,
            "features": {"dim": WIDTH, "max_regions": 5},
        },
    )
    return PreparedData.load(folder)
