"""A graph of neighbours (HNSW) that finds near vectors without computing all distances.

Letters: B queries, D width of a vector, M vectors, k neighbours, L links of all vectors.

The method is that of Malkov and Yashunin 2020 (arXiv 1603.09320), as faiss implements it. The graph
holds each vector with 8 bits per number, a quarter of float32, and so it only proposes candidates.
The graph is stored as arrays and checked before use, because faiss does not check its own files.
"""

import os
from typing import Any

import numpy as np

from tfcap import cli
from tfcap.files import map_npy

LINKS = 32  # links of a vector in each upper layer; twice as many in the lowest
BREADTH_BUILD = 40  # candidates kept while a vector is linked
BREADTH = 128  # least number of candidates kept by a search
_TRAINED = 65536  # vectors from which the ranges of the 8-bit numbers are taken
_BLOCK = 16384  # vectors added together
_FIELDS = {
    "levels": np.int32,  # [M], the number of layers that hold a vector
    "links": np.int32,  # [L], for each vector its neighbours in each layer; -1 for none
    "codes": np.uint8,  # [M, D], the vectors in 8 bits
    "ranges": np.float32,  # [2, D], the least value of each column, and the width of its range
    "entry": np.int64,  # [1], where every search begins
}


class Graph:
    """The graph of M vectors; `build` makes it and `load` reads it.

    Args:
      index: the `faiss.IndexHNSWSQ`.
    """

    def __init__(self, index: Any):
        self._index = index

    @classmethod
    def build(cls, vectors: np.ndarray) -> "Graph":
        """Builds the graph. This takes minutes for 100,000 vectors of width 1024.

        Args:
          vectors: float32 [M, D]; may be memory-mapped.

        Raises:
          ValueError: faiss is not installed.
        """
        index = _empty(vectors.shape[1])
        index.hnsw.efConstruction = BREADTH_BUILD
        index.train(np.ascontiguousarray(vectors[:: -(-len(vectors) // _TRAINED)]))
        starts = range(0, len(vectors), _BLOCK)
        for start in cli.progress(starts, len(starts), "linking vectors"):
            index.add(np.ascontiguousarray(vectors[start : start + _BLOCK]))
        return cls(index)

    def search(self, queries: np.ndarray, k: int) -> np.ndarray:
        """Returns the positions of vectors that are probably near each query.

        Args:
          queries: float32 [B, D].
          k: number of proposals.

        Returns:
          Positions int64 [B, k], in no useful order; -1 where the search reached fewer vectors.
        """
        faiss = _faiss()
        parameters = faiss.SearchParametersHNSW(efSearch=max(BREADTH, 2 * k))
        return self._index.search(queries, k, params=parameters)[1]

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the arrays into an existing directory. The write is not atomic."""
        for name, array in self._arrays().items():
            np.save(os.path.join(folder, f"{name}.npy"), array, allow_pickle=False)

    @classmethod
    def load(cls, folder: str | os.PathLike, width: int) -> "Graph":
        """Reads the arrays of a directory and checks them.

        Args:
          folder: the directory.
          width: D.

        Raises:
          ValueError: faiss is not installed, or the arrays are damaged or belong to other vectors.
        """
        index, remedy = _empty(width), f"Delete {os.fspath(folder)}; the graph is then made again."
        arrays = {name: map_npy(os.path.join(folder, f"{name}.npy"), remedy) for name in _FIELDS}
        if fault := _fault(**arrays):
            raise ValueError(f"{os.fspath(folder)} is damaged: {fault}. {remedy}")
        _fill(index, **arrays)
        return cls(index)

    def _arrays(self) -> dict[str, np.ndarray]:
        faiss, hnsw = _faiss(), self._index.hnsw
        storage = faiss.downcast_index(self._index.storage)
        width = self._index.d
        return {
            "levels": faiss.vector_to_array(hnsw.levels),
            "links": faiss.vector_to_array(hnsw.neighbors),
            "codes": faiss.vector_to_array(storage.codes).reshape(-1, width),
            "ranges": faiss.vector_to_array(storage.sq.trained).reshape(2, width),
            "entry": np.array([hnsw.entry_point], np.int64),
        }


def _faiss() -> Any:
    """Imports faiss, which is an extra."""
    try:
        import faiss
    except ImportError as error:
        raise ValueError(
            f"An approximate search needs faiss. Received: {error}. Run: pip install "
            "'tfcap[search]', or search exactly."
        ) from None
    return faiss


def _empty(width: int) -> Any:
    faiss = _faiss()
    return faiss.IndexHNSWSQ(width, faiss.ScalarQuantizer.QT_8bit, LINKS)


def _offsets(levels: np.ndarray) -> np.ndarray:
    """Returns where the links of each vector begin, uint64 [M + 1]."""
    rooms = LINKS * (levels.astype(np.int64) + 1)
    return np.concatenate([[0], np.cumsum(rooms)]).astype(np.uint64)


def _fault(levels, links, codes, ranges, entry) -> str:
    """Returns a fault that could lead a search out of the arrays; "" if there is none."""
    del codes
    images = len(levels)
    if levels.min() < 1 or levels.max() > 64:
        return "levels must be from 1 to 64"
    offsets = _offsets(levels).astype(np.int64)
    if len(links) != offsets[-1]:
        return f"links must have {offsets[-1]} numbers. Received: {len(links)}"
    if links.min() < -1 or links.max() >= images:
        return f"links must be from -1 to {images - 1}"
    for layer in range(1, levels.max()):
        own = np.flatnonzero(levels > layer)
        first = offsets[own] + LINKS * (layer + 1)
        linked = np.asarray(links)[first[:, None] + np.arange(LINKS)]
        if (levels[np.maximum(linked, 0)] <= layer)[linked >= 0].any():
            return f"a link of layer {layer} leads to a vector outside of it"
    if not 0 <= entry[0] < images or levels[entry[0]] != levels.max():
        return "entry must be a vector of the highest layer"
    return "" if np.isfinite(ranges).all() else "ranges must be finite"


def _fill(index, levels, links, codes, ranges, entry) -> None:
    """Puts the arrays into an empty index."""
    faiss = _faiss()
    storage = faiss.downcast_index(index.storage)
    faiss.copy_array_to_vector(np.array(ranges).ravel(), storage.sq.trained)
    faiss.copy_array_to_vector(np.asarray(codes).reshape(-1), storage.codes)
    faiss.copy_array_to_vector(np.asarray(links), index.hnsw.neighbors)
    faiss.copy_array_to_vector(np.asarray(levels), index.hnsw.levels)
    faiss.copy_array_to_vector(_offsets(levels), index.hnsw.offsets)
    index.hnsw.entry_point = int(entry[0])
    index.hnsw.max_level = int(levels.max()) - 1
    storage.ntotal = index.ntotal = len(levels)
    storage.is_trained = index.is_trained = True
