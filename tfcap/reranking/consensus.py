"""Consensus reranking: prefers the caption that agrees best with the captions of similar images.

Letters: B images, S hypotheses of an image, C references of an image, D width of an image's vector,
k neighbours, m best.

Devlin et al. 2015 (arXiv 1505.04467) and, in the form built here, Mao et al. (m-RNN, ICLR 2015,
section 8): the references are the captions of the k reference images nearest to an image, and each
hypothesis is ranked by its mean similarity to the m references that it is most similar to.
"""

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfcap.data import tokens
from tfcap.data.prepared import PreparedData, stored_captions
from tfcap.nearest.index import load
from tfcap.nearest.neighbours import Neighbours
from tfcap.nearest.space import Space
from tfcap.reranking import BEST, NEIGHBOURS
from tfcap.reranking.similarity import KINDS, Corpus, Similarity, Words

_TOGETHER = 128  # images of a stream that are ranked together


class Ranked(NamedTuple):
    """The hypotheses of an image in a new order.

    Attributes:
      captions: the S hypotheses, best first.
      order: int64 [S], the former position of each.
      scores: float64 [S], the scores of `captions`, descending.
    """

    captions: list[str]
    order: np.ndarray
    scores: np.ndarray


def rank(similarities: np.ndarray, best: int) -> tuple[np.ndarray, np.ndarray]:
    """Ranks hypotheses by the mean of their `best` largest similarities.

    If there are fewer references than `best`, all of them count. The released code ranks by the
    sums, which gives the same order within an image. Equal hypotheses keep their
    order; in the released code their order is undefined.

    Args:
      similarities: [S, C].
      best: m, at least 1.

    Returns:
      The order int64 [S], best first, and the mean float64 [S] of each hypothesis as given.

    Raises:
      ValueError: m is below 1.
    """
    if best < 1:
        raise ValueError(f"best must be at least 1. Received: {best}")
    largest = -np.sort(-np.asarray(similarities, np.float64), axis=1)[:, :best]
    scores = largest.sum(1) / max(1, largest.shape[1])
    return np.argsort(-scores, kind="stable"), scores


