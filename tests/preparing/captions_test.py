"""Captions of images become words, and empty captions are dropped."""

from tfcap.preparing.captions import tokenized
from tfcap.preparing.sources import ImageEntry


def test_captions_without_words_are_dropped_and_images_stay():
    entries = [
        ImageEntry(3, "a.jpg", "train", ("?!", "A Dog.", "the dog")),
        ImageEntry(1, "b.jpg", "val", (" ",)),
        ImageEntry(2, "c.jpg", "train", ()),
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
