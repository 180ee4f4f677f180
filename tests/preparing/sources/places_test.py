"""Files of a data set in directories."""

import pathlib

import pytest

from tfcap.preparing.sources import places


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return [folder / name for name in names]


def is_tar(name):
    return name.endswith(".tar")


def test_files_of_three_levels_are_found_in_order_and_hidden_ones_are_not(tmp_path):
    touch(
        tmp_path, "b.tar", "a.txt", "x/a.tar", "x/y/c.tar", "x/y/z/far.tar", ".h/a.tar", "._b.tar"
    )
    found = places.below(tmp_path, is_tar)
    assert [path.relative_to(tmp_path).as_posix() for path in found] == [
        "b.tar", "x/a.tar", "x/y/c.tar"
    ]  # fmt: skip
    assert places.below(tmp_path / "nowhere", is_tar) == []


def test_only_the_part_below_the_given_directory_tells_the_split(tmp_path):
    root = tmp_path / "test"
    files = touch(root, "train-0.tar", "dev/0.tar", "other/1.tar")
    assert [place.split for place in places.find([root], is_tar)] == ["train", "val", None]
    assert [place.split for place in places.find(files, is_tar)] == ["train", "val", None]
    assert [place.split for place in places.find(files[2:], is_tar)] == [None]


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("train-00000-of-00005.parquet", "train"),
        ("default/validation/0000.parquet", "val"),
        ("train/test.tar", "test"),
        ("all_data_final_test_set0_2014.jsonline", "test"),
        ("latest.tar", None),
        ("contest/0.tar", None),
    ],
)
def test_splits_in_names(path, split):
    assert places.split_of_path(pathlib.PurePosixPath(path)) == split


def test_a_directory_without_such_files_is_refused(tmp_path):
    with pytest.raises(ValueError, match="which has none. Correct the path"):
        places.find([tmp_path], is_tar)
