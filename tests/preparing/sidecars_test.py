"""The description of a shard counts only while it fits the shard and the settings."""

import os
import pathlib

import pytest

from tfcap.preparing import sidecars

SHARD = {"file": "a.tfrecord", "records": 1, "bytes": 4, "ids": [3]}
DIGEST = sidecars.settings_digest({"grid": 7})


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.tfrecord").write_bytes(b"1234")
    sidecars.write(tmp_path, DIGEST, SHARD)
    return tmp_path


def test_what_was_written_is_read(folder):
    assert sidecars.read(folder, DIGEST, "a.tfrecord") == {**SHARD, "settings": DIGEST}
    assert sidecars.exist(folder) and not sidecars.exist(folder / ".shards")
    assert DIGEST == sidecars.settings_digest({"grid": 7})


def test_a_shard_without_a_record_has_no_file(folder):
    sidecars.write(folder, DIGEST, {"file": "b.tfrecord", "records": 0, "bytes": 0})
    assert sidecars.read(folder, DIGEST, "b.tfrecord")["records"] == 0


@pytest.mark.parametrize("content", [b"123", None])
def test_a_changed_or_missing_shard_is_not_finished(folder, content):
    (folder / "a.tfrecord").unlink()
    if content:
        (folder / "a.tfrecord").write_bytes(content)
    assert sidecars.read(folder, DIGEST, "a.tfrecord") is None


@pytest.mark.parametrize("content", [b"{", b"[1]", b"{}", b"\xff", None])
def test_a_damaged_or_missing_description_is_none(folder, content):
    path = pathlib.Path(sidecars.path_of(folder, "a.tfrecord"))
    path.unlink()
    if content:
        path.write_bytes(content)
    assert sidecars.read(folder, DIGEST, "a.tfrecord") is None


def test_shards_of_other_settings_or_names_are_not_finished(folder):
    assert sidecars.read(folder, sidecars.settings_digest({"grid": 4}), "a.tfrecord") is None
    (folder / "b.tfrecord").write_bytes(b"1234")
    os.rename(*(sidecars.path_of(folder, f"{name}.tfrecord") for name in "ab"))
    assert sidecars.read(folder, DIGEST, "b.tfrecord") is None
