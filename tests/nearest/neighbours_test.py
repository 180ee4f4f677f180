"""The exact search equals a full sort in float64, whatever the blocks."""

import numpy as np
import pytest

from tfcap.nearest import neighbours


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


def test_distances_that_are_equal_in_float32_are_computed_in_float64():
    """All images lie far away in the same direction and differ in the last bits of float32.

    The expansion |q|^2 - 2 q t + |t|^2 cannot order them.
    """
    rng = np.random.default_rng(3)
    far = np.full([500, 16], 1000.0, np.float32)
    far += rng.normal(size=far.shape).astype(np.float32) * 1e-3
    near = rng.normal(size=far.shape)
    near = (near / np.linalg.norm(near, axis=1, keepdims=True)).astype(np.float32)
    for vectors, queries in ((far, far[:30] + np.float32(1e-3)), (near, near[:1] * 0)):
        squares = neighbours.squared_lengths(vectors)
        rough = np.argsort(squares - 2 * (queries @ vectors.T), axis=1, kind="stable")[:, :20]
        assert (rough != literal(vectors, queries, 20)[0]).any()  # float32 is not enough
        check(vectors, queries, 20)


def test_blocks_of_any_size_give_the_same(monkeypatch, tmp_path):
    vectors, queries = draw(500, 20, 12)
    vectors[200:260] = vectors[7]
    monkeypatch.setattr(neighbours, "_QUERIES", 3)
    for block in (1, 7, 32, 499, 500):
        monkeypatch.setattr(neighbours, "_BLOCK", block)
        check(vectors, queries, 10)
    np.save(tmp_path / "vectors.npy", vectors)
    check(np.load(tmp_path / "vectors.npy", mmap_mode="r"), queries, 10)


def test_a_vector_that_is_damaged_on_disk_is_an_error():
    """The lengths come from a file beside the vectors, so that opening them reads nothing."""
    vectors, queries = draw(100, 3, 4)
    squares = neighbours.squared_lengths(vectors)
    vectors[5] = np.nan
    index = neighbours.Neighbours(vectors, np.arange(100), squares)
    with pytest.raises(ValueError, match="not finite. Delete the index"):
        index.search(queries, 100)


def test_an_image_is_not_its_own_neighbour():
    vectors, _ = draw(200, 1, 5)
    index = neighbours.Neighbours(vectors, np.arange(200) * 3)
    own_ids = np.array([0, 30, -1])
    positions, distances = index.search(vectors[[0, 10, 20]], 6, own_ids)
    whole, far = literal(vectors, vectors[[0, 10, 20]], 7)
    np.testing.assert_array_equal(positions, [whole[0][1:], whole[1][1:], whole[2][:-1]])
    np.testing.assert_array_equal(distances, [far[0][1:], far[1][1:], far[2][:-1]])


def test_all_images_are_found_where_no_query_is_among_them():
    """Reranking with more neighbours than reference images uses all of them."""
    index = neighbours.Neighbours(np.eye(5, dtype=np.float32), np.arange(5))
    query = np.ones((1, 5), np.float32)
    assert index.search(query, 60, np.array([99]))[0].shape == (1, 5)
    assert index.search(query, 60, np.array([3]))[0].shape == (1, 4)
    assert index.search(query, 4, np.array([99]))[0].shape == (1, 4)


def test_the_neighbours_of_a_query_do_not_depend_on_the_others():
    """One of two queries is indexed; the other one keeps all images."""
    vectors, queries = draw(5, 2, 3)
    index = neighbours.Neighbours(vectors, np.arange(5))
    own_ids = np.array([3, 99])
    for k in (5, 60):
        positions, distances = index.search(queries, k, own_ids)
        for row in (0, 1):
            alone, far = index.search(queries[[row]], k, own_ids[[row]])
            kept = positions[row] >= 0
            np.testing.assert_array_equal(positions[row][kept], alone[0])
            np.testing.assert_array_equal(distances[row][kept], far[0])
        assert kept.all() and positions[0].tolist()[-1] == -1 and distances[0][-1] == np.inf
    assert index.search(queries, 4, own_ids)[0].shape == (2, 4)
    assert index.search(queries[:0], 60, own_ids[:0])[0].shape[0] == 0


def test_vectors_that_cannot_be_searched_are_refused():
    vectors, queries = draw(20, 3, 4)
    with pytest.raises(
        ValueError, match=r"must have vectors \[M, D\] .* Received: \[20, 4\] and \[3\]"
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
        with pytest.raises(ValueError, match="k must be at least 1, and queries"):
            index.search(bad, k)
    with pytest.raises(ValueError, match="query image is not finite"):
        index.search(broken[5:6], 2)
