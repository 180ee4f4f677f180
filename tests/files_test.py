"""Reading and writing files safely."""

import hashlib
import os

import pytest

from tfcap import files
from tfcap.files import file_sha256, read_json, replacing, write_json


def test_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"a": "\u00e9"})
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"a": float("nan")})
    with pytest.raises(KeyboardInterrupt), replacing(path) as temporary:
        with open(temporary, "w") as file:
            file.write("half")
        raise KeyboardInterrupt
    assert read_json(path, "") == {"a": "\u00e9"}
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]


def test_an_error_names_the_file_and_not_the_temporary_one(tmp_path):
    path = tmp_path / "none" / "x.json"
    with pytest.raises(FileNotFoundError) as caught:
        write_json(path, {})
    assert caught.value.filename == str(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not valid JSON: .*line 1 column 2"),
        (b"[" * 100_000, "is not valid JSON"),
        (b"[" + b"9" * 5000 + b"]", "is not valid JSON"),
        (b'"\xff"', "is not UTF-8 text at byte 1"),
        (b'"larger than the limit"', "must have at most 20 bytes. Received: 23"),
    ],
)
def test_unreadable_json_gives_one_line_with_the_remedy(tmp_path, monkeypatch, content, message):
    if b"larger" in content:
        monkeypatch.setattr(files, "_MAX_JSON_BYTES", 20)
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(ValueError, match=f"x.json {message}.* Make it again.$") as caught:
        read_json(tmp_path / "x.json", "Make it again.")
    assert "\n" not in str(caught.value)


def test_json_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "x.json").write_bytes(b"\xef\xbb\xbf[1]")
    assert read_json(tmp_path / "x.json", "") == [1]


def test_a_directory_that_cannot_be_put_in_its_place_leaves_the_old_one(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "old").touch()
    rename, calls = os.rename, []

    def interrupted(source, target):
        calls.append(source)
        if len(calls) == 2:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), files.replacing_directory(tmp_path / "a"):
        pass
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["a", "a/old"]
    with files.replacing_directory(tmp_path / "a") as temporary:
        open(os.path.join(temporary, "new"), "w").close()
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["a", "a/new"]


def test_links_pipes_and_modes_stay(tmp_path):
    (tmp_path / "real.json").write_text("{}")
    os.chmod(tmp_path / "real.json", 0o600)
    os.symlink("real.json", tmp_path / "link.json")
    write_json(tmp_path / "link.json", [1], indent=None)
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text() == "[1]\n"
    assert (tmp_path / "real.json").stat().st_mode & 0o777 == 0o600
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_json(tmp_path / "pipe", [2], indent=None)
    assert os.read(reader, 99) == b"[2]\n" and (tmp_path / "pipe").is_fifo()
    os.close(reader)
    write_json(os.devnull, [3])
    assert not os.path.isfile(os.devnull)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "pipe", "real.json"]


def test_a_name_that_is_not_utf8_can_be_written(tmp_path):
    name = os.fsdecode(b"caf\xe9.jpg")
    write_json(tmp_path / "a.json", {"name": name, "words": "é"})
    assert read_json(tmp_path / "a.json", "") == {"name": name, "words": "é"}
    write_json(tmp_path / "a.json", {"words": "é"})
    assert "é" in (tmp_path / "a.json").read_text(encoding="utf-8")


def test_sha256_of_a_file(tmp_path):
    content = os.urandom(1 << 20) + b"one more block"
    (tmp_path / "x").write_bytes(content)
    assert file_sha256(tmp_path / "x") == hashlib.sha256(content).hexdigest()


def test_the_sizes_of_a_directory_are_those_of_all_files_below_it(tmp_path):
    (tmp_path / "below" / "deeper").mkdir(parents=True)
    (tmp_path / "a").write_bytes(b"123")
    (tmp_path / "below" / "deeper" / "b").write_bytes(b"12345")
    assert sorted(files.sizes(tmp_path)) == [3, 5]


def test_a_written_path_may_begin_with_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_json("~/a.json", [1])
    assert read_json(tmp_path / "a.json", "") == [1] == read_json("~/a.json", "")
