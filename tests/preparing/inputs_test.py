"""What prepare reads: the names of pictures, and paths of `captions` that cannot be used."""

import dataclasses
import json

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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("b.csv", "There is no file .*b.csv. Correct `captions`"),
        ("", "There is no file .*. Correct `captions`"),
        (
            "lines.json",
            "lines.json is a JSON object. `columns` reads tables, JSON lines and JSON l",
        ),
        ("long.json", "long.json is a JSON object. `columns` reads tables, JSON lines and JSON li"),
    ],
)
def test_columns_are_chosen_only_in_files_of_rows(tmp_path, name, message):
    row = {"pic": "a.jpg", "said": "A kite ."}
    published.write(tmp_path / "lines.json", {"a": row, "b": row})
    (tmp_path / "long.json").write_text(json.dumps({"rows": [row, row]}, indent=2))
    settings = Settings("out", tmp_path / name, columns="image=pic,caption=said", backbone="pixels")
    with pytest.raises(ValueError, match=message):
        inputs.read(settings.checked())
    published.write(path := tmp_path / "one.jsonl", row)
    settings = dataclasses.replace(settings, captions=path)
    assert inputs.read(settings.checked()).entries[0].captions == ("A kite .",)


def test_an_error_says_that_ids_stand_for_names(tmp_path):
    path = tmp_path / "a.csv"
    images = write_pictures(tmp_path / "images", ["other.jpg"])
    for lines, where in ((["id,text", "1,A."], r"a.csv \(ids, because no column has names of"),
                         (["id,text,image", "1,A.,b.jpg"], "a.csv exists")):  # fmt: skip
        published.write(path, *lines)
        settings = Settings("out", path, images=images)
        with pytest.raises(ValueError, match=f"None of the first 1 file names in .*{where}"):
            inputs.check_images(settings, inputs.read(settings).entries)