class Consensus:
    """Reranks the hypotheses of any captioner by the captions of the nearest reference images.

    Hypotheses and references are tokenized as training captions are and compared as words, so that
    words outside a model's vocabulary count too. The released code compares its own lists of words.

    Args:
      data: the prepared directory, with the reference images.
      space: `original` or `refined`, see `nearest.space.Space`.
      neighbours: k, 60 in the paper; with fewer reference images all of them are used.
      best: m; None takes the paper's 125 for `cider` and 175 for `bleu`.
      similarity: `cider` or `bleu`, see `similarity.Similarity`.
      reference_splits: the splits whose captions are the references. The paper's list for COCO has
        122,286 images, more than the training split of Karpathy and Fei-Fei.
      frequency_splits: the splits whose captions give `cider` its document frequencies. The
        released code takes the validation set, which contains the reranked images, so that their
        own references influence the ranking a little.
      index_dir: the directory that keeps the vectors between runs, see `nearest.index.load`: ""
        takes the one beside the prepared data, None keeps nothing.
      refine: the m-RNN of the space `refined`.
      refined_by: the name of its weights in errors, such as a checkpoint.
      max_regions: regions of an image beyond this number are ignored; None keeps all.
      approximate: whether a graph finds the neighbours, which may miss some of them.

    Raises:
      ValueError: an option is out of range, or the data or the model does not fit.
    """

    def __init__(
        self,
        data: PreparedData,
        space: str = "original",
        neighbours: int = NEIGHBOURS,
        best: int | None = None,
        similarity: str = "cider",
        reference_splits: Sequence[str] = ("train",),
        frequency_splits: Sequence[str] = ("train",),
        index_dir: str | None = None,
        refine: Any = None,
        refined_by: str | None = None,
        max_regions: int | None = None,
        approximate: bool = False,
    ):
        if similarity not in KINDS:  # before the records are read
            raise ValueError(
                f"similarity must be one of {', '.join(KINDS)}. Received: {similarity!r}"
            )
        if neighbours < 1 or (best is not None and best < 1):
            raise ValueError(
                f"neighbours and best must be at least 1. Received: {neighbours} and {best}"
            )
        references = _captions(data, reference_splits)
        frequencies = _captions(data, frequency_splits) if similarity == "cider" else {}
        self.neighbours, self.best = neighbours, best or BEST[similarity]
        self.space = Space(space, refine, refined_by)
        self._load = functools.partial(
            load, data, self.space, index_dir, max_regions, tuple(reference_splits), approximate
        )
        self.words = Words()
        self.corpus = counted = Corpus.read(references, self.words)
        if similarity == "cider" and list(frequency_splits) != list(reference_splits):
            counted = Corpus.read(frequencies, self.words)
        table = counted.document_frequencies() if similarity == "cider" else None
        self.similarity = Similarity(similarity, self.words, table)

    @functools.cached_property
    def index(self) -> Neighbours:
        """The reference images in the order of `corpus`; read or made at the first use."""
        return self._load()

    def vectors(
        self,
        features: tf.Tensor,
        mask: tf.Tensor | None = None,
        image: tf.Tensor | None = None,
    ) -> np.ndarray:
        """Computes the vectors float32 [B, D] that represent images, see `space.Space`."""
        return self.space.vectors(features, mask, image)

    def rerank(
        self,
        vectors: np.ndarray,
        hypotheses: Sequence[Sequence[str]],
        image_ids: np.ndarray | None = None,
    ) -> list[Ranked]:
        """Ranks the hypotheses of B images.

        Args:
          vectors: float32 [B, D], from `vectors`.
          hypotheses: for each image S captions, best first as the model ranks them; S may differ.
          image_ids: int64 [B], ids in the prepared data. An image that is a reference image itself
            is not its own neighbour. None: the images are not in the prepared data.

        Raises:
          ValueError: the numbers of vectors and images differ, or the vectors do not fit.
        """
        single = [(self.neighbours, self.best)]
        return [one for (one,) in self._sweep(vectors, hypotheses, image_ids, single)]

    def sweep(
        self,
        images: Iterable[tuple[int | None, np.ndarray, Sequence[str]]],
        settings: Sequence[tuple[int, int]],
    ) -> Iterator[list[Ranked]]:
        """Ranks a stream of images part by part, with several values of k and m.

        The similarities are computed once.

        Args:
          images: (image id or None, vector [D], hypotheses) of each image.
          settings: pairs (k, m).

        Yields:
          For each image its hypotheses in the order of each setting.
        """
        waiting = iter(images)
        while part := list(itertools.islice(waiting, _TOGETHER)):
            ids, vectors, hypotheses = zip(*part, strict=True)
            ids = np.array([-1 if image is None else image for image in ids], np.int64)
            yield from self._sweep(np.stack(vectors), hypotheses, ids, settings)

    def _sweep(self, vectors, hypotheses, image_ids, settings) -> list[list[Ranked]]:
        """Ranks the hypotheses of B images in the order of each setting."""
        if len(vectors) != len(hypotheses):
            raise ValueError(
                f"Each image needs one vector. Received: {len(vectors)} vectors for "
                f"{len(hypotheses)} images"
            )
        found, _ = self.index.search(vectors, max(k for k, _ in settings), image_ids)
        nearest = [row[row >= 0] for row in found]
        chosen = [self.corpus.sentences(row) for row in nearest]
        numbers = [self.words.look_up(own) for own in _tokenized(hypotheses)]
        similarities = self.similarity(numbers, self.corpus, chosen)
        result = []
        for row, values, own in zip(nearest, similarities, hypotheses, strict=True):
            # The captions of the nearest k images come first.
            sizes = [len(self.corpus.sentences(row[:k])) for k, _ in settings]
            both = zip(sizes, settings, strict=True)
            result.append([_ranked(values[:, :size], own, m) for size, (_, m) in both])
        return result

    def oracle(
        self, hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
    ) -> list[Ranked]:
        """Ranks the captions of an image by its own references: the upper bound of the m-RNN paper.

        Args:
          hypotheses: as in `rerank`.
          references: the reference captions of each image.
        """
        return oracle(self.similarity, self.words, hypotheses, references, self.best)


def oracle(
    similarity: Similarity,
    words: Words,
    hypotheses: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    best: int,
) -> list[Ranked]:
    """Ranks hypotheses by their similarity to given references, see `Consensus.oracle`.

    Raises:
      ValueError: `references` has another number of images.
    """
    both = zip(_tokenized(hypotheses), _tokenized(references), strict=True)
    numbers, others = [], []
    for own, given in both:
        looked_up = words.look_up([*own, *given])
        numbers.append(looked_up[: len(own)])
        others.append(looked_up[len(own) :])
    corpus = Corpus(others)
    chosen = [corpus.sentences(np.array([image])) for image in range(len(others))]
    pairs = zip(similarity(numbers, corpus, chosen), hypotheses, strict=True)
    return [_ranked(values, own, best) for values, own in pairs]


def _captions(data: PreparedData, splits: Sequence[str]) -> dict[int, list[str]]:
    """Returns the captions of all images of some splits, in the order of the records."""
    if not splits or len(set(splits)) < len(splits):
        raise ValueError(
            f"splits must be one or more different names. Received: {', '.join(splits) or 'none'}"
        )
    captions: dict[int, list[str]] = {}
    for split in splits:
        stored = stored_captions(data, split)
        captions |= {int(image): stored[int(image)] for image in data.index(split).id}
    return captions


def _ranked(similarities: np.ndarray, hypotheses: Sequence[str], best: int) -> Ranked:
    order, scores = rank(similarities, best)
    return Ranked([hypotheses[i] for i in order], order, scores[order])


def _tokenized(images: Sequence[Sequence[str]]) -> Iterator[list[list[str]]]:
    """Yields the words of every caption, image by image."""
    words = iter(tokens.tokenize_all([caption for own in images for caption in own]))
    for own in images:
        yield [next(words) for _ in own]
