"""Consensus reranking: prefers the caption that agrees best with the captions of similar images.

Letters: B images, S hypotheses of an image, C references of an image, D width of an image's vector,
k neighbours, m best.

Devlin et al. 2015 (arXiv 1505.04467) and, in the form built here, Mao et al. (m-RNN, ICLR 2015,
section 8): the references are the captions of the k reference images nearest to an image, and each
hypothesis is ranked by its mean similarity to the m references that it is most similar to.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfcap import errors, progress, runs
from tfcap.data import tokens
from tfcap.data.document_frequency import DocumentFrequencies, count_ngrams, ends
from tfcap.data.prepared import PreparedData, stored_captions
from tfcap.inference import nearest
from tfcap.metrics.results import Hypotheses
from tfcap.models.captioner import Captioner
from tfcap.objectives import ngrams

# Of the paper: m for each measure of similarity. Its k is 60.
BEST = {"cider": 125, "bleu": 175}
_GROUP = 64  # references compared at a time; they are sorted by length, so there is little padding


class Ranked(NamedTuple):
    """The S hypotheses of an image, best first, and their scores float64 [S], descending."""

    captions: list[str]
    scores: np.ndarray


def rank(captions: Sequence[str], similarities: np.ndarray, best: int) -> Ranked:
    """Ranks the hypotheses of an image by the mean of their `best` largest similarities.

    If there are fewer references than `best`, all count. The released code ranks by the sum, which
    gives the same order. Equal hypotheses keep their order; in the released code their order is
    undefined. `similarities` are [S, C].
    """
    largest = -np.sort(-np.asarray(similarities, np.float64), axis=1)[:, :best]
    scores = largest.sum(1) / max(1, largest.shape[1])
    order = np.argsort(-scores, kind="stable")
    return Ranked([captions[i] for i in order], scores[order])


class Consensus:
    """Reranks the hypotheses of any captioner by the captions of the nearest reference images.

    Hypotheses and references are tokenized as training captions are and compared as words, so that
    words outside a model's vocabulary count, too. The released code compares other lists of words.

    `kind` is `consensus`, or `oracle`, which ranks by the references of the image itself.
    `similarity` is `cider`, CIDEr-D with a single reference (0 to 10), or `bleu`, `ngrams.NgramF1`
    (0 to 1); neither counts an end mark. The k `neighbours` are images of the splits `references`
    of `data`; the list of the paper has 122,286 images, more than the split train of Karpathy and
    Fei-Fei. The document frequencies of `cider` are counted on the splits `frequencies`; the
    released code takes the validation set, which contains the reranked images, so that their
    references influence the ranking a little. `best` is m; 0 takes m of the paper. If `refine` is
    an m-RNN, the vectors are its refined features. `index` is the `folder` of `nearest.load`.
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
        self.kind, self.neighbours, self.best = kind, neighbours, best or BEST[similarity]
        space = nearest.Space(refine)
        self.vectors = space.vectors
        self._numbers: dict[str, int] = {}
        self._corpus: list[list[np.ndarray]] = []  # the captions of each image of the index
        if kind == "consensus":
            self._corpus = self._read(data, references, "references")
            self.index = nearest.load(data, space, index, max_regions, tuple(references))
        scorer: ngrams.CiderD | ngrams.NgramF1 = ngrams.NgramF1(ngrams.LARGEST_VOCABULARY)
        if similarity == "cider":
            counted = self._corpus
            if not counted or list(frequencies) != list(references):
                counted = self._read(data, frequencies, "frequencies")
            table = _document_frequencies(counted)
            scorer = ngrams.CiderD(table, ngrams.LARGEST_VOCABULARY, count_eos=False)
        spec = tf.TensorSpec([1, None, None], tf.int32)
        self._compare = tf.function(
            lambda own, others: scorer.similarities(own, scorer.references(others)),
            input_signature=[spec, spec],
            autograph=False,
        )

    def rerank(
        self,
        vectors: np.ndarray,
        hypotheses: Sequence[Sequence[str]],
        image_ids: np.ndarray | None = None,
    ) -> list[Ranked]:
        """Ranks the hypotheses of B images by the captions of similar images.

        `vectors` float32 [B, D] are results of the method `vectors`. `hypotheses` are S captions of
        each image, best first; S may differ between images. `image_ids` int64 [B] are ids in the
        prepared data: an image is never its own neighbour.
        """
        found = self.index.search(vectors, self.neighbours, image_ids)[0]
        others = [[text for i in row[row >= 0] for text in self._corpus[i]] for row in found]
        return self._rank(hypotheses, others)

    def oracle(
        self, hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
    ) -> list[Ranked]:
        """Ranks the captions of each image by its references: the upper bound of the paper."""
        return self._rank(hypotheses, self._encode(references))

    def _rank(self, hypotheses, references) -> list[Ranked]:
        return [
            rank(captions, self._similarities(own, others), self.best)
            for captions, own, others in zip(
                hypotheses, self._encode(hypotheses), references, strict=True
            )
        ]

    def _similarities(self, own: list[np.ndarray], others: list[np.ndarray]) -> np.ndarray:
        result = np.zeros([len(own), len(others)], np.float32)
        if own:
            order = np.argsort([len(words) for words in others], kind="stable")
            for start in range(0, len(others), _GROUP):
                part = order[start : start + _GROUP]
                group = [others[place] for place in part]
                result[:, part] = self._compare(_padded(own), _padded(group))[0]
        return result

    def _encode(self, images: Sequence[Sequence[str]]) -> list[list[np.ndarray]]:
        """Returns the words of every caption as numbers; a new word gets the next number."""
        first, numbers = len(tokens.SPECIALS), self._numbers
        words = iter(tokens.tokenize_all([caption for own in images for caption in own]))

        def encode(sentence):
            found = [numbers.setdefault(word, first + len(numbers)) for word in sentence]
            return np.array(found, np.int32)

        encoded = [[encode(next(words)) for _ in own] for own in images]
        if first + len(numbers) > ngrams.LARGEST_VOCABULARY:
            raise ValueError(
                f"Reranking compares at most {ngrams.LARGEST_VOCABULARY} different words, because "
                "four of them are packed into one number. Rerank with fewer reference captions."
            )
        return encoded

    def _read(self, data: PreparedData, splits: Sequence[str], flag: str) -> list[list[np.ndarray]]:
        if missing := [split for split in splits if split not in data.fingerprint["splits"]]:
            raise errors.UsageError(
                f"--rerank_{flag}: {data.folder} has no split {missing[0]}, only "
                f"{', '.join(data.fingerprint['splits'])}."
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
    result = np.zeros([1, len(sentences), max(1, *map(len, sentences))], np.int32)
    for row, words in zip(result[0], sentences, strict=True):
        row[: len(words)] = words
    return result


def load(
    run: runs.Run | None,
    data: PreparedData,
    kind: str = "consensus",
    refined: str | None = None,
    **options,
) -> Consensus:
    """Makes the `Consensus` for the flags `--rerank` and `--rerank_...`.

    `run` made the captions; None if they come from a file. `refined` is the run directory of an
    m-RNN whose refined features decide which images are similar.
    """
    refine = None
    if refined:
        other = runs.load(refined)
        runs.check_vocabulary(other, data)
        if (run and run.backbone is not None) or other.backbone is not None:
            raise errors.UsageError(
                f"The refined features of {refined} cannot be used: one of the two models trained "
                "its backbone, so they read different features."
            )
        refine = other.model
    regions = run.max_regions if run else None
    return Consensus(data, kind, refine=refine, max_regions=regions, **options)


def rerank_split(
    reranker: Consensus,
    data: PreparedData,
    split: str,
    captions: Mapping[int, Sequence[str]],
    references: Mapping[int, Sequence[str]],
    batch_size: int,
    max_regions: int | None = None,
) -> Hypotheses:
    """Reranks the S captions of each image of a split; the oracle reads `references`."""
    if max(map(len, captions.values()), default=0) < 2:
        print("note: --rerank has no effect, because each image has one caption. Give --beam.")
    images, ranked = list(captions), list[Ranked]()
    starts = range(0, len(images), batch_size)
    for start in progress.progress(starts, len(starts), "reranking"):
        part = images[start : start + batch_size]
        own = [captions[image] for image in part]
        if reranker.kind == "oracle":
            ranked += reranker.oracle(own, [references.get(image, []) for image in part])
            continue
        batch = data.read(split, part, max_regions)
        vectors = reranker.vectors(batch["features"], batch["mask"], batch.get("image"))
        ranked += reranker.rerank(vectors, own, np.array(part, np.int64))
    return Hypotheses(
        {image: one.captions for image, one in zip(images, ranked, strict=True)},
        {image: one.scores.tolist() for image, one in zip(images, ranked, strict=True)},
    )
