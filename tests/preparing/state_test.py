"""The state of prepare: finished shards, other settings, one prepare at a time."""

import pytest

from tfcap.preparing.sources import ImageEntry
from tfcap.preparing.state import Skips, State, locked

SHARD = {"file": "a.tfrecord", "records": 1, "bytes": 4}


def test_a_finished_shard_is_known_while_its_file_is_as_written(tmp_path):
    state = State(tmp_path, {"grid": 7}, False)
    (tmp_path / "a.tfrecord").write_bytes(b"1234")
    state.save(shards={"a.tfrecord": SHARD, "b.tfrecord": {"file": "b.tfrecord", "records": 0}})
    again = State(tmp_path, {"grid": 7}, False)
    assert again.shard("a.tfrecord") == SHARD and again.shard("c.tfrecord") is None
    assert again.shard("b.tfrecord")["records"] == 0  # it has no file
    (tmp_path / "a.tfrecord").write_bytes(b"123")
    assert again.shard("a.tfrecord") is None


def test_files_of_other_settings_are_refused_or_removed(tmp_path):
    State(tmp_path, {"grid": 7, "crops": 1}, False).save(shards={"a.tfrecord": SHARD})
    for name in ("a.tfrecord", "document_frequency.npz", "references_val.json", "mine.txt"):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=r"other settings \(grid, min_count differ\).*--overwrite"):
        State(tmp_path, {"grid": 4, "crops": 1, "min_count": 5}, False)
    state = State(tmp_path, {"grid": 4, "crops": 1, "min_count": 5}, True)
    assert state.replaces and (tmp_path / "a.tfrecord").exists()  # until the input is checked
    state.begin()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_without_a_finished_shard_new_settings_replace_old_ones(tmp_path):
    State(tmp_path, {"grid": 7}, False).save(weights_sha256="0")
    state = State(tmp_path, {"grid": 4}, False)
    state.begin()
    assert state.content == {"settings": {"grid": 4}, "shards": {}} and not list(tmp_path.iterdir())


def test_shards_without_a_readable_state_are_kept(tmp_path):
    (tmp_path / ".prepare.json").write_text("{")
    State(tmp_path, {"grid": 7}, False)
    (tmp_path / "a.tfrecord").touch()
    with pytest.raises(ValueError, match="other settings"):
        State(tmp_path, {"grid": 7}, False)


def test_only_one_prepare_writes_to_a_directory(tmp_path):
    with locked(tmp_path):
        with pytest.raises(ValueError, match="Only one prepare may write"), locked(tmp_path):
            pass
    with locked(tmp_path):
        pass


def test_one_skipped_image_too_many_ends_the_run():
    skips = Skips(1, 9)
    skips.add(ImageEntry(4, "x.jpg", "val", ()), "no such file")
    with pytest.raises(ValueError, match="2 of 9 images cannot be used.* is y.jpg: bad"):
        skips.add(ImageEntry(5, "y.jpg", "val", ()), "bad")
    assert [item["id"] for item in skips.items] == [4, 5]
