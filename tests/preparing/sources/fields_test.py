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
        (["caption.1", "caption", "caption.2"], ["caption", "caption.1", "caption.2"]),
        (["Comment 2", "comment-1", "comment_number"], ["comment-1", "Comment 2"]),
        (["title", "Caption"], ["Caption"]),
        (["raw", "sentids", "filename"], ["raw"]),
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


@pytest.mark.parametrize("key", ["caption", "captions", "text", "a column of any name"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('["A dog.", "A cat\\u0027s."]', ("A dog.", "A cat's.")),
        ("['A dog.', \"A cat's.\"]", ("A dog.", "A cat's.")),
        ("['A dog.'\n 'A cat.']", ("A dog.", "A cat.")),  # of NumPy
        ('[{"raw": "A dog."}, {"caption": "A cat."}]', ("A dog.", "A cat.")),
        ("('A dog.', \"A cat's.\")", ("A dog.", "A cat's.")),
        ("['A ] \\'dog\\'.', 'A \" \" cat.']", ("A ] 'dog'.", 'A " " cat.')),
        ("[{'raw': 'A dog.'}, {'raw': 'A cat.'}]", ("A dog.", "A cat.")),
        ("[]", ()),
        ("A dog ['Rex'].", ("A dog ['Rex'].",)),
    ],
)
def test_a_list_in_a_text_is_several_captions_under_any_name(key, text, expected):
    assert captions({key: text}, [key]) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("[Boy with a dog]", "[1, 2]", "(1950)", "('A dog.')", "(A dog, a cat)", "[" * 99999),
        *('["Untitled"] a painting of a dog', "['Untitled'] by ['X']", "['A dog.', 'A ca"),
    ],
)
def test_a_text_that_is_not_wholly_a_list_is_a_caption(text):
    assert captions({"title": text}, ["title"]) == (text,)
    if text.startswith("["):
        with pytest.raises(ValueError, match="must be a list of texts"):
            captions({"captions": text}, ["captions"])


@pytest.mark.parametrize("text", ["", "[1]", "[" * 99999, '{"a": 1', "9" * 9999])
def test_what_is_no_object_is_refused(text):
    assert json_object('{"a": 1}') == {"a": 1}
    with pytest.raises(ValueError):
        json_object(text)
