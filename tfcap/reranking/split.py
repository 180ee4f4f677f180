"""Reranks the captions of a whole split.

Letters: S captions of an image, k neighbours, m best.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tfcap import cli
from tfcap.data.prepared import PreparedData
from tfcap.reranking.consensus import Consensus, Ranked


def sweep_split(
    reranker: Consensus,
    data: PreparedData,
    split: str,
    captions: Mapping[int, Sequence[str]],
    settings: Sequence[tuple[int, int]],
    batch_size: int,
    max_regions: int | None = None,
) -> dict[tuple[int, int], dict[int, Ranked]]:
    """Sorts the captions of each image by their consensus, for several pairs (k, m).

    The similarities are computed once.

    Args:
      reranker: ranks them.
      data: the prepared directory that holds the features of the images.
      split: its split.
      captions: the S captions of each image by image id.
      settings: pairs (k, m).
      batch_size: images read together.
      max_regions: regions of an image beyond this number are ignored; None keeps all.

    Returns:
      For each pair the ranked captions by image id, in the order of `captions`.
    """
    images = list(captions)
    vectors = _vectors(reranker, data, split, images, batch_size, max_regions)
    groups = [captions[image] for image in images]
    ranked = reranker.sweep(zip(images, vectors, groups, strict=True), settings)
    found: dict[tuple[int, int], dict[int, Ranked]] = {setting: {} for setting in settings}
    shown = cli.progress(images, len(images), "reranking", "image")
    for image, own in zip(shown, ranked, strict=True):
        for setting, one in zip(settings, own, strict=True):
            found[setting][image] = one
    return found


def _vectors(
    reranker: Consensus,
    data: PreparedData,
    split: str,
    images: Sequence[int],
    batch_size: int,
    max_regions: int | None,
) -> Iterator[np.ndarray]:
    for start in range(0, len(images), batch_size):
        part = images[start : start + batch_size]
        batch = data.read(split, part, max_regions)
        yield from reranker.vectors(batch["features"], batch["mask"], batch.get("image"))
