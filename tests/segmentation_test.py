"""Words of languages without spaces and of reports: cut, joined, and cut again."""

import marshal
import os
import re
import sys
import tempfile

import pytest

from tfcap import errors, segmentation

SEGMENTERS = {
    "jieba": (
        "jieba",
        "两只棕色的狗在草地上奔跑。",
        ["两只", "棕色", "的", "狗", "在", "草地", "上", "奔跑"],
    ),
    "fugashi": (
        "unidic_lite",
        "茶色の犬が走っている。",
        ["茶色", "の", "犬", "が", "走っ", "て", "いる"],
    ),
    "pythainlp": ("pythainlp", "สุนัขสองตัววิ่งเล่น", ["สุนัข", "สอง", "ตัว", "วิ่งเล่น"]),
}


def cut(text, tokens="characters"):
    return " ".join(segmentation.words_of([text], tokens)[0])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("一只狗，在 草地上！", "一 只 狗 在 草 地 上"),
        ("穿T-Shirt的人有 iPhone 15", "穿 t shirt 的 人 有 iphone 15"),
        ("サッカーを見る人々", "サ ッ カ ー を 見 る 人 々"),
        ("２匹のﾈｺ・イヌ", "２ 匹 の ﾈ ｺ イ ヌ"),  # full-width digits, half-width Katakana
        ("น้ำ 2 แก้ว", "น้ ำ 2 แ ก้ ว"),  # a tone mark stays with its consonant
        ("ปี ๒๕๖๐", "ปี ๒๕๖๐"),  # Thai digits are digits
        ("か\u3099\u3042", "が あ"),  # NFC
        ("葛\U000e0100城", "葛\U000e0100 城"),  # a variation selector is a mark
        ("🐶\ufe0f 狗 _ \u0301", "狗"),
        ("两名man's 3 years_old", "两 名 man s 3 years_old"),
        ("ខ្មែរ ລາວ", "ខ្ មែ រ ລ າ ວ"),
        ("", ""),
    ],
)
def test_characters(text, words):
    assert cut(text) == words


def test_words_of_scripts_with_spaces_are_those_of_the_tokenizer():
    from tfcap.data import tokens

    texts = [
        "Two men's T-shirts, 3 dogs_and _ a naïve CAFE\u0301.",
        "दो कुत्ते; Öl-Fässer — ИЖ2",
        "\u0301a \ufe0f9 _\u0301 b_\u0301 A\u0307B",
        "안녕하세요 세계!",
    ]
    assert segmentation.words_of(texts, "characters") == tokens.tokenize_all(texts)


@pytest.mark.parametrize(
    ("words", "caption"),
    [
        ("两 只 狗", "两只狗"),
        ("a red bus", "a red bus"),
        ("穿 t shirt 的 人", "穿t shirt的人"),
        ("有 2 3 只", "有2 3只"),
        ("ไป ๒๕ ๓๐ ปี", "ไป๒๕ ๓๐ปี"),
        ("น้ำ ตก", "น้ำตก"),
        ("一 <unk> 狗", "一<unk>狗"),
        ("", ""),
    ],
)
def test_joined(words, caption):
    assert segmentation.joined(words.split()) == caption


@pytest.mark.parametrize("tokens", ["characters", *SEGMENTERS])
def test_a_joined_caption_is_cut_into_the_same_words(tokens):
    if tokens in SEGMENTERS:
        pytest.importorskip(SEGMENTERS[tokens][0])
    for text in [
        "一只狗，在 草地上！",
        "穿T-Shirt的人有 iPhone 15",
        "サッカーを見る 人々。２匹の犬",
        "น้ำตก และ 2 แก้ว ปี ๒๕๖๐",
        "สุนัขสองตัว วิ่งเล่น",
    ]:
        (words,) = segmentation.words_of([text], tokens)
        spaced, caption = " ".join(words), segmentation.joined(words)
        assert segmentation.words_of([spaced, caption], tokens) == [words, words]


@pytest.mark.parametrize("tokens", SEGMENTERS)
def test_a_segmenter_cuts_scripts_without_spaces_alone(tokens):
    module, text, words = SEGMENTERS[tokens]
    pytest.importorskip(module)
    assert segmentation.words_of([text], tokens) == [words]
    assert cut("Frisbee2go 15", tokens) == "frisbee2go 15"
    assert re.fullmatch(rf"{tokens} [\d.]+.*", segmentation.version(tokens))


