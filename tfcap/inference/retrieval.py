"""Ranks captions for images and images for captions by log P(caption | image).

Where captions are ranked for an image, log P(caption) is subtracted (Mao et al., ICLR 2015,
equation 7; docs/systems.md 6.4). P(caption) is the mean of P(caption | image) over training images.
The paper does not say how many, and its code for retrieval is not released.

Letters: I images, N captions, Q queries, R regions, F feature width, k candidates.
"""

import logging
import math
import time
from typing import NamedTuple

import numpy as np

from tfcap import errors, progress, runs
from tfcap.data.prepared import PreparedData, stored_captions
from tfcap.ids import EOS, PAD, UNK
from tfcap.inference import likelihood, nearest
from tfcap.metrics import retrieval

MARGINAL = "train"  # the split whose images give P(caption)
_log = logging.getLogger(__name__)


class Pairs:
    """The images of a split of prepared data, and the trained run that scores captions for them.

    The methods compute log P(caption | image) for pairs of a caption and an image.

    Args:
      run: the trained captioner.
      data: prepared data with the vocabulary and the features of the run.
      split: name of the split.
      limit: number of images to take, from the start of the split; 0 takes all.
      block: number of images scored together.

    Raises:
      ValueError: the split has no images.
    """

    def __init__(self, run: runs.Run, data: PreparedData, split: str, limit: int, block: int):
        self.run = run
        self.data = data
        self.split = split
        self.block = block
        self.ids = data.index(split).id[: limit or None].tolist()
        if not self.ids:
            raise ValueError(f"`split={split}` has no images in {data.folder}. Name another split.")
        self._scorer: likelihood.PairScorer | None = None

    def captions(self) -> tuple[list[str], np.ndarray]:
        """Returns the captions of the images, from the data.

        Returns:
          The N captions of all images in one list; and for each caption the position of its image
          in the split, int64 [N].

        Raises:
          ValueError: an image has no caption.
        """
        stored = stored_captions(self.data, self.split)
        captions_of = [stored[image] for image in self.ids]
        for image, captions in zip(self.ids, captions_of, strict=True):
            if not captions:
                raise ValueError(
                    f"Retrieval needs captions of every image, but image {image} of split "
                    f"{self.split} of {self.data.folder} has no caption. Name another split."
                )
        owners = np.repeat(np.arange(len(captions_of)), [len(texts) for texts in captions_of])
        return [text for captions in captions_of for text in captions], owners

    def encode(self, captions: list[str]) -> likelihood.EncodedCaptions:
        """Converts captions to token ids of the run's vocabulary.

        Args:
          captions: captions, as plain sentences.

        Raises:
          ValueError: a caption has no word.
        """
        max_length = self.run.params.task.max_length
        return likelihood.encode_captions(self.run.vocab, captions, max_length)

    def scorer(self, captions: likelihood.EncodedCaptions) -> likelihood.PairScorer:
        """Returns a `PairScorer` that scores these captions.

        All calls return the same object, so that the model is traced only once. A new call replaces
        the captions of this object.

        Args:
          captions: the captions to score.
        """
        if self._scorer is None:
            self._scorer = likelihood.PairScorer(self.run.model, self.data.input_specs, captions)
        self._scorer.use(captions)
        return self._scorer

    def scores(
        self, scorer: likelihood.PairScorer, split: str, positions: np.ndarray
    ) -> np.ndarray:
        """Scores the N captions of a scorer for I images of a split.

        Args:
          scorer: the result of the method `scorer`.
          split: name of the split of the images. It may be another split than that of this object.
          positions: the positions of the images in the split, int64 [I].

        Returns:
          log P(caption | image), natural logarithm, float32 [I, N].
        """
        blocks = likelihood.read_images(
            self.data, split, positions, self.block, self.run.max_regions
        )
        total = math.ceil(len(positions) / self.block)
        label = f"scoring images of {split}, blocks of {self.block}"
        return np.concatenate(
            [scorer(**block) for block in progress.progress(blocks, total, label)]
        )

    def log_marginals(
        self, scorer: likelihood.PairScorer, number: int, seed: int
    ) -> np.ndarray | None:
        """Estimates log P(caption) of the N captions of a scorer.

        P(caption) is the mean of P(caption | image) over training images that are drawn at random,
        without replacement.

        Args:
          scorer: the result of the method `scorer`.
          number: number of training images to draw; 0 computes nothing and returns None. With the
            same seed a larger number draws the same images and more.
          seed: random seed of the draw.

        Returns:
          The natural logarithms, float64 [N], or None.
        """
        if not number:
            return None
        images = self.data.split(MARGINAL)["images"]
        positions = np.random.default_rng(seed).permutation(images)[:number]
        sums = retrieval.log_marginal(self.scores(scorer, MARGINAL, positions))
        return sums - np.log(len(positions))


