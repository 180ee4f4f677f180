"""The captions of images as words."""

import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tfcap.data import tokens
from tfcap.preparing.sources import ImageEntry


class Kept(NamedTuple):
    """An image with those of its captions that have words."""

    id: int
    file_name: str
    split: str
    captions: list[str]
    words: list[list[str]]


def tokenized(entries: Sequence[ImageEntry]) -> Iterator[Kept]:
    """Finds the words of all captions; a caption without any is left out."""
    texts = [caption for entry in entries for caption in entry.captions]
    lists = iter(tokens.tokenize_all(texts))
    for entry in entries:
        pairs = [(caption, next(lists)) for caption in entry.captions]
        captions = [caption for caption, words in pairs if words]
        # One string per different word: a large data set has millions of them.
        words = [[sys.intern(word) for word in words] for _, words in pairs if words]
        yield Kept(entry.id, entry.file_name, entry.split, captions, words)
