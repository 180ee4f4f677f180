"""Consensus reranking: the caption that agrees best with those of similar images.

Letters: B images, S hypotheses of an image, C references, D width of an image's vector, k
neighbours, m best.

Devlin et al. 2015 (arXiv 1505.04467) and, in the form built here, Mao et al. (m-RNN, ICLR 2015,
section 8): the k training images nearest to an image lend it their captions, and each hypothesis is
ranked by its mean similarity to the m captions that it is most similar to.
"""

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfcap.data import tokens
from tfcap.data.prepared import PreparedData
from tfcap.reranking.neighbours import Neighbours, Space, load
from tfcap.reranking.similarity import KINDS, Corpus, Similarity, Words

BEST = {"cider": 125, "bleu": 175}  # m of the paper
NEIGHBOURS = 60  # k of the paper
_TOGETHER = 128  # images of a stream at a time


class Ranked(NamedTuple):
    """The hypotheses of an image in a new order.

    Attributes:
      captions: the S hypotheses, best first.
      order: int64 [S], where each of them stood before.
      scores: float64 [S], of `captions`, falling.
    """

    captions: list[str]
    order: np.ndarray
    scores: np.ndarray


def rank(similarities: np.ndarray, best: int) -> tuple[np.ndarray, np.ndarray]:
    """Ranks hypotheses by the mean of their `best` largest similarities.

    With fewer references all of them count: within an image that is the order of the sums, by which
    the released code ranks. Equal hypotheses keep their order, which there is left to chance.

    Args:
      similarities: [S, C].
      best: m, at least 1.

    Returns:
      order int64 [S], best first, and the mean float64 [S] of each hypothesis as given.

    Raises:
      ValueError: m below 1.
    """
    if best < 1:
        raise ValueError(f"best must be at least 1. Received: {best}")
    largest = -np.sort(-np.asarray(similarities, np.float64), axis=1)[:, :best]
    scores = largest.sum(1) / max(1, largest.shape[1])
    return np.argsort(-scores, kind="stable"), scores


