"""document_frequency.npz: in how many training images each n-gram occurs, for CIDEr-D.

Letters: M different n-grams, n images, N captions, P words of all captions, V vocabulary size.
"""

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tfcap.files import load_npz, write_npz
from tfcap.ids import EOS

DOCUMENT_FREQUENCY = "document_frequency.npz"
MAX_NGRAM = 4


class DocumentFrequencies(NamedTuple):
    """The number of images whose captions contain an n-gram, for each n-gram of 1 to 4 words.

    CIDEr-D weights n-grams by these numbers: an n-gram of few images counts more.

    Attributes:
      ngrams: the M different n-grams, int32 [M, 4], in ascending order. A row has the token ids of
        an n-gram; 0 fills the rows of shorter n-grams.
      counts: number of images in which each n-gram occurs, int32 [M].
      images: number of all images.
    """

    ngrams: np.ndarray
    counts: np.ndarray
    images: int


def document_frequencies(images: Iterable[Iterable[Sequence[int]]]) -> DocumentFrequencies:
    """Counts in how many images each n-gram of 1 to 4 words occurs.

    EOS, the end mark, is appended to each caption and counts as a word, as in the released rewards
    of X-LAN, X-Transformer and ExpansionNet.

    Args:
      images: the captions of each image. A caption is a sequence of token ids without EOS.

    Raises:
      ValueError: there are no images.
    """
    words: list[int] = []
    lengths: list[int] = []
    captions: list[int] = []
    for image in images:
        before = len(lengths)
        for caption in image:
            words.extend(caption)
            lengths.append(len(caption))
        captions.append(len(lengths) - before)
    return count_ngrams(np.array(words, np.int32), ends(lengths), ends(captions))


def ends(lengths: Sequence[int]) -> np.ndarray:
    """Returns the cumulative sums of n lengths, with a 0 in front: int64 [n + 1].

    For the lengths 2 and 3 the result is [0, 2, 5].

    Args:
      lengths: the lengths, such as the number of captions of each image.
    """
    return np.concatenate([[0], np.cumsum(np.array(lengths, np.int64))]).astype(np.int64)


def count_ngrams(
    words: np.ndarray,
    starts: np.ndarray,
    first: np.ndarray,
    end_mark: bool = True,
    least: int = 1,
) -> DocumentFrequencies:
    """Counts in how many images each n-gram of 1 to 4 words occurs.

    Args:
      words: the P token ids of N captions, one caption after the other, int32 [P].
      starts: position in `words` where each caption begins, and P at the end, int64 [N + 1].
      first: index of the first caption of each of n images, and N at the end, int64 [n + 1].
      end_mark: whether EOS, the end mark, is appended to each caption and counts as a word.
      least: n-grams that occur in fewer images than this number are left out. 2 saves memory and
        changes no score, because CIDEr-D gives an n-gram that is not in the table the same weight
        as an n-gram of a single image.

    Raises:
      ValueError: there are no images.
    """
    images = len(first) - 1
    if not images:
        raise ValueError("Document frequencies need at least one image. Give images with captions.")
    if end_mark:
        words = np.insert(words, starts[1:], EOS)
        starts = starts + np.arange(len(starts))
    caption = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    image = np.searchsorted(first, caption, side="right") - 1
    room = starts[caption + 1] - np.arange(len(words))  # words to the end of the caption
    base = int(words.max(initial=0)) + 1
    prefix = np.zeros(len(words), np.int64)  # number of the (n-1)-gram at each position
    distinct = np.zeros([1, MAX_NGRAM], np.int32)  # the (n-1)-grams by their number
    ngrams = []
    counts = []
    for n in range(1, MAX_NGRAM + 1):
        positions = np.flatnonzero(room >= n)
        # Two numbers identify an n-gram, so that a key fits into 63 bits with any vocabulary.
        keys = prefix[positions] * base + words[positions + n - 1]
        # Stable, so that the places of an n-gram stay in the order of the images.
        order = np.argsort(keys, kind="stable")
        keys, images_of_keys = keys[order], image[positions[order]]
        is_first = np.diff(keys, prepend=-1) != 0  # place of its n-gram
        is_new = is_first | (np.diff(images_of_keys, prepend=-1) != 0)  # image of the n-gram
        prefix[positions[order]] = np.cumsum(is_first) - 1
        before, last = np.divmod(keys[is_first], base)
        distinct = distinct[before]
        distinct[:, n - 1] = last
        count = np.add.reduceat(is_new, np.flatnonzero(is_first), dtype=np.int64)
        ngrams.append(distinct[count >= least])
        counts.append(count[count >= least])
    table = np.concatenate(ngrams)
    order = np.lexsort(table.T[::-1])
    count = np.concatenate(counts)[order].astype(np.int32)
    return DocumentFrequencies(table[order], count, images)


def write_document_frequencies(folder: str | os.PathLike, table: DocumentFrequencies) -> None:
    """Writes document frequencies into a directory, as document_frequency.npz.

    Args:
      folder: the directory.
      table: the document frequencies.
    """
    write_npz(
        os.path.join(folder, DOCUMENT_FREQUENCY),
        ngrams=table.ngrams,
        counts=table.counts,
        images=np.array(table.images, np.int64),
    )


def check_ids(table: DocumentFrequencies, words: int, name: str, of: str) -> None:
    """Raises ValueError if an n-gram has a token id that is not in the vocabulary.

    Args:
      table: the document frequencies.
      words: size of the vocabulary, V; its ids are 0 to V - 1.
      name: what the error calls the document frequencies, for example their file.
      of: what the error calls the vocabulary.
    """
    low = int(table.ngrams.min(initial=0))
    high = int(table.ngrams.max(initial=0))
    if low < 0 or high >= words:
        raise ValueError(
            f"{name} has word ids from {low} to {high}, but {of} has {words} words. "
            f"Give the {DOCUMENT_FREQUENCY} and the vocab.txt of the same prepared directory."
        )


def load_document_frequencies(
    folder: str | os.PathLike, name: str = DOCUMENT_FREQUENCY
) -> DocumentFrequencies:
    """Reads document frequencies from a file that `write_document_frequencies` wrote.

    Args:
      folder: directory of the file.
      name: name of the file.

    Raises:
      ValueError: the file is missing or damaged.
    """
    path = os.path.join(folder, name)
    arrays = load_npz(path, ("ngrams", "counts", "images"), "Run prepare again.")
    return DocumentFrequencies(arrays["ngrams"], arrays["counts"], int(arrays["images"]))
