"""Finds the reference images nearest to an image in feature space, and keeps their vectors.

Letters: B images, D width of a vector, M reference images, k neighbours.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any

import faiss
import numpy as np
import tensorflow as tf

from tfcap import console
from tfcap.data.picture_data import with_features
from tfcap.data.prepared import PreparedData
from tfcap.files import load_npz, write_npz
from tfcap.reranking.space import Space

_FORMAT = 1
_BATCH = 64  # records read together
_SPARE = 32  # candidates beyond k, because float32 distances can swap close images
_ROWS = 4096  # vectors measured together in float64
_LARGEST = 1e37  # squared length of a vector; four times more still fits into float32


class Neighbours:
    """Searches the nearest vectors by Euclidean distance, exactly.

    faiss proposes k + 32 candidates by distances in float32, and the candidates are measured again
    in float64. If rounding in float32 could have hidden a nearer image, all vectors are measured.
    Images at equal distance keep their order.

    Args:
      vectors: float32 [M, D].
      ids: int64 [M], the image id of each vector; no id occurs twice.

    Raises:
      ValueError: the shapes do not fit, a number is not finite, or an id occurs twice.
    """

    def __init__(self, vectors: np.ndarray, ids: np.ndarray):
        if vectors.ndim != 2 or ids.shape != vectors.shape[:1] or not len(ids):
            raise ValueError(
                "An index needs vectors [M, D] and ids [M]. Received: "
                f"{list(vectors.shape)} and {list(ids.shape)}"
            )
        known, counts = np.unique(ids, return_counts=True)
        if counts.max() > 1:
            raise ValueError(
                f"Image {known[counts.argmax()]} occurs twice among the reference images. "
                "Choose splits that share no image."
            )
        self.vectors = np.ascontiguousarray(vectors, np.float32)
        self.ids = ids
        squares = np.einsum("md,md->m", self.vectors, self.vectors)
        if len(bad := np.flatnonzero(~(squares < _LARGEST))):
            raise ValueError(f"The vector of image {ids[bad[0]]} is not finite, or too large")
        self._longest = np.sqrt(squares.max())

    def search(
        self, queries: np.ndarray, k: int, own_ids: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Finds the k nearest reference images of each query, nearest first.

        Args:
          queries: float32 [B, D].
          k: at least 1; with fewer reference images all of them are returned.
          own_ids: int64 [B], the image id of each query. A reference image with this id is the
            image itself and is left out. None leaves nothing out.

        Returns:
          Positions int64 [B, k] and distances float64 [B, k]; with `own_ids` at most M - 1 columns.

        Raises:
          ValueError: k is below 1, or the queries have another width or are not finite.
        """
        queries = np.ascontiguousarray(queries, np.float32)
        width = self.vectors.shape[1]
        if k < 1 or queries.ndim != 2 or queries.shape[1] != width:
            raise ValueError(
                f"A search needs k of at least 1 and queries [B, {width}]. Received: "
                f"k={k}, {list(queries.shape)}"
            )
        if not (np.einsum("bd,bd->b", queries, queries) < _LARGEST).all():
            raise ValueError("The vector of a query image is not finite, or too large")
        wanted = min(k + (own_ids is not None), len(self.ids))
        positions, distances = self._search(queries, wanted)
        if own_ids is None:
            return positions, distances
        own = self.ids[positions] == own_ids[:, None]
        own[:, -1] |= ~own.any(1)  # each row loses one: the image itself, or else the farthest
        shape = [len(queries), wanted - 1]
        return positions[~own].reshape(shape), distances[~own].reshape(shape)

    def _search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        positions = np.zeros([len(queries), k], np.int64)
        distances = np.zeros([len(queries), k])
        if not len(queries):
            return positions, distances
        candidates = min(k + _SPARE, len(self.ids))
        rough, places = faiss.knn(queries, self.vectors, candidates)  # squared distances
        # The largest error of a squared distance in float32, |q|^2 - 2 q t + |t|^2, times two: each
        # of the three sums of D terms is off by at most D + 1 roundings.
        lengths = np.linalg.norm(queries.astype(np.float64), axis=1)
        errors = (queries.shape[1] + 8) * 2.0**-23 * (lengths + self._longest) ** 2
        for row, query in enumerate(queries):
            nearest = self._measure(query, places[row], k)
            hidden = nearest[1][-1] ** 2 + errors[row] >= rough[row].max()
            if hidden and candidates < len(self.ids):
                nearest = self._measure(query, np.arange(len(self.ids)), k)
            positions[row], distances[row] = nearest
        return positions, distances

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
        order = np.lexsort((places, distances))[:k]
        return places[order], distances[order]


