"""What readers get and return: names, ids, splits, skipped rows."""

import json

import pytest

from tfcap.preparing.sources import READERS, Given, ImageEntry, reader
from tfcap.preparing.sources.entry import (
    caption,
    file_name,
    head,
    image_number,
    names_of,
    require_unique,
    split_name,
)


@pytest.mark.parametrize("name", ["val2014/a.jpg", "a b.jpg", "ä.png"])
def test_a_name_below_the_folder_is_kept(name):
    assert file_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["../a.jpg", "/a.jpg", "//a.jpg", "a/../../b", "C:\\a.jpg", "..\\a", ".", "", None, 3, "a\0b",
     "a\ud800.jpg"],
)  # fmt: skip
def test_a_name_that_leaves_the_folder_or_is_no_text_is_refused(name):
    with pytest.raises(ValueError, match="the file name must"):
        file_name(name)


def test_splits_have_several_names():
    assert [split_name(n) for n in ("restval", " Train", "validation", "dev", "TEST")] == [
        "train", "train", "val", "val", "test",
    ]  # fmt: skip
    for name in ("holdout", "", None, 3):
        with pytest.raises(ValueError, match="the split must be one of train, "):
            split_name(name)


def test_captions_and_ids_are_checked():
    assert caption("A dog ") == "A dog " and image_number(7) == 7
    for text in (3, None, ["a"], "\ud800"):
        with pytest.raises(ValueError, match="must be (text|valid Unicode)"):
            caption(text)
    for number in (True, -1, 2**63, "7", 1.0, None):
        with pytest.raises(ValueError, match="the id must be a whole number"):
            image_number(number)
    entries = [ImageEntry(number, "a.jpg", None, ()) for number in (4, 5, 4)]
    require_unique(entries[:2], "c.json")
    with pytest.raises(
        ValueError, match="c.json: image ids must be unique. .* 4 at 0 .*Correct the ids"
    ):
        require_unique(entries, "c.json")


def test_a_skipped_row_is_counted_listed_and_printed(tmp_path, capsys):
    given = Given((tmp_path,), most_skipped=2)
    given.skip("c.csv: line 2", "no\n caption")
    given.skip("c.csv: line 3", ValueError("bad"))
    assert given.skipped == [("c.csv: line 2", "no caption"), ("c.csv: line 3", "bad")]
    assert (
        capsys.readouterr().err == "skipped c.csv: line 2: no caption\nskipped c.csv: line 3: bad\n"
    )
    with pytest.raises(
        ValueError, match="3 rows cannot be used, --max_skipped allows 2. .* line 4"
    ):
        given.skip("c.csv: line 4", "worse")


def test_of_many_skipped_rows_only_the_first_are_printed(tmp_path, capsys):
    given = Given((tmp_path,))
    for line in range(30):
        given.skip(f"line {line}", "bad")
    assert len(given.skipped) == 30 and len(capsys.readouterr().err.splitlines()) == 21


def test_the_name_of_a_source_is_new(monkeypatch):
    for name in ("karpathy", "shapes", "auto"):
        with pytest.raises(ValueError, match="name of a source must be new"):
            reader(name)(lambda given: [])
    assert READERS["karpathy"].__name__ == "karpathy"


def test_the_first_bytes_of_what_is_no_file_are_empty(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert head(tmp_path / "a", 2) == b"ab"
    assert head(tmp_path) == head(tmp_path / "none") == b""
    assert names_of(map(tmp_path.joinpath, "abcdefg")) == "a, b, c, d, e and 2 more"


def test_one_file_is_needed_where_a_layout_has_one(tmp_path):
    assert Given((tmp_path / "a",)).one_file() == tmp_path / "a"
    with pytest.raises(
        ValueError,
        match="must be one file in this layout. Received: 2 files, a, b. Give one of them",
    ):
        Given((tmp_path / "a", tmp_path / "b")).one_file()


def rows(source, name, text):
    """The content of a caption file of a source, with one picture and its caption."""
    karpathy = {"filename": name, "split": "train", "sentences": [{"raw": text}]}
    annotations = [{"id": 1, "image_id": 7, "caption": text}]
    contents = {
        "csv": f'image,caption\n{name},"{text}"\n',
        "tsv": f"image\tcaption\n{name}\t{text}\n",
        "jsonl": json.dumps({"image": name, "caption": text}),
        "gif": json.dumps({"gif": name, "caption": text}),
        "xmodaler": json.dumps({"img_path": name, "sentences": text}),
        "blip": json.dumps([{"image": name, "caption": text}]),
        "karpathy": json.dumps({"images": [karpathy]}),
        "coco": json.dumps({"images": [{"id": 7, "file_name": name}], "annotations": annotations}),
        "flickr8k": f"{name}#0\t{text}\n",
        "flickr30k": f"image_name| comment_number| comment\n{name}| 0| {text}\n",
        "imagefolder": f'file_name,caption\n{name},"{text}"\n',
    }
    return contents[source]


@pytest.mark.parametrize(
    "source",
    ["csv", "tsv", "jsonl", "gif", "xmodaler", "blip", "karpathy", "coco", "flickr8k", "flickr30k"]
    + ["imagefolder"],
)
def test_every_source_reads_absolute_names_below_the_pictures(source, tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    path = (images if source == "imagefolder" else tmp_path) / "metadata.csv"
    path.write_text(rows(source, f"{images}/x/a.jpg", "A dog."))
    (entry,) = READERS[source](Given((path,), images=images))
    assert (entry.file_name, entry.captions) == ("x/a.jpg", ("A dog.",))
    path.write_text(rows(source, "/etc/a.jpg", "A dog."))
    with pytest.raises(ValueError):  # the only row is refused
        READERS[source](Given((path,), images=images))


@pytest.mark.parametrize(
    "source", ["csv", "tsv", "jsonl", "gif", "xmodaler", "blip", "imagefolder"]
)
def test_a_list_in_a_caption_is_several_captions_in_every_source(source, tmp_path):
    path = tmp_path / "metadata.csv"
    path.write_text(rows(source, "a.jpg", "['A dog.', 'A cat.']"))
    (entry,) = READERS[source](Given((path,), images=tmp_path))
    assert entry.captions == ("A dog.", "A cat.")
