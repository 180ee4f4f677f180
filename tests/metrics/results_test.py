"""Result and annotation files are read as they were written; damaged files are refused."""

import json
import zipfile

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
    result = results.load_references(file(REFERENCE_FILE))
    assert list(result.items()) == [(7, ["ein Mädchen"]), (3, ["a dog", "the dog"])]


def test_references_with_a_mark_are_left_out_and_counted(file, capsys):
    content = json.loads(json.dumps(REFERENCE_FILE))
    for annotation, mark in zip(
        content["annotations"], ("is_precanned", "is_rejected"), strict=False
    ):
        annotation |= {"is_precanned": False, "is_rejected": 0, mark: True}
    assert results.load_references(file(content)) == {3: ["the dog"]}
    said = capsys.readouterr().out
    assert "left out (1 is_precanned, 1 is_rejected), and image 7 without another caption" in said
    first, second, third = content["annotations"]
    first["caption"] = None  # a rejected one needs no text
    assert results.load_references(file(content)) == {3: ["the dog"]}
    third["is_rejected"] = True
    with pytest.raises(ValueError, match="captions.json marks all captions as unusable. Remove"):
        results.load_references(file(content))
    first["is_rejected"] = "maybe"
    with pytest.raises(ValueError, match="captions.json .*'is_rejected' must be true or false"):
        results.load_references(file(content))


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


def test_several_captions_and_their_scores_are_read_back(tmp_path):
    captions = {7: ["a dog", "ein Mädchen"], 3: ["", "a\nb", "c"]}
    scores = {7: [-1.5, -2.0], 3: [0.0, -1e-30, -7]}
    path = tmp_path / "h.json"
    results.write_hypotheses(path, captions, scores)
    result = results.load_hypotheses(path)
    assert result == results.Hypotheses(captions, scores) and list(result.captions) == [7, 3]
    assert results.load_results(path) == {7: "a dog", 3: ""}
    results.write_hypotheses(path, captions)
    assert results.load_hypotheses(path).scores is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"image_id": 1}, "COCO's result format: it has the entry {'image_id': 1}"),
        ([{"image_id": "1", "caption": "a"}], "has the entry {'image_id': '1'"),
        ([{"image_id": 1, "caption": "a"}] * 2, "two entries for image 1"),
    ],
)
def test_results_of_another_layout_are_refused(file, content, message):
    with pytest.raises(ValueError, match=message):
        results.load_results(file(content))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([{"image_id": 1, "caption": "a"}], "COCO's annotation format"),
        ({"images": [{"id": "7"}], "annotations": []}, "COCO's annotation format"),
        (REFERENCE_FILE | {"images": [{"id": 3}]}, "has the annotation {'id': 1, 'image_id': 7"),
        ({"images": [{"id": i} for i in range(5)], "annotations": []}, "no captions for images 0"),
    ],
)
def test_references_of_another_layout_are_refused(file, content, message):
    with pytest.raises(ValueError, match=message):
        results.load_references(file(content))


def test_images_without_references_are_left_out_on_request(file):
    images = [{"id": 99}, *REFERENCE_FILE["images"]]
    bare = file(REFERENCE_FILE | {"images": images})
    with pytest.raises(ValueError, match="no captions for .*99.* `partial`"):
        results.load_references(bare)
    assert results.load_references(bare, partial=True) == results.load_references(
        file(REFERENCE_FILE)
    )


@pytest.fixture
def small(monkeypatch):
    """Splits of two and of one image."""
    monkeypatch.setattr(results, "SUBMISSION_IMAGES", {"val2014": 2, "test2014": 1})


def read(path):
    with zipfile.ZipFile(path) as archive:
        return {name: json.loads(archive.read(name)) for name in archive.namelist()}


@pytest.mark.usefixtures("small")
def test_two_splits_make_an_archive(tmp_path):
    path = str(tmp_path / "captions_my_model_results.zip")
    line = results.add_submission(path, "val", {73: "a cat", 42: "a dog"})
    assert line.endswith(
        "all images of val2014; give the same `submission` with the split test2014"
    )
    assert results.add_submission(path, "test2014", {1: "x"}).endswith(
        "captions of all images of test2014"
    )
    assert read(path) == {
        "captions_test2014_my_model_results.json": [{"image_id": 1, "caption": "x"}],
        "captions_val2014_my_model_results.json": [
            {"image_id": 42, "caption": "a dog"},
            {"image_id": 73, "caption": "a cat"},
        ],
    }
    results.add_submission(path, "test2014", {1: "other"})
    assert read(path)["captions_test2014_my_model_results.json"][0]["caption"] == "other"
