"""The references of a prepared directory are written and read."""

import pytest

from tfcap.data.prepared import PreparedData
from tfcap.data.references import load_references, write_references
from tfcap.files import file_sha256


def test_references_round_trip_and_damage(tmp_path):
    items = [(3, "b.jpg", ["One \u00e9 \U0001f600", "two\nlines"]), (1, "a.jpg", ["x"])]
    assert write_references(tmp_path, "val", items) == 3
    names, captions = load_references(tmp_path, "val")
    assert names == {3: "b.jpg", 1: "a.jpg"}
    assert captions == {3: items[0][2], 1: ["x"]}
    (tmp_path / "references_val.json").write_text('{"images": [{"id": 1}]}')
    with pytest.raises(ValueError, match="references_val.json is not a COCO caption file"):
        load_references(tmp_path, "val")


def test_an_image_without_captions_keeps_its_place(tmp_path):
    assert write_references(tmp_path, "test", [(3, "b.jpg", []), (1, "a.jpg", ["x"])]) == 1
    assert load_references(tmp_path, "test") == ({3: "b.jpg", 1: "a.jpg"}, {3: [], 1: ["x"]})


def test_changed_references_are_refused_where_their_digest_is_known(tmp_path):
    write_references(tmp_path, "val", [(3, "b.jpg", ["a dog"])])
    path = tmp_path / "references_val.json"
    digest = file_sha256(path)
    assert load_references(tmp_path, "val", digest)[1] == {3: ["a dog"]}
    path.write_text(path.read_text().replace("dog", "cat"))
    with pytest.raises(ValueError, match="references_val.json must be the file that prepare wrote"):
        load_references(tmp_path, "val", digest)


def test_prepare_writes_the_digest(shapes):
    entry = PreparedData.load(shapes).split("val")
    assert entry["references_sha256"] == file_sha256(f"{shapes}/references_val.json")
