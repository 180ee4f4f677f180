"""Caption files of BLIP and LAVIS."""

import json

import pytest

from tfcap.preparing.sources import Given, ImageEntry, blip


def read(tmp_path, **files):
    for name, rows in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(rows))
    return blip(Given(tuple(tmp_path / f"{name}.json" for name in files)))


def test_rows_of_training_are_grouped_and_others_have_lists(tmp_path):
    train = [{"image": "a.jpg", "caption": text, "image_id": "coco_0"} for text in ("A.", "B. ")]
    train.insert(1, {"image": "b.jpg", "caption": "C.", "image_id": "coco_1"})
    val = [{"image": "c.jpg", "caption": ["D.", "E."]}]
    assert read(tmp_path, coco_karpathy_train=train, coco_karpathy_val=val) == [
        ImageEntry(0, "a.jpg", "train", ("A.", "B. ")),
        ImageEntry(1, "b.jpg", "train", ("C.",)),
        ImageEntry(2, "c.jpg", "val", ("D.", "E.")),
    ]
    assert {entry.split for entry in read(tmp_path, captions=train)} == {None}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "must be in BLIP's layout"),
        ({"image": "a.jpg"}, "must be in BLIP's layout"),
        ([{"image": "a.jpg"}, 3], "entry 1 of the list: it must be an object"),
        ([{"caption": "A."}], "entry 0 of the list: it must be an object"),
        ([{"image": "../a.jpg", "caption": "A."}], "entry 0 of the list: the file name"),
        ([{"image": "a.jpg", "caption": 3}], "entry 0 of the list: captions .* must be text"),
        ([{"image": "a.jpg", "caption": [3]}], "entry 0 of the list: captions .* must be text"),
    ],
)
def test_bad_files_are_refused_with_the_place(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        read(tmp_path, x_train=rows)


def test_an_image_in_two_splits_and_half_named_files_are_refused(tmp_path):
    rows = [{"image": "a.jpg", "caption": "A."}]
    with pytest.raises(ValueError, match="x_val.json: entry 0 .*the same split"):
        read(tmp_path, x_train=rows, x_val=rows)
    with pytest.raises(ValueError, match="must have their split.* Received: more.json"):
        read(tmp_path, x_train=rows, more=rows)
