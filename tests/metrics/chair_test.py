"""CHAIR counts the mentioned objects that are neither labelled nor in a reference."""

import json

import numpy as np
import pytest

from tfcap.metrics import bootstrap, chair, coco, results

REFERENCES = {
    1: ["A man walks his dog.", "A person and an animal outside."],
    2: ["A red kitchen.", "A clean kitchen with a sink."],
    3: ["The sky.", "Blue sky with clouds."],
}
# 1: man is right, cat is wrong twice; 2: sink is right, oven is labelled only; 3: no object.
CAPTIONS = {1: "a man with cats and a kitten", 2: "a sink next to an oven", 3: "clouds in the sky"}


def score(options=None):
    with coco.CocoScorer(["CHAIR"], java=None, options=options) as scorer:
        return scorer.score(REFERENCES, CAPTIONS)


def labels(*paths):
    return results.Options(labels=chair.read_labels(paths, list(REFERENCES)))


@pytest.fixture
def instances(tmp_path):
    path = tmp_path / "instances.json"
    content = {
        "images": [{"id": 2}, {"id": 1}, {"id": 3}],
        "annotations": [{"image_id": 2, "category_id": 79}, {"image_id": 1, "category_id": 1}],
        "categories": [{"id": 79, "name": "oven"}, {"id": 1, "name": "person"}],
    }
    path.write_text(json.dumps(content))
    return str(path)


def test_without_labels_the_objects_of_the_references_count_and_that_is_said():
    result = score()
    assert result.corpus["CHAIRi"] == pytest.approx(100 * 3 / 5)  # cat, cat and oven of 5 mentions
    assert result.corpus["CHAIRs"] == pytest.approx(100 * 2 / 3)
    assert result.corpus["CHAIR-recall"] == pytest.approx(100 * 2 / 3)  # of person, dog and sink
    assert result.per_image[1]["CHAIRi"] == pytest.approx(100 * 2 / 3)
    assert [result.per_image[3][key] for key in ("CHAIRi", "CHAIRs", "CHAIR-recall")] == [0, 0, 0]
    assert any(
        "CHAIR knows only the objects that the references mention" in note for note in result.notes
    )


def test_labelled_objects_are_right_as_well(instances):
    result = score(labels(instances))
    assert result.corpus["CHAIRi"] == pytest.approx(100 * 2 / 5)
    assert result.corpus["CHAIRs"] == pytest.approx(100 / 3)
    assert result.corpus["CHAIR-recall"] == pytest.approx(100 * 3 / 4)
    assert not any("CHAIR" in note for note in result.notes)


def test_a_file_of_another_layout_is_refused(tmp_path):
    (tmp_path / "other.json").write_text('{"images": []}')
    with pytest.raises(ValueError, match="other.json is not like COCO's instances_val2014"):
        chair.read_labels([str(tmp_path / "other.json")], [1])


def test_a_resample_adds_the_counts_of_its_images():
    """The ratio of summed counts, which is not the mean of the ratios of the images."""
    interval = bootstrap.intervals(score(), samples=200)["CHAIRi"]
    assert interval.value == pytest.approx(60) and 0 <= interval.low < 60 < interval.high <= 100
    drawn = next(bootstrap.draws(3, 200, 1))
    counts = score().statistics["CHAIRi"]
    part, whole = (drawn @ counts).T
    ratios = [100 * p / w if w else 0 for p, w in zip(part, whole, strict=True)]
    ends = np.percentile(ratios, [2.5, 97.5]).tolist()
    assert [interval.low, interval.high] == pytest.approx(ends)


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
        ("flamingoes on buses with couches", ["bird", "bus", "couch"]),
        ("two canoes beside a canoe and tvs on shelves", ["boat", "boat", "tv"]),
        ("policemen firemen and gentlemen in minibuses", ["person"] * 3 + ["bus"]),
        ("neckties and bowties", ["tie", "tie"]),
        ("tomatoes and avocados as it was", []),
        ("", []),
    ],
)
def test_mentions_of_a_caption(caption, found):
    assert chair.mentions(caption.split()) == found
