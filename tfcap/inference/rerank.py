"""Consensus reranking: prefers the caption that agrees best with the captions of similar images.

The idea is that of Devlin et al. 2015 (arXiv 1505.04467), and the method is that of Mao et al.
(m-RNN, ICLR 2015, section 8). The references are the captions of the k reference images nearest to
an image. Each candidate caption is ranked by its mean similarity to the m references that are most
similar to it.

Letters: B images, S hypotheses of an image, C references of an image, D width of an image's vector,
k neighbours, m best.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfcap import errors, progress, runs
from tfcap.data.document_frequency import DocumentFrequencies, count_ngrams, ends
from tfcap.data.prepared import PreparedData, stored_captions
from tfcap.data.tokens import SPECIALS
from tfcap.inference import nearest
from tfcap.inference.rerank_arguments import RerankArguments
from tfcap.metrics.results import Hypotheses
from tfcap.models.captioner import Captioner
from tfcap.objectives import ngrams

BEST = {"cider": 125, "bleu": 175}  # m of the paper for each measure of similarity; its k is 60
_log = logging.getLogger(__name__)
_GROUP = 64  # references compared at a time; they are sorted by length, so there is little padding


class Ranked(NamedTuple):
    """The candidate captions of an image in their new order.

    Attributes:
      captions: the S candidate captions, best first.
      scores: their scores, float64 [S], highest first.
    """

    captions: list[str]
    scores: np.ndarray


def rank(captions: Sequence[str], similarities: np.ndarray, best: int) -> Ranked:
    """Ranks the candidate captions of an image by their mean similarity to references.

    The score of a caption is the mean of its `best` largest similarities. The released code of
    m-RNN ranks by the sum of these similarities, which gives the same order. Captions with equal
    scores keep their order here; in the released code the order of such captions is undefined.

    Args:
      captions: the S candidate captions.
      similarities: similarity of each caption to each of C references, [S, C].
      best: number of references that count for a caption, those most similar to it. If there are
        fewer references, all count.
    """
    largest = -np.sort(-np.asarray(similarities, np.float64), axis=1)[:, :best]
    scores = largest.sum(1) / max(1, largest.shape[1])
    order = np.argsort(-scores, kind="stable")
    return Ranked([captions[i] for i in order], scores[order])


class ConsensusReranker:
    """Reranks the candidate captions of an image by the captions of similar images.

    The best caption is the one that agrees most with the captions of the reference images that are
    nearest to the image (Mao et al., ICLR 2015, section 8). Captions are tokenized as training
    captions are, and compared as words, so that words outside a model's vocabulary count, too. The
    released code of m-RNN tokenizes differently.

    Args:
      data: the prepared data with the reference images.
      kind: `consensus` ranks by the captions of similar images, with the method `rerank`. `oracle`
        ranks by the references of the image itself, with the method `oracle`, which shows how much
        reranking could gain.
      similarity: how two captions are compared: `cider` for CIDEr-D with a single reference (0 to
        10), `bleu` for the mean F1 of n-grams, n = 1 ... 4 (`ngrams.NgramF1`, 0 to 1). Neither
        counts an end mark.
      neighbours: number of similar images.
      best: number of captions that count for a candidate caption: of all captions of the similar
        images, those most similar to it. 0 takes the number of the paper, 125 for `cider` and 175
        for `bleu`.
      references: splits of the reference images. The paper uses 122,286 images, more than the
        split train of Karpathy and Fei-Fei has.
      frequencies: splits whose captions give the document frequencies of `cider`. The released code
        uses the validation set. This set contains the reranked images, so the references of these
        images influence the ranking a little.
      refine: an m-RNN, whose refined features decide which images are similar. None compares the
        mean of the features of each image.
      index: the directory that keeps the vectors of the images for the next time; "" takes the
        directory `vectors` inside the prepared directory. None keeps the vectors in memory only.
      max_regions: largest number of regions of an image to read; None reads all.

    Raises:
      UsageError: `data` lacks a split of `references` or `frequencies`.
      ValueError: `refine` is no m-RNN, or the captions have too many different words.
    """

    def __init__(
        self,
        data: PreparedData,
        kind: str = "consensus",
        similarity: str = "cider",
        neighbours: int = 60,
        best: int = 0,
        references: Sequence[str] = ("train",),
        frequencies: Sequence[str] = ("train",),
        refine: Captioner | None = None,
        index: str | None = None,
        max_regions: int | None = None,
    ):
        self.kind = kind
        self.neighbours = neighbours
        self.best = best or BEST[similarity]
        self._split = data.vocab.split
        self._space = nearest.Space(refine)
        self._word_numbers: dict[str, int] = {}
        self._reference_words: list[list[np.ndarray]] = []  # of each image of the index
        if kind == "consensus":
            self._reference_words = self._read(data, references, "rerank_references")
            self.index = nearest.open_index(
                data, self._space, index, max_regions, tuple(references)
            )
        scorer: ngrams.CiderD | ngrams.NgramF1 = ngrams.NgramF1(ngrams.LARGEST_VOCABULARY)
        if similarity == "cider":
            counted = self._reference_words
            if not counted or list(frequencies) != list(references):
                counted = self._read(data, frequencies, "rerank_frequencies")
            table = _document_frequencies(counted)
            scorer = ngrams.CiderD(table, ngrams.LARGEST_VOCABULARY, count_eos=False)
        spec = tf.TensorSpec([1, None, None], tf.int32)
        self._compare = tf.function(
            lambda a, b: scorer.similarities(a, scorer.references(b)),
            input_signature=[spec, spec],
            autograph=False,
        )

    def vectors(
        self, features: tf.Tensor, mask: tf.Tensor | None = None, image: tf.Tensor | None = None
    ) -> np.ndarray:
        """Computes the vectors by which `rerank` finds similar images.

        Args:
          features: features of the R regions of B images, vectors of width F, float32 [B, R, F].
          mask: bool [B, R], False for padding; None if there is no padding.
          image: features of the whole images, vectors of width F2, which an m-RNN may read, float32
            [B, F2]; None if the data has no such features.

        Returns:
          float32 [B, D]: a vector of width D for each image.
        """
        return self._space.vectors(features, mask, image)

    def rerank(
        self,
        vectors: np.ndarray,
        hypotheses: Sequence[Sequence[str]],
        image_ids: np.ndarray | None = None,
    ) -> list[Ranked]:
        """Ranks the candidate captions of B images by the captions of similar images.

        Args:
          vectors: the vectors of the images, of width D, float32 [B, D], a result of the method
            `vectors`.
          hypotheses: the candidate captions of each image, best first. Images may have different
            numbers of captions.
          image_ids: the ids of the images, int64 [B], so that an image does not count as similar to
            itself. None if the images are not in the prepared data.

        Returns:
          A `Ranked` for each image: its captions, best first, and their scores.
        """
        neighbours = self.index.search(vectors, self.neighbours, image_ids)[0]
        references = [
            [words for i in row[row >= 0] for words in self._reference_words[i]]
            for row in neighbours
        ]
        return self._rank(hypotheses, references)

    def oracle(
        self, hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
    ) -> list[Ranked]:
        """Ranks the candidate captions of each image by the references of this image.

        The result shows how much reranking could gain.

        Args:
          hypotheses: the candidate captions of each image.
          references: the references of each image.

        Returns:
          A `Ranked` for each image: its captions, best first, and their scores.
        """
        return self._rank(hypotheses, self._encode(references))

    def _rank(
        self, hypotheses: Sequence[Sequence[str]], references: Sequence[list[np.ndarray]]
    ) -> list[Ranked]:
        encoded = self._encode(hypotheses)
        return [
            rank(captions, self._similarities(words, words_of_references), self.best)
            for captions, words, words_of_references in zip(
                hypotheses, encoded, references, strict=True
            )
        ]

    def _similarities(
        self, hypotheses: list[np.ndarray], references: list[np.ndarray]
    ) -> np.ndarray:
        """Compares the hypotheses of an image with its references: float32 [S, C]."""
        result = np.zeros([len(hypotheses), len(references)], np.float32)
        if hypotheses:
            order = np.argsort([len(words) for words in references], kind="stable")
            for start in range(0, len(references), _GROUP):
                part = order[start : start + _GROUP]
                group = [references[i] for i in part]
                result[:, part] = self._compare(_padded(hypotheses), _padded(group))[0]
        return result

    def _encode(self, images: Sequence[Sequence[str]]) -> list[list[np.ndarray]]:
        """Returns the words of every caption as numbers; a new word gets the next number."""
        first = len(SPECIALS)
        numbers = self._word_numbers
        words = iter(self._split([text for captions in images for text in captions]))

        def encode(sentence: Sequence[str]) -> np.ndarray:
            ids = [numbers.setdefault(word, first + len(numbers)) for word in sentence]
            return np.array(ids, np.int32)

        encoded = [[encode(next(words)) for _ in captions] for captions in images]
        if first + len(numbers) > ngrams.LARGEST_VOCABULARY:
            raise ValueError(
                f"Reranking can compare at most {ngrams.LARGEST_VOCABULARY} different words, "
                "because it stores four words in one 64-bit number. Name fewer splits as "
                "`rerank_references` and `rerank_frequencies`."
            )
        return encoded

    def _read(
        self, data: PreparedData, splits: Sequence[str], argument: str
    ) -> list[list[np.ndarray]]:
        """Returns the captions of some splits; `argument` named the splits."""
        if missing := [split for split in splits if split not in data.fingerprint["splits"]]:
            raise errors.UsageError(
                f"`{argument}={','.join(splits)}`: {data.folder} has no split {missing[0]}. Give "
                f"some of {', '.join(data.fingerprint['splits'])}."
            )
        captions = []
        for split in splits:
            stored = stored_captions(data, split)
            captions += [stored[image] for image in data.index(split).id.tolist()]
        return self._encode(captions)


def _document_frequencies(images: Sequence[Sequence[np.ndarray]]) -> DocumentFrequencies:
    """Counts the images in which each n-gram occurs, without an end mark.

    Most n-grams occur in one image. They are left out, because `CiderD` gives unknown n-grams the
    same idf, ln N - ln max(1, df). Images without captions are not counted.
    """
    images = [captions for captions in images if captions]
    flat = [words for captions in images for words in captions]
    return count_ngrams(
        np.concatenate([np.zeros([0], np.int32), *flat]),
        ends([len(words) for words in flat]),
        ends([len(captions) for captions in images]),
        end_mark=False,
        least=2,
    )


def _padded(sentences: Sequence[np.ndarray]) -> np.ndarray:
    """Returns captions as int32 [1, number, words], padded with 0."""
    longest = max(map(len, sentences), default=0)
    result = np.zeros([1, len(sentences), max(1, longest)], np.int32)
    for row, words in zip(result[0], sentences, strict=True):
        row[: len(words)] = words
    return result


def reranker_of(
    args: RerankArguments, run: runs.Run | None, data: PreparedData
) -> ConsensusReranker:
    """Makes the reranker that the arguments of a command describe.

    Args:
      args: the arguments; their `rerank` must not be None.
      run: the run that made the captions, which limits the regions of an image. None if the
        captions come from a file: then all regions are read.
      data: prepared data with the reference images.

    Raises:
      ValueError: `data` lacks a split that the arguments name; or the model `rerank_refined` is no
        m-RNN, has another vocabulary, or reads other features than the captioner.
    """
    assert args.rerank is not None
    return ConsensusReranker(
        data,
        args.rerank,
        similarity=args.rerank_similarity,
        neighbours=args.rerank_neighbours,
        best=args.rerank_best,
        references=args.rerank_references,
        frequencies=args.rerank_frequencies,
        refine=_refining_model(args.rerank_refined, run, data) if args.rerank_refined else None,
        index=args.rerank_index,
        max_regions=run.max_regions if run else None,
    )


def _refining_model(directory: str, run: runs.Run | None, data: PreparedData) -> Captioner:
    """Loads the m-RNN whose refined features decide which images are similar."""
    refining = runs.load(directory)
    runs.check_vocabulary(refining, data)
    if (run and run.backbone is not None) or refining.backbone is not None:
        raise errors.UsageError(
            f"`rerank_refined={directory}` cannot be used: this model or the captioner trained its "
            "own backbone, so the two read different features. Leave out `rerank_refined`."
        )
    return refining.model


def rerank_split(
    reranker: ConsensusReranker,
    data: PreparedData,
    split: str,
    captions: Mapping[int, Sequence[str]],
    references: Mapping[int, Sequence[str]],
    batch_size: int,
    max_regions: int | None = None,
) -> Hypotheses:
    """Reranks the candidate captions of the images of a split.

    Args:
      reranker: the reranker that ranks the captions.
      data: the prepared data of the images.
      split: name of the split.
      captions: image id -> candidate captions, best first.
      references: image id -> references, which only a reranker of the kind `oracle` reads.
      batch_size: number of images reranked together.
      max_regions: largest number of regions of an image to read; None reads all.

    Returns:
      The captions of each image in their new order, and their scores.
    """
    if max(map(len, captions.values()), default=0) < 2:
        _log.info("note: `rerank` has no effect, because each image has one caption. Give `beam`.")
    images = list(captions)
    ranked: list[Ranked] = []
    starts = range(0, len(images), batch_size)
    for start in progress.progress(starts, len(starts), "reranking"):
        ids = images[start : start + batch_size]
        hypotheses = [captions[image] for image in ids]
        if reranker.kind == "oracle":
            ranked += reranker.oracle(hypotheses, [references.get(image, []) for image in ids])
            continue
        batch = data.read(split, ids, max_regions)
        vectors = reranker.vectors(batch["features"], batch["mask"], batch.get("image"))
        ranked += reranker.rerank(vectors, hypotheses, np.array(ids, np.int64))
    return Hypotheses(
        {image: result.captions for image, result in zip(images, ranked, strict=True)},
        {image: result.scores.tolist() for image, result in zip(images, ranked, strict=True)},
    )
