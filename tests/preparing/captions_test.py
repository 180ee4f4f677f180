"""Captions of images become words, and empty captions are dropped."""

import pytest

from tfcap.preparing.captions import changed_tokens, comparable, lengths, tokenized
from tfcap.preparing.sources import Entry


def test_captions_without_words_are_dropped_and_images_stay():
    entries = [
        Entry(3, "a.jpg", "train", ("?!", "A Dog.", "the dog")),
        Entry(1, "b.jpg", "val", (" ",)),
        Entry(2, "c.jpg", "train", ()),
    ]
    kept = list(tokenized(entries))
    assert [(image.id, image.file_name, image.split) for image in kept] == [
        (3, "a.jpg", "train"),
        (1, "b.jpg", "val"),
        (2, "c.jpg", "train"),
    ]
    assert [image.captions for image in kept] == [["A Dog.", "the dog"], [], []]
    assert [image.words for image in kept] == [[["a", "dog"], ["the", "dog"]], [], []]
    assert [image.usable for image in kept] == [True, True, False]


def test_given_words_are_stored_for_training_and_raw_captions_stay_references():
    entries = [
        Entry(1, "a.jpg", "val", ("A man's dog.", "?"), (("a", "mans", "dog"), ())),
        Entry(2, "b.jpg", "val", ("Two.",), (("two-door", "?"),)),
    ]
    kept = list(tokenized(entries, given_tokens=True))
    assert [image.captions for image in kept] == [["A man's dog."], ["Two."]]
    assert [image.stored for image in kept] == [["a mans dog"], ["two-door ?"]]
    assert [image.words for image in kept] == [[["a", "mans", "dog"]], [["two", "door"]]]
    assert changed_tokens(entries, kept) == (2, "?")
    assert list(tokenized(entries))[0].stored is None
    with pytest.raises(ValueError, match="must have a caption file with tokens. .* image 2 .b.jpg"):
        list(tokenized([entries[1]._replace(words=None)], given_tokens=True))


def test_references_are_the_given_words_where_raw_captions_have_others(capsys):
    """Raw Chinese has no spaces: without this every score of a perfect model is 0."""
    words = ("一只", "狗", "在", "草地", "上", "奔跑")
    entries = [
        Entry(1, "a.jpg", "val", ("一只狗在草地上奔跑。", "?"), ((*words, "。"), ())),
        Entry(2, "b.jpg", "train", ("狗",), (("狗",),)),
    ]
    same = Entry(3, "c.jpg", "val", ("A dog on grass.",) * 20, (("a", "dog"),) * 20)
    kept = comparable(list(tokenized([*entries, same], given_tokens=True)))
    assert [image.captions for image in kept[:2]] == [["一只 狗 在 草地 上 奔跑"], ["狗"]]
    assert kept[2].captions == list(same.captions)
    assert "note: 1 of 3 images have other words" in capsys.readouterr().out
    english = [Entry(1, "a.jpg", "val", ("A man's Dog.",), (("a", "man", "s", "dog"),))]
    kept = list(tokenized(english, given_tokens=True))
    assert comparable(kept) == kept and capsys.readouterr().out == ""
    assert lengths(kept) == [0, 0, 0, 0, 1] and lengths([]) == []
