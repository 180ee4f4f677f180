"""Official caption files of COCO."""

import json

import pytest
from helpers.sources import coco_file, picture

from tfcap.preparing.sources import Given, coco


def read(*paths, **options):
    return coco(Given(paths, **options))


def test_several_files_are_read_and_their_names_tell_the_splits(tmp_path):
    entries = read(
        coco_file(tmp_path / "captions_train2017.json", [9, 25]),
        coco_file(tmp_path / "captions_val2017.json", [42]),
        coco_file(tmp_path / "image_info_test-dev2017.json", [1], captions=0),
    )
    assert [(entry.id, entry.split, len(entry.captions)) for entry in entries] == [
        (9, "train", 2), (25, "train", 2), (42, "val", 2), (1, "test-dev2017", 0),
    ]  # fmt: skip
    assert entries[0].captions == ("A dog 0 on grass.\n", "A dog 1 on grass.\n")
    assert entries[0].caption_ids == (90, 91) and entries[0].file_name.endswith("0009.jpg")


@pytest.mark.parametrize("text", ["['A dog.', 'A cat.']", ["A dog.", "A cat."]])
def test_a_list_of_captions_is_several(tmp_path, text):
    path = tmp_path / "captions_train2014.json"
    image = {"id": 9, "file_name": "a.jpg"}
    notes = [{"id": 1, "image_id": 9, "caption": text}, {"id": 2, "image_id": 9, "caption": "B."}]
    path.write_text(json.dumps({"images": [image], "annotations": notes}))
    (entry,) = read(path)
    assert entry.captions == ("A dog.", "A cat.", "B.") and entry.caption_ids == (1, 1, 2)


def test_a_train_file_alone_has_no_split(tmp_path):
    path = coco_file(tmp_path / "captions_train2014.json", [9, 25])
    assert {entry.split for entry in read(path)} == {None}
    other = path.rename(tmp_path / "mine.json")
    assert {entry.split for entry in read(other)} == {None}
    val = coco_file(tmp_path / "captions_val2014.json", [42])
    assert {entry.split for entry in read(val)} == {"val"}
    with pytest.raises(ValueError, match="must have their split.* Received: mine.json, captions"):
        read(other, val)
    assert len(read(other, val, split_ids=tmp_path)) == 3


def test_images_without_captions_are_a_split_of_their_own_name(tmp_path):
    test = coco_file(tmp_path / "image_info_test2014.json", [1, 14], captions=0)
    assert [(e.split, e.captions) for e in read(test)] == [("test2014", ())] * 2
    train = coco_file(tmp_path / "captions_train2014.json", [9, 25])
    assert [e.split for e in read(train, test)] == [None, None, "test2014", "test2014"]
    unlabelled = coco_file(tmp_path / "image_info_unlabeled2017.json", [3], captions=0)
    val = coco_file(tmp_path / "captions_val2014.json", [42])
    assert [e.split for e in read(val, unlabelled)] == ["val", "unlabeled2017"]


@pytest.mark.parametrize("inside", [True, False])
def test_pictures_may_lie_in_the_folders_of_the_download(tmp_path, inside):
    train = coco_file(tmp_path / "captions_train2014.json", [9])
    test = coco_file(tmp_path / "image_info_test-dev2015.json", [1], captions=0)
    name = "COCO_train2014_000000000009.jpg"
    picture(tmp_path / "images" / ("train2014" if inside else ".") / name)
    picture(tmp_path / "images" / "test2015" / "COCO_test-dev2015_000000000001.jpg")
    entries = read(train, test, images=tmp_path / "images")
    assert entries[0].file_name == ("train2014/" * inside + name)
    assert entries[1].file_name == "test2015/COCO_test-dev2015_000000000001.jpg"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.pop("images"), "must be in the layout of COCO"),
        (lambda v: v.update(images=[]), "must be in the layout of COCO"),
        (lambda v: v.update(annotations={}), "must be in the layout of COCO"),
        (lambda v: v["images"].append(dict(v["images"][0])), "image 2 of the list: .* unique"),
        (lambda v: v["images"].append(3), "image 2 of the list: it must be an object"),
        (lambda v: v["images"][1].pop("id"), "image 1 of the list: it must be an object"),
        (lambda v: v["images"][1].update(id="9"), "image 1 of the list: the id must be"),
        (lambda v: v["images"][0].update(file_name="../a"), "image 0 of the list: the file name"),
        (lambda v: v["annotations"][1].pop("caption"), "annotation 1 of the list: it must be"),
        (lambda v: v["annotations"][1].update(caption=None), "annotation 1 .*must be text"),
        (lambda v: v["annotations"][3].update(image_id=7), "annotation 3 .*Received: 7"),
        (lambda v: v["annotations"][3].update(image_id=[]), "annotation 3 .*whole number"),
    ],
)
def test_bad_files_are_refused_with_the_place(tmp_path, change, message):
    path = coco_file(tmp_path / "captions_train2014.json", [9, 25])
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))
    with pytest.raises(ValueError, match=f"captions_train2014.json.*{message}.*--captions"):
        read(path)


def test_an_image_of_two_files_is_refused(tmp_path):
    paths = [coco_file(tmp_path / f"captions_{split}2014.json", [9]) for split in ("train", "val")]
    with pytest.raises(ValueError, match="captions_val2014.json: image 0 .*unique. Received: 9"):
        read(*paths)
