"""The directories of prepare are checked before anything is written."""

import pytest

from tfcap.preparing.inputs import check_directories
from tfcap.preparing.settings import Settings
from tfcap.preparing.sources import ImageEntry


def entries(*names):
    return [ImageEntry(number, name, "train", ("a dog",)) for number, name in enumerate(names)]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images" / "val2014").mkdir(parents=True)
    (tmp_path / "images" / "val2014" / "19.jpg").touch()
    return tmp_path


def check(folder, *names):
    settings = Settings("captions.json", "out", images=str(folder))
    check_directories(settings, entries(*names))


def test_one_of_the_first_twenty_files_is_enough(folder):
    names = [f"{number}.jpg" for number in range(21)]
    check(folder / "images" / "val2014", *names)
    del names[0]
    check(folder / "images" / "val2014", *names)
    with pytest.raises(ValueError, match="None of the first 20 file names .* example a.jpg"):
        check(folder / "images" / "val2014", "a.jpg", "b.jpg", *names)


def test_a_wrong_directory_of_images_names_the_right_one(folder):
    with pytest.raises(ValueError, match="wrong --images. .*: give --images .*/images/val2014$"):
        check(folder / "images", "19.jpg")
    with pytest.raises(ValueError, match="wrong --images. .*: give --images .*/images$"):
        check(folder / "images" / "val2014", "val2014/19.jpg")
    with pytest.raises(ValueError, match="is in .*: wrong --images. Give the directory that"):
        check(folder, "train2014/19.jpg")


def test_a_directory_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(ValueError, match="--images must be an existing directory"):
        check(tmp_path / "none", "0.jpg")
    settings = Settings("captions.json", "out", features=str(tmp_path / "none"))
    with pytest.raises(ValueError, match="--features must be an existing directory"):
        check_directories(settings, entries("0.jpg"))
