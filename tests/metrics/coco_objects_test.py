"""Words of captions are mapped to the 80 object classes of COCO."""

import pytest

from tfcap.metrics import coco_objects
from tfcap.metrics.coco_objects import mentions, singular


def test_there_are_eighty_classes_and_each_names_itself():
    assert len(coco_objects._WORDS) == 80
    for name in coco_objects._WORDS:
        assert mentions(name.split()) == [name]


@pytest.mark.parametrize(
    ("caption", "found"),
    [
        ("two dogs and a man", ["dog", "person"]),
        ("men women and children", ["person"] * 3),
        ("a hot dog on a table", ["hot dog", "dining table"]),
        ("a train on the train tracks", ["train"]),
        ("a baby elephant with its mother", ["elephant", "person"]),
        ("a teddy bear next to a bear", ["teddy bear", "bear"]),
        ("a baseball player with a baseball bat", ["person", "baseball bat"]),
        ("knives forks and wine glasses", ["knife", "fork", "wine glass"]),
        ("an orange shirt and an orange and white cat", ["cat"]),
        ("oranges on a plate with an orange", ["orange", "orange"]),
        ("puppies on buses with couches and boxes", ["dog", "bus", "couch"]),
        ("two canoes beside a canoe and tvs on shelves", ["boat", "boat", "tv"]),
        ("policemen firemen and gentlemen in minibuses", ["person"] * 3 + ["bus"]),
        ("neckties and bowties", ["tie", "tie"]),
        ("tomatoes and avocados as it was", []),
        ("", []),
    ],
)
def test_mentions_of_a_caption(caption, found):
    assert mentions(caption.split()) == found


@pytest.mark.parametrize(
    ("plural", "one"),
    [
        ("buses", "bus"),
        ("bus", "bus"),
        ("grass", "grass"),
        ("puppies", "puppy"),
        ("couches", "couch"),
        ("potatoes", "potato"),
        ("tennis", "tennis"),
        ("people", "person"),
        ("glasses", "glasses"),
        ("ties", "tie"),
    ],
)
def test_plurals_become_singular(plural, one):
    assert singular(plural) == one
