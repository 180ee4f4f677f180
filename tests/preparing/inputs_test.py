"""What prepare reads: the names of pictures, and paths of `captions` that cannot be used."""

import pytest
from helpers import published
from helpers.sources import write_pictures

from tfcap.preparing import inputs
from tfcap.preparing.settings import Settings


def names(tmp_path, rows, pictures, **changes):
    """The names of the images of a table, whose pictures are written too."""
    path = tmp_path / "a.csv"
    published.write(path, "image,caption,split", *rows)
    images = write_pictures(tmp_path / "images", pictures)
    settings = Settings("out", path, images=images, backbone="pixels", **changes).checked()
    return [(entry.file_name, entry.split) for entry in inputs.read(settings).entries]


@pytest.mark.parametrize(
    "rows",
    [
        ["beach/1.jpg,A.,train", "forest/1.jpg,B.,train"],  # both end in 1.jpg
        ["train/1,A.,train", "train_images/1,B.,train"],  # both mean the folder of train
    ],
)
def test_two_images_never_get_the_same_picture(tmp_path, rows):
    expected = [(row.partition(",")[0], "train") for row in rows]
    assert names(tmp_path, rows, ["1.jpg", "train2014/1.jpg"]) == expected


def test_lists_of_splits_have_the_names_of_the_caption_file(tmp_path):
    for split, name in {"train": "sea/a.jpg", "val": "sea/b.jpg", "test": "sea/c.jpg"}.items():
        published.write(tmp_path / f"lists/{split}.txt", name)
    rows = [f"sea/{name}.jpg,A.," for name in "abc"]
    found = names(tmp_path, rows, ["a.jpg", "b.jpg", "c.jpg"], split_ids=tmp_path / "lists")
    assert found == [("a.jpg", "train"), ("b.jpg", "val"), ("c.jpg", "test")]