class ScoredSplit(NamedTuple):
    """The scores of all pairs of the I images and the N captions of a split.

    Attributes:
      scores: log P(caption | image), natural logarithm, float32 [I, N].
      owners: for each caption the position in the split of the image that it describes, int64 [N].
      log_marginals: log P(caption), natural logarithm, float64 [N]. To rank captions for an image,
        it is subtracted from the scores of the image. None if it was not estimated.
      note: a line of text about unknown words and cut captions; "" if there are neither.
    """

    scores: np.ndarray
    owners: np.ndarray
    log_marginals: np.ndarray | None
    note: str


def score_split(pairs: Pairs, marginal_images: int, seed: int) -> ScoredSplit:
    """Computes log P(caption | image) for every image and every caption of a split.

    Retrieval ranks captions among those of other images. So an image is also scored with the
    captions that describe other images.

    Args:
      pairs: holds the images of the split, their captions, and the trained run that computes the
        probabilities.
      marginal_images: number of training images, drawn at random, from which P(caption) is
        estimated. 0 does not estimate it; then `log_marginals` of the result is None.
      seed: random seed of this draw.

    Raises:
      ValueError: an image has no caption, or a caption has no word.
    """
    captions, owners = pairs.captions()
    encoded = pairs.encode(captions)
    scorer = pairs.scorer(encoded)
    start = time.monotonic()
    scores = pairs.scores(scorer, pairs.split, np.arange(len(pairs.ids)))
    log_marginals = pairs.log_marginals(scorer, marginal_images, seed)
    seconds = time.monotonic() - start
    number = scores.size
    if log_marginals is not None:
        number += len(captions) * min(marginal_images, pairs.data.split(MARGINAL)["images"])
    _log.info(f"{number} pairs in {errors.duration(seconds)}, {seconds / number:.2g} s each")
    return ScoredSplit(scores, owners, log_marginals, encoded.note())


def rank(pairs: Pairs, marginal_images: int, seed: int) -> tuple[dict[str, retrieval.Summary], str]:
    """Ranks the captions of a split for each image, and the images for each caption.

    Args:
      pairs: holds the images of the split, their captions, and the trained run that scores them.
      marginal_images: number of training images, drawn at random, from which P(caption) is
        estimated. The captions are then ranked by log P(caption | image) - log P(caption). 0 ranks
        them by log P(caption | image). Images are always ranked by log P(caption | image).
      seed: random seed of this draw.

    Returns:
      A dictionary, "image to text" and "text to image" -> the recalls and the median rank of this
      direction; and a line of text about unknown words and cut captions, "" if there are neither.
    """
    split = score_split(pairs, marginal_images, seed)
    queries = {
        "image to text": retrieval.image_to_text(split.scores, split.owners, split.log_marginals),
        "text to image": retrieval.text_to_image(split.scores, split.owners),
    }
    summaries = {name: retrieval.summarize(list(each)) for name, each in queries.items()}
    return summaries, split.note


