"""`tfcap.evaluate` scores files, dictionaries and lists alike, as the command does."""

import json

import numpy as np
import pytest

from tfcap.captioning import Caption, Failure
from tfcap.evaluate import evaluate

PREDICTIONS = {7: "a dog runs", 9: "two red squares"}
REFERENCES = {7: ["a dog runs fast", "the dog"], 9: ["two circles", "red circles in a row"]}
METRICS = ("BLEU", "CIDEr")


@pytest.mark.slow
def test_a_part_is_scored_where_it_is_asked_for():
    part = dict(list(PREDICTIONS.items())[1:])
    wanted = {image: REFERENCES[image] for image in part}
    with pytest.raises(ValueError, match="no predictions for .*_val.json.*with `partial`"):
        evaluate(part, REFERENCES, METRICS)
    result = evaluate({**part, 999: "a dog"}, REFERENCES, METRICS, partial=True)
    assert result.corpus == evaluate(part, wanted, METRICS).corpus
    with pytest.raises(ValueError, match="No image has both"):
        evaluate({999: "a dog"}, REFERENCES, METRICS, partial=True)


@pytest.mark.slow
def test_files_dictionaries_lists_and_captions_have_the_same_scores(tmp_path):
    results, annotations = tmp_path / "results.json", tmp_path / "references.json"
    result = [{"image_id": image, "caption": text} for image, text in PREDICTIONS.items()]
    results.write_text(json.dumps(result))
    pairs = [(image, text) for image, texts in REFERENCES.items() for text in texts]
    content = {
        "images": [{"id": image} for image in REFERENCES],
        "annotations": [{"id": n, "image_id": i, "caption": c} for n, (i, c) in enumerate(pairs)],
    }
    annotations.write_text(json.dumps(content))
    first = evaluate(results, str(annotations), METRICS)
    assert first.corpus["BLEU-1"] == pytest.approx(100.0 * 5 / 6, abs=1) and first.corpus["CIDEr"]
    assert evaluate(PREDICTIONS, REFERENCES, METRICS).corpus == first.corpus
    captions = [Caption(text, -1.0, tuple(text.split())) for text in PREDICTIONS.values()]
    assert evaluate(captions, list(REFERENCES.values()), METRICS).corpus == first.corpus
    arrays = {image: np.array(texts) for image, texts in REFERENCES.items()}
    assert evaluate(PREDICTIONS, arrays, METRICS).corpus == first.corpus
    texts = {image: [Caption(text, -1.0, ()) for text in own] for image, own in REFERENCES.items()}
    assert evaluate(PREDICTIONS, texts, METRICS).corpus == first.corpus
    assert list(evaluate(PREDICTIONS, REFERENCES, "CIDEr").corpus) == ["CIDEr"]


@pytest.mark.parametrize(
    ("predictions", "references", "part"),
    [
        (PREDICTIONS, {7: "a dog", 9: "b"}, "image 7 must be a list of captions"),
        (PREDICTIONS, {7: ["a"], 9: ["b", None]}, "image 9 is not text: None"),
        (PREDICTIONS, {7: ["a dog"]}, "no references for image 9"),
        ([Failure("a.jpg", 0, "empty")], [["a"]], "image 0 is not text: Failure"),
        ("nowhere.json", REFERENCES, "Cannot read nowhere.json"),
    ],
)
def test_bad_arguments_are_refused(predictions, references, part):
    with pytest.raises(ValueError, match=part):
        evaluate(predictions, references, METRICS)


def test_a_report_needs_all_captions(tmp_path):
    with pytest.raises(ValueError, match="no predictions for image 9"):
        evaluate({7: "a dog"}, REFERENCES, METRICS, report=str(tmp_path / "page.html"))
