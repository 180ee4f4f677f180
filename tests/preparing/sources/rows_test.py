"""Rows of captions are grouped by image."""

import pytest

from tfcap.preparing.sources import ImageEntry
from tfcap.preparing.sources.rows import IdsDiffer, Rows


def test_captions_of_an_image_are_joined_wherever_they_stand():
    rows = Rows()
    rows.add("b.jpg", ["one"], "train")
    rows.add("a.jpg", [], "val")
    rows.add("b.jpg", ["two", "three"], "train")
    assert len(rows) == 2 and rows.entries() == [
        ImageEntry(0, "b.jpg", "train", ("one", "two", "three")),
        ImageEntry(1, "a.jpg", "val", ()),
    ]


@pytest.mark.parametrize(
    ("names", "ids"),
    [
        (["val2014/COCO_val2014_000000391895.jpg", "000000000009.jpg"], [391895, 9]),
        (["000000000009.jpg", "a.jpg"], [0, 1]),
        (["train2017/000000000009.jpg", "val2017/000000000009.jpg"], [0, 1]),
    ],
)
def test_ids_are_those_of_coco_where_all_names_have_one(names, ids):
    rows = Rows()
    for name in names:
        rows.add(name, [])
    assert [entry.id for entry in rows.entries()] == ids


def test_ids_of_the_rows_come_first():
    rows = Rows()
    rows.add("000000000009.jpg", ["a"], number=5)
    rows.add("000000000009.jpg", ["b"], number=5)
    with pytest.raises(IdsDiffer, match="must be that of the image. Received: 5 and 6 "):
        rows.add("000000000009.jpg", ["b"], number=6)
    with pytest.raises(ValueError, match="must have the same split and id in all rows"):
        rows.add("000000000009.jpg", ["b"], "val", 5)
    with pytest.raises(ValueError, match="must be unique. Received: 5 for 000000000009.jpg and"):
        rows.add("c.jpg", ["b"], number=5)
    with pytest.raises(ValueError, match="all rows must have an id, or none"):
        rows.add("c.jpg", ["b"])
    assert rows.entries() == [ImageEntry(5, "000000000009.jpg", None, ("a", "b"), own_id=True)]
