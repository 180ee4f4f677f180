"""JSON lines of captions."""

import json

import pytest

from tfcap.preparing.sources import Given, ImageEntry, jsonl


def read(tmp_path, *lines):
    path = tmp_path / "captions.jsonl"
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines))
    given = Given((path,))
    return jsonl(given), [row.place.partition(": ")[2] for row in given.skipped]


def test_lines_hold_one_caption_or_several(tmp_path):
    entries, skipped = read(
        tmp_path,
        {"image": "a.jpg", "caption": "A dog.", "split": "train", "id": 4, "more": [1]},
        "",
        {"file_name": "b.jpg", "sentences": [{"raw": "Two."}, " "], "split": "dev", "id": 2},
        {"path": "c.jpg", "split": None, "subset": "test", "id": None, "cocoid": 3},
        {"image": "a.jpg", "text": "A cat.\u2028", "split": "train", "id": 4},
    )
    assert not skipped and entries == [
        ImageEntry(4, "a.jpg", "train", ("A dog.", "A cat.\u2028"), own_id=True),
        ImageEntry(2, "b.jpg", "val", ("Two.",), own_id=True),
        ImageEntry(3, "c.jpg", "test", (), own_id=True),
    ]


def test_bad_lines_are_skipped_and_listed(tmp_path):
    entries, skipped = read(
        tmp_path,
        {"image": "a.jpg", "caption": "A dog."},
        '{"image": "b.jpg", "caption": ',
        "[" * 99999,
        {"caption": "A dog."},
        {"image": 7, "caption": "A dog."},
        {"image": "b.jpg", "caption": 7},
        {"image": "b.jpg", "captions": ["A dog.", None]},
        {"image": "/b.jpg", "caption": "A dog."},
        {"image": "b.jpg", "caption": "A dog.", "split": "some"},
        {"image": "b.jpg", "caption": "A dog.", "id": "9"},
        '{"image": "b.jpg", "caption": "\\ud800"}',
        ["b.jpg", "A dog."],
    )
    assert [entry.file_name for entry in entries] == ["a.jpg"]
    assert skipped == [f"line {number}" for number in range(2, 13)]
    with pytest.raises(ValueError, match="captions.jsonl must have at least one usable line"):
        read(tmp_path, "{}")


def test_ids_of_captions_are_told(tmp_path):
    path = tmp_path / "captions.jsonl"
    rows = [{"image": "a.jpg", "caption": "A dog.", "id": n} for n in (1, 2)]
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match="line 2: the id must be that of the image.*caption_id"):
        jsonl(Given((path,)))
    path.write_text("\n".join(json.dumps({**row, "image_id": 7}) for row in rows))
    assert [(one.id, len(one.captions)) for one in jsonl(Given((path,)))] == [(7, 2)]
