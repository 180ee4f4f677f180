"""Statistics of the features of a prepared directory, in memory that hardly grows with the images.

Letters: B images of a batch, R regions, F feature width, N regions of a batch without padding, n
images of all splits.
"""

import hashlib
from array import array

import numpy as np

from tfcap.health.finding import Finding, ok, problem, some, warning
from tfcap.preparing.finish import Sums

PREPARE = (
    "Run prepare again with other --weights, another --backbone or other --features, into a new "
    "directory."
)
_OTHERS = "Restore the shards, or run prepare again into a new directory."
ENOUGH = 30  # images; a feature that is rarely above 0 can be 0 in all of a few images
CONSTANT = 0.1  # share of constant columns above which a model loses much of what it could see
EQUAL = 0.5  # share of images with the features of another image that no real data set has
SPREAD = 1e-3  # of the norm of an image's mean: below it float16 hardly tells two images apart
TOLERANCE = 1e-3  # relative; prepare sums float32 values, the records hold float16


class FeatureStatistics:
    """Collects the statistics of features, batch by batch.

    Args:
      width: F.
    """

    def __init__(self, width: int):
        self.width = width
        self.sums: dict[str, Sums] = {}  # by split
        self.low = np.full(width, np.inf)
        self.high = np.full(width, -np.inf)
        self.norms = (np.inf, -np.inf)  # smallest and largest of a region
        self.most_regions = 0  # of an image
        self.empty: list[int] = []  # ids of images whose features are all zero
        self.ids, self.digests = array("q"), array("Q")  # of every image
        self._means, self._squares = np.zeros(width), np.zeros(width)  # sums over images

    def add(self, split: str, ids: np.ndarray, features: np.ndarray, mask: np.ndarray) -> None:
        """Adds a batch.

        Args:
          split: name of the split.
          ids: int64 [B].
          features: float32 [B, R, F], zeros where `mask` is false.
          mask: bool [B, R].
        """
        real = features[mask]  # [N, F]
        self.sums.setdefault(split, Sums()).add(real)
        self.low = np.minimum(self.low, real.min(axis=0))
        self.high = np.maximum(self.high, real.max(axis=0))
        self.most_regions = max(self.most_regions, int(mask.sum(axis=1).max()))
        norms = np.sqrt(np.square(real).sum(axis=1, dtype=np.float64))
        self.norms = min(self.norms[0], norms.min()), max(self.norms[1], norms.max())
        means = features.sum(axis=1, dtype=np.float64) / mask.sum(axis=1)[:, None]  # [B, F]
        self._means += means.sum(axis=0)
        self._squares += np.square(means).sum(axis=0)
        for image, regions, count in zip(ids.tolist(), features, mask.sum(axis=1), strict=True):
            digest = hashlib.blake2b(regions[:count].tobytes(), digest_size=8).digest()
            self.ids.append(image)
            self.digests.append(int.from_bytes(digest, "little"))
            if not regions.any():
                self.empty.append(image)

    @property
    def images(self) -> int:
        """n, the number of images so far."""
        return len(self.ids)

    def spread(self) -> float:
        """Returns the standard deviation of the images' means, as a share of the norm of a mean."""
        size = self._squares.sum() / self.images
        variance = size - np.square(self._means / self.images).sum()
        return float(np.sqrt(max(variance, 0.0) / size)) if size else 0.0


def numbers(statistics: FeatureStatistics, recorded: dict) -> Finding:
    """Compares mean, deviation, norm and regions with those that dataset.json records.

    Args:
      statistics: of all records.
      recorded: the entry `features` of dataset.json.
    """
    if not statistics.images:
        return problem("No record could be read, so nothing is known about the features.", _OTHERS)
    most = statistics.most_regions
    if recorded.get("max_regions", most) != most:
        return problem(
            f"dataset.json records at most {recorded['max_regions']} regions, the records have up "
            f"to {most}: they are not those that prepare wrote.",
            _OTHERS,
        )
    described = statistics.sums.get("train")
    if described is None:  # as in prepare: of all splits if none is called train
        described = Sums()
        for part in statistics.sums.values():
            described.merge(part)
    computed = described.statistics(statistics.width)
    scale = max(abs(computed["mean"]), computed["std"], 1e-6)
    low, high = statistics.norms
    text = (
        f"mean {computed['mean']:.4g}, standard deviation {computed['std']:.4g}, norm of a region "
        f"{low:.4g} to {high:.4g}, on average {computed['mean_norm']:.4g}"
    )
    for key in ("mean", "std", "mean_norm"):
        allowed = TOLERANCE * (computed["mean_norm"] if key == "mean_norm" else scale)
        if key in recorded and abs(recorded[key] - computed[key]) > max(allowed, 1e-6):
            return problem(
                f"dataset.json records a {key} of {recorded[key]:.6g}, the records have "
                f"{computed[key]:.6g}: they are not those that prepare wrote.",
                _OTHERS,
            )
    return ok(text)


def columns(statistics: FeatureStatistics) -> Finding:
    """Finds features that have the same value everywhere; a model learns nothing from them."""
    constant = statistics.low == statistics.high
    dead = np.flatnonzero(constant & (statistics.low == 0))
    other = np.flatnonzero(constant & (statistics.low != 0))
    if not constant.any():
        return ok(f"all {statistics.width} features vary")
    kinds = (("are always 0", dead.tolist()), ("have one other value", other.tolist()))
    parts = [
        f"{len(places)} {what} (column {some(places)})" for what, places in kinds if len(places)
    ]
    text = f"Of {statistics.width} features, {' and '.join(parts)} in {statistics.images} images."
    if statistics.images >= ENOUGH and constant.mean() > CONSTANT:
        return problem(text, PREPARE)
    return warning(text, "A few such features do no harm. If there should be none: " + PREPARE)


def images(statistics: FeatureStatistics) -> Finding:
    """Finds images without features and equal images, and whether all images are nearly equal."""
    if statistics.empty:
        return problem(
            f"{len(statistics.empty)} of {statistics.images} images have only zeros (images "
            f"{some(statistics.empty)}).",
            PREPARE,
        )
    digests, ids = np.array(statistics.digests, np.uint64), np.array(statistics.ids, np.int64)
    _, first, group = np.unique(digests, return_index=True, return_inverse=True)
    repeated = np.flatnonzero(first[group] != np.arange(len(ids)))
    spread = statistics.spread()
    if len(repeated):
        pairs = [f"{ids[place]} as {ids[first[group[place]]]}" for place in repeated]
        text = (
            f"{len(repeated)} of {len(ids)} images have the features of another one "
            f"({some(pairs)})."
        )
        if len(repeated) > EQUAL * len(ids):
            return problem(text, PREPARE)
        return warning(text, "Look at these pictures: one may be in the data twice.")
    if len(ids) > 1 and spread < SPREAD:
        return warning(
            f"The means of the images differ by {spread:.2g} of their norm only: the features "
            "hardly tell the images apart.",
            PREPARE,
        )
    return ok(
        f"no two of {len(ids)} images are equal; their means differ by {spread:.2g} of the norm"
    )
