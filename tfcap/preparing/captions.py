"""Splits the captions of images into words."""

import collections
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tfcap.data import tokens
from tfcap.preparing.sources import Entry


class Kept(NamedTuple):
    """An image without those of its captions that have no words.

    Attributes:
      id: number of the image.
      file_name: path relative to the directory of images.
      split: "train", "val", "test" or another plain name.
      captions: the raw captions that have words; may be empty. They become the references.
      words: the words of each caption.
      stored: the captions that the record gets, as the file's own words with spaces between them;
        None if the record gets `captions`.
    """

    id: int
    file_name: str
    split: str
    captions: list[str]
    words: list[list[str]]
    stored: list[str] | None = None

    @property
    def usable(self) -> bool:
        """Whether prepare keeps the image: training images need a caption, others do not."""
        return bool(self.captions) or self.split != "train"


def tokenized(entries: Sequence[Entry], given_tokens: bool = False) -> Iterator[Kept]:
    """Yields each image with the words of its captions; drops captions without words.

    Args:
      entries: the images; all have a split.
      given_tokens: whether the words are those of the caption file, `Entry.words`. Records
        then hold these words with spaces between them, because training splits the captions of
        records with the tokenizer. So the tokenizer also splits given words with punctuation.

    Raises:
      ValueError: given tokens are needed, and an image has none.
    """
    texts = [text for entry in entries for text in _texts(entry, given_tokens)]
    lists = iter(tokens.tokenize_all(texts))
    for entry in entries:
        candidates = [
            (raw, text, next(lists))
            for raw, text in zip(entry.captions, _texts(entry, given_tokens), strict=True)
        ]
        kept = [one for one in candidates if one[2]]
        # One string per different word: a large data set has millions of words.
        words = [[sys.intern(word) for word in words] for _, _, words in kept]
        stored = [text for _, text, _ in kept] if given_tokens else None
        captions = [raw for raw, _, _ in kept]
        yield Kept(entry.id, entry.file_name, entry.split or "", captions, words, stored)


def lengths(images: Iterable[Kept]) -> list[int]:
    """Returns how many captions have 0, 1, 2, ... words."""
    counts = collections.Counter(len(words) for image in images for words in image.words)
    return [counts[number] for number in range(max(counts, default=-1) + 1)]


def comparable(images: Sequence[Kept]) -> list[Kept]:
    """Returns images with references that are split into the same words as the given tokens.

    A model that learns given words writes them with spaces between them. Scores split the raw
    captions at spaces: those of languages without spaces would have no word in common.

    Args:
      images: the images as `tokenized` returns them with given tokens.
    """
    raw = iter(tokens.tokenize_all([caption for image in images for caption in image.captions]))
    found, changed = [], 0
    for image in images:
        given = {word for words in image.words for word in words}
        same = [word in given for _ in image.captions for word in next(raw)]
        if 2 * sum(same) < len(same):
            image = image._replace(captions=[" ".join(words) for words in image.words])
            changed += 1
        found.append(image)
    if changed:
        print(
            f"note: {changed} of {len(images)} images have other words in their raw captions: "
            "their references are the given tokens",
            flush=True,
        )
    return found


def _texts(entry: Entry, given_tokens: bool) -> Sequence[str]:
    """Returns what the tokenizer gets of each caption of an image."""
    if not given_tokens:
        return entry.captions
    if entry.words is None:
        raise ValueError(
            "--tokens=given must have a caption file with tokens. Received: none for image "
            f"{entry.id} ({entry.file_name}). Leave --tokens out."
        )
    return [" ".join(words) for words in entry.words]


def changed_tokens(entries: Sequence[Entry], images: Sequence[Kept]) -> tuple[int, str]:
    """Returns how many given tokens the tokenizer changes, and an example, or "" without one.

    Args:
      entries: the images with their own tokens.
      images: the same images as `tokenized` returns them.
    """
    given = {word for entry in entries for words in entry.words or () for word in words}
    made = {word for image in images for words in image.words for word in words}
    changed = sorted(given - made)
    return len(changed), changed[0] if changed else ""
