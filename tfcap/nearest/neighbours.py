"""Finds the images whose vectors are nearest to the vector of a query.

Letters: B queries, D width of a vector, M indexed images, k neighbours.
"""

from typing import Any

import numpy as np

_SPARE = 32  # candidates beyond k, because distances in float32 can swap close images
_BLOCK = 16384  # vectors multiplied together; their products stay in the processor's cache
_QUERIES = 256  # queries multiplied together
_ROWS = 4096  # vectors measured together in float64
_LARGEST = 1e37  # squared length of a vector; four times more still fits into float32


class Neighbours:
    """Finds the nearest vectors by Euclidean distance.

    A product of matrices in float32 proposes k + 32 candidates, and the candidates are measured
    again in float64. If rounding in float32 could have hidden a nearer image, all images within the
    largest rounding error are measured. The result is the same as that of a full sort in float64.
    Images at equal distance keep their order.

    With a graph, the graph proposes the candidates. Their distances are exact, but a nearer image
    may be missing.

    Args:
      vectors: float32 [M, D]; may be memory-mapped.
      ids: int64 [M], the image id of each vector; no id occurs twice.
      squares: float32 [M], the squared length of each vector, if it is known; None computes it.
      graph: a `graph.Graph` of the vectors; None searches exactly.

    Raises:
      ValueError: the shapes do not fit, a number is not finite, or an id occurs twice.
    """

    def __init__(
        self,
        vectors: np.ndarray,
        ids: np.ndarray,
        squares: np.ndarray | None = None,
        graph: Any = None,
    ):
        if vectors.ndim != 2 or ids.shape != vectors.shape[:1] or not len(ids):
            raise ValueError(
                "An index must have vectors [M, D] and ids [M], with M at least 1. Received: "
                f"{list(vectors.shape)} and {list(ids.shape)}"
            )
        known, counts = np.unique(ids, return_counts=True)
        if counts.max() > 1:
            raise ValueError(
                f"Image {known[counts.argmax()]} occurs twice among the indexed images. "
                "Choose splits that share no image."
            )
        self.vectors = np.ascontiguousarray(vectors, np.float32)
        self.ids = ids
        self.graph = graph
        self.squares = squared_lengths(self.vectors) if squares is None else squares
        if len(bad := np.flatnonzero(~(self.squares < _LARGEST))):
            raise ValueError(
                f"The vector of image {ids[bad[0]]} is not finite, or too large. Received the "
                f"squared length: {self.squares[bad[0]]}. Prepare the image again."
            )
        self._longest = np.sqrt(self.squares.max())

    def search(
        self, queries: np.ndarray, k: int, own_ids: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Finds the k nearest images of each query, nearest first.

        Args:
          queries: float32 [B, D].
          k: at least 1; with fewer images all of them are returned.
          own_ids: int64 [B], the image id of each query. An indexed image with this id is the image
            itself and is left out. None leaves nothing out.

        Returns:
          Positions int64 [B, k] and distances float64 [B, k]; at most M columns, and at most M - 1
          if all queries are indexed. Where all images are asked for and only some queries are
          indexed, the row of an indexed query ends with the position -1 at the distance infinity.

        Raises:
          ValueError: k is below 1, or the queries have another width or are not finite.
        """
        queries = np.ascontiguousarray(queries, np.float32)
        width = self.vectors.shape[1]
        if k < 1 or queries.ndim != 2 or queries.shape[1] != width:
            raise ValueError(
                f"k must be at least 1, and queries must have the shape [B, {width}]. Received: "
                f"k={k}, queries of shape {list(queries.shape)}."
            )
        lengths = squared_lengths(queries)
        if len(bad := np.flatnonzero(~(lengths < _LARGEST))):
            raise ValueError(
                "The vector of a query image is not finite, or too large. Received: query "
                f"{bad[0]} with the squared length {lengths[bad[0]]}."
            )
        wanted = min(k + (own_ids is not None), len(self.ids))
        positions = np.zeros([len(queries), wanted], np.int64)
        distances = np.zeros([len(queries), wanted])
        find = self._exactly if self.graph is None else self._through_graph
        for start in range(0, len(queries), _QUERIES):
            part = slice(start, start + _QUERIES)
            find(queries[part], positions[part], distances[part])
        if own_ids is None:
            return positions, distances
        own = self.ids[positions] == own_ids[:, None]
        if wanted > k or own.any(1).all():
            own[:, -1] |= ~own.any(1)  # each row loses one: the image itself, or else the farthest
            shape = [len(queries), wanted - 1]
            return positions[~own].reshape(shape), distances[~own].reshape(shape)
        # All images are asked for: only an indexed query has one fewer.
        order = np.argsort(own, axis=1, kind="stable")
        own, positions, distances = (
            np.take_along_axis(table, order, 1) for table in (own, positions, distances)
        )
        return np.where(own, -1, positions), np.where(own, np.inf, distances)

    def _exactly(self, queries: np.ndarray, positions: np.ndarray, distances: np.ndarray) -> None:
        """Fills in positions and distances [B, k]."""
        k, images = int(positions.shape[1]), len(self.ids)
        places, rough = self._propose(queries, min(k + _SPARE, images))
        # The largest error of a squared distance in float32, |q|^2 - 2 q t + |t|^2, times two: each
        # of the three sums of D terms is off by at most D + 1 roundings.
        lengths = np.linalg.norm(queries.astype(np.float64), axis=1)
        errors = (queries.shape[1] + 8) * 2.0**-23 * (lengths + self._longest) ** 2
        for row, query in enumerate(queries):
            positions[row], distances[row] = self._measure(query, places[row], k)
        limits = distances[:, -1] ** 2 + errors
        hidden = np.flatnonzero(limits >= rough.max(1) + lengths**2)
        if places.shape[1] == images or not len(hidden):
            return
        within = self._within(queries[hidden], limits[hidden] - lengths[hidden] ** 2)
        for row, candidates in zip(hidden.tolist(), within, strict=True):
            positions[row], distances[row] = self._measure(queries[row], candidates, k)

    def _through_graph(
        self, queries: np.ndarray, positions: np.ndarray, distances: np.ndarray
    ) -> None:
        """Fills in positions and distances [B, k]."""
        k, images = positions.shape[1], len(self.ids)
        proposed = self.graph.search(queries, min(k + _SPARE, images))
        for row, query in enumerate(queries):
            candidates = proposed[row][proposed[row] >= 0]
            if len(candidates) < k:  # the graph reached fewer images than are wanted
                self._exactly(query[None], positions[row][None], distances[row][None])
                continue
            positions[row], distances[row] = self._measure(query, candidates, k)

    def _differences(self, queries: np.ndarray):
        """Yields blocks (first place, |t|^2 - 2 q t of its vectors, float32 [B, block])."""
        for start in range(0, len(self.ids), _BLOCK):
            block = slice(start, start + _BLOCK)
            values = queries @ self.vectors[block].T
            values *= -2
            values += self.squares[block]
            yield start, values

    def _propose(self, queries: np.ndarray, candidates: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns places int64 [B, candidates] with the least |t|^2 - 2 q t, and these values."""
        rows = range(len(queries))
        places = [np.zeros([0], np.int64) for _ in rows]
        values = [np.zeros([0], np.float32) for _ in rows]
        limits = np.full(len(queries), np.inf, np.float32)
        for start, block in self._differences(queries):
            for row in rows:
                new = np.flatnonzero(~(block[row] >= limits[row]))  # NaN is kept, an error later
                if not len(new):
                    continue
                both = np.concatenate([values[row], block[row][new]])
                spots = np.concatenate([places[row], new + start])
                if len(both) > candidates:
                    best = np.argpartition(both, candidates - 1)[:candidates]
                    both, spots = both[best], spots[best]
                if len(both) == candidates:
                    limits[row] = both.max()
                places[row], values[row] = spots, both
        return np.stack(places), np.stack(values)

    def _within(self, queries: np.ndarray, limits: np.ndarray) -> list[np.ndarray]:
        """Returns for each query the places with |t|^2 - 2 q t up to a limit."""
        places: list[list[np.ndarray]] = [[] for _ in queries]
        for start, block in self._differences(queries):
            for row, values in enumerate(block):
                places[row].append(np.flatnonzero(values <= limits[row]) + start)
        return [np.concatenate(parts) for parts in places]

    def _measure(
        self, query: np.ndarray, places: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the k nearest of the vectors at `places`, by distances in float64."""
        squares = np.zeros(len(places))
        for start in range(0, len(places), _ROWS):
            rows = slice(start, start + _ROWS)
            difference = self.vectors[places[rows]].astype(np.float64) - query
            squares[rows] = (difference * difference).sum(1)
        distances = np.sqrt(squares)
        if not np.isfinite(distances).all():
            raise ValueError("A vector of the index is not finite. Delete the index.")
        order = np.lexsort((places, distances))[:k]
        return places[order], distances[order]


def squared_lengths(vectors: np.ndarray) -> np.ndarray:
    """Computes the squared length of each vector, float32 [M], from float32 [M, D]."""
    return np.einsum("md,md->m", vectors, vectors)
