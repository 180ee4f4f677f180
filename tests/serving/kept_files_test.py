"""Files beside a bundle are replaced, but those that somebody has changed stay."""

import hashlib
import json
import os

import pytest

from tfcap.serving import kept_files


def content(folder):
    return {
        os.path.relpath(os.path.join(place, name), folder): open(
            os.path.join(place, name), encoding="utf-8"
        ).read()
        for place, _, names in os.walk(folder)
        for name in names
        if name != kept_files.RECORD
    }


def test_files_are_replaced_until_somebody_changes_them(tmp_path):
    folder = str(tmp_path)
    assert kept_files.write(folder, {"a.yaml": b"1", "client/app.js": b"1", "card.md": b"1"}) == []
    assert content(tmp_path) == {"a.yaml": "1", "client/app.js": "1", "card.md": "1"}
    (tmp_path / "card.md").write_text("of a person")
    (tmp_path / "client" / "own.js").write_text("of a person")
    new = {"a.yaml": b"2", "client/app.js": b"2", "card.md": b"2"}
    assert kept_files.write(folder, new) == ["card.md"]
    expected = {"a.yaml": "2", "client/app.js": "2", "card.md": "of a person", "card.md.new": "2"}
    assert content(tmp_path) == expected | {"client/own.js": "of a person"}
    # It still counts as changed, also if the next content is the same as the last.
    assert kept_files.write(folder, new) == ["card.md"]
    (tmp_path / "card.md").write_text("2")  # the person takes the new one
    assert kept_files.write(folder, {**new, "card.md": b"3"}) == []
    assert content(tmp_path)["card.md"] == "3" and not (tmp_path / "card.md.new").exists()


def test_programs_can_be_run(tmp_path):
    kept_files.write(str(tmp_path), {"client/a.sh": b"#!", "b": b"1"}, ["client/a.sh"])
    assert os.access(tmp_path / "client" / "a.sh", os.X_OK)
    assert not (tmp_path / "b").stat().st_mode & 0o111


def test_files_of_others_stay_and_own_ones_that_are_not_wanted_go(tmp_path):
    folder = str(tmp_path)
    (tmp_path / "compose.yaml").write_text("of a person")
    first = {"compose.yaml": b"1", "old": b"1", "changed": b"1"}
    assert kept_files.write(folder, first) == ["compose.yaml"]
    (tmp_path / "changed").write_text("by a person")
    assert kept_files.write(folder, {"compose.yaml": b"1"}) == ["compose.yaml"]
    expected = {"compose.yaml": "of a person", "compose.yaml.new": "1", "changed": "by a person"}
    assert content(tmp_path) == expected


def test_a_killed_export_leaves_no_file_that_looks_changed(tmp_path, monkeypatch):
    folder = str(tmp_path)
    kept_files.write(folder, {"a": b"1", "b": b"1", "c": b"1"})
    write = kept_files._write

    def killed(path, *rest):
        if path.endswith("b"):
            raise KeyboardInterrupt
        write(path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(kept_files, "_write", killed)
        with pytest.raises(KeyboardInterrupt):
            kept_files.write(folder, {"a": b"2", "b": b"2", "c": b"2"})
    assert content(tmp_path) == {"a": "2", "b": "1", "c": "1"}
    assert kept_files.write(folder, {"a": b"3", "b": b"3", "c": b"3"}) == []
    assert content(tmp_path) == {"a": "3", "b": "3", "c": "3"}


OUTSIDE = hashlib.sha256(b"outside").hexdigest()


@pytest.mark.parametrize("record", ["no JSON", "[]", json.dumps({"../a": [OUTSIDE], "b": 1})])
def test_a_damaged_record_removes_and_replaces_nothing(tmp_path, record):
    (tmp_path / "bundle").mkdir()
    (tmp_path / "a").write_text("outside")
    (tmp_path / "bundle" / "b").write_text("before")
    (tmp_path / "bundle" / kept_files.RECORD).write_text(record)
    assert kept_files.write(str(tmp_path / "bundle"), {"b": b"new"}) == ["b"]
    assert content(tmp_path) == {"a": "outside", "bundle/b": "before", "bundle/b.new": "new"}


def test_a_directory_in_the_place_of_a_file_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "b").mkdir()
    with pytest.raises(ValueError, match="b must be a file in .* Received: a directory"):
        kept_files.write(str(tmp_path), {"a": b"1", "b": b"1"})
    assert os.listdir(tmp_path) == ["b"]
