"""Lines of large files are found through an index that is built once."""

import os

import numpy as np
import pytest

from tfcap.files import write_npz
from tfcap.preparing.features.ready import lines
from tfcap.preparing.features.ready.lines import Lines


def key(head):
    name, tab, _ = head.partition(b"\t")
    return name if tab else None


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / "a.tsv", tmp_path / "b.tsv"]
    paths[0].write_bytes(b"1\tone\r\n\n22\ttwo" + b"x" * 50 + b"\nno tab\n")
    paths[1].write_bytes(b"1\tagain\n333\tthree")  # a key again, and no end of the last line
    return paths


@pytest.mark.parametrize("block", [1, 3, 7, 1 << 20])
def test_lines_are_found_in_files_and_in_blocks_of_any_size(files, block, monkeypatch, capsys):
    monkeypatch.setattr(lines, "_BLOCK", block)
    found = Lines(files, key)
    assert [found.read(name) for name in ("333", "1", "22")] == [
        b"333\tthree",
        b"1\tone",
        b"22\ttwo" + b"x" * 50,
    ]
    assert len(found) == 3 and found.repeated == 1
    copies = {name: found.copies(name) for name in ("1", "22", "no tab", "\ud800")}
    assert copies == {"1": 2, "22": 1, "no tab": 0, "\ud800": 0}
    assert found.read("1", 1) == b"1\tagain"
    assert found.place("333") == f"{files[1]}, 333 at byte 8"
    with pytest.raises(ValueError, match=r"no line for 4 in .*a.tsv, .*b.tsv"):
        found.read("4")
    assert "index of 2 files: 3 images in " in capsys.readouterr().out


def test_the_index_is_built_once_and_again_when_a_file_changes(files, tmp_path, monkeypatch):
    cache, scans, real = tmp_path / "index.npz", [], lines._scan
    monkeypatch.setattr(lines, "_scan", lambda file: scans.append(file) or real(file))
    first = Lines(files, key, cache)
    again = Lines(files, key, cache)
    assert len(scans) == 2 and again.read("22") == first.read("22") and again.repeated == 1
    assert again.read("1", 1) == b"1\tagain"
    assert Lines(files[:1], key, cache).repeated == 0 and len(scans) == 3
    os.utime(files[0], ns=(1, 1))
    assert Lines(files, key, cache).read("333") == b"333\tthree" and len(scans) == 5


def test_an_index_with_impossible_places_leaves_nothing_behind(files, tmp_path):
    cache = tmp_path / "index.npz"
    Lines(files, key, cache)
    arrays = dict(np.load(cache))
    places = np.concatenate([arrays["places"], [[0, -1, 4]]])
    keys = np.frombuffer(arrays["keys"].tobytes() + b"\nstale", np.uint8)
    write_npz(cache, **{**arrays, "places": places, "keys": keys})
    found = Lines(files, key, cache)
    assert not found.copies("stale") and (len(found), found.repeated) == (3, 1)


@pytest.mark.parametrize("place", range(0, 900, 100))
def test_a_damaged_index_is_built_again(files, tmp_path, place):
    cache = tmp_path / "index.npz"
    Lines(files, key, cache)
    content = bytearray(cache.read_bytes())
    content[place] ^= 255
    cache.write_bytes(content)
    assert Lines(files, key, cache).read("333") == b"333\tthree"


def test_offsets_that_are_known_replace_the_search(files, monkeypatch):
    monkeypatch.setattr(lines, "_scan", None)
    found = Lines(files[1:], key, starts=lambda path: np.array([0, 8], np.int64))
    assert found.read("1") == b"1\tagain" and found.read("333") == b"333\tthree"


def test_a_long_line_is_refused_and_never_read(files, monkeypatch):
    monkeypatch.setattr(lines, "LONGEST", 40)
    found = Lines(files, key)
    assert found.read("1") == b"1\tone"
    monkeypatch.setattr(lines, "_read", None)
    with pytest.raises(ValueError, match="a.tsv, 22 at byte 8: .*at most 40 bytes. Received: 57"):
        found.read("22")


def test_too_many_lines_and_long_keys_are_refused(files, monkeypatch):
    monkeypatch.setattr(lines, "_LONGEST_KEY", 2)
    assert not Lines(files, key).copies("333")
    monkeypatch.setattr(lines, "_MOST_LINES", 3)
    with pytest.raises(ValueError, match="at most 3 lines"):
        Lines(files, key)


def test_a_file_that_was_cut_meanwhile_gives_what_is_left(files):
    found = Lines(files, key)
    files[1].write_bytes(b"1\tagain\n33")
    assert found.read("333") == b"33"
