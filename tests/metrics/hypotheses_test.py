"""Files with several captions per image are read as written; damaged ones are refused."""

import json

import pytest

from tfcap.metrics import hypotheses

CAPTIONS = {7: ["a dog", "ein Mädchen"], 3: ["", "a\nb", "c"]}
SCORES = {7: [-1.5, -2.0], 3: [0.0, -1e-30, -7]}


def test_written_captions_and_scores_are_read_back(tmp_path):
    path = tmp_path / "h.json"
    hypotheses.write_hypotheses(path, CAPTIONS, SCORES)
    found = hypotheses.load_hypotheses(path)
    assert found.captions == CAPTIONS and found.scores == SCORES
    assert list(found.captions) == [7, 3]
    hypotheses.write_hypotheses(path, CAPTIONS)
    assert hypotheses.load_hypotheses(path) == hypotheses.Hypotheses(CAPTIONS, None)
    assert [item.name for item in tmp_path.iterdir()] == ["h.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "must hold a list of .* Received: an object"),
        ([{"image_id": 1, "caption": "a"}], 'entry 0: "captions" must be .* COCO result file'),
        (
            [{"image_id": 1, "captions": "a dog"}],
            '"captions" must be a list of text. Received: \'a',
        ),
        (
            [{"image_id": 1, "captions": []}],
            '"captions" must be a list of text. Received: a list of',
        ),
        ([{"image_id": 1, "captions": ["a", 2]}], '"captions" must be a list of text'),
        ([{"image_id": "1", "captions": ["a"]}], '"image_id" must be a whole number'),
        ([{"image_id": 1, "captions": ["a"]}] * 2, "entry 1: image 1 occurs twice"),
        ([{"image_id": 1, "captions": ["a"], "scores": [1, 2]}], '"scores" must be 1 numbers'),
        ([{"image_id": 1, "captions": ["a"], "scores": [True]}], '"scores" must be 1 numbers'),
        ([{"image_id": 1, "captions": ["a"], "scores": [float("nan")]}], '"scores" must be 1 num'),
        (
            [
                {"image_id": 1, "captions": ["a"], "scores": [1]},
                {"image_id": 2, "captions": ["a"]},
            ],
            "image 2 has no scores, but other images have",
        ),
    ],
)
def test_damaged_files_are_refused_with_the_reason(tmp_path, content, message):
    path = tmp_path / "h.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        hypotheses.load_hypotheses(path)


@pytest.mark.parametrize("scores", [{1: [0.0]}, {1: [0.0, float("inf")]}])
def test_missing_and_infinite_scores_are_not_written(tmp_path, scores):
    with pytest.raises(ValueError, match="image 1 must have 2 finite scores"):
        hypotheses.write_hypotheses(tmp_path / "h.json", {1: ["a", "b"]}, scores)
    assert not list(tmp_path.iterdir())
