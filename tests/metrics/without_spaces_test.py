"""Scores of captions without spaces, compared with numbers that were worked out by hand."""

import math

import pytest

from tfcap import segmentation
from tfcap.metrics.coco import CocoScorer

REFERENCES = {1: ["一只狗。"], 2: ["红色的T恤"], 3: ["两只狗", "两只 棕色的狗"]}
CAPTIONS = {1: "一只猫", 2: "红T恤", 3: "两只狗"}


def scores_of(captions, metrics, tokens="characters"):
    with CocoScorer(metrics, java=None, tokens=tokens) as scorer:
        return scorer.score(REFERENCES, captions)


def test_bleu():
    """2 of 3, 3 of 3 and 3 of 3 letters; 1 of 2, 1 of 2 and 2 of 2 pairs; 9 letters against 11."""
    corpus = scores_of(CAPTIONS, ["BLEU"]).corpus
    brevity = math.exp(1 - 11 / 9)
    assert corpus["BLEU-1"] == pytest.approx(100 * brevity * 8 / 9, abs=1e-4)
    assert corpus["BLEU-2"] == pytest.approx(100 * brevity * math.sqrt(8 / 9 * 4 / 6), abs=1e-4)


def test_rouge():
    """Common letters in order: 2 of 3 and 3; 3 of 3 and 5; 3 of 3 and 3. Beta is 1.2."""
    per_image = scores_of(CAPTIONS, ["ROUGE-L"]).per_image
    second = (1 + 1.44) * 1 * 0.6 / (0.6 + 1.44 * 1)
    values = [per_image[image]["ROUGE-L"] for image in (1, 2, 3)]
    assert values == pytest.approx([200 / 3, 100 * second, 100])


def test_cider():
    """In one of three images: 一, 一只, no 猫 and no 只猫. In two: 只, 狗, 只狗."""
    rare, common = math.log(3), math.log(3 / 2)
    letters = (rare**2 + common**2) / math.sqrt(
        (2 * rare**2 + common**2) * (rare**2 + 2 * common**2)
    )
    pairs = rare**2 / math.sqrt(2 * rare**2 * (rare**2 + common**2))
    value = scores_of(CAPTIONS, ["CIDEr"]).per_image[1]["CIDEr"]
    assert value == pytest.approx(100 * 10 * (letters + pairs) / 4)


def test_spaces_and_punctuation_change_nothing():
    metrics = ["BLEU", "ROUGE-L", "CIDEr"]
    expected = scores_of(CAPTIONS, metrics)
    others = {1: "一 只 猫", 2: "红 t 恤！", 3: "两只 狗 。"}
    assert scores_of(others, metrics).per_image == expected.per_image
    assert expected.notes == [segmentation.described("characters")] and not expected.unavailable
    assert scores_of(CAPTIONS, metrics, "raw").corpus["BLEU-1"] < expected.corpus["BLEU-1"] / 2


def test_scores_for_english_are_left_out():
    scores = scores_of(CAPTIONS, ["METEOR", "SPICE", "CHAIR", "BLEU"])
    english = {"METEOR", "SPICE", "CHAIRi", "CHAIRs", "CHAIR-recall"}
    assert scores.unavailable.keys() == english
    assert all("made for English" in why for why in scores.unavailable.values())
    assert not english & scores.corpus.keys()


def test_a_segmenter_cuts_captions_and_references():
    pytest.importorskip("jieba")
    references = {1: ["两只棕色的狗在草地上奔跑。"]}
    with CocoScorer(["BLEU"], java=None, tokens="jieba") as scorer:
        assert scorer.tokenize_references(references) == {1: ["两只 棕色 的 狗 在 草地 上 奔跑"]}
        assert scorer.notes == [segmentation.described("jieba")] and "jieba 0" in scorer.notes[0]
        scores = scorer.score(references, {1: "两只白色的狗在草地上"})
    brevity = math.exp(1 - 8 / 7)  # 7 words, 6 of them in the reference
    assert scores.corpus["BLEU-1"] == pytest.approx(100 * brevity * 6 / 7, abs=1e-4)
