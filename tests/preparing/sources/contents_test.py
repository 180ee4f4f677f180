"""Errors about files that cannot be read name what the files have, and what is needed."""

import json
import tarfile

import pytest
from helpers import sources
from helpers.sources import add, jpeg

from tfcap.preparing import inputs
from tfcap.preparing.settings import Settings
from tfcap.preparing.sources import recognise


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (  # as R2Gen's and the following, but for the captions
            {"train": [{"id": "CXR1", "said": "x", "image_path": ["1.png"]}], "val": []},
            "an object with train, val; 'train' is a list that begins with an object with id, "
            "said, image_path",
        ),
        (
            {"beach": [{"filename": "1.jpg", "said": "A", "said_1": "B"}]},
            "'beach' is a list that begins with an object with filename, said, said_1",
        ),
        (
            {"info": {"year": 1}, "data": [{"image_id": "x", "said": "A"}]},
            "'data' is a list that begins with an object with image_id, said",
        ),
        ({"1.jpg": ["A", "B"]}, "an object with 1.jpg; '1.jpg' is a list that begins with a text"),
        ({"1": {"said": "A"}}, "an object with 1; '1' is an object with said"),
        ([["1.jpg", "A"]], "a list that begins with a list that begins with a text"),
        ([{"image": "1.jpg", "words": "A"}], "a list that begins with an object with image, words"),
        ([], "it is an empty list"),
        ({f"{number}.jpg": "A" for number in range(99)}, "10.jpg, 11.jpg and 87 more"),
    ],
)
def test_an_unknown_json_file_is_described(tmp_path, content, said):
    path = tmp_path / "annotations.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="annotations.json has no layout that tfcap") as error:
        recognise([path])
    assert said in str(error.value) and "a picture (path, image" in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("flickr8kzhc.txt", "1.jpg#zhc a dog\n2.jpg#zhc a cat\n", "'1.jpg#zhc a dog'"),
        ("a.jsonlines", '{"image/key": "a"}\n{"image/key": "b"}\n', "has lines with image/key"),
        ("a.json", '{"images": [', "a.json is not valid JSON"),
        ("a.bin", "\0\1", "it has no line of text"),
    ],
)
def test_other_unknown_files_are_described(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ValueError, match=said):
        recognise([path])


def images(**more):
    return {"images": [{"filename": f"{n}.jpg", "split": "train", **more} for n in range(2)]}


@pytest.mark.parametrize(
    ("name", "content", "needed", "said"),
    [
        ("a.json", images(description={"raw": "A"}), "'sentences'", "filename, split, description"),
        (
            "a.json",
            {
                "images": [{"id": 1, "file_name": "1.jpg"}],
                "annotations": [{"image_id": 1, "bbox": []}],
            },
            "'annotations'",
            "'annotations' is a list that begins with an object with image_id, bbox",
        ),
        (
            "a.json",
            [{"image": "1.jpg", "caption": None, "words": "A"}],
            "captions, ",
            "caption, words",
        ),
        ("metadata.jsonl", {"file_name": "1.jpg", "words": "A"}, "captions, ", "file_name, words"),
    ],
)
def test_a_layout_without_captions_names_their_key_and_those_of_the_file(
    tmp_path, name, content, needed, said
):
    sources.write_pictures(tmp_path, ["1.jpg"])
    (tmp_path / name).write_text(json.dumps(content))
    captions = tmp_path if name.startswith("metadata") else tmp_path / name
    with pytest.raises(ValueError, match="has no captions: the layout") as error:
        inputs.read(Settings(captions=captions, images=tmp_path, out="out", backbone="pixels"))
    assert f"{needed}" in str(error.value) and said in str(error.value)


def test_the_json_files_of_a_tar_file_are_described(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        add(tar, "1.jpg", jpeg(1))
        add(tar, "1.json", b'{"words": "A", "width": 16}')
    with pytest.raises(ValueError, match=r"webdataset .* 1.json in a.tar is .* words, width"):
        inputs.read(Settings(captions=tmp_path / "a.tar", out="out", backbone="pixels"))


def test_further_splits_are_told(tmp_path, capsys):
    path = tmp_path / "captions.csv"
    rows = [f"{n}.jpg,A dog.,{split}" for n, split in enumerate(("train", "qual_dev", "qual_dev"))]
    path.write_text("image,caption,split\n" + "\n".join(rows))
    result = inputs.read(Settings(captions=path, images=tmp_path, out="out", backbone="pixels"))
    assert [entry.split for entry in result.entries] == ["train", "qual_dev", "qual_dev"]
    assert "there are the splits qual_dev (2 images)" in capsys.readouterr().out
