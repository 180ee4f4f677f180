"""Synonyms of WordNet are read from the jar of METEOR."""

import pytest

from tfcap.metrics import wordnet


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("couch", "sofa"),
        ("bike", "bicycle"),
        ("tv", "television"),
        ("hot dog", "frank"),
        ("q", "q"),
    ],
)
def test_words_of_one_set_are_synonyms(one, other):
    assert wordnet.synonymous(one, other) and wordnet.synonymous(other, one)


@pytest.mark.parametrize(("one", "other"), [("dog", "cat"), ("qwxy", "dog"), ("", "dog")])
def test_other_words_are_not(one, other):
    assert not wordnet.synonymous(one, other)


def test_a_word_has_the_numbers_of_its_sets():
    assert wordnet.synsets("sofa") == wordnet.synsets("sofa") != frozenset()
    assert wordnet.synsets("sofa") & wordnet.synsets("couch")
    assert wordnet.synsets("no_such_word_at_all") == frozenset()
