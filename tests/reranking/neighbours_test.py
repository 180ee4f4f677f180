"""Exact neighbours against a full sort, and the file that keeps them."""

import numpy as np
import pytest
import tensorflow as tf

from tfcap import models
from tfcap.data import pipeline
from tfcap.data.prepared import PreparedData
from tfcap.files import load_npz
from tfcap.reranking import neighbours


def literal(vectors, queries, k):
    """A full stable sort of distances in float64."""
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


@pytest.fixture
def small_blocks(monkeypatch):
    """Several blocks of both sides for small numbers."""
    monkeypatch.setattr(neighbours, "_BLOCK", 64)
    monkeypatch.setattr(neighbours, "_QUERIES", 7)


def draw(images, queries, width, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, width)).astype(np.float32) for n in (images, queries))


@pytest.mark.parametrize("images, queries, k", [(500, 20, 10), (64, 7, 64), (65, 8, 1), (3, 2, 9)])
def test_they_are_those_of_a_full_sort(small_blocks, images, queries, k):
    check(*draw(images, queries, 12), k)


def test_one_block():
    check(*draw(300, 20, 8), 5)


def test_equal_distances_keep_their_order(small_blocks):
    """Far more copies than there are spare candidates."""
    vectors, queries = draw(400, 9, 6)
    vectors[50:350] = vectors[10]
    queries[:3] = vectors[10]
    index = check(vectors, queries, 5)
    positions, distances = index.search(queries[:1], 5)
    assert positions[0].tolist() == [10, 50, 51, 52, 53] and not distances.any()
    vectors, queries = draw(60, 9, 6)
    check(vectors[np.random.default_rng(1).permutation(np.tile(np.arange(60), 5))], queries, 22)


def test_near_ties_that_float32_products_cannot_tell_apart(small_blocks):
    """All images far away in the same direction, differing in the last bits of float32."""
    rng = np.random.default_rng(3)
    vectors = np.full([500, 16], 1000.0, np.float32)
    vectors += rng.normal(size=vectors.shape).astype(np.float32) * 1e-3
    queries = vectors[:10] + np.float32(1e-3)
    halves = (vectors.astype(np.float64) ** 2).sum(1).astype(np.float32) / 2
    rounded = np.argsort(halves - queries @ vectors.T, 1, kind="stable")[:, :20]
    assert (rounded != literal(vectors, queries, 20)[0]).any()  # else this would prove nothing
    check(vectors, queries, 20)


def test_an_image_can_be_kept_out_of_its_own_neighbours(small_blocks):
    vectors, _ = draw(200, 1, 5)
    index = neighbours.Neighbours(vectors, np.arange(200) * 3)
    without = np.array([0, 30, -1])
    positions, distances = index.search(vectors[[0, 10, 20]], 6, without)
    whole, far = literal(vectors, vectors[[0, 10, 20]], 7)
    np.testing.assert_array_equal(positions, [whole[0][1:], whole[1][1:], whole[2][:-1]])
    np.testing.assert_array_equal(distances, [far[0][1:], far[1][1:], far[2][:-1]])


def test_what_cannot_be_searched():
    vectors, queries = draw(20, 3, 4)
    with pytest.raises(
        ValueError, match=r"needs vectors \[M, D\] .* Received: \[20, 4\] and \[3\]"
    ):
        neighbours.Neighbours(vectors, np.arange(3))
    broken = vectors.copy()
    broken[5, 2] = np.nan
    with pytest.raises(ValueError, match="vector of image 25 is not finite"):
        neighbours.Neighbours(broken, np.arange(20) + 20)
    index = neighbours.Neighbours(vectors, np.arange(20))
    assert index.search(queries[:0], 3)[0].shape == (0, 3)
    for bad, k in ((queries, 0), (queries[:, :3], 1)):
        with pytest.raises(ValueError, match="k of at least 1 and queries"):
            index.search(bad, k)
    with pytest.raises(ValueError, match="to look up is not finite"):
        index.search(broken[5:6], 2)


@pytest.fixture(scope="module")
def data(shapes):
    return PreparedData.load(shapes)


@pytest.fixture(scope="module")
def mrnn(data):
    tf.keras.utils.set_random_seed(1)
    return models.build(
        "mrnn", len(data.vocab), 12, data.feature_dim, embed_width=6, width=8, multimodal_width=10
    )


def images(data, split, regions=None):
    options = {"batch_size": 4, "captions_per_image": 1, "max_length": 12, "max_regions": regions}
    return pipeline.decoding_batches(data, split=split, **options)


@pytest.mark.parametrize("regions", [None, 7])
def test_original_vectors_are_means_of_regions(data, regions):
    index = neighbours.load(data, neighbours.Space("original"), max_regions=regions)
    batches = list(images(data, "train", regions))
    assert index.ids.tolist() == [int(i) for batch in batches for i in batch["id"]]
    wanted = np.concatenate([batch["features"].numpy().mean(1) for batch in batches])
    np.testing.assert_allclose(index.vectors, wanted, rtol=1e-4, atol=1e-6)


