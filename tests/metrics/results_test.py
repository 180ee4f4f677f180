"""Result and annotation files are read as they were written; damaged files are refused."""

import json

import pytest

from tfcap.metrics import results

REFERENCE_FILE = {
    "images": [{"id": 7, "file_name": "a.jpg"}, {"id": 3, "file_name": "b.jpg"}],
    "annotations": [
        {"id": 0, "image_id": 3, "caption": "a dog"},
        {"id": 1, "image_id": 7, "caption": "ein Mädchen"},
        {"id": 2, "image_id": 3, "caption": "the dog"},
    ],
}


@pytest.fixture
def file(tmp_path):
    def write(content):
        path = tmp_path / "captions.json"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_written_results_are_read_in_the_same_order(tmp_path):
    path, predictions = tmp_path / "r.json", {9: "a dog\nruns", 2: "", 391895: "ein Mädchen"}
    results.write_results(path, predictions)
    assert list(results.load_results(path).items()) == list(predictions.items())
    assert json.loads(path.read_text())[0] == {"image_id": 9, "caption": "a dog\nruns"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["r.json"]


def test_references_are_read_in_the_order_of_the_images(file):
    found = results.load_references(file(REFERENCE_FILE))
    assert list(found.items()) == [(7, ["ein Mädchen"]), (3, ["a dog", "the dog"])]


def entry(**changes):
    return {"image_id": 1, "caption": "a"} | changes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            json.dumps([entry()])[:-5],
            r"captions.json is not valid JSON: .* line 1 column \d+.* Give a whole file",
        ),
        ("", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("[" + "9" * 5000 + "]", "is not valid JSON"),
        (b"\xff\xfe[]", "is not UTF-8 text at byte 0"),
        (
            {"image_id": 1},
            r"must hold a list of .*Received: an object with the keys \['image_id'\]",
        ),
        ([entry(), 5], "entry 1 must be an object. Received: 5. Give"),
        ([entry(image_id="1")], "entry 0: \"image_id\" must be a whole number. Received: '1'"),
        ([entry(image_id=True)], "whole number. Received: True"),
        ([entry(image_id=1.5)], "whole number. Received: 1.5"),
        ([{"caption": "a"}], "whole number. Received: nothing"),
        ([entry(caption=None)], '"caption" must be text. Received: nothing'),
        ([entry(caption=["a"])], '"caption" must be text. Received: a list of 1'),
        (
            [entry(), entry(image_id=2), entry()],
            "one caption per image. Received: more than one for image 1. Keep",
        ),
    ],
)
def test_broken_results_are_refused(file, content, message):
    with pytest.raises(ValueError, match=message) as caught:
        results.load_results(file(content))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([entry()], 'object with the lists "images" and "annotations". Received: a list of 1'),
        ({"images": [], "annotations": 3}, 'lists "images" and "annotations"'),
        (REFERENCE_FILE | {"images": [{"id": 3}, {"id": 3}]}, "lists image 3 more than once"),
        (REFERENCE_FILE | {"images": [{"id": "7"}]}, 'image 0: "id" must be a whole number'),
        (REFERENCE_FILE | {"images": [{"id": 3}]}, "annotation 1: image_id 7 is not in"),
        (
            {"images": [{"id": i} for i in range(5)], "annotations": []},
            r"no captions for images 0, 1, 2, … \(5 images\)",
        ),
        (REFERENCE_FILE | {"annotations": [entry(caption=7)]}, "annotation 0: .* Received: 7"),
    ],
)
def test_broken_references_are_refused(file, content, message):
    with pytest.raises(ValueError, match=message):
        results.load_references(file(content))


def test_missing_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match="Cannot read .*absent.json: No such file"):
        results.load_results(tmp_path / "absent.json")
    with pytest.raises(ValueError, match="Cannot read"):
        results.load_references(tmp_path)


SCORES = results.Scores(
    corpus={"BLEU-4": 31.25, "CIDEr": 101.5},
    per_image={1: {"BLEU-4": 31.25, "CIDEr": 101.5}},
    unavailable={"METEOR": "no Java"},
    notes=["plain tokenizer"],
)


def test_metrics_are_written_with_missing_metrics_and_notes(tmp_path):
    path = tmp_path / "m.json"
    results.write_metrics(path, SCORES)
    assert json.loads(path.read_text()) == {
        "BLEU-4": 31.25,
        "CIDEr": 101.5,
        "unavailable": {"METEOR": "no Java"},
        "notes": ["plain tokenizer"],
    }
    results.write_metrics(path, results.Scores({"CIDEr": 1.0}, {}))
    assert json.loads(path.read_text()) == {"CIDEr": 1.0}


def test_a_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "m.json"
    results.write_metrics(path, SCORES)
    before = path.read_text()
    with pytest.raises(ValueError, match="[Oo]ut of range float"):
        results.write_metrics(path, results.Scores({"CIDEr": float("nan")}, {}))
    assert path.read_text() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.json"]


def test_the_table_shows_scores_and_reasons_for_missing_ones():
    assert results.format_table(SCORES).splitlines() == [
        "metric     score",
        "-------- -------",
        "BLEU-4     31.25",
        "METEOR         -",
        "CIDEr     101.50",
        "METEOR is not computed: no Java",
        "note: plain tokenizer",
    ]


def test_the_table_shows_intervals_and_the_number_of_images():
    scores = results.Scores({"CIDEr": 43.3}, {1: {}, 2: {}})
    assert results.format_table(scores, {"CIDEr": " (29.0 to 59.8)"}).splitlines()[2:] == [
        "CIDEr      43.30 (29.0 to 59.8)",
        "2 images; in brackets 95 % intervals (bootstrap)",
    ]


def test_reference_sets_take_the_first_five_or_forty():
    references = {1: [f"a {n}" for n in range(40)], 2: [f"b {n}" for n in range(45)]}
    assert results.reference_set(references, "all") == references
    five = results.reference_set(references, "c5")
    assert five == {1: references[1][:5], 2: references[2][:5]}
    forty = results.reference_set(references, "c40")
    assert [len(captions) for captions in forty.values()] == [40, 40]
    with pytest.raises(ValueError, match=r"c40 needs 40 .* Received: 6 for image 3; 1 of 3 images"):
        results.reference_set(references | {3: ["c"] * 6}, "c40")
    with pytest.raises(ValueError, match="must be one of all, c5, c40. Received: 'c10'"):
        results.reference_set(references, "c10")
