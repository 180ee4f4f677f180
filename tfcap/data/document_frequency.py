"""document_frequency.npz, in how many training images each n-gram occurs, for CIDEr-D.

Letters: M different n-grams.
"""

import collections
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tfcap.files import load_npz, write_npz
from tfcap.ids import EOS, UNK

DOCUMENT_FREQUENCY = "document_frequency.npz"
MAX_NGRAM = 4


class DocumentFrequencies(NamedTuple):
    """In how many training images each n-gram occurs (n = 1 … 4), M different n-grams."""

    ngrams: np.ndarray  # int32 [M, 4], token ids, 0-padded on the right, sorted
    counts: np.ndarray  # int32 [M]
    images: int  # number of images counted


def document_frequencies(images: Iterable[Iterable[Sequence[int]]]) -> DocumentFrequencies:
    """Counts n-grams over images, for the idf of CIDEr-D (systems that train with SCST).

    The end mark is a word here, as in the released JDAI and ExpansionNet rewards: EOS is appended
    to each caption. An image counts an n-gram once, however many of its captions hold it.

    Args:
      images: per image, per caption the word ids (no BOS, EOS or PAD).

    Raises:
      ValueError: no image, or an id that is a mark and not a word.
    """
    counts: collections.Counter[tuple[int, ...]] = collections.Counter()
    number = 0
    for captions in images:
        number += 1
        found = set()
        for caption in captions:
            if caption and min(caption) < UNK:
                raise ValueError(f"Image {number}: word ids are >= 3. Received: {list(caption)}.")
            words = (*caption, EOS)
            for n in range(1, MAX_NGRAM + 1):
                found.update(zip(*(words[i:] for i in range(n)), strict=False))
        counts.update(found)
    if not number:
        raise ValueError("Document frequencies need at least one image. Received: none.")
    ordered = sorted(counts)
    ngrams = np.zeros([len(ordered), MAX_NGRAM], np.int32)
    for n in range(1, MAX_NGRAM + 1):
        rows = [i for i, ngram in enumerate(ordered) if len(ngram) == n]
        if rows:
            ngrams[rows, :n] = [ordered[i] for i in rows]
    return DocumentFrequencies(ngrams, np.array([counts[g] for g in ordered], np.int32), number)


def write_document_frequencies(folder: str | os.PathLike, table: DocumentFrequencies) -> None:
    """Writes document_frequency.npz."""
    write_npz(
        os.path.join(folder, DOCUMENT_FREQUENCY),
        ngrams=table.ngrams,
        counts=table.counts,
        images=np.int64(table.images),
    )


def load_document_frequencies(folder: str | os.PathLike) -> DocumentFrequencies:
    """Reads and checks document_frequency.npz."""
    path = os.path.join(folder, DOCUMENT_FREQUENCY)
    arrays = load_npz(path, ("ngrams", "counts", "images"))
    ngrams, counts, images = arrays["ngrams"], arrays["counts"], arrays["images"]
    if (
        (ngrams.dtype, counts.dtype, images.dtype) != (np.int32, np.int32, np.int64)
        or ngrams.shape != (len(ngrams), MAX_NGRAM)
        or counts.shape != (len(ngrams),)
        or images.shape != ()
        or not ((counts >= 1) & (counts <= images)).all()
    ):
        raise ValueError(
            f"{path} must hold ngrams int32 [M, 4], counts int32 [M] in 1..images, images int64. "
            f"Received: {ngrams.dtype} {ngrams.shape}, {counts.dtype} {counts.shape}, "
            f"{images.dtype} {images.shape}. Run prepare again."
        )
    return DocumentFrequencies(ngrams, counts, int(images))
