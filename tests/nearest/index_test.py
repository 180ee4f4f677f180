"""An index on disk is made once, used again, and refused if it does not fit."""

import json
import os
import shutil

import numpy as np
import pytest
from helpers import seeds

from tfcap import models
from tfcap.data.prepared import PreparedData
from tfcap.nearest import index as indices
from tfcap.nearest.space import Space


@pytest.fixture(scope="module")
def data(shapes):
    return PreparedData.load(shapes)


@pytest.fixture(scope="module")
def original():
    return Space("original")


@pytest.fixture(scope="module")
def made(data, original, tmp_path_factory):
    """The index of the training split and its directory; do not change it."""
    folder = tmp_path_factory.mktemp("index") / "deep" / "train"
    return indices.load(data, original, folder), folder


@pytest.fixture
def folder(made, tmp_path):
    """A copy of the directory."""
    return shutil.copytree(made[1], tmp_path / "train")


def _content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_an_index_is_made_once_and_memory_mapped(data, original, made, monkeypatch):
    first, folder = made
    in_memory = indices.load(data, original)
    np.testing.assert_array_equal(first.vectors, in_memory.vectors)
    np.testing.assert_array_equal(first.ids, data.index("train").id)
    before = _content(folder)
    assert sorted(before) == ["ids.npy", "index.json", "squares.npy", "vectors.npy"]
    assert os.listdir(folder.parent) == ["train"]  # no temporary directory is left
    monkeypatch.setattr(indices, "_compute", None)  # fails if features are read again
    again = indices.load(data, original, folder)
    mapped = again.vectors
    while mapped.base is not None and not isinstance(mapped, np.memmap):
        mapped = mapped.base
    assert isinstance(mapped, np.memmap) or "mmap" in type(mapped).__name__
    queries = in_memory.vectors[:5] + np.float32(0.1)
    for one, other in zip(again.search(queries, 9), in_memory.search(queries, 9), strict=True):
        np.testing.assert_array_equal(one, other)
    assert _content(folder) == before


def test_an_interrupted_index_leaves_nothing(data, tmp_path):
    class Stopping(Space):
        def vectors(self, features, mask=None, image=None):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        indices.load(data, Stopping("original"), tmp_path / "index")
    assert not list(tmp_path.iterdir())


def test_the_directory_beside_the_data_is_named_after_its_content(
    shapes, original, tmp_path, monkeypatch, capsys
):
    data = PreparedData.load(shutil.copytree(shapes, tmp_path / "data"))
    path = indices.beside(data, original)
    assert path is not None and path.startswith(os.path.join(data.folder, "vectors", "train-orig"))
    assert path != indices.beside(data, original, 5)
    assert "train+val-original" in str(indices.beside(data, original, splits=("train", "val")))
    index = indices.load(data, original, "")
    assert os.path.isdir(path) and len(index.ids) == 64
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert indices.beside(data, original) == path  # it is there already
    shutil.rmtree(path)
    assert len(indices.load(data, original, "").ids) == 64
    assert not os.path.exists(path) and "cannot be written" in capsys.readouterr().out


@pytest.mark.slow
def test_several_splits_are_indexed_one_after_the_other(data, original, made, tmp_path):
    both = indices.load(data, original, tmp_path / "both", splits=("val", "train"))
    train, val = (data.index(split).id for split in ("train", "val"))
    np.testing.assert_array_equal(both.ids, [*val, *train])
    np.testing.assert_array_equal(both.vectors[len(val) :], made[0].vectors)
    alone = indices.load(data, original, splits=("val",))
    np.testing.assert_array_equal(both.vectors[: len(val)], alone.vectors)
    with pytest.raises(ValueError, match=r"splits train \(\w+\). Received: one with splits val"):
        indices.load(data, original, tmp_path / "both")


