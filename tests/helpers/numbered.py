"""A prepared directory whose captions tell which image and which caption they are."""

import numpy as np

from helpers.prepared import write_splits
from tfcap.data import tokens
from tfcap.data.prepared import PreparedData
from tfcap.data.record import Record

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
    splits = {"train": make_records(IMAGES, 0), "val": make_records(VAL, 50)}
    vocab = tokens.Vocab([*tokens.SPECIALS, *sorted(["image", "caption", *NUMBERS])])
    features = {"dim": WIDTH, "max_regions": 5}
    write_splits(folder, splits, vocab, name="numbers", features=features)
    return PreparedData.load(folder)
