"""Names of files in another form of Unicode, in another case, or with another ending."""

import json
import unicodedata

import pytest

from tfcap.preparing.inputs import check_images, read
from tfcap.preparing.settings import Settings
from tfcap.preparing.sources.splits import divide

FORMS = ("NFC", "NFD"), ("NFD", "NFC")


def form(name, text):
    return unicodedata.normalize(name, text)


def folder(tmp_path, *names):
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"picture")
    return tmp_path


@pytest.mark.parametrize(("ours", "theirs"), FORMS)
def test_names_are_those_of_the_directories_in_either_form(tmp_path, ours, theirs):
    images = folder(tmp_path / "images", form(theirs, "été/café.jpg"), "plain.jpg")
    captions = tmp_path / "captions.csv"
    rows = [f"{form(ours, 'été/café.jpg')},A dog.", "plain.jpg,A cat.", "nichts_für.jpg,None."]
    captions.write_text("\n".join(["image,caption", *rows]))
    settings = Settings("out", str(captions), images=str(images))
    names = sorted(entry.file_name for entry in read(settings).entries)
    assert names == sorted([form(theirs, "été/café.jpg"), "nichts_für.jpg", "plain.jpg"])


@pytest.mark.parametrize("there", ["Photo.JPG", "photo.JPG", "photo.jpeg", "photo.png"])
def test_another_case_or_ending_is_told(tmp_path, there):
    images = folder(tmp_path / "images", there)
    (tmp_path / "captions.csv").write_text("image,caption\nphoto.jpg,A dog.\n")
    settings = Settings("out", str(tmp_path / "captions.csv"), images=str(images))
    with pytest.raises(ValueError, match=rf"photo.jpg, which is not in .*; {there} is there"):
        check_images(settings, read(settings).entries)


@pytest.mark.parametrize(("ours", "theirs"), FORMS)
def test_split_lists_and_metadata_files_have_names_in_either_form(tmp_path, ours, theirs):
    images = folder(tmp_path / "images", form(theirs, "café.jpg"))
    (images / "metadata.csv").write_text(f"file_name,text\n{form(ours, 'café.jpg')},A dog.\n")
    (entry,) = read(Settings("out", str(images))).entries  # --images is the same folder
    assert (images / entry.file_name).read_bytes() == b"picture"
    lists = folder(tmp_path / "lists", "train.txt") / "train.txt"
    for listed in ("café.jpg", "café", "/data/images/café.jpg"):
        lists.write_text(form(theirs, listed))
        assert [one.split for one in divide([entry], split_ids=lists.parent).entries] == ["train"]
    lists.write_text("CAFÉ.png")
    with pytest.raises(ValueError, match="lists 'CAFÉ.png', and the captions have 'caf"):
        divide([entry], split_ids=lists.parent)


@pytest.mark.parametrize(
    ("named", "there"),
    [
        ("VizWiz_train_00000012.jpg", "train/VizWiz_train_00000012.jpg"),
        ("flickr30k_1000092795.jpg", "images/1000092795.jpg"),
        ("img_12.png", "a/0012.jpg"),
        ("beach.jpg", "a/b/Beach.JPG"),
    ],
)
def test_a_file_elsewhere_or_with_the_same_number_is_told(tmp_path, named, there):
    images = folder(tmp_path / "images", there, "a/0013.jpg", "a/other.jpg")
    (tmp_path / "captions.csv").write_text(f"image,caption\n{named},A dog.\n")
    settings = Settings("out", str(tmp_path / "captions.csv"), images=str(images))
    with pytest.raises(
        ValueError, match=rf"example {named}; {there} is there. Give as `images` the dir"
    ):
        check_images(settings, read(settings).entries)


def karpathy(path, names):
    images = [
        {"filename": name, "cocoid": 9 + n, "split": split, "sentences": [{"raw": "A dog."}]}
        for n, (name, split) in enumerate(zip(names, ["train", "val", "test"], strict=True))
    ]
    path.write_text(json.dumps({"images": images}))
    return path


def test_pictures_of_coco_may_have_the_names_of_the_other_release(tmp_path, capsys):
    names = [f"COCO_val2014_{number:012d}.jpg" for number in (9, 25, 30)]
    captions = karpathy(tmp_path / "dataset_coco.json", names)
    new = ["train2017/000000000009.jpg", "val2017/000000000025.jpg"]
    images = folder(tmp_path / "images", *new, "train2017/30.jpg")
    settings = Settings("out", str(captions), images=str(images))
    entries = read(settings).entries
    assert [(entry.file_name, entry.id) for entry in entries] == [
        (new[0], 9), (new[1], 10), (names[2], 11),
    ]  # fmt: skip
    assert "2 of 3 pictures of COCO have names of another release" in capsys.readouterr().out
    check_images(settings, entries)
    folder(tmp_path / "images", names[0])  # a name as in the file: then all are
    assert [entry.file_name for entry in read(settings).entries] == names
    features = Settings("out", str(captions), images=str(images), features="f")
    assert [entry.file_name for entry in read(features).entries] == names
