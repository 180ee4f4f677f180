"""The search equals a full sort in float64, and its index file is checked and reused."""

import hashlib
import json

import faiss
import numpy as np
import pytest
import tensorflow as tf

from tfcap import models
from tfcap.data.prepared import PreparedData
from tfcap.files import load_npz, write_npz
from tfcap.reranking import neighbours
from tfcap.reranking.space import Space


def literal(vectors, queries, k):
    """Sorts all distances in float64, with a stable sort."""
    found = []
    for query in queries.astype(np.float64):
        distances = np.sqrt(((vectors.astype(np.float64) - query) ** 2).sum(1))
        order = np.argsort(distances, kind="stable")[:k]
        found.append((order, distances[order]))
    return tuple(np.stack(part) for part in zip(*found, strict=True))


def check(vectors, queries, k):
    index = neighbours.Neighbours(vectors, np.arange(len(vectors)) + 100)
    positions, distances = index.search(queries, k)
    wanted = literal(vectors, queries, k)
    np.testing.assert_array_equal(positions, wanted[0])
    np.testing.assert_array_equal(distances, wanted[1])
    assert positions.dtype == np.int64 and distances.dtype == np.float64
    return index


def draw(images, queries, width, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, width)).astype(np.float32) for n in (images, queries))


@pytest.mark.parametrize(
    "images, queries, k", [(500, 20, 10), (500, 30, 100), (64, 7, 64), (65, 8, 1), (3, 2, 9)]
)
def test_the_nearest_images_equal_those_of_a_full_sort(images, queries, k):
    check(*draw(images, queries, 12), k)


def test_images_at_equal_distance_keep_their_order():
    """There are far more equal images than spare candidates of the search."""
    vectors, queries = draw(400, 25, 6)
    vectors[50:350] = vectors[10]
    queries[:3] = vectors[10]
    index = check(vectors, queries, 5)
    positions, distances = index.search(queries[:1], 5)
    assert positions[0].tolist() == [10, 50, 51, 52, 53] and not distances.any()
    vectors, queries = draw(60, 9, 6)
    check(vectors[np.random.default_rng(1).permutation(np.tile(np.arange(60), 5))], queries, 22)


def test_distances_that_are_equal_in_float32_are_computed_in_float64(monkeypatch):
    """All images lie far away in the same direction and differ in the last bits of float32.

    The expansion |q|^2 - 2 q t + |t|^2, which faiss uses up to version 1.14 and for many queries,
    cannot order them. Vectors of length 1 around a query at 0 defeat the sum of squares as well.
    """
    rng = np.random.default_rng(3)
    far = np.full([500, 16], 1000.0, np.float32)
    far += rng.normal(size=far.shape).astype(np.float32) * 1e-3
    near = rng.normal(size=far.shape)
    near = (near / np.linalg.norm(near, axis=1, keepdims=True)).astype(np.float32)
    monkeypatch.setattr(faiss.cvar, "distance_compute_blas_threshold", 20)
    for vectors, queries in ((far, far[:30] + np.float32(1e-3)), (near, near[:1] * 0)):
        rounded = faiss.knn(queries, vectors, 20)[1]
        assert (rounded != literal(vectors, queries, 20)[0]).any()  # float32 is not enough
        check(vectors, queries, 20)


def test_an_image_is_not_its_own_neighbour():
    vectors, _ = draw(200, 1, 5)
    index = neighbours.Neighbours(vectors, np.arange(200) * 3)
    own_ids = np.array([0, 30, -1])
    positions, distances = index.search(vectors[[0, 10, 20]], 6, own_ids)
    whole, far = literal(vectors, vectors[[0, 10, 20]], 7)
    np.testing.assert_array_equal(positions, [whole[0][1:], whole[1][1:], whole[2][:-1]])
    np.testing.assert_array_equal(distances, [far[0][1:], far[1][1:], far[2][:-1]])


def test_vectors_that_cannot_be_searched_are_refused():
    vectors, queries = draw(20, 3, 4)
    with pytest.raises(
        ValueError, match=r"needs vectors \[M, D\] .* Received: \[20, 4\] and \[3\]"
    ):
        neighbours.Neighbours(vectors, np.arange(3))
    with pytest.raises(ValueError, match="Image 3 occurs twice .* splits that share no image"):
        neighbours.Neighbours(vectors, np.r_[np.arange(19), 3])
    for number in (np.nan, np.inf, 1e25):
        broken = vectors.copy()
        broken[5, 2] = number
        with pytest.raises(ValueError, match="vector of image 25 is not finite, or too large"):
            neighbours.Neighbours(broken, np.arange(20) + 20)
    index = neighbours.Neighbours(vectors, np.arange(20))
    assert index.search(queries[:0], 3)[0].shape == (0, 3)
    for bad, k in ((queries, 0), (queries[:, :3], 1)):
        with pytest.raises(ValueError, match="k of at least 1 and queries"):
            index.search(bad, k)
    with pytest.raises(ValueError, match="query image is not finite"):
        index.search(broken[5:6], 2)


@pytest.fixture(scope="module")
def data(shapes):
    return PreparedData.load(shapes)


@pytest.fixture(scope="module")
def original():
    return Space("original")


@pytest.fixture(scope="module")
def made(data, original, tmp_path_factory):
    """The index of the training split and the file that was written with it; do not change it."""
    file = tmp_path_factory.mktemp("index") / "index.npz"
    return neighbours.load(data, original, file), file


