"""The captioner and the search that a configuration describes."""

import pytest

from tfcap import configs, runs
from tfcap.data.tokens import FUNCTION_WORDS, SPECIALS, Vocab
from tfcap.runs.build import build_model, build_search


def test_words_become_ids(trained):
    run = runs.load(trained)
    words = run.vocab.words
    changed = run.with_decoding("suppress=red blue,prefix=A Red,bad_endings=of")
    result = changed.search().options
    assert [words[i] for i in result.suppress] == ["red", "blue"]
    assert [words[i] for i in result.prefix] == ["a", "red"]
    assert [words[i] for i in result.bad_endings] == ["of"]
    result = run.with_decoding("bad_endings=default").search().options
    endings = [words[i] for i in result.bad_endings]
    assert endings == [word for word in FUNCTION_WORDS if word in words] and len(endings) > 3
    for changes, message in (
        ("suppress=quux red quuz", "suppress: the vocabulary does not have quux, quuz"),
        ("max_length=2,prefix=a red", "prefix has 2 words, but .* longest caption, 2 words"),
    ):
        with pytest.raises(ValueError, match=message):
            run.with_decoding(changes).search()
    wide = run.with_decoding("min_length=2", beam=4)
    narrow = wide.with_decoding("beam=3")
    result = [(options.beam, options.min_length) for options in map(_options, (run, wide, narrow))]
    assert result == [(2, 0), (4, 2), (3, 2)]
    assert run.with_decoding("beam=2") is run and run.scores["CIDEr"] > 0
    assert narrow.scores.keys() == {"loss", "perplexity"}  # the others are those of other captions


def test_words_of_reports_get_no_full_stop():
    """A search that suppressed the full stop, too, could end no sentence."""
    vocab = Vocab([*SPECIALS, ".", "no", "x-ray"], tokens="iu_xray")
    task = configs.Task(decoding={"suppress": "x-ray", "prefix": "No"})
    result = build_search(task, vocab, dict).options
    assert (result.suppress, result.prefix) == ((6,), (5,))
    task = configs.Task(decoding={"prefix": "no ."})
    assert build_search(task, vocab, dict).options.prefix == (5, 4)


def test_the_widths_of_feature_sets_are_those_of_the_data():
    sets = {"dim": 7, "set_widths": [6, 4]}
    for given, features, widths in (
        ("", sets, [6, 4]),
        ("6 4", sets, [6, 4]),
        ("", {"dim": 7}, [7]),
    ):
        assert build_model(_rfnet(given), 13, features).set_widths == widths
    # Rows that the user has joined are one set of data.
    assert build_model(_rfnet("6 4"), 13, {"dim": 7}).set_widths == [6, 4]
    for given, features, message in (
        ("6 3", sets, "rfnet.set_widths is '6 3', but .* have the widths '6 4'. Leave the key out"),
        ("6 7", {"dim": 7}, "a row of the features has 7 numbers.* Leave `set_widths` out"),
    ):
        with pytest.raises(ValueError, match=message):
            build_model(_rfnet(given), 13, features)


def _rfnet(widths):
    options = {"width": 8, "attention_width": 6, "stage1_steps": 1, "stage2_steps": 1}
    options["set_widths"] = widths
    return configs.Task(max_length=6, model={"type": "rfnet", "rfnet": options})


def _options(run):
    return run.search().options
