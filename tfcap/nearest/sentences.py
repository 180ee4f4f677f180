"""Computes the vector of a sentence from the images whose captions resemble the sentence.

Letters: Q sentences, D width of a vector, M images, N captions of these images, P words of the
captions, Y pairs of a term and a caption, X different terms.
"""

import functools
from collections.abc import Iterator, Sequence

import numpy as np

from tfcap.data import tokens
from tfcap.data.document_frequency import ends

BEST = 50


class SentenceVectors:
    """Computes vectors of sentences in the space of the vectors of images.

    A captioner gives probabilities of sentences and no vectors. The vector of a sentence is the
    mean of the vectors of the images whose captions resemble the sentence most, weighted by the
    similarity. The similarity is the cosine of TF-IDF vectors of words and of pairs of neighbouring
    words. The tokenizer gives the words.

    Args:
      captions: the captions of each of the M images.
      vectors: float32 [M, D], the vectors of the images; may be memory-mapped.
      best: number of most similar captions whose images give the mean.

    Raises:
      ValueError: there are no captions.
    """

    def __init__(self, captions: Sequence[Sequence[str]], vectors: np.ndarray, best: int = BEST):
        counts = [len(own) for own in captions]
        if not sum(counts):
            raise ValueError("The reference images have no captions, so no sentence has a vector.")
        self._vectors, self._best = vectors, min(best, sum(counts))
        self._image = np.repeat(np.arange(len(captions)), counts)
        self._numbers: dict[str, int] = {}
        flat: list[int] = []
        lengths: list[int] = []
        for words in tokens.tokenize_all([text for own in captions for text in own]):
            flat += [self._numbers.setdefault(word, len(self._numbers)) for word in words]
            lengths.append(len(words))
        self._count(np.array(flat, np.int64), ends(lengths))

    def _count(self, words: np.ndarray, starts: np.ndarray) -> None:
        """Lists for each term its captions and its weight in each.

        Args:
          words: int64 [P], the words of all captions.
          starts: int64 [N + 1], where each caption begins in `words`.
        """
        caption = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        joined = np.flatnonzero(caption[1:] == caption[:-1])
        pairs = (words[joined] + 1) * len(self._numbers) + words[joined + 1]
        self._terms, term = np.unique(np.concatenate([words, pairs]), return_inverse=True)
        of = np.concatenate([caption, caption[joined]])
        both, counts = np.unique(term * len(self._image) + of, return_counts=True)
        term, self._captions = np.divmod(both, len(self._image))
        images = np.unique(term * len(self._image) + self._image[self._captions])
        frequencies = np.bincount(images // len(self._image), minlength=len(self._terms))
        self._idf = np.log(len(np.unique(self._image)) / frequencies)
        weights = counts * self._idf[term]
        norms = np.sqrt(np.bincount(self._captions, weights**2, minlength=len(self._image)))
        self._weights = (weights / np.maximum(norms, 1e-12)[self._captions]).astype(np.float32)
        self._captions = self._captions.astype(np.int32)
        self._first = np.searchsorted(term, np.arange(len(self._terms) + 1))

    def __call__(self, sentences: Sequence[str]) -> np.ndarray:
        """Computes the vectors float32 [Q, D].

        A sentence that shares no word with the captions gets the mean of all images.
        """
        vectors = np.zeros([len(sentences), self._vectors.shape[1]], np.float32)
        for row, words in enumerate(tokens.tokenize_all(list(sentences))):
            similar = self._similarities(words)
            captions = np.argpartition(-similar, self._best - 1)[: self._best]
            weights = similar[captions]
            if weights.max() <= 0:
                vectors[row] = self._mean
                continue
            vectors[row] = weights @ self._vectors[self._image[captions]] / weights.sum()
        return vectors

    @functools.cached_property
    def _mean(self) -> np.ndarray:
        """The mean vector [D] of all images; reads all of them."""
        return np.mean(self._vectors, 0)

    def _similarities(self, words: Sequence[str]) -> np.ndarray:
        """Returns the similarity of a sentence with each caption, float32 [N], up to a factor."""
        similar = np.zeros(len(self._image), np.float32)
        known, counts = np.unique(np.array(list(self._keys(words)), np.int64), return_counts=True)
        places = np.minimum(np.searchsorted(self._terms, known), len(self._terms) - 1)
        for key, count, place in zip(known, counts, places, strict=True):
            if self._terms[place] == key:
                part = slice(self._first[place], self._first[place + 1])
                weight = np.float32(count * self._idf[place])
                similar[self._captions[part]] += weight * self._weights[part]
        return similar

    def _keys(self, words: Sequence[str]) -> Iterator[int]:
        """Yields the keys of the terms of a sentence that consist of known words."""
        numbers = [self._numbers.get(word) for word in words]
        yield from (number for number in numbers if number is not None)
        for first, second in zip(numbers, numbers[1:], strict=False):
            if first is not None and second is not None:
                yield (first + 1) * len(self._numbers) + second
