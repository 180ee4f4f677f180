"""Captions of rows with different columns."""

import pytest

from tfcap.preparing.sources.fields import caption_keys, captions, json_object


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["image", "caption", "captions"], ["captions"]),
        (["text", "file_name"], ["text"]),
        (["caption_10", "caption_2", "x"], ["caption_2", "caption_10"]),
        (["caption1", "caption0"], ["caption0", "caption1"]),
        (["image", "label"], []),
    ],
)
def test_columns_of_captions_are_found(names, expected):
    assert caption_keys(names) == expected


def test_texts_lists_and_nothing_are_captions():
    row = {"a": "One.", "b": ["Two.", " ", "Three."], "c": None}
    assert captions(row, ["a", "b", "c", "d"]) == ("One.", "Two.", "Three.")
    for wrong in (5, {"raw": "A."}, [None], ["\ud800"]):
        with pytest.raises(ValueError, match="must be text|valid Unicode"):
            captions({"a": wrong}, ["a"])


@pytest.mark.parametrize("text", ["", "[1]", "[" * 99999, '{"a": 1', "9" * 9999])
def test_what_is_no_object_is_refused(text):
    assert json_object('{"a": 1}') == {"a": 1}
    with pytest.raises(ValueError):
        json_object(text)