def find(
    pairs: Pairs, queries: list[str], top: int, candidates: np.ndarray | None = None
) -> tuple[list[list[tuple[int, float]]], str]:
    """Finds for each sentence the images for which it is most probable.

    Args:
      pairs: holds the images of a split, and the trained run that computes the probabilities.
      queries: Q sentences.
      top: number of images to find for a sentence.
      candidates: for each sentence the positions of the k images to score, int64 [Q, k]; None
        scores all images.

    Returns:
      Two values. The first has for each sentence a list of pairs, most probable first: the position
      of an image in the split and log P(sentence | image), natural logarithm. The second is a line
      of text about unknown words and cut sentences, "" if there are neither.

    Raises:
      UsageError: a sentence has no word of the model's vocabulary.
      ValueError: a sentence has no word at all.
    """
    encoded = pairs.encode(queries)
    for query, words in zip(queries, encoded.tokens, strict=True):
        if np.isin(words, (PAD, EOS, UNK)).all():
            raise errors.UsageError(
                f"The model knows no word of the query {query!r}. Use words of its vocabulary, "
                "vocab.txt in the run directory."
            )
    positions = np.arange(len(pairs.ids)) if candidates is None else np.unique(candidates)
    scores = pairs.scores(pairs.scorer(encoded), pairs.split, positions)
    results = []
    for query_index, column in enumerate(scores.T):
        scored = positions if candidates is None else np.sort(candidates[query_index])
        values = column[np.searchsorted(positions, scored)]
        best = np.argsort(-values, kind="stable")[:top]
        results.append([(int(scored[i]), float(values[i])) for i in best])
    return results, encoded.note()


def find_sentences(
    pairs: Pairs,
    inputs: dict[str, np.ndarray],
    top: int,
    marginal_images: int,
    seed: int,
    candidates: nearest.Candidates | None = None,
    number: int = 0,
) -> list[list[tuple[str, float]]]:
    """Finds sentences that describe pictures, among the captions of a split.

    The score of a sentence is log P(sentence | picture) - log P(sentence), natural logarithms. If
    `marginal_images` is 0, it is log P(sentence | picture).

    Args:
      pairs: holds the images whose captions are the sentences, and the trained run that computes
        the probabilities.
      inputs: what the captioner reads of Q pictures, the argument of `Captioner.encode`. The
        pictures need not be in the data.
      top: number of sentences to find for a picture.
      marginal_images: number of training images, drawn at random, from which P(sentence) is
        estimated. 0 does not subtract log P(sentence).
      seed: random seed of this draw.
      candidates: chooses for each picture the sentences with the nearest vectors, and only these
        are scored; None scores all sentences.
      number: number of sentences that `candidates` chooses for a picture.

    Returns:
      For each picture a list of pairs, best first: a sentence and its score. A sentence that is the
      caption of several images occurs once.
    """
    texts = list(dict.fromkeys(pairs.captions()[0]))
    chosen = [np.arange(len(texts))] * len(inputs["mask"])
    if candidates is not None:
        vectors = candidates.space.vectors(inputs["features"], inputs["mask"])
        chosen = list(candidates.among_sentences(vectors, texts, number))
    scored = np.unique(np.concatenate(chosen))
    scored_texts = [texts[i] for i in scored]
    scorer = pairs.scorer(pairs.encode(scored_texts))
    pictures = [{n: v[i : i + 1] for n, v in inputs.items()} for i in range(len(chosen))]
    scores = np.concatenate([scorer(**picture) for picture in pictures]).astype(np.float64)
    log_marginals = pairs.log_marginals(scorer, marginal_images, seed)
    if log_marginals is not None:
        scores = scores - log_marginals
    results = []
    for row, positions in zip(scores, chosen, strict=True):
        columns = np.searchsorted(scored, np.sort(positions))
        best = columns[np.argsort(-row[columns], kind="stable")[:top]]
        results.append([(pairs.data.vocab.shown(scored_texts[i]), float(row[i])) for i in best])
    return results
