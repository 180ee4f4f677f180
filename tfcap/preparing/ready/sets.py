"""Joins the ready-made features of several networks: one feature set per network.

Letters: M feature sets, R regions, F feature width of a stored row.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from tfcap.preparing.pictures import Extracted
from tfcap.preparing.ready.reader import ReadyFeatures
from tfcap.preparing.sources.entry import Entry


class FeatureSets:
    """Reads features of the same images from several sources, and joins them.

    The rows of the sets follow each other. A row holds the numbers of a region, zeros behind them
    up to the width of the widest set, and at last the number of the set: 0, 1, ... M - 1. An image
    has features if all sources have it. Boxes are kept if all sources have them; vectors of whole
    images are not.

    Args:
      readers: the readers of the sets, in the order of their numbers.

    Attributes:
      set_widths: width of the features of each set.
      dim: width of a stored row, F: that of the widest set, plus 1.
      image_dim: None.
      regions: number of regions of an image, of all sets together, about.
    """

    image_dim = None

    def __init__(self, readers: Sequence[ReadyFeatures]):
        self.readers = list(readers)
        self.set_widths = [reader.dim for reader in self.readers]
        self.dim = max(self.set_widths) + 1
        self.regions = sum(reader.regions for reader in self.readers)

    def about(self) -> str:
        """Describes the features: a line for each set, and how rows are stored."""
        lines = [f"set {m}: {reader.about()}" for m, reader in enumerate(self.readers)]
        widths = " ".join(map(str, self.set_widths))
        return "\n".join([*lines, f"widths of the sets: {widths}; then the number of the set"])

    def read(self, entries: Sequence[Entry]) -> Iterator[Extracted]:
        """Reads the features of images, as `ReadyFeatures.read` does.

        Args:
          entries: the images.
        """
        for parts in zip(*(reader.read(entries) for reader in self.readers), strict=True):
            yield next((part for part in parts if part.features is None), None) or self._join(parts)

    def _join(self, parts: Sequence[Extracted]) -> Extracted:
        """Returns the joined features of an image, of which all sets have some."""
        rows = []
        for m, part in enumerate(parts):
            features = np.asarray(part.features)
            row = np.zeros((len(features), self.dim), np.float32)
            row[:, : features.shape[1]] = features
            row[:, -1] = m
            rows.append(row)
        boxes = [part.boxes for part in parts if part.boxes is not None]
        return parts[0]._replace(
            features=np.concatenate(rows),
            boxes=np.concatenate(boxes) if len(boxes) == len(parts) else None,
            boxes_dropped=any(part.boxes_dropped for part in parts),
            image=None,
        )
