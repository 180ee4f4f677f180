"""A metric that a file registers is computed, shown and written like the others."""

import json

import numpy as np
import pytest

from tfcap.metrics import coco, registry, results

REFERENCES = {1: ["a red circle", "one circle"], 2: ["two dogs"]}
PREDICTIONS = {1: "a circle", 2: "two dogs run"}


def brevity(references, captions):
    """The share of captions that are shorter than their first reference."""
    return [
        float(len(c.split()) < len(r[0].split())) for r, c in zip(references, captions, strict=True)
    ]


@pytest.fixture
def brevity_is_registered():
    registry.register("Brevity")(brevity)
    yield
    registry.METRICS.remove("Brevity")
    registry.KEYS.remove("Brevity")
    del registry.FURTHER["Brevity"]


@pytest.mark.usefixtures("brevity_is_registered")
def test_a_registered_metric_is_computed_shown_and_written(tmp_path):
    scorer = coco.CocoScorer(java=None)
    scores = scorer.score(REFERENCES, PREDICTIONS)
    assert scores.corpus["Brevity"] == 50
    assert [image["Brevity"] for image in scores.per_image.values()] == [100, 0]
    assert "\nBrevity    50.00" in results.format_table(scores)
    results.write_metrics(tmp_path / "scores.json", scores)
    assert json.loads((tmp_path / "scores.json").read_text())["Brevity"] == 50
    alone = coco.CocoScorer(["Brevity"], java=None).score(REFERENCES, PREDICTIONS)
    assert list(alone.corpus) == ["Brevity"]


@pytest.mark.usefixtures("brevity_is_registered")
@pytest.mark.parametrize("wrong", [[1.0], [1.0, float("nan")]])
def test_a_metric_must_return_a_finite_number_for_each_image(wrong, monkeypatch):
    monkeypatch.setitem(registry.FURTHER, "Brevity", lambda references, captions: wrong)
    with pytest.raises(ValueError, match="Brevity must return a finite number for each of 2 image"):
        coco.CocoScorer(["Brevity"], java=None).score(REFERENCES, PREDICTIONS)


@pytest.mark.usefixtures("brevity_is_registered")
def test_two_metrics_cannot_share_a_name():
    registry.register("Brevity")(brevity)  # again, as a notebook does
    assert registry.KEYS.count("Brevity") == 1
    for name in ("CIDEr", "BLEU-1"):
        with pytest.raises(ValueError, match=f"must be new. Received: '{name}'"):
            registry.register(name)(brevity)
    with pytest.raises(ValueError, match="must be new. Received: 'Brevity'"):
        registry.register("Brevity")(lambda references, captions: [])


@pytest.fixture
def asked_for():
    """A metric with two keys that is computed only on request."""

    @registry.register_on_request("Lengths", ["Length", "Share"])
    def lengths(inputs):
        if inputs.options.instances:
            raise registry.Unavailable("it needs a ruler")
        words = [len(caption.split()) for caption in inputs.captions]
        counts = np.array(
            [[n, len(r[0].split())] for n, r in zip(words, inputs.references, strict=True)], float
        )
        share = registry.Values(counts[:, 0] / counts[:, 1], counts)
        assert inputs.raw_captions == list(PREDICTIONS.values()) and inputs.images == [1, 2]
        return {"Length": registry.Values(words), "Share": share}, ["lengths are in words"]

    yield lengths
    registry.METRICS.remove("Lengths")
    del registry.ON_REQUEST["Lengths"]
    for key in ("Length", "Share"):
        registry.KEYS.remove(key)


@pytest.mark.usefixtures("asked_for")
def test_a_metric_on_request_has_several_keys_and_notes():
    assert "Lengths" in registry.METRICS and "Lengths" not in registry.defaults()
    found = coco.CocoScorer(["Lengths"], java=None).score(REFERENCES, PREDICTIONS)
    assert found.corpus == pytest.approx({"Length": 250, "Share": 100})  # 5 words of 5
    assert [image["Share"] for image in found.per_image.values()] == pytest.approx([200 / 3, 150])
    assert found.notes.count("lengths are in words") == 1
    assert found.statistics["Share"].tolist() == [[2, 3], [3, 2]]
    options = registry.Options(instances=["x"])
    without = coco.CocoScorer(["Lengths"], java=None, options=options).score(
        REFERENCES, PREDICTIONS
    )
    assert without.unavailable == {"Length": "it needs a ruler", "Share": "it needs a ruler"}


def test_two_metrics_cannot_share_a_key(asked_for):
    registry.register_on_request("Lengths", ["Length", "Share"])(asked_for)  # as in a notebook
    assert registry.KEYS.count("Length") == 1
    with pytest.raises(ValueError, match="must be new. Received: 'CIDEr'"):
        registry.register_on_request("Other", ["CIDEr"])(lambda inputs: None)
    assert "Other" not in registry.METRICS
