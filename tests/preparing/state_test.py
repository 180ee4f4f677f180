"""The state of prepare: finished shards, other settings, one prepare at a time."""

import pytest

from tfcap.files import write_json
from tfcap.preparing import sidecars
from tfcap.preparing.features.ready import INDEX
from tfcap.preparing.sources import Entry
from tfcap.preparing.state import Skips, State

SHARD = {"file": "a.tfrecord", "records": 1, "bytes": 4}


def finish_a_shard(folder, identity, **more):
    """Writes the state of a directory and the description of one shard."""
    state = State(folder, identity, False)
    state.save(**more)
    sidecars.write(folder, state.digest, SHARD)


def test_a_finished_shard_is_known_while_its_file_is_as_written(tmp_path):
    finish_a_shard(tmp_path, {"grid": 7})
    (tmp_path / "a.tfrecord").write_bytes(b"1234")
    again = State(tmp_path, {"grid": 7}, False)
    assert again.shard("a.tfrecord").items() > SHARD.items() and again.shard("c.tfrecord") is None
    (tmp_path / "a.tfrecord").write_bytes(b"123")
    assert again.shard("a.tfrecord") is None


def test_files_of_other_settings_are_refused_or_removed(tmp_path):
    finish_a_shard(tmp_path, {"grid": 7, "crops": 1})
    for name in ("a.tfrecord", "document_frequency.npz", "references_val.json", "mine.txt"):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match="Different: grid, min_count. .*--overwrite"):
        State(tmp_path, {"grid": 4, "crops": 1, "min_count": 5}, False)
    state = State(tmp_path, {"grid": 4, "crops": 1, "min_count": 5}, True)
    assert state.replaces and (tmp_path / "a.tfrecord").exists()  # until the input is checked
    state.begin()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".prepare.json",
        ".shards",
        "mine.txt",
    ]
    assert not list((tmp_path / ".shards").iterdir()) and not state.replaces


@pytest.mark.parametrize("name", ["a.tfrecord", "dataset.json"])
def test_overwrite_also_replaces_files_of_the_same_settings(tmp_path, name):
    assert not State(tmp_path, {"grid": 7}, True).replaces  # nothing is there
    finish_a_shard(tmp_path, {"grid": 7})
    (tmp_path / name).write_text("1234")
    again = State(tmp_path, {"grid": 7}, True)
    assert again.replaces and again.shard("a.tfrecord") is None
    again.begin()
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "dataset.json",
        "references_val.json",
        "splits.json",
        "train-00000-of-00001.tfrecord",
        "train.index.npz",
    ],
)
def test_files_of_the_user_are_never_replaced(tmp_path, name, overwrite):
    (tmp_path / name).write_text('{"images": []}')
    with pytest.raises(ValueError, match=f"did not write. Received: {tmp_path} with {name}"):
        State(tmp_path, {"grid": 7}, overwrite)
    assert (tmp_path / name).read_text() == '{"images": []}'


def test_a_prepare_killed_while_it_replaces_files_goes_on(tmp_path, monkeypatch):
    finish_a_shard(tmp_path, {"grid": 7})
    for name in ("a.tfrecord", "dataset.json", "references_val.json"):
        (tmp_path / name).write_text("{}")
    state = State(tmp_path, {"grid": 4}, True)
    remove = state._remove

    def killed(pattern):
        if pattern == "*.tfrecord":
            raise KeyboardInterrupt
        remove(pattern)

    monkeypatch.setattr(state, "_remove", killed)
    with pytest.raises(KeyboardInterrupt):
        state.begin()
    assert not (tmp_path / "dataset.json").exists()
    assert State(tmp_path, {"grid": 4}, True).replaces


def test_a_copy_without_hidden_files_is_one_of_other_settings(tmp_path):
    write_json(tmp_path / "dataset.json", {"format": 0, "vocab_sha256": "", "splits": {}})
    with pytest.raises(ValueError, match="was prepared with other settings"):
        State(tmp_path, {"grid": 7}, False)
    assert State(tmp_path, {"grid": 7}, True).replaces


@pytest.mark.parametrize("content", [{"settings": None}, {"settings": 3}, []])
def test_a_damaged_state_counts_as_other_settings(tmp_path, content):
    write_json(tmp_path / ".prepare.json", content)
    (tmp_path / "a.tfrecord").touch()
    with pytest.raises(ValueError, match="was prepared with other settings. Different: grid"):
        State(tmp_path, {"grid": 7}, False)
    assert State(tmp_path, {"grid": 7}, True).replaces


