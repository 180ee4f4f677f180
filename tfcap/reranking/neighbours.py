"""The nearest training images of an image, in feature space: exact, and kept in a file.

Letters: B images, R regions, F feature width, D width of a vector, M training images, k neighbours.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfcap import console
from tfcap.data.prepared import PreparedData
from tfcap.data.record import parse
from tfcap.files import load_npz, write_npz

SPACES = ("original", "refined")
_FORMAT = 1
_BATCH = 64  # records read at a time
_QUERIES, _BLOCK = 256, 16384  # of a matrix product: 16 MB of float32
_SPARE = 32  # candidates beyond k whose distances are computed exactly


class Space:
    """What vector stands for an image.

    * `original`: the mean over its regions of the prepared features, which is the feature itself
      where there is one, as the m-RNN paper's ten-crop vectors are;
    * `refined`: what a trained m-RNN makes of it, g2(V_I I) without bias (Mao et al., ICLR 2015,
      section 8: features refined by the captions they were trained with).

    Args:
      name: one of `SPACES`.
      model: the captioner, for `refined`.

    Raises:
      ValueError: an unknown name, or a model that refines nothing.
    """

    def __init__(self, name: str, model: Any = None):
        if name not in SPACES:
            raise ValueError(f"space must be one of {', '.join(SPACES)}. Received: {name!r}")
        self.name = name
        self.digest = None
        refine = getattr(model, "refined_features", None)
        if name == "refined":
            if refine is None:
                raise ValueError(
                    "refined features are those of an m-RNN (models mrnn and mrnn_shared), this "
                    f"model is {getattr(model, 'name', model)!r}: take the space 'original'"
                )
            self.digest = _weights_digest(model)

        # Without autograph, which would bury the errors of a model in its own.
        @tf.function(input_signature=[_spec(3, tf.float32), _spec(2, tf.bool)], autograph=False)
        def vectors(features, mask):
            if name == "refined":
                return refine({"features": features, "mask": mask})
            share = tf.cast(mask, tf.float32)
            share /= tf.maximum(tf.reduce_sum(share, -1, keepdims=True), 1.0)
            return tf.matmul(share[:, tf.newaxis], features)[:, 0]

        self._vectors = vectors

    def vectors(self, features: tf.Tensor, mask: tf.Tensor | None = None) -> np.ndarray:
        """Vectors float32 [B, D] of features float32 [B, R, F]; `mask` bool [B, R], None: all."""
        if mask is None:
            mask = tf.ones(tf.shape(features)[:2], tf.bool)
        return self._vectors(features, mask).numpy()


class Neighbours:
    """Exact search by Euclidean distance.

    Products are made in float32, block by block; whatever may be among the k nearest within their
    rounding is measured again in float64. Equally distant images keep their order.

    Args:
      vectors: float32 [M, D].
      ids: int64 [M], the image of each.

    Raises:
      ValueError: shapes that do not fit, or numbers that are not finite.
    """

    def __init__(self, vectors: np.ndarray, ids: np.ndarray):
        if vectors.ndim != 2 or ids.shape != vectors.shape[:1] or not len(ids):
            raise ValueError(
                "an index needs vectors [M, D] and ids [M]. Received: "
                f"{list(vectors.shape)} and {list(ids.shape)}"
            )
        self.vectors = np.ascontiguousarray(vectors, np.float32)
        self.ids = ids
        self._halves = np.zeros(len(ids))  # half the squared norms
        for start in range(0, len(ids), _BLOCK):
            block = self.vectors[start : start + _BLOCK].astype(np.float64)
            self._halves[start : start + _BLOCK] = np.einsum("md,md->m", block, block) / 2
        if not np.isfinite(self._halves).all():
            bad = ids[~np.isfinite(self._halves)][0]
            raise ValueError(f"the vector of image {bad} is not finite")

    def search(
        self, queries: np.ndarray, k: int, without: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The k nearest of each query, nearest first; all of them if there are fewer.

        Args:
          queries: float32 [B, D].
          k: at least 1.
          without: int64 [B], an image id per query that is passed over, for images that may be
            among those searched themselves.

        Returns:
          positions int64 [B, k] and distances float64 [B, k]; with ``without`` at most M - 1.

        Raises:
          ValueError: k below 1, queries of another width or not finite.
        """
        queries = np.asarray(queries, np.float32)
        width = self.vectors.shape[1]
        if k < 1 or queries.ndim != 2 or queries.shape[1] != width:
            raise ValueError(
                f"neighbours need k of at least 1 and queries [B, {width}]. Received: "
                f"k={k}, {list(queries.shape)}"
            )
        if not np.isfinite(queries).all():
            raise ValueError("the vector of an image to look up is not finite")
        wanted = min(k + (without is not None), len(self.ids))
        parts = [
            self._search(queries[start : start + _QUERIES], wanted)
            for start in range(0, len(queries), _QUERIES)
        ]
        empty = np.zeros([0, wanted])
        positions = np.concatenate([empty.astype(np.int64), *(part[0] for part in parts)])
        distances = np.concatenate([empty, *(part[1] for part in parts)])
        if without is None:
            return positions, distances
        own = self.ids[positions] == without[:, None]
        own[:, -1] |= ~own.any(1)  # one leaves each row: the image itself, or the farthest
        shape = [len(queries), wanted - 1]
        return positions[~own].reshape(shape), distances[~own].reshape(shape)

    def _search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        keep = min(k + _SPARE, len(self.ids))
        near = np.zeros([len(queries), 0], np.float32)  # |t|^2 / 2 - q t of the best so far
        places = np.zeros([len(queries), 0], np.int64)
        for start, scores in self._blocks(queries):
            block = np.broadcast_to(np.arange(start, start + scores.shape[1]), scores.shape)
            near = np.concatenate([near, scores], 1)
            places = np.concatenate([places, block], 1)
            if near.shape[1] > keep:
                best = np.argpartition(near, keep - 1, 1)[:, :keep]
                near, places = (np.take_along_axis(x, best, 1) for x in (near, places))
        positions = np.zeros([len(queries), k], np.int64)
        distances = np.zeros([len(queries), k])
        # How far the float32 score of any pair can be from the true one, twice over: a product of
        # D terms errs by at most D + 1 roundings of |q| |t|, the rest by a few more.
        longest = np.sqrt(2 * self._halves.max())
        lengths = np.linalg.norm(queries.astype(np.float64), axis=1)
        errors = (queries.shape[1] + 8) * 2.0**-23 * (lengths * longest + longest**2)
        for row, query in enumerate(queries):
            found = self._nearest(query, places[row], k)
            if keep < len(self.ids):
                farthest = (found[1][-1] ** 2 - lengths[row] ** 2) / 2
                if farthest + errors[row] >= near[row].max():
                    found = self._careful(query, k, farthest + errors[row])
            positions[row], distances[row] = found
        return positions, distances

    def _blocks(self, queries: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        for start in range(0, len(self.ids), _BLOCK):
            products = queries @ self.vectors[start : start + _BLOCK].T
            halves = self._halves[start : start + _BLOCK].astype(np.float32)
            yield start, halves - products

    def _careful(self, query: np.ndarray, k: int, limit: float) -> tuple[np.ndarray, np.ndarray]:
        """The k nearest of one query among all whose float32 score does not exceed `limit`."""
        positions = np.zeros([0], np.int64)
        for start, scores in self._blocks(query[None]):
            more = start + np.flatnonzero(scores[0] <= limit)
            positions, distances = self._nearest(query, np.concatenate([positions, more]), k)
        return positions, distances

    def _nearest(
        self, query: np.ndarray, places: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The k nearest at some places, measured in float64."""
        difference = self.vectors[places].astype(np.float64) - query
        distances = np.sqrt((difference * difference).sum(1))
        order = np.lexsort((places, distances))[:k]
        return places[order], distances[order]


def load(
    data: PreparedData,
    space: Space,
    file: str | os.PathLike | None = None,
    max_regions: int | None = None,
    split: str = "train",
) -> Neighbours:
    """The index of a split: read from `file` if it is the right one, else made and written there.

    Args:
      data: the prepared directory.
      space: which vectors.
      file: .npz to keep them in; None keeps nothing. One made of other data or by other weights is
        made again, and a line says so.
      max_regions: further regions of an image are not seen, as the model does not see them.
      split: whose images.

    Raises:
      ValueError: `file` is damaged or something else, records cannot be read.
    """
    made_by = _identity(data, space, max_regions, split)
    if file is not None and os.path.exists(file):
        kept = _read(file, made_by, data.index(split).id)
        if kept is not None:
            return kept
        print(f"{file} was made from other data or weights: it is made again", flush=True)
    made = _build(data, space, max_regions, split)
    if file is not None:
        text = json.dumps(made_by, sort_keys=True).encode()
        write_npz(file, vectors=made.vectors, ids=made.ids, made_by=np.frombuffer(text, np.uint8))
    return made


def _build(data: PreparedData, space: Space, max_regions: int | None, split: str) -> Neighbours:
    """Reads a split from end to end; only the vectors stay in memory."""
    ids, vectors, done = data.index(split).id, None, 0

    positions = tf.data.Dataset.range(len(ids))
    batches = data.examples(split, positions).batch(_BATCH)
    batches = batches.map(lambda block: parse(block, data.feature_dim, max_regions or None))
    total = -(-len(ids) // _BATCH)
    with data.readable_errors():
        for batch in console.progress(batches.prefetch(1), total, f"vectors of {split}, batches"):
            found = space.vectors(batch["features"], batch["mask"])
            if vectors is None:
                vectors = np.zeros([len(ids), found.shape[1]], np.float32)
            vectors[done : done + len(found)] = found
            done += len(found)
    if vectors is None:
        raise ValueError(f"{data.folder}: split {split} has no images to be neighbours")
    return Neighbours(vectors, ids)


def _read(file: str | os.PathLike, made_by: dict[str, Any], ids: np.ndarray) -> Neighbours | None:
    """The index in a file, or None if it was made by something else."""
    remedy = "Delete it, or name another index file."
    arrays = load_npz(file, ("vectors", "ids", "made_by"), remedy)
    vectors, own, text = arrays["vectors"], arrays["ids"], arrays["made_by"]
    try:
        known = json.loads(text.tobytes())
    except ValueError:
        raise ValueError(
            f"{file} is no index of neighbours: it does not say of what. {remedy}"
        ) from None
    if known != made_by:
        return None
    if vectors.dtype != np.float32 or vectors.ndim != 2 or not np.array_equal(own, ids):
        raise ValueError(
            f"{file} must hold vectors float32 [{len(ids)}, D] and the images of the split. "
            f"Received: {vectors.dtype} {list(vectors.shape)}, {len(own)} ids. {remedy}"
        )
    try:
        return Neighbours(vectors, own)
    except ValueError as error:
        raise ValueError(f"{file} is damaged: {error}. {remedy}") from None


def _identity(
    data: PreparedData, space: Space, max_regions: int | None, split: str
) -> dict[str, Any]:
    """All that vectors depend on, as JSON."""
    made = data.fingerprint
    ids = hashlib.sha256(np.ascontiguousarray(data.index(split).id).tobytes()).hexdigest()
    return {
        "format": _FORMAT,
        "split": split,
        "records": data.split(split)["shards"],
        "ids": ids,
        "features": made["features"],
        "backbone": made["backbone"],
        "max_regions": max_regions or 0,
        "space": space.name,
        "weights": space.digest,
    }


def _weights_digest(model: Any) -> str:
    """SHA-256 of a model's weights: another checkpoint, another digest."""
    digest = hashlib.sha256()
    for name, value in sorted(model.checkpoint_items["weights"].items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def _spec(rank: int, dtype: tf.DType) -> tf.TensorSpec:
    return tf.TensorSpec([None] * rank, dtype)
