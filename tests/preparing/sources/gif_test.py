"""Reads captions of clips from lines of JSON."""

import dataclasses
import json

import pytest

from tfcap.preparing.sources import Given, ImageEntry
from tfcap.preparing.sources.gif import clip_file, gif, recognises


def write(path, *lines, end="\n"):
    path.write_text(end.join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return Given((path,), images=path.parent / "clips")


def test_a_name_that_is_too_long_is_no_file(tmp_path):
    assert clip_file(tmp_path, "x" * 300) == "x" * 300


def test_captions_of_a_clip_are_joined_and_the_file_is_found(tmp_path):
    (tmp_path / "clips" / "b").mkdir(parents=True)
    (tmp_path / "clips" / "a.gif").touch()
    given = write(
        tmp_path / "captions.jsonl",
        {"gif": "a.gif", "caption": "A dog runs."},
        {"video": "b", "caption": ["A cat.", "A cat sleeps."]},
        {"gif": "a", "caption": "Two."},
        {"gif": "a.gif", "caption": "The dog."},
    )
    assert gif(given) == [
        ImageEntry(0, "a.gif", None, ("A dog runs.", "Two.", "The dog.")),
        ImageEntry(1, "b", None, ("A cat.", "A cat sleeps.")),
    ]


@pytest.mark.parametrize("names", [("a", "a.gif"), ("a.gif", "a")])
@pytest.mark.parametrize("images", ["clips", "none", None])
def test_a_clip_with_and_without_its_ending_is_in_one_split(tmp_path, names, images):
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "a.gif").touch()
    lines = [{"gif": name, "caption": name, "split": "train"} for name in (*names, *names)]
    lines[-1]["split"] = "test"
    given = write(tmp_path / "captions.jsonl", *lines)
    given = dataclasses.replace(given, images=images and tmp_path / images)
    (entry,) = gif(given)
    assert (entry.split, entry.captions) == ("train", (*names, names[0]))
    assert entry.file_name == ("a.gif" if images == "clips" else names[0])
    assert [row.reason for row in given.skipped] == [
        f"the clip {names[1]} must be in one split. Received: a second one"
    ]


def test_a_folder_and_a_file_of_one_name_are_two_clips(tmp_path):
    (tmp_path / "clips" / "a").mkdir(parents=True)
    (tmp_path / "clips" / "a.gif").touch()
    lines = [{"gif": name, "caption": name} for name in ("a", "a.gif")]
    given = write(tmp_path / "captions.jsonl", *lines)
    assert [entry.file_name for entry in gif(given)] == ["a", "a.gif"]


def test_splits_and_several_files_are_read(tmp_path):
    first = write(tmp_path / "1.jsonl", {"gif": "a.gif", "caption": "A.", "split": "training"})
    second = write(tmp_path / "2.jsonl", {"gif": "b.gif", "caption": "B.", "split": "val"})
    entries = gif(Given(first.captions + second.captions))
    assert [(entry.file_name, entry.split) for entry in entries] == [
        ("a.gif", "train"),
        ("b.gif", "val"),
    ]


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path):
    given = write(
        tmp_path / "captions.jsonl",
        '\ufeff{"video": "a.gif", "caption": "A."}',
        '{"video": "a.gif", "caption": "B."}\r\n',
        end="\r\n",
    )
    assert gif(given)[0].captions == ("A.", "B.") and recognises(given.captions[0])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{broken", "it must be a JSON object: Expecting property name"),
        ("[1]", "must be a JSON object"),
        ('{"gif": "a.gif"}', "a line must have 'video' or 'gif', and 'caption'"),
        ('{"gif": 5, "caption": "A."}', "the file name must be text"),
        ('{"gif": "../a.gif", "caption": "A."}', "without '..'"),
        ('{"gif": "a.gif", "caption": 5}', "captions .* must be text"),
        ('{"gif": "a.gif", "caption": "A.", "split": "some"}', "the split must be one of"),
        ('{"gif": "good.gif", "caption": "A.", "split": "val"}', "must be in one split"),
        ("[" * 100_000, "too many brackets"),
    ],
)
def test_a_bad_line_is_skipped_and_listed(tmp_path, line, reason):
    given = write(tmp_path / "captions.jsonl", {"gif": "good.gif", "caption": "A."}, line)
    assert [entry.file_name for entry in gif(given)] == ["good.gif"]
    (row,) = given.skipped
    assert row.place.endswith("captions.jsonl: line 2")
    with pytest.raises(ValueError, match=reason):
        raise ValueError(row.reason)


def test_a_line_without_end_is_refused_and_not_read_into_memory(tmp_path):
    given = write(tmp_path / "captions.jsonl", "x" * (3 << 20))
    with pytest.raises(ValueError, match="line 1: must have at most 1048576 characters"):
        gif(given)


def test_a_file_without_a_usable_line_is_refused(tmp_path):
    with pytest.raises(ValueError, match="must have a line with 'video' or 'gif'"):
        gif(write(tmp_path / "captions.jsonl", "no JSON"))
    with pytest.raises(ValueError, match="Cannot read"):
        gif(Given((tmp_path / "none.jsonl",)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"gif": "a.gif", "caption": "A."}\nnothing', True),
        ('{"image": "a.jpg", "caption": "A."}', False),
        ('{"videos": [], "sentences": []}', False),
        ("[" * 100_000, False),
        ("", False),
    ],
)
def test_the_layout_is_recognised_by_its_first_line(tmp_path, text, expected):
    path = tmp_path / "captions"
    path.write_text(text)
    assert recognises(path) == expected and not recognises(tmp_path)
