"""Splits the captions of images into words."""

import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tfcap.data import tokens
from tfcap.preparing.sources import ImageEntry


class Kept(NamedTuple):
    """An image, with only those of its captions that have words.

    Attributes:
      id: number of the image.
      file_name: path relative to the directory of images.
      split: "train", "val" or "test".
      captions: raw captions, only those with words; may be none.
      words: the words of each caption.
    """

    id: int
    file_name: str
    split: str
    captions: list[str]
    words: list[list[str]]

    @property
    def usable(self) -> bool:
        """Whether prepare keeps the image: training images need a caption, others do not."""
        return bool(self.captions) or self.split != "train"


def tokenized(entries: Sequence[ImageEntry]) -> Iterator[Kept]:
    """Yields each image with the words of its captions; drops captions without words."""
    texts = [caption for entry in entries for caption in entry.captions]
    lists = iter(tokens.tokenize_all(texts))
    for entry in entries:
        pairs = [(caption, next(lists)) for caption in entry.captions]
        captions = [caption for caption, words in pairs if words]
        # One string per different word: a large data set has millions of words.
        words = [[sys.intern(word) for word in words] for _, words in pairs if words]
        yield Kept(entry.id, entry.file_name, entry.split, captions, words)