def load(
    data: PreparedData,
    space: Space,
    file: str | os.PathLike | None = None,
    max_regions: int | None = None,
    splits: Sequence[str] = ("train",),
) -> Neighbours:
    """Reads the index of some splits from `file` if it fits, or else makes it and writes it there.

    Args:
      data: the prepared directory.
      space: computes the vectors.
      file: .npz that keeps the vectors; None keeps nothing. A file with other splits, data or
        weights is made again, and a line says so.
      max_regions: regions of an image beyond this number are ignored, as the model ignores them.
      splits: the splits whose images are the reference images, in this order.

    Raises:
      ValueError: `file` is damaged or something else, or records cannot be read.
    """
    made_by = _identity(data, space, max_regions, splits)
    if file is not None and os.path.exists(file):
        kept = _read(file, made_by, np.concatenate([data.index(split).id for split in splits]))
        if kept is not None:
            return kept
    made = _build(data, space, max_regions, splits)
    if file is not None:
        text = json.dumps(made_by, sort_keys=True).encode()
        write_npz(file, vectors=made.vectors, ids=made.ids, made_by=np.frombuffer(text, np.uint8))
    return made


def _build(
    data: PreparedData, space: Space, max_regions: int | None, splits: Sequence[str]
) -> Neighbours:
    """Reads the splits from end to end; only the vectors stay in memory."""
    ids = np.concatenate([data.index(split).id for split in splits])
    vectors, done = None, 0
    for split in splits:
        images = len(data.index(split).id)
        batches = data.examples(split, tf.data.Dataset.range(images)).batch(_BATCH)
        batches = batches.map(lambda block: data.parse(block, max_regions))
        label, total = f"vectors of {split}, batches", -(-images // _BATCH)
        with data.readable_errors():
            for batch in console.progress(batches.prefetch(1), total, label):
                block = with_features(data, batch)
                part = space.vectors(block["features"], block["mask"], block.get("image"))
                if vectors is None:
                    vectors = np.zeros([len(ids), part.shape[1]], np.float32)
                vectors[done : done + len(part)] = part
                done += len(part)
    if vectors is None:
        raise ValueError(
            f"Reference images are missing: {data.folder} has none in {', '.join(splits)}. "
            "Name another split."
        )
    return Neighbours(vectors, ids)


def _read(file: str | os.PathLike, made_by: dict[str, Any], ids: np.ndarray) -> Neighbours | None:
    """Reads the index of a file; None, and a line that says why, if something else made it."""
    remedy = "Delete it, or name another index file."
    arrays = load_npz(file, ("vectors", "ids", "made_by"), remedy)
    vectors, own, text = arrays["vectors"], arrays["ids"], arrays["made_by"]
    try:
        known = json.loads(text.tobytes())
        held, wanted = _splits(known), _splits(made_by)
    except (ValueError, AttributeError, KeyError, TypeError):
        raise ValueError(
            f"{file} is not an index of neighbours: it does not say what its vectors are. {remedy}"
        ) from None
    if known != made_by:
        reason = "was made from other data or weights"
        if held != wanted:
            reason = f"holds the split {held}, but {wanted} is needed"
        print(f"{file} {reason}: it is made again", flush=True)
        return None
    if vectors.dtype != np.float32 or vectors.ndim != 2 or not np.array_equal(own, ids):
        raise ValueError(
            f"{file} must hold vectors float32 [{len(ids)}, D] and the images of its splits. "
            f"Received: {vectors.dtype} {list(vectors.shape)}, {len(own)} ids. {remedy}"
        )
    try:
        return Neighbours(vectors, own)
    except ValueError as error:
        raise ValueError(f"{file} is damaged: {error}. {remedy}") from None


def _identity(
    data: PreparedData, space: Space, max_regions: int | None, splits: Sequence[str]
) -> dict[str, Any]:
    """Returns all that the vectors depend on, as JSON."""
    made = data.fingerprint
    parts = [
        {
            "split": split,
            "records": data.split(split)["shards"],
            "ids": hashlib.sha256(np.ascontiguousarray(data.index(split).id).tobytes()).hexdigest(),
        }
        for split in splits
    ]
    return {
        "format": _FORMAT,
        # A single split is written as before there could be several, so that old files still fit.
        **(parts[0] if len(parts) == 1 else {"splits": parts}),
        "features": made["features"],
        # Only where a backbone was trained, so that older files still fit.
        **{key: made[key] for key in ("trained_backbone",) if key in made},
        "backbone": made["backbone"],
        "max_regions": max_regions or 0,
        "space": space.name,
        "weights": space.weights_sha256,
    }


def _splits(made_by: dict[str, Any]) -> str:
    """Names the splits of an identity, such as `train,restval`."""
    return ",".join(part["split"] for part in made_by.get("splits", [made_by]))