def test_padding_is_no_region(data):
    features = np.random.default_rng(0).normal(size=(2, 5, data.feature_dim)).astype(np.float32)
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
    space = neighbours.Space("original")
    found = space.vectors(features, mask)
    np.testing.assert_allclose(found[0], features[0, :3].mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(space.vectors(features)[1], found[1], rtol=1e-6)


def test_refined_vectors_are_those_of_the_paper(data, mrnn):
    space = neighbours.Space("refined", mrnn)
    index = neighbours.load(data, space)
    mean = neighbours.load(data, neighbours.Space("original")).vectors
    kernel = mrnn.checkpoint_items["weights"]["multimodal/image/kernel"].numpy()
    wanted = 1.7159 * np.tanh(2 / 3 * (mean @ kernel))
    assert index.vectors.shape == (64, 10) and index.vectors.std() > 0.01
    np.testing.assert_allclose(index.vectors, wanted, rtol=1e-3, atol=1e-5)
    batch = next(iter(images(data, "train")))
    found = space.vectors(batch["features"], batch["mask"])
    np.testing.assert_allclose(found, index.vectors[:4], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("variant, width", [("multimodal", 9), ("init", 8), ("child", 9)])
def test_refined_vectors_of_mrnn_shared(data, variant, width):
    sizes = {"embed_width": 6, "width": 8, "multimodal_width": 9, "variant": variant}
    model = models.build("mrnn_shared", len(data.vocab), 12, data.feature_dim, **sizes)
    batch = next(iter(images(data, "train")))
    found = neighbours.Space("refined", model).vectors(batch["features"], batch["mask"])
    weights = model.checkpoint_items["weights"]
    mean = batch["features"].numpy().mean(1)
    if variant == "child":
        wanted = 1.7159 * np.tanh(2 / 3 * mean @ weights["multimodal/image/kernel"].numpy())
    else:
        wanted = mean @ weights["image/kernel"].numpy() + weights["image/bias"].numpy()
        wanted = np.maximum(wanted, 0)
    assert found.shape == (4, width) and found.std() > 0
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)


def test_who_refines_nothing(data, tiny):
    with pytest.raises(ValueError, match="those of an m-RNN .* is 'xtransformer': take the space"):
        neighbours.Space("refined", tiny)
    with pytest.raises(ValueError, match="space must be one of original, refined. Received: 'x'"):
        neighbours.Space("x")
    model = models.build("mrnn", 20, 12, data.feature_dim, variant="rnn_base", width=8)
    with pytest.raises(ValueError, match="^this variant .* no image in its multimodal layer"):
        neighbours.load(data, neighbours.Space("refined", model))


def test_an_index_file_is_used_again(data, tmp_path, monkeypatch, capsys):
    file = tmp_path / "index.npz"
    made = neighbours.load(data, neighbours.Space("original"), file)
    before = file.stat()
    monkeypatch.setattr(neighbours, "_build", None)  # nothing is read again
    again = neighbours.load(data, neighbours.Space("original"), file)
    np.testing.assert_array_equal(again.vectors, made.vectors)
    np.testing.assert_array_equal(again.ids, made.ids)
    assert file.stat() == before and not capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["index.npz"]


def test_a_stale_index_file_is_made_again(data, mrnn, tmp_path, capsys):
    file, original = tmp_path / "index.npz", neighbours.Space("original")
    neighbours.load(data, original, file)

    def stale(*arguments, **options):
        index = neighbours.load(*arguments, **options)
        said = capsys.readouterr().out
        assert said == f"{file} was made from other data or weights: it is made again\n"
        kept = load_npz(file)
        np.testing.assert_array_equal(kept["vectors"], index.vectors)
        return index

    stale(data, original, file, max_regions=5)
    stale(data, original, file)
    features = {**data.fingerprint["features"], "mean": 0.5}
    stale(PreparedData(data.folder, {**data.fingerprint, "features": features}, data.vocab),
          original, file)  # fmt: skip
    first = stale(data, neighbours.Space("refined", mrnn), file)
    kernel = mrnn.checkpoint_items["weights"]["multimodal/image/kernel"]
    kept = kernel.numpy()
    kernel.assign(kernel * 1.5)  # another checkpoint
    try:
        other = stale(data, neighbours.Space("refined", mrnn), file)
    finally:
        kernel.assign(kept)
    assert np.abs(other.vectors - first.vectors).max() > 0.01
    assert len(stale(data, original, file, split="val").ids) == 12


def test_a_damaged_index_file_is_an_error_and_stays(data, tmp_path):
    file, space = tmp_path / "index.npz", neighbours.Space("original")
    neighbours.load(data, space, file)
    whole, arrays = file.read_bytes(), load_npz(file)

    def refused(message):
        before = file.read_bytes()
        with pytest.raises(ValueError, match=message) as error:
            neighbours.load(data, space, file)
        assert "Delete it, or name another index file" in str(error.value)
        assert file.read_bytes() == before

    file.write_bytes(whole[: len(whole) // 2])
    refused("is not a usable npz file")
    np.savez(file, feat=np.zeros([3, 4]))  # somebody's features
    refused("'vectors' is missing")
    np.savez(file, **{**arrays, "vectors": np.array([{}], object)})
    refused("pickled objects")
    np.savez(file, **{**arrays, "made_by": np.zeros([3], np.uint8)})
    refused("does not say of what")
    np.savez(file, **{**arrays, "vectors": arrays["vectors"][:, 0]})
    refused("must hold vectors float32")
    np.savez(file, **{**arrays, "vectors": arrays["vectors"][:5]})
    refused("is damaged: an index needs vectors")
    np.savez(file, **{**arrays, "vectors": arrays["vectors"] * np.nan})
    refused("not finite")