def test_jieba_reads_its_own_dictionary_alone(tmp_path, monkeypatch):
    """Its cache lies where anybody may write, and may be that of another version."""
    pytest.importorskip("jieba")
    (tmp_path / "jieba.cache").write_bytes(marshal.dumps(({"两只狗": 99}, 99)))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    segmentation.segmenter.cache_clear()
    assert cut("两只狗", "jieba") == "两只 狗"
    assert os.listdir(tmp_path) == ["jieba.cache"]


@pytest.mark.parametrize(
    ("tokens", "module", "command"),
    [
        ("jieba", "jieba", "pip install jieba"),
        ("fugashi", "unidic_lite", "pip install fugashi unidic-lite"),
        ("pythainlp", "pythainlp", "pip install pythainlp"),
    ],
)
def test_a_missing_package_is_named(monkeypatch, tokens, module, command):
    monkeypatch.setitem(sys.modules, module, None)
    segmentation.segmenter.cache_clear()
    with pytest.raises(errors.UsageError, match=f"`tokens={tokens}` needs .*{command}"):
        segmentation.words_of(["狗"], tokens)
    segmentation.segmenter.cache_clear()


# Words that the code of R2Gen makes of a report; with MIMIC-CXR others, where two are given.
REPORTS = [
    (
        "The heart is normal. Lungs are clear, no effusion.",
        "the heart is normal . lungs are clear no effusion .",
    ),
    (
        "1. No acute disease. 2. Stable (2.5 cm) nodule. 3. Follow-up.",
        "no acute disease . stable 25 cm nodule . follow-up .",
    ),
    (
        "Normal.. XXXX cathet'er/line; tip at T5. Clear",
        "normal . xxxx catheterline tip at t5 . clear .",
    ),
    (
        "Findings:\nThe heart  is ___ normal.\n2. Clear lungs",
        "findings the heart is normal 2 . clear lungs .",
        "findings the heart is normal . clear lungs .",
    ),
    (
        "Heart size . is = normal @ T11. next . . end",
        "heart size . is normal t1next . . end .",
    ),
    (
        'A B. C? D! "quoted" [x] {y} 50% & <tag> ~#$',
        "a b . c d quoted x y 50 tag ~#$ .",
    ),
]


@pytest.mark.parametrize(("text", "iu_xray", "mimic_cxr"), [(*r, r[-1])[:3] for r in REPORTS])
def test_reports_have_the_words_of_r2gen(text, iu_xray, mimic_cxr):
    assert cut(text, "iu_xray") == iu_xray
    assert cut(text, "mimic_cxr") == mimic_cxr
    for tokens, words in (("iu_xray", iu_xray), ("mimic_cxr", mimic_cxr)):
        assert cut(words, tokens) == words


def test_a_report_is_joined_and_found_again():
    words = "the heart is normal . <unk> x-ray . no 25 cm nodule .".split()
    caption = segmentation.joined(words)
    assert caption == "the heart is normal. <unk> x-ray. no 25 cm nodule."
    assert cut(caption, "iu_xray") == " ".join(words).replace("<unk>", "unk")
    assert segmentation.written(" ".join(words), "iu_xray") == " ".join(words)


def test_a_report_of_a_model_stays_as_it_is():
    """It may end in the middle of a sentence, or with an unknown word."""
    for words in ("no edema . the heart", "no <unk> . level 2 . t1 .", ""):
        assert cut(words, "mimic_cxr") == words
    assert cut("no edema", "mimic_cxr") == "no edema ."
    assert cut(" ... ", "mimic_cxr") == ""


def test_which_ways_are_cut_here():
    assert [tokens for tokens in segmentation.WAYS if not segmentation.is_cut(tokens)] == [
        "raw",
        "given",
    ]
    assert segmentation.version("raw") is segmentation.version("characters") is None


def test_another_version_of_a_segmenter_is_told():
    pytest.importorskip("jieba")
    same = {"tokens": "jieba", "segmenter": segmentation.version("jieba")}
    for fingerprint in ({}, {"tokens": "characters"}, same):
        assert segmentation.other_version(fingerprint) == ""
    note = segmentation.other_version(same | {"segmenter": "jieba 0.1"})
    assert f"cut by jieba 0.1, but {same['segmenter']} is installed" in note
    note = segmentation.other_version({"tokens": "none", "segmenter": "none 1"})
    assert "but not all of it is installed" in note
