"""The PTB tokenizer equals pycocoevalcap's; the plain one equals it on simple captions."""

from tfcap.metrics import java as java_lib


def tokenize(captions, java):
    return java_lib.ptb_tokenize([java_lib.one_line(c) for c in captions], java, timeout=60)


def test_ptb_tokens_equal_those_of_pycocoevalcap(java, official_tokenize, references, predictions):
    captions = [caption for captions in references.values() for caption in captions]
    captions += ["", *predictions.values(), "I ate vitamin C.", "Two <unk> birds", "(a [b])"]
    official = official_tokenize({1: captions})[1]
    assert tokenize(captions, java) == official
    assert official[0] == "a small red circle is above the large blue square"


def test_line_breaks_do_not_split_a_caption(java):
    captions = ["a dog\nruns", "a\r\ncat", "one\u2028two\u0085three\x0bfour\ttabs", "", "end"]
    expected = ["a dog runs", "a cat", "one two three four tabs", "", "end"]
    assert tokenize(captions, java) == expected
    assert tokenize([], java) == []
    assert tokenize([""], java) == [""]


def test_an_unfinished_tag_does_not_join_captions(java):
    tokens = tokenize(['A dog <p align="x', 'y"> and a cat', "the last one"], java)
    assert len(tokens) == 3
    assert tokens[0].startswith("a dog")
    assert tokens[2] == "the last one"


def test_other_scripts_and_invalid_text_are_tokenized(java, monkeypatch):
    monkeypatch.setenv("LC_ALL", "C")
    captions = ["Ein Mädchen läuft", "犬が走る", "a \ud83d dog", "a dog \N{GRINNING FACE}"]
    assert tokenize(captions, java) == ["ein mädchen läuft", "犬が走る", "a dog", "a dog"]


def test_plain_tokens_equal_ptb_tokens_of_simple_captions(java):
    everyday = [
        "A man's T-shirt, two-door wardrobe.",
        "They don't run; it's raining!",
        "Two dogs play outside.",
        "",
        "Ein Mädchen läuft",
    ]
    assert java_lib.plain_tokenize(everyday) == tokenize(everyday, java)
    assert java_lib.plain_tokenize(["They don't, it's fine."]) == ["they do n't it 's fine"]
