"""The references of a prepared directory are written and read."""

import pytest

from tfcap.data.references import load_references, write_references


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
