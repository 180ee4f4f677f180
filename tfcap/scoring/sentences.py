"""Finds the sentences that describe images best, among the captions of a split.

Letters: Q query images, N sentences, R regions, F feature width, n candidates.
"""

import numpy as np

from tfcap.scoring import candidates, likelihood, marginal, score_files
from tfcap.scoring.retrieval import Pairs


def find_sentences(
    pairs: Pairs,
    features: np.ndarray,
    top: int,
    marginal_images: int,
    seed: int,
    normalise: str = "images",
    first: candidates.Candidates | None = None,
    number: int = 0,
) -> list[list[tuple[str, float]]]:
    """Finds the captions of a split that are most probable for images, each text once.

    The score is log P(caption | image) - log P(caption), as in the ranking of a split (Mao et al.,
    ICLR 2015, equation 7).

    Args:
      pairs: the run, and the images whose captions are ranked.
      features: float32 [Q, R, F], the query images; they need not be in the data.
      top: number of sentences for each image.
      marginal_images, seed, normalise: as of `marginal.log_marginals`; with 0 images the score is
        log P(caption | image).
      first: chooses candidates by vectors; None scores all sentences.
      number: n, the candidates of each image.

    Returns:
      For each image `top` pairs (sentence, score), best first.
    """
    texts = list(dict.fromkeys(pairs.captions()[0]))
    chosen: list[np.ndarray] = [np.arange(len(texts))] * len(features)
    if first is not None:
        chosen = list(first.among_sentences(texts, number, first.space.vectors(features)))
    kept = np.unique(np.concatenate(chosen))
    texts, chosen = [texts[n] for n in kept], [np.searchsorted(kept, own) for own in chosen]
    encoded = likelihood.encode(pairs.run.vocab, texts, pairs.run.params.task.max_length)
    scorer = pairs.scorer(encoded)
    mask = np.ones(features.shape[:2], bool)
    scores = np.stack(
        [scorer(features[n : n + 1], mask[n : n + 1])[0] for n in range(len(features))]
    ).astype(np.float64)
    if marginal_images:
        files = score_files.ScoreFiles(None, {}, {})
        sums, rows = marginal.log_marginals(pairs, scorer, files, marginal_images, seed, normalise)
        # P(caption) is the mean over the images that were scored: one mean image, or each of them.
        scores -= sums - np.log(rows)
    found = []
    for row, own in zip(scores, chosen, strict=True):
        order = np.sort(own)
        order = order[np.argsort(-row[order], kind="stable")[:top]]
        found.append([(texts[n], float(row[n])) for n in order])
    return found
