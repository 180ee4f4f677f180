"""Measures the search for nearest vectors, exact and through a graph, on random vectors.

Letters: B queries, D width of a vector, M indexed vectors.
"""

import importlib.util
import os
import tempfile
import time
from typing import Any, NamedTuple

import numpy as np

from tfcap.arrays import new_matrix
from tfcap.nearest.graph import BREADTH, BREADTH_BUILD, LINKS, Graph
from tfcap.nearest.neighbours import Neighbours

KINDS = ("clustered", "random")
LEVELS = (1, 10, 60)  # k of recall@k; the last is searched
_SINGLE = 8  # queries of a timed call that searches one at a time
_MEMBERS = 100  # vectors of a cluster
_SPREAD = 0.5  # standard deviation inside a cluster; that of the centres is 1
_BLOCK = 16384  # vectors drawn together


class Options(NamedTuple):
    """Options of the measurement."""

    images: int = 113287  # M
    width: int = 1024  # D
    queries: int = 256  # B
    kind: str = "clustered"  # one of KINDS
    repeats: int = 3  # timed calls after the warm-up


def measure(options: Options) -> dict[str, Any]:
    """Measures build time, query time, memory and recall.

    The vectors are a memory-mapped file in the directory for temporary files, as in an index beside
    prepared data. Without faiss only the exact search is measured.

    Returns:
      The values of a line of JSON.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "vectors.npy")
        queries = draw(options, path)
        return _measure(options, np.load(path, mmap_mode="r", allow_pickle=False), queries, folder)


def _measure(options, vectors, queries, folder) -> dict[str, Any]:
    clock = _Clock()
    index = Neighbours(vectors, np.arange(len(vectors)))
    exact = {"build": clock.read(), **_times(index, queries, options.repeats)}
    line = {
        "images": options.images,
        "width": options.width,
        "queries": options.queries,
        "vectors": options.kind,
        "vectors_bytes": vectors.nbytes,
        "exact": exact,
    }
    if importlib.util.find_spec("faiss") is None:
        return line | {"approximate": None}
    right = index.search(queries, LEVELS[-1])[0]
    clock = _Clock()
    graph = Graph.build(index.vectors)
    built = clock.read()
    path = os.path.join(folder, "graph")
    os.mkdir(path)
    graph.save(path)
    size = graph.nbytes
    del graph
    clock = _Clock()
    index.graph = Graph.load(path, *index.vectors.shape)
    return line | {
        "approximate": {
            "build": built,
            "load": clock.read(),
            "graph_bytes": size,
            "links": LINKS,
            "breadth_build": BREADTH_BUILD,
            "breadth": BREADTH,
            **_times(index, queries, options.repeats),
            "recall": recall(index.search(queries, LEVELS[-1])[0], right),
        }
    }


class _Clock:
    """Measures seconds, and processor seconds of all threads, since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter(), time.process_time()

    def read(self, parts: int = 1) -> dict[str, float]:
        """Returns both, divided by a number of parts."""
        now = time.perf_counter(), time.process_time()
        wall, cpu = ((b - a) / parts for a, b in zip(self._start, now, strict=True))
        return {"seconds": _rounded(wall), "cpu_seconds": _rounded(cpu)}


def draw(options: Options, path: str) -> np.ndarray:
    """Draws vectors float32 [M, D] into an npy file; returns queries [B, D] drawn in the same way.

    `random` vectors are normally distributed, the hardest case: all distances are nearly equal.
    `clustered` ones lie around centres, a hundred around each, as features of similar pictures do.
    """
    rng = np.random.default_rng(1)
    shape = (-(-options.images // _MEMBERS), options.width)
    centres = rng.standard_normal(shape, np.float32) if options.kind == "clustered" else None

    def some(number):
        drawn = rng.standard_normal((number, options.width), np.float32)
        if centres is not None:
            drawn *= _SPREAD
            drawn += centres[rng.integers(len(centres), size=number)]
        return drawn

    shape = (options.images, options.width)
    vectors = new_matrix(path, np.float32, shape)
    for start in range(0, options.images, _BLOCK):
        block = vectors[start : start + _BLOCK]
        block[:] = some(len(block))
    vectors.flush()
    return some(options.queries)


def recall(found: np.ndarray, right: np.ndarray) -> dict[str, float]:
    """Computes which share of the k nearest vectors is among the first k that were found.

    Args:
      found: int64 [B, K], positions, nearest first.
      right: int64 [B, K], the exact result.
    """
    shares = {}
    for k in (k for k in LEVELS if k <= right.shape[1]):
        pairs = zip(found[:, :k], right[:, :k], strict=True)
        shares[f"recall@{k}"] = round(float(np.mean([np.isin(b, a).mean() for a, b in pairs])), 4)
    return shares


def _times(index: Neighbours, queries: np.ndarray, repeats: int) -> dict[str, dict[str, float]]:
    """Measures the time of a query in one batch, and of queries that come one at a time.

    The time is that of the repetition that took the processor the shortest.
    """
    few = queries[:_SINGLE]
    index.search(few, LEVELS[-1])  # warms up
    times: dict[str, list[dict[str, float]]] = {"query_in_batch": [], "query_alone": []}
    for _ in range(repeats):
        clock = _Clock()
        index.search(queries, LEVELS[-1])
        times["query_in_batch"].append(clock.read(len(queries)))
        clock = _Clock()
        for query in few:
            index.search(query[None], LEVELS[-1])
        times["query_alone"].append(clock.read(len(few)))
    return {name: min(each, key=lambda one: one["cpu_seconds"]) for name, each in times.items()}


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.3g}")
