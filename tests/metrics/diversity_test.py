"""Distinct and novel captions, Div-n, mBLEU, self-CIDEr and oracle equal values by hand."""

import math

import numpy as np
import pytest
from pycocoevalcap.bleu.bleu import Bleu

from tfcap.metrics import coco, diversity


def test_distinct_share_ignores_white_space():
    assert diversity.distinct_share({1: "a dog", 2: "a  dog ", 3: "a cat", 4: "a bird"}) == 75.0
    assert diversity.distinct_share({i: "a man" for i in range(8)}) == 12.5
    assert diversity.distinct_share({1: "a", 2: "b"}) == 100.0


def test_novel_captions_are_not_among_the_training_captions():
    captions = ["a dog runs", "a cat", "a dog", "a cat"]
    assert diversity.novel_share(captions, ["a cat", "a dog runs fast"]) == 50.0
    assert diversity.novel_share(captions, []) == 100.0


def test_div_divides_distinct_n_grams_by_words():
    captions = {
        # 8 words; a, dog, runs, sits; (a dog), (dog runs), (dog sits), (runs a).
        1: ["a dog runs", "a dog sits", "runs a"],
        2: ["a a a a"],  # 4 words, one of them distinct, one bigram.
    }
    assert diversity.div(captions, 1) == pytest.approx((4 / 8 + 1 / 4) / 2)
    assert diversity.div(captions, 2) == pytest.approx((4 / 8 + 1 / 4) / 2)
    assert diversity.div({1: ["a b c", "d e f"]}, 1) == 1.0
    # The divisor is the number of words, not of bigrams: 4 bigrams over 6 words.
    assert diversity.div({1: ["a b c", "d e f"]}, 2) == pytest.approx(4 / 6)
    assert diversity.div({1: ["", ""]}, 1) == 0.0


def test_mbleu_is_bleu_against_the_other_captions():
    captions = {
        1: ["a dog runs on grass", "a dog runs on snow", "a cat sits on grass"],
        2: ["two red cars", "two red cars drive", "a red car in a street"],
    }
    rounds = []
    for j in range(3):
        gts = {i: group[:j] + group[j + 1 :] for i, group in captions.items()}
        res = {i: [group[j]] for i, group in captions.items()}
        rounds.append(Bleu(4).compute_score(gts, res, verbose=0)[0])
    result = diversity.mbleu(captions)
    np.testing.assert_allclose(result, 100 * np.mean(rounds, axis=0), rtol=1e-12)
    assert result[0] > result[3] > 0
    # By hand: one image; each time 4 of 5 words and 3 of 4 bigrams match, lengths are equal.
    one, two, *_ = diversity.mbleu({1: ["a b c d e", "a b c d f"]})
    assert one == pytest.approx(80.0, abs=1e-5)
    assert two == pytest.approx(100 * math.sqrt(4 / 5 * 3 / 4), abs=1e-5)
    same = diversity.mbleu({1: ["a b c d"] * 3})
    np.testing.assert_allclose(same, [100.0] * 4, rtol=1e-6)


def test_mbleu_weights_rounds_by_their_number_of_images():
    captions = {1: ["a b", "a c", "a b"], 2: ["d e", "d e"]}
    # Rounds 1 and 2 use both images, round 3 uses only the first.
    first = Bleu(4).compute_score(
        {1: ["a c", "a b"], 2: ["d e"]}, {1: ["a b"], 2: ["d e"]}, verbose=0
    )[0][0]
    second = Bleu(4).compute_score(
        {1: ["a b", "a b"], 2: ["d e"]}, {1: ["a c"], 2: ["d e"]}, verbose=0
    )[0][0]
    third = Bleu(4).compute_score({1: ["a b", "a c"]}, {1: ["a b"]}, verbose=0)[0][0]
    expected = 100 * (2 * first + 2 * second + third) / 5
    assert diversity.mbleu(captions)[0] == pytest.approx(expected, rel=1e-12)


REFERENCES = {
    1: ["a red dog", "the dog runs"],
    2: ["a blue cat", "the cat"],
    3: ["a tree"],
    4: ["some water here"],
}


def test_self_cider_of_two_captions_equals_a_calculation_by_hand():
    # The weight of a word is ln 4 - ln df: ln 4/3 for "a", ln 4 for "dog", "red" and "sits".
    a, rare = math.log(4 / 3), math.log(4)
    one = (a * a + rare * rare) / (a * a + 2 * rare * rare)  # "a red dog", "a sits dog"
    # No bigram or trigram is shared, so their cosines are 0. No caption has a 4-gram, so the cosine
    # for n = 4 is 0 even between a caption and itself.
    same, other = 3 / 4, one / 4
    largest, smallest = math.sqrt(same + other), math.sqrt(same - other)
    expected = -math.log(largest / (largest + smallest)) / math.log(2)
    result = diversity.self_cider({7: ["a red dog", "a sits dog"]}, REFERENCES)
    assert result == {7: pytest.approx(expected, rel=1e-12)}


def test_self_cider_is_0_for_equal_and_1_for_unrelated_captions():
    groups = {
        1: ["a red dog runs", "a red dog runs", "a red dog runs"],
        2: ["a red dog runs", "the blue cat sits", "some water is here"],
        3: ["", ""],
    }
    result = diversity.self_cider(groups, REFERENCES)
    assert result[1] == pytest.approx(0.0, abs=1e-7)
    assert result[2] == pytest.approx(1.0)
    assert result[3] == 0.0


def test_measures_of_an_image_are_those_of_its_own_captions():
    """The third caption of image 1 counts, although the other image has only two."""
    references = {1: ["a dog runs", "the dog"], 2: ["a man sits", "a person"]}
    captions = {1: ["a cat", "a dog and a cat", "a dog"], 2: ["a man", "a bus"]}
    with coco.CocoScorer(("CIDEr", "CHAIR"), java=None) as scorer:
        result = diversity.measure(captions, references, scorer, ["A CAT!", "a dog runs"])
        best = scorer.score(references, {1: "a dog", 2: "a man"}).corpus["CIDEr"]
    assert result["diversity"]["novel %"] == pytest.approx(80)
    assert result["diversity"]["distinct %"] == 100
    assert result["oracle"]["CHAIRi"] == result["oracle"]["CHAIRs"] == 0  # a lower share is better
    assert result["mean"]["CHAIRi"] == pytest.approx(50)
    assert result["oracle"]["CHAIR-recall"] == 100
    assert result["oracle"]["CIDEr"] == pytest.approx(best) and result["mean"]["CIDEr"] < best
