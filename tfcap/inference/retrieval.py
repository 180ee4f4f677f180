"""Ranks captions for images and images for captions by log P(caption | image).

Where captions are ranked for an image, log P(caption) is subtracted (Mao et al., ICLR 2015,
equation 7; docs/systems.md 6.4). P(caption) is the mean of P(caption | image) over training images.
The paper does not say how many, and its code for retrieval is not released.

Letters: I images, N captions, Q queries, R regions, F feature width, k candidates.
"""

import time

import numpy as np

from tfcap import errors, progress, runs
from tfcap.data.prepared import PreparedData, stored_captions
from tfcap.ids import EOS, PAD, UNK
from tfcap.inference import likelihood, nearest
from tfcap.metrics import retrieval

MARGINAL = "train"  # the split whose images give P(caption)


class Pairs:
    """The images of a split, to score them with captions by a run.

    `limit` is the number of images to read from the start of the split; 0 reads all. `block` images
    are scored together.
    """

    def __init__(self, run: runs.Run, data: PreparedData, split: str, limit: int, block: int):
        self.run, self.data, self.split, self.block = run, data, split, block
        self.ids = data.index(split).id[: limit or None].tolist()
        if not self.ids:
            raise ValueError(f"Split {split} of {data.folder} has no images.")
        self._scorer: likelihood.PairScorer | None = None

    def captions(self) -> tuple[list[str], np.ndarray]:
        """Returns all captions of the images, and for each the position of its image, int64 [N]."""
        stored = stored_captions(self.data, self.split)
        each = [stored[image] for image in self.ids]
        if bare := [image for image, captions in zip(self.ids, each, strict=True) if not captions]:
            raise ValueError(
                f"Retrieval needs captions of every image, and image {bare[0]} of split "
                f"{self.split} of {self.data.folder} has none."
            )
        owners = np.repeat(np.arange(len(each)), [len(captions) for captions in each])
        return [caption for captions in each for caption in captions], owners

    def scorer(self, captions: likelihood.EncodedCaptions) -> likelihood.PairScorer:
        """Returns a scorer of `captions`; it is traced once."""
        if self._scorer is None:
            self._scorer = likelihood.PairScorer(self.run.model, self.data.input_specs, captions)
        self._scorer.use(captions)
        return self._scorer

    def scores(
        self, scorer: likelihood.PairScorer, split: str, positions: np.ndarray
    ) -> np.ndarray:
        """Scores the captions of a scorer for some images of a split, float32 [I, N]."""
        blocks = likelihood.images(self.data, split, positions, self.block, self.run.max_regions)
        total = -(-len(positions) // self.block)
        label = f"scoring images of {split}, blocks of {self.block}"
        return np.concatenate(
            [scorer(**block) for block in progress.progress(blocks, total, label)]
        )

    def log_marginals(
        self, scorer: likelihood.PairScorer, number: int, seed: int
    ) -> np.ndarray | None:
        """Estimates log P(caption) of the captions of a scorer, float64 [N].

        `number` training images are drawn without replacement; if it is 0, the result is None. A
        larger `number` adds images to those of a smaller `number`.
        """
        if not number:
            return None
        images = self.data.split(MARGINAL)["images"]
        positions = np.random.default_rng(seed).permutation(images)[:number]
        sums = retrieval.log_marginal(self.scores(scorer, MARGINAL, positions))
        return sums - np.log(len(positions))


def score_split(
    pairs: Pairs, marginal_images: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, str]:
    """Scores all pairs of the images and the captions of a split.

    Returns log P(caption | image) float32 [I, N], the position of the image of each caption
    int64 [N], log P(caption) float64 [N] or None, and a note on unknown words and cut captions.
    """
    captions, owners = pairs.captions()
    encoded = likelihood.encode(pairs.run.vocab, captions, pairs.run.params.task.max_length)
    scorer, start = pairs.scorer(encoded), time.monotonic()
    scores = pairs.scores(scorer, pairs.split, np.arange(len(pairs.ids)))
    marginals = pairs.log_marginals(scorer, marginal_images, seed)
    done, seconds = scores.size, time.monotonic() - start
    if marginals is not None:
        done += len(captions) * min(marginal_images, pairs.data.split(MARGINAL)["images"])
    print(f"{done} pairs in {errors.duration(seconds)}, {seconds / done:.2g} s each", flush=True)
    return scores, owners, marginals, encoded.note()


def rank(pairs: Pairs, marginal_images: int, seed: int) -> tuple[dict[str, retrieval.Summary], str]:
    """Ranks in both directions; returns the summaries, and the note from `score_split`."""
    scores, owners, marginals, note = score_split(pairs, marginal_images, seed)
    queries = {
        "image to text": retrieval.image_to_text(scores, owners, marginals),
        "text to image": retrieval.text_to_image(scores, owners),
    }
    return {name: retrieval.summarize(list(each)) for name, each in queries.items()}, note


def find(
    pairs: Pairs, queries: list[str], top: int, chosen: np.ndarray | None = None
) -> tuple[list[list[tuple[int, float]]], str]:
    """Finds the `top` images for which each query is most probable.

    `chosen` int64 [Q, k] are the positions of the images to score for each query; None scores all
    images. Returns for each query pairs (position of the image, log P(query | image)), best first;
    and a note on unknown words.
    """
    run = pairs.run
    encoded = likelihood.encode(run.vocab, queries, run.params.task.max_length)
    for query, ids in zip(queries, encoded.tokens, strict=True):
        if np.isin(ids, (PAD, EOS, UNK)).all():
            raise errors.UsageError(f"The model knows no word of the query {query!r}.")
    positions = np.arange(len(pairs.ids)) if chosen is None else np.unique(chosen)
    scores = pairs.scores(pairs.scorer(encoded), pairs.split, positions)
    matches = []
    for number, column in enumerate(scores.T):
        own = positions if chosen is None else np.sort(chosen[number])
        column = column[np.searchsorted(positions, own)]
        best = np.argsort(-column, kind="stable")[:top]
        matches.append([(int(own[place]), float(column[place])) for place in best])
    return matches, encoded.note()


def find_sentences(
    pairs: Pairs,
    features: np.ndarray,
    top: int,
    marginal_images: int,
    seed: int,
    candidates: nearest.Candidates | None = None,
    number: int = 0,
) -> list[list[tuple[str, float]]]:
    """Finds the `top` captions of a split that are most probable for images, each text once.

    The score is log P(caption | image) - log P(caption), as in the ranking of a split; if
    `marginal_images` is 0, it is log P(caption | image). `features` float32 [Q, R, F] are the
    features of the query images, which need not be in the data. `candidates` chooses k = `number`
    sentences for each image by vectors; None scores all. Returns for each image pairs (sentence,
    score).
    """
    texts = list(dict.fromkeys(pairs.captions()[0]))
    chosen = [np.arange(len(texts))] * len(features)
    if candidates is not None:
        vectors = candidates.space.vectors(features)
        chosen = list(candidates.among_sentences(vectors, texts, number))
    kept = np.unique(np.concatenate(chosen))
    kept_texts = [texts[n] for n in kept]
    encoded = likelihood.encode(pairs.run.vocab, kept_texts, pairs.run.params.task.max_length)
    scorer, mask = pairs.scorer(encoded), np.ones([1, features.shape[1]], bool)
    scores = np.concatenate([scorer(image[None], mask) for image in features]).astype(np.float64)
    marginals = pairs.log_marginals(scorer, marginal_images, seed)
    found = []
    for row, own in zip(scores if marginals is None else scores - marginals, chosen, strict=True):
        order = np.searchsorted(kept, np.sort(own))
        order = order[np.argsort(-row[order], kind="stable")[:top]]
        found.append([(kept_texts[n], float(row[n])) for n in order])
    return found