class Consensus:
    """Reranks hypotheses of any captioner by the captions of the nearest training images.

    Hypotheses and references are tokenized as training captions are, and compared as words: those
    outside a model's vocabulary count too. The released code compares its own lists of words.

    Args:
      data: the prepared directory, with the training images.
      space: `original` or `refined`, see `neighbours.Space`.
      neighbours: k, 60 in the paper; all training images if there are fewer.
      best: m; None takes the paper's 125 for `cider` and 175 for `bleu`.
      similarity: `cider` or `bleu`, see `similarity.Similarity`.
      document_frequency_split: whose captions give `cider` its document frequencies. The released
        code takes those of the validation set, which holds the images that are reranked: then
        their own references take part, if only as frequencies.
      index_file: where the vectors are kept between runs, see `neighbours.load`.
      refine: the m-RNN of the space `refined`.
      max_regions: further regions of an image are not seen; None sees all.

    Raises:
      ValueError: an option out of range, or what the parts refuse.
    """

    def __init__(
        self,
        data: PreparedData,
        space: str = "original",
        neighbours: int = NEIGHBOURS,
        best: int | None = None,
        similarity: str = "cider",
        document_frequency_split: str = "train",
        index_file: str | None = None,
        refine: Any = None,
        max_regions: int | None = None,
    ):
        if similarity not in KINDS:  # before the records are read
            raise ValueError(
                f"similarity must be one of {', '.join(KINDS)}. Received: {similarity!r}"
            )
        if neighbours < 1 or (best is not None and best < 1):
            raise ValueError(
                f"neighbours and best must be at least 1. Received: {neighbours} and {best}"
            )
        data.split(document_frequency_split)
        self.neighbours, self.best = neighbours, best or BEST[similarity]
        self.space = Space(space, refine)
        self._load = functools.partial(load, data, self.space, index_file, max_regions)
        self.words = Words()
        train = data.references("train")
        ordered = {int(image): train[int(image)] for image in data.index("train").id}
        self.corpus = counted = Corpus.read(ordered, self.words)
        if similarity == "cider" and document_frequency_split != "train":
            counted = Corpus.read(data.references(document_frequency_split), self.words)
        table = counted.document_frequencies() if similarity == "cider" else None
        self.similarity = Similarity(similarity, self.words, table)

    @functools.cached_property
    def index(self) -> Neighbours:
        """The training images in the order of `corpus`; read or made when it is first needed."""
        return self._load()

    def vectors(self, features: tf.Tensor, mask: tf.Tensor | None = None) -> np.ndarray:
        """What stands for images in the search: float32 [B, D], see `neighbours.Space`."""
        return self.space.vectors(features, mask)

    def rerank(
        self,
        vectors: np.ndarray,
        hypotheses: Sequence[Sequence[str]],
        image_ids: np.ndarray | None = None,
    ) -> list[Ranked]:
        """Ranks the hypotheses of B images.

        Args:
          vectors: float32 [B, D], of `vectors`.
          hypotheses: per image S sentences, best first as the model ranks them; S may differ.
          image_ids: int64 [B], ids in the prepared data: an image that is a training image is no
            neighbour of its own. None: none is.

        Raises:
          ValueError: another number of vectors than of images, or what the parts refuse.
        """
        if len(vectors) != len(hypotheses):
            raise ValueError(
                f"{len(vectors)} vectors for {len(hypotheses)} images: each image needs one"
            )
        found, _ = self.index.search(vectors, self.neighbours, image_ids)
        chosen = [self.corpus.sentences(row) for row in found]
        numbers = [self.words.look_up(own) for own in _tokenized(hypotheses)]
        every = self.similarity(numbers, self.corpus, chosen)
        pairs = zip(every, hypotheses, strict=True)
        return [_ranked(values, own, self.best) for values, own in pairs]

    def stream(
        self, images: Iterable[tuple[int | None, np.ndarray, Sequence[str]]]
    ) -> Iterator[Ranked]:
        """Ranks a stream of (image id or None, vector [D], hypotheses), part of it in memory."""
        waiting = iter(images)
        while part := list(itertools.islice(waiting, _TOGETHER)):
            ids, vectors, hypotheses = zip(*part, strict=True)
            ids = np.array([-1 if image is None else image for image in ids], np.int64)
            yield from self.rerank(np.stack(vectors), hypotheses, ids)

    def oracle(
        self, hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
    ) -> list[Ranked]:
        """The paper's bound: ranks by the images' own references in place of their neighbours'.

        Args:
          hypotheses: as in `rerank`.
          references: per image its captions.
        """
        return oracle(self.similarity, self.words, hypotheses, references, self.best)


def oracle(
    similarity: Similarity,
    words: Words,
    hypotheses: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    best: int,
) -> list[Ranked]:
    """Ranks hypotheses by similarity to given references, see `Consensus.oracle`.

    Raises:
      ValueError: another number of images in `references`.
    """
    both = zip(_tokenized(hypotheses), _tokenized(references), strict=True)
    numbers, others = [], []
    for own, given in both:
        found = words.look_up([*own, *given])
        numbers.append(found[: len(own)])
        others.append(found[len(own) :])
    corpus = Corpus(others)
    chosen = [corpus.sentences(np.array([image])) for image in range(len(others))]
    every = similarity(numbers, corpus, chosen)
    return [_ranked(values, own, best) for values, own in zip(every, hypotheses, strict=True)]


def _ranked(similarities: np.ndarray, hypotheses: Sequence[str], best: int) -> Ranked:
    order, scores = rank(similarities, best)
    return Ranked([hypotheses[i] for i in order], order, scores[order])


def _tokenized(images: Sequence[Sequence[str]]) -> Iterator[list[list[str]]]:
    """The words of every sentence, image by image."""
    words = iter(tokens.tokenize_all([sentence for own in images for sentence in own]))
    for own in images:
        yield [next(words) for _ in own]