@pytest.mark.slow
def test_an_index_of_something_else_is_refused_and_stays(data, original, made):
    folder = made[1]
    before = _content(folder)

    def refused(message, data=data, space=original, **options):
        with pytest.raises(ValueError, match=message) as error:
            indices.load(data, space, folder, **options)
        assert "Name another directory, or delete this one" in str(error.value)
        assert _content(folder) == before

    refused("with max_regions 5. Received: one with max_regions 0", max_regions=5)
    refused("with splits val", splits=("val",))
    features = {**data.fingerprint["features"], "mean": 0.5}
    refused("with features ", PreparedData(data.folder, {**data.fingerprint, "features": features},
                                           data.vocab))  # fmt: skip
    trained = {**data.fingerprint, "trained_backbone": "ab"}
    refused("with trained_backbone ab", PreparedData(data.folder, trained, data.vocab))
    seeds.set_seed(1)
    mrnn = models.build("mrnn", len(data.vocab), 12, data.feature_dim, embed_width=6, width=8)
    refused("with space refined; weights", space=Space("refined", mrnn))


@pytest.mark.slow
def test_refined_vectors_name_their_checkpoint(data, tmp_path):
    seeds.set_seed(1)
    mrnn = models.build("mrnn", len(data.vocab), 12, data.feature_dim, embed_width=6, width=8)
    folder = tmp_path / "refined"
    indices.load(data, Space("refined", mrnn, "runs/mrnn/ckpt-7"), folder)
    indices.load(data, Space("refined", mrnn, "elsewhere/ckpt-7"), folder)  # the same weights
    kernel = mrnn.checkpoint_items["weights"]["multimodal/image/kernel"]
    kernel.assign(kernel * 1.5)  # like another checkpoint
    with pytest.raises(ValueError, match="with weights .*It was made with runs/mrnn/ckpt-7"):
        indices.load(data, Space("refined", mrnn, "runs/mrnn/ckpt-9"), folder)


def _array(name, change):
    def damage(folder):
        np.save(folder / f"{name}.npy", change(np.load(folder / f"{name}.npy")))

    return damage


def _about(text):
    return lambda folder: (folder / "index.json").write_text(text)


def _cut(folder):
    path = folder / "vectors.npy"
    path.write_bytes(path.read_bytes()[:-4])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_cut, "vectors.npy cannot be read"),
        (_array("squares", lambda a: a * np.nan), "is damaged: .*not finite"),
        (_array("ids", lambda a: a[::-1]), "ids.npy must hold the ids of the images"),
        (lambda folder: (folder / "squares.npy").unlink(), "Cannot read .*squares.npy"),
        (_about("{"), "index.json is not valid JSON"),
        (_about("[1]"), "must have an object 'made_by'"),
        (_about(json.dumps({"made_by": {"format": 1}})), "with format 2; .*one with format 1"),
    ],
)
def test_a_damaged_index_is_an_error(data, original, folder, damage, message):
    damage(folder)
    with pytest.raises(ValueError, match=message) as error:
        indices.load(data, original, folder)
    assert "Name another directory, or delete this one" in str(error.value)


def test_a_file_of_an_earlier_version_is_refused(data, original, tmp_path):
    (tmp_path / "index.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match="must be the directory of an index. Received: a file"):
        indices.load(data, original, tmp_path / "index.npz")


def test_a_split_without_images_is_refused(data, original, monkeypatch):
    empty = data.index("val")._replace(id=np.zeros([0], np.int64))
    monkeypatch.setattr(PreparedData, "index", lambda *_: empty)
    with pytest.raises(ValueError, match="must have images. Received: val of .*, without images"):
        indices.load(data, original, splits=("val",))


def test_the_graph_is_made_once_and_kept_beside_the_vectors(data, original, folder, monkeypatch):
    pytest.importorskip("faiss", reason="the extra tfcap[search] is not installed")
    exact = indices.load(data, original, folder)
    index = indices.load(data, original, folder, approximate=True)
    assert exact.graph is None and (folder / "graph" / "links.npy").exists()
    monkeypatch.setattr(indices.Graph, "build", None)
    again = indices.load(data, original, folder, approximate=True)
    for one in (index, again):  # 60 of 64 vectors: the graph finds all of them
        found, wanted = (i.search(exact.vectors[:9], 60) for i in (one, exact))
        np.testing.assert_array_equal(found[0], wanted[0])
        np.testing.assert_array_equal(found[1], wanted[1])
