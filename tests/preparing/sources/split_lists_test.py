"""Lists of the images of each split."""

import json

import numpy as np
import pytest

from tfcap.preparing.sources.split_lists import read_lists, split_of


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("captions_train2014", "train"),
        ("coco_restval_ids", "train"),
        ("Flickr_8k.trainImages", "train"),
        ("Flickr_8k.devImages", "val"),
        ("image_info_test-dev2015", "test"),
        ("image_info_test2014", "test"),
        ("flickr30k_retrieval_val", "val"),
        ("iaprtc12_test_list", "test"),
        ("train_and_test", None),
        ("contest", None),
        ("captions", None),
    ],
)
def test_a_file_name_tells_a_split_by_a_word_of_its_own(name, split):
    assert split_of(name) == split


def test_a_directory_has_a_list_per_split(tmp_path):
    np.save(tmp_path / "coco_train_ids.npy", np.array([[5], [7]]))
    np.save(tmp_path / "coco_restval_ids.npy", np.array([9], np.uint32))
    np.save(tmp_path / "names_dev.npy", np.array(["a.jpg", "b.jpg"]))
    (tmp_path / "test.txt").write_bytes("\ufeff12\r\n\r\nval2014/c d.jpg 34\r\ne.jpg\r\n".encode())
    (tmp_path / "about train.md").write_text("no list")
    (tmp_path / "._train.txt").write_bytes(b"\0\5\x16\7\xff")
    (tmp_path / "readme.txt").write_text("no split")
    lists = read_lists(tmp_path)
    assert sorted(lists["train"]) == [5, 7, 9] and lists["val"] == ["a.jpg", "b.jpg"]
    assert lists["test"] == ["12", ("val2014/c d.jpg", 34), "e.jpg"]


@pytest.mark.parametrize("name", ["test.csv", "Test.JSON", "testing"])
def test_a_list_that_would_be_left_out_is_refused(tmp_path, name):
    (tmp_path / "train.txt").write_text("a.jpg")
    (tmp_path / "VAL.TXT").write_text("b.jpg")
    (tmp_path / "validation.zip").write_bytes(b"PK")  # the split has a list
    assert read_lists(tmp_path) == {"train": ["a.jpg"], "val": ["b.jpg"]}
    (tmp_path / name).write_text("c.jpg")
    with pytest.raises(ValueError, match=f"must end in .npy or .txt. Received: .*{name}. Write"):
        read_lists(tmp_path)


def test_json_has_the_same_names_of_splits_as_files(tmp_path):
    path = tmp_path / "splits.json"
    lists = {"train": [1], "restval": [2], "Validation": [3], "test": [], "testing": [4]}
    path.write_text(json.dumps({"drawn": "random", "seed": 7, **lists}))
    assert read_lists(path) == {"train": [1, 2], "val": [3], "test": [4]}
    path.write_text(json.dumps({**lists, "holdout": [5]}))
    with pytest.raises(
        ValueError, match=r"under train, .*restval.* Received: \[5\] under 'holdout'"
    ):
        read_lists(path)


def test_the_caption_file_of_karpathy_is_a_list(tmp_path):
    images = [
        {"cocoid": 5, "filename": "a.jpg", "split": "restval"},
        {"filename": "b.jpg", "split": "val"},
    ]
    path = tmp_path / "dataset_coco.json"
    path.write_text(json.dumps({"images": images}))
    assert read_lists(path) == {"train": [5], "val": ["b.jpg"], "test": []}
    path.write_text(json.dumps({"images": [{"cocoid": [], "split": "val"}]}))
    with pytest.raises(ValueError, match="image 0 of the list: must have 'split'"):
        read_lists(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "must have lists of the splits"),
        ([], "must be an object with lists"),
        ([1, 2], "must be an object with lists"),
        ({"train": {"a": 1}}, "must be an object with lists"),
        ({"train": [1.5]}, "must be an object with lists"),
        ({"train": [True]}, "must be an object with lists"),
    ],
)
def test_other_json_is_refused(tmp_path, content, message):
    path = tmp_path / "splits.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        read_lists(path)


def test_pickled_damaged_and_promising_arrays_are_refused(tmp_path):
    path = tmp_path / "train_ids.npy"
    np.save(path, np.array([{"id": 3}], object), allow_pickle=True)
    with pytest.raises(ValueError, match="without pickled objects.*Write the list as text"):
        read_lists(tmp_path)
    np.save(path, np.arange(10))
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"(10,)", b"(10000000000000,)").replace(b" " * 12, b"", 1))
    with pytest.raises(ValueError, match="must be an npy file .*mmap length"):
        read_lists(tmp_path)
    for content in (b"", b"noise", whole[:50], b"PK\3\4noise"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="must be an npy file"):
            read_lists(tmp_path)
    np.save(path, np.array([1.5]))
    with pytest.raises(ValueError, match="must hold whole numbers or names. Received: float64"):
        read_lists(tmp_path)


def test_what_is_no_list_is_refused(tmp_path):
    with pytest.raises(ValueError, match="must have lists of the splits"):
        read_lists(tmp_path)
    (tmp_path / "train.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ValueError, match="Cannot read .*train.txt"):
        read_lists(tmp_path)
    for name in ("train.txt", "none"):
        with pytest.raises(
            ValueError, match="must be a directory with a list per split, or a JSON"
        ):
            read_lists(tmp_path / name)