def test_an_index_file_is_used_again(data, original, made, monkeypatch, capsys):
    first, file = made
    before = file.stat().st_mtime_ns
    monkeypatch.setattr(neighbours, "_build", None)  # fails if features are read again
    again = neighbours.load(data, original, file)
    np.testing.assert_array_equal(again.vectors, first.vectors)
    np.testing.assert_array_equal(again.ids, first.ids)
    assert file.stat().st_mtime_ns == before and not capsys.readouterr().out
    assert [path.name for path in file.parent.iterdir()] == ["index.npz"]


def test_a_file_written_before_there_could_be_several_splits_is_still_read(
    data, original, made, monkeypatch, tmp_path
):
    """Its JSON is spelled out here as versions up to 0.1.0 wrote it."""
    index = made[0]
    made_by = {
        "format": 1,
        "split": "train",
        "records": data.split("train")["shards"],
        "ids": hashlib.sha256(index.ids.tobytes()).hexdigest(),
        "features": data.fingerprint["features"],
        "backbone": data.fingerprint["backbone"],
        "max_regions": 0,
        "space": "original",
        "weights": None,
    }
    text = np.frombuffer(json.dumps(made_by, sort_keys=True).encode(), np.uint8)
    write_npz(tmp_path / "old.npz", vectors=index.vectors * 2, ids=index.ids, made_by=text)
    monkeypatch.setattr(neighbours, "_build", None)
    again = neighbours.load(data, original, tmp_path / "old.npz")
    np.testing.assert_array_equal(again.vectors, index.vectors * 2)


@pytest.mark.slow
def test_several_splits_are_indexed_one_after_the_other(data, original, made, tmp_path, capsys):
    file = tmp_path / "index.npz"
    both = neighbours.load(data, original, file, splits=("val", "train"))
    train, val = (data.index(split).id for split in ("train", "val"))
    np.testing.assert_array_equal(both.ids, [*val, *train])
    np.testing.assert_array_equal(both.vectors[len(val) :], made[0].vectors)
    alone = neighbours.load(data, original, splits=("val",))
    np.testing.assert_array_equal(both.vectors[: len(val)], alone.vectors)
    before = file.stat().st_mtime_ns
    again = neighbours.load(data, original, file, splits=("val", "train"))
    np.testing.assert_array_equal(again.vectors, both.vectors)
    assert file.stat().st_mtime_ns == before and not capsys.readouterr().out
    assert len(neighbours.load(data, original, file).ids) == len(train)
    line = f"{file} holds the split val,train, but train is needed: it is made again\n"
    assert capsys.readouterr().out == line
    neighbours.load(data, original, file, splits=("train", "val"))
    assert "holds the split train, but train,val is needed" in capsys.readouterr().out


@pytest.mark.slow
def test_an_outdated_index_file_is_written_again(data, original, made, tmp_path, capsys):
    file = tmp_path / "index.npz"
    file.write_bytes(made[1].read_bytes())

    def stale(*arguments, **options):
        index = neighbours.load(*arguments, **options)
        printed = capsys.readouterr().out
        assert printed == f"{file} was made from other data or weights: it is made again\n"
        kept = load_npz(file, None, "")
        np.testing.assert_array_equal(kept["vectors"], index.vectors)
        return index

    stale(data, original, file, max_regions=5)
    stale(data, original, file)
    features = {**data.fingerprint["features"], "mean": 0.5}
    stale(PreparedData(data.folder, {**data.fingerprint, "features": features}, data.vocab),
          original, file)  # fmt: skip
    tf.keras.utils.set_random_seed(1)
    mrnn = models.build("mrnn", len(data.vocab), 12, data.feature_dim, embed_width=6, width=8)
    first = stale(data, Space("refined", mrnn), file)
    kernel = mrnn.checkpoint_items["weights"]["multimodal/image/kernel"]
    kernel.assign(kernel * 1.5)  # like another checkpoint
    other = stale(data, Space("refined", mrnn), file)
    assert np.abs(other.vectors - first.vectors).max() > 0.01


def test_a_damaged_index_file_is_an_error_and_stays(data, original, made, tmp_path):
    file = tmp_path / "index.npz"
    file.write_bytes(made[1].read_bytes())
    whole, arrays = file.read_bytes(), load_npz(file, None, "")

    def refused(message):
        before = file.read_bytes()
        with pytest.raises(ValueError, match=message) as error:
            neighbours.load(data, original, file)
        assert "Delete it, or name another index file" in str(error.value)
        assert file.read_bytes() == before

    file.write_bytes(whole[: len(whole) // 2])
    refused("is not a usable npz file")
    np.savez(file, feat=np.zeros([3, 4]))  # a file of features, not an index
    refused("'vectors' is missing")
    np.savez(file, **{**arrays, "vectors": np.array([{}], object)})
    refused("pickled objects")
    np.savez(file, **{**arrays, "made_by": np.zeros([3], np.uint8)})
    refused("does not say what its vectors are")
    np.savez(file, **{**arrays, "vectors": arrays["vectors"][:, 0]})
    refused("must hold vectors float32")
    np.savez(file, **{**arrays, "vectors": arrays["vectors"][:5]})
    refused("is damaged: An index needs vectors")
    np.savez(file, **{**arrays, "vectors": arrays["vectors"] * np.nan})
    refused("not finite")
