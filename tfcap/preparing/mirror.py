"""Mirrored copies of the training images, which the setting `flip` adds."""

import re
from collections.abc import Sequence

from tfcap.preparing.sources.entry import Entry

_SIDES = {"left": "right", "Left": "Right", "LEFT": "RIGHT"}
_SIDES |= {right: left for left, right in _SIDES.items()}
_SIDE = re.compile(rf"\b({'|'.join(_SIDES)})\b")


def exchanged(text: str) -> str:
    """Exchanges the English words left and right in a caption; other words stay as they are."""
    return _SIDE.sub(lambda side: _SIDES[side[0]], text)


def with_mirrored(entries: Sequence[Entry]) -> list[Entry]:
    """Returns the images, and then a mirrored copy of each image of the split train.

    The copies have the order of their images. Their ids count on from the largest id of all images,
    so that no two images have the same id.

    Args:
      entries: the images; each has its id and its split.
    """
    first = max((entry.id for entry in entries), default=-1) + 1
    train = (entry for entry in entries if entry.split == "train")
    return [*entries, *(_mirrored(entry, number) for number, entry in enumerate(train, first))]


def _mirrored(entry: Entry, number: int) -> Entry:
    return entry._replace(
        id=number,
        captions=tuple(map(exchanged, entry.captions)),
        words=tuple(tuple(map(exchanged, words)) for words in entry.words),
        stored=None if entry.stored is None else tuple(map(exchanged, entry.stored)),
        mirrored=True,
    )
