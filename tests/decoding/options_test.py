"""Options of decoding: each one is a key of the configuration and changes what a search finds."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf
from helpers import worlds

from tfcap import configs, decoding
from tfcap.decoding import Options
from tfcap.decoding.search import Search

FIELDS = {field.name: field for field in dataclasses.fields(Options)}
LENGTH = 6
NAN = math.nan


def test_the_keys_of_a_configuration_are_the_fields_of_the_options():
    """In the order of params.yaml, with the same defaults."""
    assert list(configs.Decoding().as_dict().items()) == [
        (name, field.default) for name, field in FIELDS.items()
    ]
    assert Options(**configs.Decoding().as_dict()) == Options()


# For each key another value than its default, and the options beside which it has an effect.
OTHER = {
    "search": ({}, "sample"),
    "beam": ({}, 2),
    "finished": ({}, "retire"),
    "groups": ({"beam": 4, "diversity": 4.0}, 2),
    "diversity": ({"beam": 4, "groups": 2}, 20.0),
    "samples": ({"search": "sample"}, 3),
    "top_k": ({"search": "sample"}, 1),
    "top_p": ({"search": "sample"}, 0.3),
    "order": ({"search": "sample", "samples": 6}, "consensus"),
    "temperature": ({}, 5.0),
    "length_penalty": ({"length_power": 2.0, "beam": 5}, "gnmt"),
    "length_power": ({}, 3.0),
    "suppress_unk": ({}, False),
    "suppress": ({}, (5, 6)),
    "bad_endings": ({}, (4, 5, 6)),
    "prefix": ({}, (7, 4)),
    "min_length": ({}, 4),
    "max_length": ({}, 2),
    "no_repeat_ngram": ({}, 1),
}


@pytest.mark.parametrize("name", FIELDS)
def test_every_option_changes_what_a_search_finds(name):
    """An option that is read but not applied would leave captions and scores as they are."""
    model, context, tables = worlds.random_world(3, images=4, vocab=9, length=LENGTH, end=0.3)
    tables[..., worlds.UNK] += 1  # a frequent word
    beside, value = OTHER[name]

    def find(**given):
        options = Options(**(beside | given))
        consensus = None
        if options.order == "consensus":  # any other order shows that it is used
            consensus = lambda tokens: tf.cast(tf.reduce_sum(tokens, -1), tf.float32)  # noqa: E731
        search = Search(options, LENGTH, consensus)
        return search(model, context, tf.range(4, dtype=tf.int64))[:2]

    (tokens, scores), (others, other_scores) = find(), find(**{name: value})
    assert tokens.shape != others.shape or not (
        np.array_equal(tokens, others) and np.allclose(scores, other_scores)
    )


LITERAL = {  # search, beam and whether the unknown word may be chosen, from docs/systems.md 8
    "xlan_paper": (worlds.retire, 3, False, 0),
    "released": (worlds.hold, 3, True, 0),
    "expansionnet": (worlds.hold, 5, True, 1),
    "mrnn": (worlds.retire, 5, True, 0),
}


@pytest.mark.parametrize("name", decoding.PRESETS)
def test_a_preset_is_the_search_behind_the_published_numbers(name):
    """Against the literal search: beams, finished hypotheses, unknown word and length."""
    literal, beam, unknown, power = LITERAL[name]
    model, _, tables = worlds.random_world(8, images=12, vocab=9, length=LENGTH, end=0.5)
    tables[..., worlds.UNK] += 2
    context = model.encode({"features": tables})
    tokens, scores, *_ = Search(decoding.PRESETS[name], LENGTH)(model, context)
    for image, table in enumerate(tables):
        logps = worlds.word_logps(table, model.factor, () if unknown else (worlds.UNK,))
        result = [(s / (len(w) + 1) ** power, w) for w, s in literal(logps, beam, LENGTH)]
        result.sort(key=lambda item: -item[0])
        np.testing.assert_array_equal(
            tokens[image], [worlds.padded(words, LENGTH) for _, words in result]
        )
        np.testing.assert_allclose(scores[image], [total for total, _ in result], atol=1e-4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"finished": "stop"}, "^finished must be one of hold, retire"),
        ({"beam": 5, "groups": 2}, r"^beam must be a multiple of groups \(2\)"),
        ({"temperature": 0.0}, "^temperature must be from 1e-6"),
        ({"search": "sample", "order": "consensus", "samples": 1}, "must be at least 2"),
        ({"beam": 5000}, "^beam must be from 1 to 500"),
    ],
)
def test_options_that_cannot_work_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Options(**given)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        *((name, (-1,)) for name in ("top_k", "min_length", "max_length", "no_repeat_ngram")),
        *((name, (0, -1)) for name in ("beam", "groups", "samples")),
        ("samples", (1001,)),
        ("top_p", (0, -0.1, 1.01, NAN)),
        ("temperature", (-1, 0, NAN, math.inf, 1e-30)),  # 1e-30 makes all scores infinite
        ("diversity", (-0.5, NAN, math.inf)),
        ("length_power", (NAN, math.inf, -math.inf, 1000)),
    ],
)
def test_a_number_out_of_its_range_is_refused_by_its_name(name, values):
    for value in values:
        with pytest.raises(ValueError, match=rf"^{name} must be .*, not {value}\.$"):
            Options(**{name: value})


def test_words_become_ids_and_text_is_refused_by_a_search():
    options = Options(suppress="a b", prefix="c")
    with pytest.raises(ValueError, match="The option `suppress` is text"):
        options.ids("suppress")
    result = options.with_ids(lambda name, text: tuple(5 + ord(c) - 97 for c in text if c != " "))
    assert result == dataclasses.replace(options, suppress=(5, 6), prefix=(7,))
    assert result.ids("bad_endings") == ()
