"""Rules on the words of a sentence and truncated distributions, against enumeration.

In a world of three words every sentence is listed. A beam as wide as all of them must find just
those that a rule allows, in order; samples must have the probabilities that the rules leave.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from helpers import searches, worlds
from helpers.sampling_counts import distance
from helpers.searches import options
from helpers.worlds import EOS

from tfcap.decoding import UNCONSTRAINED, constraints
from tfcap.decoding.beams import beam_search
from tfcap.decoding.constraints import log_probs
from tfcap.decoding.sampling import sample

LENGTH = 4
A, B, C = 3, 4, 5
EVERY = list(worlds.sentences([A, B, C], LENGTH))


def words_of(sentence):
    return [word for word in sentence if word != EOS]


def allowed(sentence, rules):
    """Tells whether a complete caption follows the rules, checked one by one."""
    words, n, prefix = words_of(sentence), rules.no_repeat_ngram, rules.ids("prefix")
    grams = [tuple(sentence[i : i + n]) for i in range(len(sentence) - n + 1)] if n else []
    return (
        tuple(words[: len(prefix)]) == prefix
        and not set(words[len(prefix) :]) & set(rules.ids("suppress"))
        and not (words and words[-1] in rules.ids("bad_endings"))
        and len(words) >= rules.min_length
        and len(set(grams)) == len(grams)
    )


RULES = [
    options(),
    options(suppress=(A,)),
    options(bad_endings=(B,)),
    options(prefix=(C, A, C)),
    options(min_length=3),
    options(no_repeat_ngram=1),
    options(no_repeat_ngram=3),
    options(no_repeat_ngram=10**9),  # longer than any caption; its graph is no larger
    options(temperature=2.5),
    options(suppress=(B,), prefix=(B,)),  # what is asked for comes first
    options(suppress=(C,), bad_endings=(A,), prefix=(A, B), min_length=3, no_repeat_ngram=2),
]


def name(rules):
    values = {k: v for k, v in vars(rules).items() if v != getattr(UNCONSTRAINED, k)}
    return ",".join(f"{k}={v}" for k, v in values.items()) or "none"


@pytest.fixture(scope="module")
def wide():
    """A world with words enough for a beam of all 121 sentences, of which three ever win."""
    model, _, tables = worlds.random_world(21, images=2, vocab=125, length=LENGTH)
    tables[..., 6:] = -1e4
    return model, model.encode({"features": tables}), tables


@pytest.mark.parametrize("finished", ["hold", "retire"])
@pytest.mark.parametrize("rules", RULES, ids=name)
def test_a_wide_beam_finds_what_is_allowed(wide, rules, finished):
    model, context, tables = wide
    expected = [sentence for sentence in EVERY if allowed(sentence, rules)]
    assert 0 < len(expected) <= len(EVERY) == 121
    chosen = dataclasses.replace(rules, beam=121, finished=finished)
    tokens, scores, *_ = beam_search(model, context, LENGTH, chosen)
    for image, table in enumerate(tables):
        logps = worlds.word_logps(table / rules.temperature, model.factor)
        ranked = sorted(((worlds.logp_of(logps, s), s) for s in expected), reverse=True)
        result = scores[image, : len(ranked)]
        np.testing.assert_allclose(result, [total for total, _ in ranked], atol=1e-3)
        padded = [worlds.padded(s, LENGTH) for _, s in ranked]
        np.testing.assert_array_equal(tokens[image, : len(ranked)], padded)
        rest = scores[image, len(ranked) :]
        assert (rest.numpy() < -1e4 + 100).all()  # words that never win, or nothing at all


def next_words(words, rules):
    """The words that may stand at the next place, as the definitions of the rules say."""
    place = len(words)
    prefix, bad_endings = rules.ids("prefix"), rules.ids("bad_endings")
    if place < len(prefix):
        return {prefix[place]}
    ends = not (words and words[-1] in bad_endings) and place >= rules.min_length
    result = {A, B, C} - set(rules.ids("suppress"))
    if place == LENGTH - 1:
        result -= set(bad_endings)
    if n := rules.no_repeat_ngram:
        calls = {tuple(words[i : i + n]) for i in range(place - n + 1)}
        tail = tuple(words[place - n + 1 :]) if n > 1 else ()
        result = {word for word in result if (*tail, word) not in calls or place < n - 1}
    return result | ({EOS} if ends else set())


def truncated(probabilities, top_k, top_p):
    """{word: probability} without the words that sampling leaves out."""
    ranked = sorted(probabilities.items(), key=lambda item: -item[1])
    ranked = ranked[: top_k or None]
    kept, total = {}, sum(p for _, p in ranked)
    for word, probability in ranked:
        if sum(kept.values()) / total < top_p:
            kept[word] = probability
    return kept


def distribution(logps, rules, temperature=1.0, top_k=0, top_p=1.0):
    """Returns {caption: probability} of samples, computed word by word over all captions."""
    result = {}

    def visit(words, probability):
        if len(words) == LENGTH or (words and words[-1] == EOS):
            result[words] = probability
            return
        logits = logps(words)
        choices = {w: np.exp(logits[w] / temperature) for w in next_words(words, rules)}
        total = sum(choices.values())
        choices = truncated({w: p / total for w, p in choices.items()}, top_k, top_p)
        for word, share in choices.items():
            visit((*words, word), probability * share / sum(choices.values()))

    visit((), 1.0)
    return result


@pytest.mark.parametrize(
    ("rules", "cuts"),
    [
        ({}, {}),
        ({}, {"temperature": 0.5}),
        ({}, {"temperature": 2.0}),
        ({}, {"top_k": 2}),
        ({}, {"top_p": 0.9, "temperature": 1.5}),
        ({}, {"top_k": 3, "top_p": 0.8, "temperature": 0.7}),
        ({"no_repeat_ngram": 2, "min_length": 2}, {}),
        (
            {"suppress": (C,), "bad_endings": (A,), "prefix": (B,), "min_length": 2},
            {"top_p": 0.95, "temperature": 2.0},
        ),
    ],
    ids=str,
)
def test_samples_follow_the_truncated_distribution(rules, cuts):
    model, context, tables = worlds.random_world(
        8, images=1, vocab=6, length=LENGTH, scale=1.0, end=0.3
    )
    draws = tf.random.stateless_uniform([20000, LENGTH], [3, 4])
    tokens, logps = searches.sample(model, context, LENGTH, draws, **rules, **cuts)
    literal = worlds.word_logps(tables[0], model.factor)
    expected = distribution(literal, options(**rules), **cuts)
    assert abs(sum(expected.values()) - 1) < 1e-9
    assert abs(distance(tokens.numpy(), expected)) < 4
    if len(expected) > 1:
        other = distribution(literal, UNCONSTRAINED, **{"temperature": 0.8, "top_p": 1.0})
        assert distance(tokens.numpy(), other, strict=False) > 20
    # The log-probabilities are the model's, whatever the words were drawn from.
    for row, result in zip(tokens.numpy()[:20], logps.numpy()[:20], strict=True):
        sentence = [int(word) for word in row if word]
        assert abs(result.sum() - worlds.logp_of(literal, sentence)) < 1e-4


def test_greedy_search_follows_the_rules(wide):
    model, context, tables = wide
    rules = options(prefix=(B,), no_repeat_ngram=1, min_length=2)
    tokens, _ = sample(model, context, LENGTH, options=rules)
    for row, table in zip(tokens.numpy(), tables, strict=True):
        words, logps = [], worlds.word_logps(table, model.factor)
        while len(words) < LENGTH and EOS not in words:
            words.append(max(next_words(words, rules), key=lambda word: logps(words)[word]))
        np.testing.assert_array_equal(row, worlds.padded(words, LENGTH))


def test_a_sample_ends_if_no_word_is_allowed():
    """Three words, none of them twice, and no end before the fourth word cannot all hold."""
    model, context, _ = worlds.random_world(2, images=2, vocab=6, length=6)
    draws = tf.random.stateless_uniform([10, 6], [1, 1])
    for values in (draws, None):
        tokens, logps = searches.sample(model, context, 6, values, no_repeat_ngram=1, min_length=4)
        np.testing.assert_array_equal(np.sort(tokens[:, :3], -1), [[A, B, C]] * len(tokens))
        assert (tokens[:, 3] == EOS).numpy().all() and (tokens[:, 4:] == 0).numpy().all()
        assert (logps[:, 3] < -1e8).numpy().all() and np.isfinite(logps).all()


def plain_nucleus(logp, p):
    """The mask bool [N, V] of the words that `top_p` keeps, from a full sort."""
    ranked = np.sort(np.asarray(logp, np.float64))[:, ::-1]
    probs = np.exp(ranked - ranked[:, :1])
    before = np.cumsum(probs, -1) - probs
    kept = np.where(before < p * probs.sum(-1, keepdims=True), ranked, ranked[:, :1])
    return np.asarray(logp) >= kept.min(-1, keepdims=True)


def difficult(rng, size):
    """Rows [N, V]: peaked, broad, flat, tied, with one word, and with words that are excluded."""
    rows = [scale * rng.normal(size=size) for scale in (9.0, 3.0, 1.0, 1e-3)]
    rows.append(np.zeros(size))  # all words tie: a nucleus has all of them
    rows.append(np.round(2 * rng.normal(size=size)))  # large ties at the limit
    rows.append(np.where(np.arange(size) == size // 2, 50.0, rng.normal(size=size)))
    rows.append(np.where(np.arange(size) % 7 == 3, rng.normal(size=size), constraints.NEVER))
    rows.append(np.full(size, constraints.NEVER))  # no word is allowed
    rows.append(np.log([0.4, 0.3] + [0.3 / (size - 2)] * (size - 2)))
    return np.stack(rows)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("size", [5, 65, 1500])
def test_nucleus_is_that_of_a_full_sort(size, dtype):
    rows = tf.cast(difficult(np.random.default_rng(size), size), dtype)
    for p in (0.05, 0.65, 0.999):
        wanted = tf.where(plain_nucleus(tf.cast(rows, "float64"), p), rows, constraints.NEVER)
        for some in (slice(3), slice(None)):  # ties are narrowed down to one value, for all rows
            result = constraints.top_k_top_p_filter(rows[some], options(search="sample", top_p=p))
            tf.debugging.assert_equal(result, wanted[some])


def test_pad_and_bos_give_their_probability_to_the_other_words():
    logits = np.random.default_rng(0).normal(size=(2, 3, 7)).astype("float32")
    result = log_probs(tf.constant(logits)).numpy()
    kept = logits[..., 2:]
    np.testing.assert_allclose(
        result[..., 2:], kept - np.log(np.exp(kept).sum(-1, keepdims=True)), atol=1e-6
    )
    assert (result[..., :2] < -1e8).all()
    assert log_probs(tf.constant(logits, tf.bfloat16)).dtype == tf.float32
