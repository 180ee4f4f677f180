"""Local and remote paths behave the same: existence, listing, copies, and files that are whole."""

import itertools
import os

import numpy as np
import pytest

from tfcap import arrays, files, storage

_numbers = itertools.count()


@pytest.fixture(params=["", "file://", "ram://"])
def root(request, tmp_path):
    """A directory that does not exist, on a disk, on the same disk for TensorFlow, in memory."""
    place = f"storage_test_{os.getpid()}_{next(_numbers)}" if "ram" in request.param else tmp_path
    return f"{request.param}{place}/new"


def test_files_are_written_read_listed_and_removed(root):
    assert not storage.exists(root) and storage.matching(root, "*") == []
    storage.make_directory(f"{root}/inside")
    storage.make_directory(f"{root}/inside")
    files.write_json(f"{root}/x.json", {"a": "é"})
    arrays.write_npz(f"{root}/inside/x.npz", a=np.arange(3))
    assert files.read_json(f"{root}/x.json", "") == {"a": "é"}
    np.testing.assert_array_equal(arrays.load_npz(f"{root}/inside/x.npz", None, "")["a"], [0, 1, 2])
    content = storage.read_bytes(f"{root}/x.json")
    assert content == '{\n "a": "é"\n}\n'.encode() and storage.size(f"{root}/x.json") == len(
        content
    )
    assert storage.names(root) == ["inside", "x.json"]  # and no temporary name
    assert storage.matching(root, "*.json") == [f"{root}/x.json"]
    assert storage.matching(root, "inside/*.npz") == [f"{root}/inside/x.npz"]
    assert storage.matching(root, "none/*") == []
    assert storage.is_directory(root) and not storage.is_file(root)
    assert storage.is_file(f"{root}/x.json") and not storage.is_directory(f"{root}/x.json")
    files.write_json(f"{root}/x.json", 1)  # replaces it
    with storage.local_copy(f"{root}/inside") as copy:
        assert os.path.basename(copy) == "inside" and os.listdir(copy) == ["x.npz"]
    assert os.path.exists(copy) == (not storage.is_remote(root))
    assert len(files.file_sha256(f"{root}/x.json")) == 64
    storage.remove(f"{root}/x.json")
    storage.remove(f"{root}/x.json")
    storage.remove(f"{root}/inside")
    assert storage.names(root) == []


def test_a_file_in_the_place_of_a_directory_is_named(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "inside" / "it"):
        with pytest.raises(ValueError, match=f"{path} must be a directory. Received: .*/file is"):
            storage.make_directory(path)


def test_a_missing_file_is_an_os_error_and_a_sentence(root):
    for call in (storage.size, storage.read_bytes, storage.names):
        with pytest.raises(FileNotFoundError, match="No such file or directory"):
            call(f"{root}/none")
    with pytest.raises(ValueError, match=r"Cannot read .*none.json: No such file .* Make it\."):
        files.read_json(f"{root}/none.json", "Make it.")


def test_what_fails_leaves_the_old_file_and_no_other(root):
    storage.make_directory(root)
    files.write_json(f"{root}/x.json", 1)
    with pytest.raises(KeyboardInterrupt), files.replacing(f"{root}/x.json") as temporary:
        with open(temporary, "w") as file:
            file.write("half")
        raise KeyboardInterrupt
    assert storage.names(root) == ["x.json"] and files.read_json(f"{root}/x.json", "") == 1


def test_a_directory_is_replaced_as_a_whole(root):
    storage.make_directory(root)
    for name in ("a", "b"):
        with files.replacing_directory(f"{root}/made") as temporary:
            files.write_json(os.path.join(temporary, f"{name}.json"), name)
    assert storage.names(root) == ["made"] and storage.names(f"{root}/made") == ["b.json"]
    storage.copy_files(f"{root}/made", f"{root}/copy")
    assert files.read_json(f"{root}/copy/b.json", "") == "b"


def test_paths_keep_their_slashes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert storage.absolute("gs://bucket/data/") == "gs://bucket/data"
    assert storage.absolute("data") == str(tmp_path / "data") and storage.plain("a//b/") == "a/b"
    assert not storage.is_remote("C:/data") and not storage.is_remote(None)
    assert not storage.is_remote("data/a://b")


def test_what_is_not_possible_is_refused():
    with pytest.raises(ValueError, match=r"none://x must be local, or begin with one of .*ram://"):
        storage.exists("none://x")
    with pytest.raises(ValueError, match="must be on a local disk, because it is memory-mapped"):
        arrays.map_npy("ram://x.npy", np.float32, (None,), "Copy it.")
