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
    """The images of a split, to score them with captions by a run.

    Args:
      run: the trained captioner.
      data: prepared data that the captioner can read.
      split: name of the split.
      limit: number of images, from the start of the split; 0 for all.
      block: number of images scored together.
    """

    def __init__(self, run: runs.Run, data: PreparedData, split: str, limit: int, block: int):
        self.run = run
        self.data = data
        self.split = split
        self.block = block
        self.ids = data.index(split).id[: limit or None].tolist()
        if not self.ids:
            raise ValueError(f"Split {split} of {data.folder} has no images. Name another split.")
        self._scorer: likelihood.PairScorer | None = None

    def captions(self) -> tuple[list[str], np.ndarray]:
        """Returns all captions of the images, and for each the position of its image, int64 [N]."""
        stored = stored_captions(self.data, self.split)
        captions_of = [stored[image] for image in self.ids]
        for image, captions in zip(self.ids, captions_of, strict=True):
            if not captions:
                raise ValueError(
                    f"Retrieval needs captions of every image, and image {image} of split "
                    f"{self.split} of {self.data.folder} has none. Name another split."
                )
        owners = np.repeat(np.arange(len(captions_of)), [len(texts) for texts in captions_of])
        return [text for captions in captions_of for text in captions], owners

    def encode(self, captions: list[str]) -> likelihood.EncodedCaptions:
        """Converts captions to token ids of the run."""
        max_length = self.run.params.task.max_length
        return likelihood.encode_captions(self.run.vocab, captions, max_length)

    def scorer(self, captions: likelihood.EncodedCaptions) -> likelihood.PairScorer:
        """Returns a scorer of the captions; it is traced once."""
        if self._scorer is None:
            self._scorer = likelihood.PairScorer(self.run.model, self.data.input_specs, captions)
        self._scorer.use(captions)
        return self._scorer

    def scores(
        self, scorer: likelihood.PairScorer, split: str, positions: np.ndarray
    ) -> np.ndarray:
        """Scores the captions of a scorer for some images of a split, float32 [I, N].

        Args:
          scorer: a result of the method `scorer`.
          split: name of the split.
          positions: the positions of the images in the split, int64 [I].
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
        """Estimates log P(caption) of the captions of a scorer, float64 [N].

        Args:
          scorer: a result of the method `scorer`.
          number: number of training images, which are drawn without replacement; more images
            include those of a smaller number. 0 gives None.
          seed: random seed of the draw.
        """
        if not number:
            return None
        images = self.data.split(MARGINAL)["images"]
        positions = np.random.default_rng(seed).permutation(images)[:number]
        sums = retrieval.log_marginal(self.scores(scorer, MARGINAL, positions))
        return sums - np.log(len(positions))


class ScoredSplit(NamedTuple):
    """The scores of all pairs of the images and the captions of a split.

    Attributes:
      scores: log P(caption | image), float32 [I, N].
      owners: the position of the image of each caption, int64 [N].
      log_marginals: log P(caption), float64 [N]; None if scores are not normalised.
      note: a line about unknown words and cut captions; empty if there are none.
    """

    scores: np.ndarray
    owners: np.ndarray
    log_marginals: np.ndarray | None
    note: str


def score_split(pairs: Pairs, marginal_images: int, seed: int) -> ScoredSplit:
    """Scores all pairs of the images and the captions of a split.

    Args:
      pairs: the images.
      marginal_images: number of training images that give P(caption); 0 does not normalise.
      seed: random seed of the draw of these images.
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
    """Ranks the captions for each image, and the images for each caption.

    Args:
      pairs, marginal_images, seed: as in `score_split`.

    Returns:
      The summary of each direction by its name, and the note of `score_split`.
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
    """Finds the images for which each query is most probable.

    Args:
      pairs: the images.
      queries: Q sentences.
      top: number of images to find for a query.
      candidates: the positions of the images to score for each query, int64 [Q, k]; None scores
        all images.

    Returns:
      For each query a list of (position of the image, log P(query | image)), best first; and a note
      on unknown words.
    """
    encoded = pairs.encode(queries)
    for query, words in zip(queries, encoded.tokens, strict=True):
        if np.isin(words, (PAD, EOS, UNK)).all():
            raise errors.UsageError(
                f"The model knows no word of the query {query!r}. Use words of its vocabulary."
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
    features: np.ndarray,
    top: int,
    marginal_images: int,
    seed: int,
    candidates: nearest.Candidates | None = None,
    number: int = 0,
) -> list[list[tuple[str, float]]]:
    """Finds the captions of a split that are most probable for images, each text once.

    The score is log P(caption | image) - log P(caption), as in the ranking of a split; if
    `marginal_images` is 0, it is log P(caption | image).

    Args:
      pairs: the images whose captions are the sentences.
      features: features of the query images, float32 [Q, R, F]; they need not be in the data.
      top: number of sentences to find for an image.
      marginal_images, seed: as in `score_split`.
      candidates: chooses the sentences to score for each image by their vectors; None scores all.
      number: number of sentences that `candidates` chooses for an image, k.

    Returns:
      For each image a list of (sentence, score), best first.
    """
    texts = list(dict.fromkeys(pairs.captions()[0]))
    chosen = [np.arange(len(texts))] * len(features)
    if candidates is not None:
        vectors = candidates.space.vectors(features)
        chosen = list(candidates.among_sentences(vectors, texts, number))
    scored = np.unique(np.concatenate(chosen))
    scored_texts = [texts[i] for i in scored]
    scorer = pairs.scorer(pairs.encode(scored_texts))
    mask = np.ones([1, features.shape[1]], bool)
    scores = np.concatenate([scorer(image[None], mask) for image in features]).astype(np.float64)
    log_marginals = pairs.log_marginals(scorer, marginal_images, seed)
    if log_marginals is not None:
        scores = scores - log_marginals
    results = []
    for row, positions in zip(scores, chosen, strict=True):
        columns = np.searchsorted(scored, np.sort(positions))
        best = columns[np.argsort(-row[columns], kind="stable")[:top]]
        results.append([(scored_texts[i], float(row[i])) for i in best])
    return results
