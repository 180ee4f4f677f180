"""Stores the image vectors of prepared data in a directory, and computes them if they are missing.

Letters: D width of a vector, M indexed images.

A directory has `index.json` (what the vectors were made from), `vectors.npy` float32 [M, D],
`squares.npy` float32 [M] (their squared lengths), `ids.npy` int64 [M], and after an approximate
search the directory `graph`. The vectors are memory-mapped.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfcap import cli, files
from tfcap.data.prepared import PreparedData
from tfcap.files import map_npy, new_matrix, read_json, write_json
from tfcap.nearest.graph import Graph
from tfcap.nearest.neighbours import Neighbours
from tfcap.nearest.space import Space

FOLDER = "vectors"  # inside the prepared directory
_FORMAT = 2
_BATCH = 64  # records read together
_ABOUT = "index.json"
_REMEDY = "Name another directory, or delete this one; it is then made again."


def beside(
    data: PreparedData,
    space: Space,
    max_regions: int | None = None,
    splits: Sequence[str] = ("train",),
) -> str | None:
    """Returns the path of an index inside the prepared directory; None if it cannot be written.

    The name holds the splits, the space and a digest of all that the vectors depend on.
    """
    text = json.dumps(_identity(data, space, max_regions, splits), sort_keys=True)
    name = f"{'+'.join(splits)}-{space.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    folder = os.path.join(data.folder, FOLDER, name)
    if files.is_remote(folder):
        print(f"{data.folder} is remote: the vectors are kept in memory only", flush=True)
        return None
    if os.path.isdir(folder) or os.access(data.folder, os.W_OK):
        return folder
    print(f"{data.folder} cannot be written: the vectors are kept in memory only", flush=True)
    return None


def load(
    data: PreparedData,
    space: Space,
    folder: str | os.PathLike | None = None,
    max_regions: int | None = None,
    splits: Sequence[str] = ("train",),
    approximate: bool = False,
) -> Neighbours:
    """Opens the index of the given splits in `folder`, or creates it there if there is none.

    Args:
      data: the prepared directory.
      space: computes the vectors.
      folder: the directory of the index; "" takes the path from `beside`, None keeps the vectors
        in memory.
      max_regions: regions of an image beyond this number are ignored, as the model ignores them.
      splits: the splits whose images are indexed, in this order.
      approximate: whether searches use a graph, which is built the first time.

    Raises:
      ValueError: `folder` holds an index of other data, splits or weights, is damaged, or is no
        index; or records cannot be read; or `approximate` is set and faiss is not installed.
    """
    ids = np.concatenate([data.index(split).id for split in splits])
    if not len(ids):
        raise ValueError(
            f"The splits to index must have images. Received: {', '.join(splits)} of "
            f"{data.folder}, without images. Name another split."
        )
    if folder == "":
        folder = beside(data, space, max_regions, splits)
    if folder is None:
        vectors = _compute(data, space, max_regions, splits, np.empty)
        graph = Graph.build(vectors) if approximate else None
        return Neighbours(vectors, ids, graph=graph)
    made_by = _identity(data, space, max_regions, splits)
    if files.is_remote(folder):
        raise ValueError(
            f"The directory of an index must be on a local disk, because its vectors are "
            f"memory-mapped. Received: {os.fspath(folder)}. Name a local directory."
        )
    if not os.path.exists(folder):
        _write(folder, data, space, max_regions, splits, ids, made_by)
    return _open(folder, made_by, ids, approximate)


def _compute(data, space, max_regions, splits, allocate) -> Any:
    """Reads the splits from end to end and fills float32 [M, D], which `allocate` makes."""
    images = sum(len(data.index(split).id) for split in splits)
    vectors, done = None, 0
    for part in _parts(data, space, max_regions, splits):
        if vectors is None:
            vectors = allocate((images, part.shape[1]), np.float32)
        vectors[done : done + len(part)] = part
        done += len(part)
    return vectors


def _parts(data, space, max_regions, splits) -> Iterator[np.ndarray]:
    """Yields the vectors of a few images after the other."""
    # Nothing in it needs AutoGraph, which is slow.
    parse = tf.autograph.experimental.do_not_convert(lambda block: data.parse(block, max_regions))
    for split in splits:
        images = len(data.index(split).id)
        batches = data.examples(split, tf.data.Dataset.range(images)).batch(_BATCH)
        batches = batches.map(parse)
        label, total = f"vectors of {split}", -(-images // _BATCH)
        with data.readable_errors():
            for batch in cli.progress(batches.prefetch(1), total, label):
                block = data.with_features(batch)
                yield space.vectors(block["features"], block["mask"], block.get("image"))


def _write(folder, data, space, max_regions, splits, ids, made_by) -> None:
    """Makes the directory of an index; it gets its name when it is whole."""
    parent = os.path.dirname(os.path.abspath(folder))
    files.make_directory(parent)
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=parent) as around:
        temporary = os.path.join(around, "index")
        os.mkdir(temporary)

        def allocate(shape, dtype):
            return new_matrix(os.path.join(temporary, "vectors.npy"), dtype, shape)

        vectors = _compute(data, space, max_regions, splits, allocate)
        vectors.flush()
        # Refuses images that occur twice and numbers that are not finite.
        squares = Neighbours(vectors, ids).squares
        for name, array in (("squares", squares), ("ids", ids)):
            np.save(os.path.join(temporary, f"{name}.npy"), array, allow_pickle=False)
        about = {"made_by": made_by, "weights_of": space.weights_of}
        write_json(os.path.join(temporary, _ABOUT), about)
        with contextlib.suppress(OSError):  # another process has made the same
            os.rename(temporary, folder)


def _open(folder, made_by, ids, approximate) -> Neighbours:
    """Opens the directory of an index after comparing what it was made from."""
    folder = os.fspath(folder)
    if not os.path.isdir(folder):
        raise ValueError(
            f"{folder} must be the directory of an index. Received: a file; earlier versions "
            f"kept the vectors in one. {_REMEDY}"
        )
    about = read_json(os.path.join(folder, _ABOUT), _REMEDY)
    _check_same(folder, about, made_by)
    own = map_npy(os.path.join(folder, "ids.npy"), _REMEDY)
    vectors = map_npy(os.path.join(folder, "vectors.npy"), _REMEDY)
    squares = map_npy(os.path.join(folder, "squares.npy"), _REMEDY)
    if not np.array_equal(own, ids):
        raise ValueError(
            f"{folder}/ids.npy must hold the ids of the images of the splits. {_REMEDY}"
        )
    try:
        index = Neighbours(vectors, ids, np.array(squares))
    except ValueError as error:
        raise ValueError(f"{folder} is damaged: {error}. {_REMEDY}") from None
    if approximate:
        index.graph = _graph(folder, index)
    return index


def _graph(folder: str, index: Neighbours) -> Graph:
    """Reads the graph of an index, or makes it and writes it beside the vectors."""
    path = os.path.join(folder, "graph")
    if not os.path.isdir(path):
        graph = Graph.build(index.vectors)
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=folder) as around:
            temporary = os.path.join(around, "graph")
            os.mkdir(temporary)
            graph.save(temporary)
            with contextlib.suppress(OSError):  # another process has made the same
                os.rename(temporary, path)
        return graph
    return Graph.load(path, index.vectors.shape[1])


def _check_same(folder: str, about: Any, made_by: dict[str, Any]) -> None:
    """Raises ValueError unless an index was made from what is given."""
    known = about.get("made_by") if isinstance(about, dict) else None
    if not isinstance(known, dict):
        raise ValueError(f"{folder}/{_ABOUT} must have an object 'made_by'. {_REMEDY}")
    other = [key for key, value in made_by.items() if known.get(key) != value]
    other += [key for key in known if key not in made_by]
    if not other:
        return
    received = "; ".join(f"{key} {_short(known.get(key))}" for key in other)
    wanted = "; ".join(f"{key} {_short(made_by.get(key))}" for key in other)
    weights = about.get("weights_of")
    of = f" It was made with {weights}." if weights and "weights" in other else ""
    raise ValueError(
        f"{folder} must be an index with {wanted}. Received: one with {received}.{of} {_REMEDY}"
    )


def _short(value: Any) -> str:
    """Describes a value of an identity in a few words."""
    if isinstance(value, list) and all(isinstance(part, dict) for part in value):
        return "+".join(f"{p.get('split')} ({str(p.get('digest'))[:12]})" for p in value)
    if isinstance(value, dict):
        value = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
    text = str(value)
    return text[:12] + "…" if len(text) > 24 else text


def _identity(data, space, max_regions, splits) -> dict[str, Any]:
    """Returns all that the vectors depend on, as JSON."""
    made = data.fingerprint
    parts = []
    for split in splits:
        digest = hashlib.sha256(json.dumps(data.split(split)["shards"], sort_keys=True).encode())
        digest.update(np.ascontiguousarray(data.index(split).id).tobytes())
        parts.append({"split": split, "digest": digest.hexdigest()})
    return {
        "format": _FORMAT,
        "splits": parts,
        "features": made["features"],
        # Only where a backbone was trained.
        **{key: made[key] for key in ("trained_backbone",) if key in made},
        "backbone": made["backbone"],
        "max_regions": max_regions or 0,
        "space": space.name,
        "weights": space.weights_sha256,
    }