def test_presets_of_killed_processes_are_removed(tmp_path):
    for name in (".tmp-7-ab-backbone.preset", ".old-7-ab-backbone.preset", "backbone.preset"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.weights.h5").touch()
    State(tmp_path, {"grid": 7}, False).sweep()
    assert [path.name for path in tmp_path.iterdir()] == ["backbone.preset"]


def test_the_index_of_the_new_features_is_kept(tmp_path):
    finish_a_shard(tmp_path, {"features": "a"})
    (tmp_path / "train.index.npz").touch()
    state = State(tmp_path, {"features": "b"}, True)
    (tmp_path / INDEX).touch()  # the features are opened before anything is removed
    state.begin()
    assert (tmp_path / INDEX).exists() and not (tmp_path / "train.index.npz").exists()


def test_without_a_finished_shard_new_settings_replace_old_ones(tmp_path):
    State(tmp_path, {"grid": 7}, False).save(weights_sha256="0")
    state = State(tmp_path, {"grid": 4}, False)
    assert state.content == {"settings": {"grid": 4}}
    state.begin()
    assert State(tmp_path, {"grid": 4}, False).content == {"settings": {"grid": 4}}


@pytest.mark.parametrize("name", [".tmp-12-a.tfrecord", ".shards/.tmp-12-a.json"])
def test_unfinished_files_of_killed_processes_are_removed(tmp_path, name):
    finish_a_shard(tmp_path, {"grid": 7})
    (tmp_path / name).touch()
    State(tmp_path, {"grid": 7}, False).sweep()
    assert not (tmp_path / name).exists() and sidecars.exist(tmp_path)


def test_shards_in_the_state_of_an_older_version_are_protected_and_made_again(tmp_path):
    (tmp_path / "a.tfrecord").write_bytes(b"1234")
    before = {"settings": {"grid": 7}, "shards": {"a.tfrecord": SHARD}, "decoder": "tfcap-1"}
    write_json(tmp_path / ".prepare.json", before)
    with pytest.raises(ValueError, match="other settings"):
        State(tmp_path, {"grid": 4}, False)
    with pytest.raises(ValueError, match="decoded pictures with tfcap-1, not with tfcap-2"):
        State(tmp_path, {"grid": 7}, False).require_decoder("tfcap-2")
    state = State(tmp_path, {"grid": 7}, False)
    state.require_decoder("tfcap-1")
    assert state.shard("a.tfrecord") is None and not state.replaces


def test_shards_without_a_readable_state_are_kept(tmp_path):
    (tmp_path / ".prepare.json").write_text("{")
    State(tmp_path, {"grid": 7}, False)
    (tmp_path / "a.tfrecord").touch()
    with pytest.raises(ValueError, match="other settings"):
        State(tmp_path, {"grid": 7}, False)


def test_one_skipped_image_too_many_ends_the_run():
    skips = Skips(1, 9)
    skips.add(Entry(4, "x.jpg", "val", ()), "no such file")
    with pytest.raises(ValueError, match="2 of 9 images cannot be used.* is y.jpg: bad"):
        skips.add(Entry(5, "y.jpg", "val", ()), "bad")
    assert [item["id"] for item in skips.items] == [4, 5]


def test_images_that_other_shards_skip_count_as_well():
    skips = Skips(2, 9, before=2)
    skips.extend([])
    with pytest.raises(ValueError, match="3 of 9 images cannot be used.* is y.jpg: bad"):
        skips.add(Entry(5, "y.jpg", "val", ()), "bad")


def test_skipped_rows_count_as_well():
    skips = Skips(2, 9, rows=1)
    skips.add(Entry(4, "x.jpg", "val", ()), "no such file")
    with pytest.raises(ValueError, match="2 of 9 images cannot be used, .* allows 2. 1 rows of"):
        skips.add(Entry(5, "y.jpg", "val", ()), "bad")


@pytest.mark.parametrize("before", [{}, {"decoder": "tfcap-0"}])
def test_an_interrupted_prepare_continues_only_with_the_same_decoder_of_pictures(tmp_path, before):
    finish_a_shard(tmp_path, {"grid": 7}, **before)
    (tmp_path / "a.tfrecord").write_bytes(b"1234")
    with pytest.raises(ValueError, match=r"decoded pictures with \S.*, not with tfcap-1.*--overwr"):
        State(tmp_path, {"grid": 7}, False).require_decoder("tfcap-1")
    state = State(tmp_path, {"grid": 7}, True)
    state.require_decoder("tfcap-1")
    assert state.replaces and state.content == {"settings": {"grid": 7}, "decoder": "tfcap-1"}
    assert state.shard("a.tfrecord") is None
    state.begin()
    sidecars.write(tmp_path, state.digest, SHARD)
    again = State(tmp_path, {"grid": 7}, False)
    again.require_decoder("tfcap-1")
    assert not again.replaces


def test_without_a_finished_shard_the_decoder_is_noted(tmp_path):
    State(tmp_path, {"grid": 7}, False).save(weights_sha256="0")
    state = State(tmp_path, {"grid": 7}, False)
    state.require_decoder("tfcap-1")
    assert state.content["decoder"] == "tfcap-1" and not state.replaces
