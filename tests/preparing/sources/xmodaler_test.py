"""X-modaler's annotations of Flickr30k."""

import json

import pytest
from helpers import source_files

from tfcap.preparing.sources.xmodaler import recognises, xmodaler


def test_the_names_of_the_files_tell_the_splits(tmp_path):
    made = source_files.xmodaler(tmp_path)
    entries = xmodaler(made.given())
    assert [entry.split for entry in entries] == ["train"] * 4 + ["val", "test"]
    assert entries[5].file_name == "5.jpg" and entries[5].captions == ("A dog .", "Two dogs !")
    assert all(map(recognises, made.files)) and recognises(tmp_path)
    assert len(xmodaler(made._replace(captions=[tmp_path]).given())) == 6


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "Expecting property name"),
        ("[" * 20000, "too many brackets"),
        ("[1]", "must be a JSON object"),
        ('{"sentences": ["A"]}', "must have 'img_path'"),
        ('{"img_path": 5, "sentences": ["A"]}', "file name must be text"),
        ('{"img_path": "../5.jpg", "sentences": ["A"]}', "must be relative"),
        ('{"img_path": "5.jpg", "sentences": [1]}', "must be text"),
        ('{"img_path": "5.jpg", "sentences": ["\\ud800"]}', "valid Unicode"),
    ],
)
def test_a_bad_line_is_skipped_and_listed(tmp_path, line, reason):
    made = source_files.xmodaler(tmp_path)
    with open(made.files[0], "a") as file:
        file.write(f"\r\n{line}\r\n")
    given = made.given()
    assert len(xmodaler(given)) == 6
    assert [row.place for row in given.skipped] == [f"{made.files[0]}: line 6"]
    assert reason in given.skipped[0].reason


def test_a_file_without_a_usable_line_is_refused(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({"image": "a.jpg", "caption": "A dog."}))
    assert not recognises(path)
    with pytest.raises(ValueError, match="must have a usable line"):
        xmodaler(source_files.Made([path], None, []).given())
