"""The graph finds nearly all neighbours, measures exactly, and damaged arrays are refused."""

import shutil
import sys

import numpy as np
import pytest

from tfcap.nearest.graph import Graph
from tfcap.nearest.neighbours import Neighbours

IMAGES, WIDTH, NEAREST = 3000, 16, 60


@pytest.fixture(scope="module")
def faiss():
    return pytest.importorskip("faiss", reason="the extra tfcap[search] is not installed")


@pytest.fixture(scope="module")
def world(faiss, tmp_path_factory):
    """Vectors, queries, the graph of the vectors, and the directory where it is saved."""
    folder = tmp_path_factory.mktemp("graph")
    # Clusters of a hundred, as features of similar pictures are.
    rng = np.random.default_rng(1)
    centres = rng.standard_normal((IMAGES // 100, WIDTH), np.float32)
    drawn = 0.5 * rng.standard_normal((IMAGES + 50, WIDTH), np.float32)
    drawn += centres[rng.integers(len(centres), size=len(drawn))]
    vectors, queries = drawn[:IMAGES], drawn[IMAGES:]
    graph = Graph.build(vectors)
    (folder / "graph").mkdir()
    graph.save(folder / "graph")
    return vectors, queries, graph, folder / "graph"


def test_the_nearest_are_found_and_their_distances_are_exact(world):
    vectors, queries, graph, _ = world
    ids = np.arange(IMAGES) + 7
    exact = Neighbours(vectors, ids)
    index = Neighbours(vectors, ids, graph=graph)
    right, far = exact.search(queries, NEAREST)
    found, distances = index.search(queries, NEAREST)
    for k in (1, 10, NEAREST):
        pairs = zip(found[:, :k], right[:, :k], strict=True)
        assert np.mean([np.isin(a, b).mean() for a, b in pairs]) > 0.95
    assert found.dtype == np.int64 and len(np.unique(found[0])) == NEAREST
    measured = np.sqrt(((vectors[found].astype(np.float64) - queries[:, None]) ** 2).sum(-1))
    np.testing.assert_array_equal(distances, measured)
    assert (np.diff(distances) >= 0).all() and (distances >= far - 1e-12).all()
    own, _ = index.search(vectors[:5], 4, ids[:5])
    assert not (own == np.arange(5)[:, None]).any()


def test_a_graph_of_few_or_equal_vectors_finds_as_many_as_there_are(faiss):
    for vectors in (np.eye(3, 4, dtype=np.float32), np.ones([200, 4], np.float32)):
        index = Neighbours(vectors, np.arange(len(vectors)), graph=Graph.build(vectors))
        positions, _ = index.search(vectors[:2], 90)
        assert positions.shape == (2, min(90, len(vectors)))
        assert all(len(set(row)) == len(row) for row in positions.tolist())


def test_a_saved_graph_finds_the_same(world):
    vectors, queries, graph, folder = world
    again = Graph.load(folder, vectors.shape[1])
    np.testing.assert_array_equal(again.search(queries, 92), graph.search(queries, 92))
    assert sorted(path.name for path in folder.iterdir()) == [
        "codes.npy",
        "entry.npy",
        "levels.npy",
        "links.npy",
        "ranges.npy",
    ]


def _link(level):
    """A change that lets a link of the first upper layer lead to a vector without such a layer."""

    def change(arrays):
        levels = arrays["levels"]
        offsets = np.concatenate([[0], np.cumsum(32 * (levels.astype(np.int64) + 1))])
        own = np.flatnonzero(levels > level)[0]
        arrays["links"][offsets[own] + 32 * (level + 1)] = np.flatnonzero(levels == level)[0]

    return change


def _set(name, place, value):
    def change(arrays):
        arrays[name].reshape(-1)[place] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("links", 5, IMAGES), "links must be from -1 to 2999"),
        (_set("links", 5, -2), "links must be from -1 to 2999"),
        (_set("levels", 0, 0), "levels must be from 1 to 64"),
        (_set("levels", 0, 60), "links must have .* numbers"),
        (_set("entry", 0, IMAGES), "entry must be a vector of the highest layer"),
        (_set("entry", 0, -1), "entry must be a vector of the highest layer"),
        (_set("ranges", 1, np.nan), "ranges must be finite"),
        (_link(1), "a link of layer 1 leads to a vector outside of it"),
        (lambda a: a.update(links=a["links"][:-1]), "links must have"),
    ],
)
def test_a_damaged_graph_is_refused(world, tmp_path, change, message):
    """faiss trusts what it is given: a link to a vector that is not there reads other memory."""
    folder = shutil.copytree(world[3], tmp_path / "graph")
    arrays = {path.stem: np.load(path) for path in folder.iterdir()}
    change(arrays)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    with pytest.raises(ValueError, match=message) as error:
        Graph.load(folder, WIDTH)
    assert "Delete" in str(error.value) and "made again" in str(error.value)


def test_a_missing_file_or_faiss_is_an_error(world, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="Cannot read .*levels.npy"):
        Graph.load(tmp_path, WIDTH)
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ValueError, match=r"needs faiss.*pip install 'tfcap\[search\]'"):
        Graph.build(world[0])
