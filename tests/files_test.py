"""Files are written whole or not at all, on a disk and where `tf.io.gfile` reads them."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

from tfcap import files
from tfcap.files import read_json, replacing, write_json

_numbers = itertools.count()


@pytest.fixture(params=["", "file://", "ram://"])
def root(request, tmp_path):
    """A directory that does not exist, on a disk, on the same disk for TensorFlow, in memory."""
    place = f"files_test_{os.getpid()}_{next(_numbers)}" if "ram" in request.param else tmp_path
    return f"{request.param}{place}/new"


def test_files_are_written_read_listed_and_removed(root):
    assert not files.exists(root) and files.matching(root, "*") == []
    files.make_directory(f"{root}/inside")
    files.make_directory(f"{root}/inside")
    write_json(f"{root}/x.json", {"a": "é"})
    files.write_npz(f"{root}/inside/x.npz", a=np.arange(3), b=np.float32(2))
    assert read_json(f"{root}/x.json", "") == {"a": "é"}
    arrays = files.load_npz(f"{root}/inside/x.npz", ["a"], "")
    assert arrays.keys() == {"a"} and arrays["a"].tolist() == [0, 1, 2]
    content = files.read_bytes(f"{root}/x.json")
    assert content == '{\n "a": "é"\n}\n'.encode()
    assert files.size(f"{root}/x.json") == len(content)
    assert files.names(root) == ["inside", "x.json"]  # and no temporary name
    assert files.matching(root, "*.json") == [f"{root}/x.json"]
    assert files.matching(root, "inside/*.npz") == [f"{root}/inside/x.npz"]
    assert files.matching(root, "none/*") == []
    assert files.is_directory(root) and not files.is_file(root)
    assert files.is_file(f"{root}/x.json") and not files.is_directory(f"{root}/x.json")
    write_json(f"{root}/x.json", 1)  # replaces it
    assert files.sizes(root) == [files.size(f"{root}/inside/x.npz"), 2]
    copied = root.replace("new", "copied")
    files.copy_files(root, copied)
    assert read_json(f"{copied}/x.json", "") == 1 and files.names(f"{copied}/inside") == ["x.npz"]
    with files.local_copy(f"{root}/inside") as copy:
        assert os.path.basename(copy) == "inside" and os.listdir(copy) == ["x.npz"]
    assert os.path.exists(copy) == (not files.is_remote(root))
    assert len(files.file_sha256(f"{root}/x.json")) == 64
    files.remove(f"{root}/x.json")
    files.remove(f"{root}/x.json")
    files.remove(f"{root}/inside")
    assert files.names(root) == []


def test_a_missing_file_is_an_os_error_and_a_sentence(root):
    for call in (files.size, files.read_bytes, files.names):
        with pytest.raises(FileNotFoundError, match="No such file or directory"):
            call(f"{root}/none")
    with pytest.raises(ValueError, match=r"Cannot read .*none.json: No such file .* Make it\."):
        read_json(f"{root}/none.json", "Make it.")


def test_an_interrupted_write_leaves_the_old_file_and_no_other(root):
    files.make_directory(root)
    write_json(f"{root}/x.json", 1)
    with pytest.raises(ValueError, match="JSON"):
        write_json(f"{root}/x.json", float("nan"))
    with pytest.raises(KeyboardInterrupt), replacing(f"{root}/x.json") as temporary:
        with open(temporary, "w") as file:
            file.write("half")
        raise KeyboardInterrupt
    assert files.names(root) == ["x.json"] and read_json(f"{root}/x.json", "") == 1


@pytest.mark.parametrize("content", [b"{", b'"\xff"'])
def test_unreadable_json_is_one_line_with_the_file_and_the_remedy(tmp_path, content):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(ValueError, match="x.json is not valid JSON.* Make it again.$"):
        read_json(tmp_path / "x.json", "Make it again.")


def test_a_name_that_is_not_utf8_can_be_written(tmp_path):
    name = os.fsdecode(b"caf\xe9.jpg")
    write_json(tmp_path / "a.json", {"name": name, "words": "é"})
    assert read_json(tmp_path / "a.json", "") == {"name": name, "words": "é"}
    write_json(tmp_path / "a.json", {"words": "é"})
    assert "é" in (tmp_path / "a.json").read_text(encoding="utf-8")


def test_links_and_pipes_stay(tmp_path):
    (tmp_path / "real.json").write_text("{}")
    os.symlink("real.json", tmp_path / "link.json")
    write_json(tmp_path / "link.json", [1], indent=None)
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text() == "[1]\n"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_json(tmp_path / "pipe", [2], indent=None)
    assert os.read(reader, 99) == b"[2]\n" and (tmp_path / "pipe").is_fifo()
    os.close(reader)
    write_json(os.devnull, [3])
    assert not os.path.isfile(os.devnull)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "pipe", "real.json"]


def test_what_a_removed_directory_links_to_stays(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").touch()
    (tmp_path / "made").mkdir()
    os.symlink(tmp_path / "photos", tmp_path / "made" / "link")
    files.remove(tmp_path / "made")
    assert not (tmp_path / "made").exists() and (tmp_path / "photos" / "a.jpg").exists()


HOLD = """
import sys, time
from tfcap import files
with files.lock(sys.argv[1], "train", "choose another --model_dir"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_refused_until_the_first_has_ended_in_any_way(tmp_path):
    first = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE)
    assert first.stdout.readline() == b"held\n"
    refused = pytest.raises(ValueError, match=f"is writing to {tmp_path}.*choose another")
    with refused, files.lock(tmp_path, "train", "choose another --model_dir"):
        pass
    first.kill()
    first.wait()
    first.stdout.close()
    with files.lock(tmp_path, "train", ""), files.lock(tmp_path, "prepare", ""):
        pass


def test_pickled_and_damaged_arrays_are_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "executed"),))

    evil = np.array([Evil()], dtype=object)
    np.savez(tmp_path / "x.npz", a=evil)
    np.save(tmp_path / "x.npy", evil)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "x.npz").read_bytes()[:-1])
    (tmp_path / "empty.npy").touch()
    for name, fault in (
        ("x", "cannot be read as arrays"),
        ("none", "No such file"),
        ("cut", "cannot be read as arrays"),
    ):
        with pytest.raises(ValueError, match=rf"{name}.npz.*{fault}.*Make it again\."):
            files.load_npz(tmp_path / f"{name}.npz", ["a"], "Make it again.")
    for name in ("x", "empty"):
        with pytest.raises(ValueError, match=f"{name}.npy cannot be read"):
            files.load_npy(tmp_path / f"{name}.npy", "")
    assert not (tmp_path / "executed").exists()
