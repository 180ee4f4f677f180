"""Features in LMDB data bases."""

import io

import numpy as np
import pytest
from helpers.features import image, lmdb_store

from tfcap.preparing.features.ready.lmdb_store import Lmdb

lmdb = pytest.importorskip("lmdb")
IMAGES = {391895: image(1), 9: image(2)}


def opened(path):
    return Lmdb(Lmdb.recognises(path), None)


def test_values_are_read_as_npz_files(tmp_path):
    path = lmdb_store(tmp_path / "cocobu_att.lmdb", IMAGES)
    for given in (path, path / "data.mdb"):
        layout = opened(given)
        for key, one in IMAGES.items():
            np.testing.assert_array_equal(layout.read(str(key)).features, one.features)
        assert layout.has("9") and not layout.has("30") and not layout.has("x" * 600)
        with pytest.raises(ValueError, match="no key 30 in LMDB"):
            layout.read("30")


def test_values_may_be_npy_files(tmp_path):
    content = io.BytesIO()
    np.save(content, IMAGES[9].features)
    with lmdb.open(str(tmp_path / "a")) as store, store.begin(write=True) as transaction:
        transaction.put(b"9", content.getvalue())
        transaction.put(b"10", b"neither")
    layout = opened(tmp_path / "a")
    np.testing.assert_array_equal(layout.read("9").features, IMAGES[9].features)
    with pytest.raises(ValueError, match="data.mdb, 10: not a readable npz file"):
        layout.read("10")


@pytest.mark.parametrize("key", ["__keys__", "__len__", "__names__", "__meta__"])
def test_keys_whose_values_are_pickles_are_never_read(tmp_path, key):
    layout = opened(lmdb_store(tmp_path / "a", IMAGES))
    assert not layout.has(key)
    with pytest.raises(ValueError, match=f"no key {key}"):
        layout.read(key)


def test_nothing_is_written_beside_the_data(tmp_path):
    path = lmdb_store(tmp_path / "a", IMAGES)
    (path / "lock.mdb").unlink()
    assert opened(path).has("9")
    assert [file.name for file in path.iterdir()] == ["data.mdb"]


def test_a_cut_file_gives_an_error(tmp_path):
    file = lmdb_store(tmp_path / "a", IMAGES) / "data.mdb"
    whole = file.read_bytes()
    file.write_bytes(whole[:8192])
    with pytest.raises(ValueError, match="data.mdb, 9: .*data.mdb is damaged: page .* behind the"):
        opened(file).read("9")
    file.write_bytes(whole[:100])
    with pytest.raises(ValueError, match="data.mdb must be a file of LMDB, version 1"):
        opened(file)
    file.write_bytes(b"\0" * 8192)
    assert Lmdb.recognises(file) == [] == Lmdb.recognises(tmp_path)
