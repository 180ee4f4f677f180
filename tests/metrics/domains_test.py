"""A domain of images has the scores that its images have alone."""

import json

import pytest

from tfcap.metrics import coco, results
from tfcap.metrics.domains import score_domains

DOMAINS = {11: "in-domain", 5: "out-domain", 8: "in-domain", 301: "out-domain", 42: "out-domain"}
DOMAINS |= {77: "near-domain", 78: "near-domain"}  # image 9 has none


def of(domain, values):
    return {image: values[image] for image, name in DOMAINS.items() if name == domain}


def test_a_domain_is_scored_as_if_it_were_alone(references, predictions):
    with coco.CocoScorer(["BLEU", "ROUGE-L", "CIDEr", "CHAIR"], java=None) as plain:
        scores = plain.score(references, predictions)
        domains = score_domains(scores, references, predictions, DOMAINS, plain)
        assert list(domains) == ["in-domain", "near-domain", "out-domain"]
        for domain, values in domains.items():
            own = plain.score(of(domain, references), of(domain, predictions))
            assert values == pytest.approx({"images": len(own.per_image), **own.corpus})
    means = [scores.per_image[image]["CIDEr"] for image in (11, 8)]
    assert abs(domains["in-domain"]["CIDEr"] - sum(means) / 2) > 1  # of other frequencies


def test_domains_without_a_scored_image_are_left_out(references, predictions):
    with coco.CocoScorer(["BLEU"], java=None) as plain:
        scores = plain.score(references, predictions)
        other = {9: "in-domain", 1000: "out-domain"}
        assert list(score_domains(scores, references, predictions, other, plain)) == ["in-domain"]


def test_domains_are_read_from_the_images(tmp_path):
    path = tmp_path / "nocaps_val_4500_captions.json"
    images = [{"id": 0, "domain": "near-domain"}, {"id": 1}, {"id": 2, "domain": None}]
    path.write_text(json.dumps({"images": images, "annotations": []}))
    assert results.load_domains(path) == {0: "near-domain"}
    path.write_text("[]")
    assert results.load_domains(path) == {}


def test_domains_are_columns_of_the_table_and_an_entry_of_the_file(tmp_path):
    domains = {"in-domain": {"images": 1, "CIDEr": 20.0}, "out-domain": {"images": 1, "CIDEr": 90}}
    scores = results.Scores({"CIDEr": 70.25}, {1: {"CIDEr": 40.0}, 2: {"CIDEr": 100.5}})
    scores.domains.update(domains)
    lines = [line.split() for line in results.format_domains(scores).splitlines()]
    assert lines == [
        ["in-domain", "out-domain", "all"],
        ["images", "1", "1", "2"],
        ["CIDEr", "20.00", "90.00", "70.25"],
    ]
    results.write_metrics(tmp_path / "scores.json", scores)
    assert json.loads((tmp_path / "scores.json").read_text())["domains"] == domains
