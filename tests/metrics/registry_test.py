"""A metric that a file registers is computed, shown and written like the others."""

import json

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
        with pytest.raises(ValueError, match=f"a metric {name} already"):
            registry.register(name)(brevity)
    with pytest.raises(ValueError, match="a metric Brevity already"):
        registry.register("Brevity")(lambda references, captions: [])
