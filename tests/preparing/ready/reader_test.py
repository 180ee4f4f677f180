"""An image is found in files of features by one of the forms of its name, or by its id."""

import unicodedata

import numpy as np
import pytest
from helpers import features

from tfcap.preparing.ready import ReadyFeatures
from tfcap.preparing.sources.entry import Entry

IMAGES = {number: features.image(number, regions=3) for number in (391895, 9, 30)}
ENTRIES = [
    Entry(number, f"COCO_val2014_{number:012d}.jpg", "train", ("A dog.",), has_id=True)
    for number in IMAGES
]


def test_folders_inside_a_folder_keep_the_paths_of_the_images(tmp_path):
    (tmp_path / "train2014").mkdir()
    np.savez(tmp_path / "train2014" / "a.npz", feat=IMAGES[9].features)
    entries = [Entry(0, "train2014/a.jpg", "train", ("A dog.",))]
    (result,) = ReadyFeatures([tmp_path], entries).read(entries)
    np.testing.assert_array_equal(result.features, IMAGES[9].features)


@pytest.mark.parametrize(
    "of, named_by",
    [
        (lambda entry: f"COCO_val2014_{entry.id:012d}", "name of the image file"),
        (lambda entry: f"COCO_val2014_{entry.id:012d}.jpg", "file name"),
        (lambda entry: entry.id, "number in the name"),
    ],
)
def test_files_may_name_an_image_in_several_ways(tmp_path, of, named_by):
    path = features.bottom_up(tmp_path / "a.tsv", {of(e): IMAGES[e.id] for e in ENTRIES})
    entries = [entry._replace(id=index) for index, entry in enumerate(ENTRIES)]
    reader = ReadyFeatures([path], entries)
    assert reader.named_by == named_by
    for entry, one in zip(ENTRIES, reader.read(entries), strict=True):
        np.testing.assert_array_equal(one.features, IMAGES[entry.id].features)


@pytest.mark.parametrize("name", ["{}.jpg", "img_{}.jpg"])
def test_a_position_of_an_image_is_not_the_name_of_a_file(tmp_path, name):
    """Sorted names are 0, 1, 10, 11, 2: a position would take the features of another image."""
    names = sorted(name.format(number) for number in range(12))
    entries = [Entry(index, name, "train", ("A dog.",)) for index, name in enumerate(names)]
    images = {number: features.image(number, regions=3) for number in range(12)}
    reader = ReadyFeatures([features.folder(tmp_path / "a", images)], entries)
    for entry, one in zip(entries, reader.read(entries), strict=True):
        number = int(entry.file_name.removeprefix("img_").removesuffix(".jpg"))
        np.testing.assert_array_equal(one.features, images[number].features)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_names_with_accents_are_found_in_either_form_of_unicode(tmp_path, form):
    other = {"NFC": "NFD", "NFD": "NFC"}[form]
    entries = [Entry(0, unicodedata.normalize(form, "café.jpg"), "train", ("A dog.",))]
    key = unicodedata.normalize(other, "café")
    path = features.bottom_up(tmp_path / "a.tsv", {key: IMAGES[9]})
    (result,) = ReadyFeatures([path], entries).read(entries)
    np.testing.assert_array_equal(result.features, IMAGES[9].features)
