"""Estimates log P(caption), which normalises the scores where captions are ranked for an image.

Letters: I' training images, N captions, R regions, F feature width, F2 width of the vector of a
whole image.

P(caption) is the mean of P(caption | image) over training images (Mao et al., ICLR 2015, equation
7). It can be estimated from a sample of images, or from their mean as if it were an image.
"""

from typing import TYPE_CHECKING

import numpy as np

from tfcap.data.prepared import PreparedData
from tfcap.metrics import retrieval
from tfcap.scoring import likelihood, score_files

if TYPE_CHECKING:
    from tfcap.scoring.retrieval import Pairs

SPLIT = "train"


def marginal_places(data: PreparedData, number: int, seed: int) -> np.ndarray:
    """Draws positions of training images, int64, without repeats.

    A larger number extends the draw of a smaller number. If the split has fewer images, all of them
    are returned.
    """
    images = data.split(SPLIT)["images"]
    return np.random.default_rng(seed).permutation(images)[:number]


def mean_image(
    data: PreparedData, places: np.ndarray, max_regions: int | None = None
) -> dict[str, np.ndarray]:
    """Computes the mean of training images, as a block of one image.

    Region r of the mean is the mean of region r of the images that have it. For a grid it is the
    mean of a cell.

    Args:
      data: the prepared directory.
      places: int64 [I'], positions in the split `train`.
      max_regions: regions of an image beyond this number are cut off; None keeps all.

    Returns:
      `features` float32 [1, R, F] and `mask` bool [1, R], and `image` float32 [1, F2] if the data
      has vectors of whole images.
    """
    regions = data.most_regions(max_regions)
    total = np.zeros([regions, data.feature_dim])
    counts = np.zeros([regions, 1])
    whole = []
    for block in likelihood.images(data, SPLIT, places, 1, max_regions):
        real = np.flatnonzero(block["mask"][0].numpy())
        total[real] += block["features"][0].numpy()[real]
        counts[real] += 1
        if "image" in block:
            whole.append(block["image"][0].numpy())
    known = int(np.count_nonzero(counts))
    features = (total[:known] / counts[:known])[None]
    mean = {"features": features.astype(np.float32), "mask": np.ones([1, known], bool)}
    if whole:
        mean["image"] = np.stack(whole).astype(np.float64).mean(0, keepdims=True).astype(np.float32)
    return mean


def log_marginals(
    pairs: "Pairs",
    scorer: likelihood.PairScorer,
    files: score_files.ScoreFiles,
    number: int,
    seed: int,
    normalise: str = "images",
) -> tuple[np.ndarray, int]:
    """Estimates log P(caption) up to a constant.

    `images` sums P(caption | I') over the images I'. [GUESS] `mean_image` takes P(caption | mean of
    the images I'): one image is scored in place of `number`. The paper samples images; it does not
    say how many, and its code for retrieval is not released.

    Args:
      pairs: the run and its data.
      scorer: scores the N captions.
      files: keeps the scores.
      number: how many images I' are drawn.
      seed: random seed of the draw.
      normalise: one of `retrieval.NORMALISATIONS`.

    Returns:
      The logarithms float64 [N], and the number of images that were scored.
    """
    data, columns = pairs.data, len(scorer.captions.words)
    places = marginal_places(data, number, seed)
    if normalise == "images":
        given = files.rows(f"marginal-seed{seed}", (len(places), columns))
        done = pairs.fill(given, scorer, SPLIT, places)
        return retrieval.log_marginal(given), done
    given = files.rows(f"mean-of-{len(places)}-seed{seed}", (1, columns))
    done = len(score_files.missing(given))
    if done:
        given[0] = scorer(**mean_image(data, places, pairs.run.max_regions))[0]
    return given[0].astype(np.float64), done
