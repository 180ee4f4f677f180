"""The weighted reward: its terms by hand, its signature, its hook."""

import numpy as np
import pytest
import tensorflow as tf

from tfcap.data.document_frequency import document_frequencies
from tfcap.objectives import ngrams, rewards

PAD, EOS, UNK, SIZE = 0, 2, 3, 14
SPEC = tf.TensorSpec([None, None, None], tf.int32)


def array(captions, length):
    """Lists [B][X] of words to int32 [B, X, length] with EOS; None is a row without a caption."""
    result = np.zeros([len(captions), len(captions[0]), length], np.int32)
    for place in np.ndindex(*result.shape[:2]):
        words = captions[place[0]][place[1]]
        row = [] if words is None else [*words, EOS][:length]
        result[place][: len(row)] = row
    return result


@pytest.fixture(scope="module")
def world():
    """Table, samples [3, 4, 9] and references [3, 3, 8] of random words."""
    rng = np.random.default_rng(1)

    def caption():
        return list(rng.integers(UNK, SIZE, rng.integers(1, 8)))

    references = [[caption() for _ in range(3)] for _ in range(3)]
    samples = [[caption() for _ in range(3)] + [own[0]] for own in references]
    references[1][2] = None
    corpus = [[c for c in own if c is not None] for own in references] * 2
    corpus += [[caption()] for _ in range(9)]
    table = document_frequencies(corpus)
    return table, tf.constant(array(samples, 9)), tf.constant(array(references, 8))


def score(reward, samples, references, ids=None):
    return reward(samples, reward.references(references), ids).numpy()


def test_the_reward_is_the_weighted_sum_of_its_terms(world):
    table, samples, rows = world
    terms = [
        score(rewards.Reward(table, SIZE, **{"cider": 0.0, name: 1.0}), samples, rows)
        for name in ("cider", "bleu")
    ]
    cider = ngrams.CiderD(table, SIZE)
    np.testing.assert_array_equal(terms[0], cider(samples, cider.references(rows)))
    bleu = ngrams.Bleu4(SIZE)
    np.testing.assert_array_equal(terms[1], bleu(samples, bleu.references(rows)))
    assert all(np.ptp(term) > 0 for term in terms)
    reward = rewards.Reward(table, SIZE, cider=2.0, bleu=-0.5)
    wanted = 2 * terms[0] - 0.5 * terms[1]
    np.testing.assert_allclose(score(reward, samples, rows), wanted, rtol=1e-5, atol=1e-6)
    traced = tf.function(
        lambda x, r: reward(x, reward.references(r)), input_signature=[SPEC, SPEC], autograph=False
    )
    np.testing.assert_allclose(traced(samples, rows), wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(traced(samples[:1, :1], rows[:1]).shape, (1, 1))


def test_conventions_and_end_marks_change_the_reward(world):
    table, samples, rows = world
    assert rewards.CONVENTIONS["jdai"] == (None, True)
    assert rewards.CONVENTIONS["expansionnet"] == (80, False)
    result = []
    for convention, matches in (("jdai", True), ("expansionnet", False)):
        for eos in (True, False):
            reward = rewards.Reward(table, SIZE, convention=convention, count_eos=eos, bleu=1.0)
            parts = ngrams.CiderD(table, SIZE, eos, matches), ngrams.Bleu4(SIZE, eos, matches)
            result.append(score(reward, samples, rows))
            wanted = sum(part(samples, part.references(rows)) for part in parts)
            np.testing.assert_allclose(result[-1], wanted, rtol=1e-6)
    assert all(abs(a - b).max() > 1e-3 for i, a in enumerate(result) for b in result[:i])


def test_an_unknown_word_matches_nothing_for_expansionnet():
    """A copy of a reference with an unknown word has the best reward in one convention only."""
    words = [4, 5, UNK, 6, 7, 8]
    table = document_frequencies([[words], [[9, 10]], [[11, 12]]])
    rows = array([[words]], 8)
    jdai = score(rewards.Reward(table, SIZE), rows, rows)
    other = score(rewards.Reward(table, SIZE, convention="expansionnet"), rows, rows)
    np.testing.assert_allclose(jdai, 10, rtol=1e-5)
    # 1-grams 5/6 (EOS has an idf of 0); 2-grams 4/6; 3-grams 2/5; 4-grams 1/4.
    np.testing.assert_allclose(other, 10 * (5 / 6 + 4 / 6 + 2 / 5 + 1 / 4) / 4, rtol=1e-5)


def test_the_signature_names_terms_and_settings():
    start = "STANDARD_wInit+Cider-D[n4,s6.0]"
    assert rewards.signature("jdai", True, cider=1.0) == start
    assert rewards.signature("jdai", False, cider=1.0, bleu=0.5) == (
        "NO<EOS>_wInit+Cider-D[n4,s6.0]+0.5*BLEU-4"
    )
    result = rewards.signature("expansionnet", True, cider=2.0, bleu=0.0, hook=1.0)
    assert result == "STANDARD_wInit+2.0*Cider-D[n4,s6.0]+hook+expansionnet"


def join(tokens):
    """Ids as words, in one string."""
    return tf.strings.reduce_join(tf.strings.as_string(tokens), axis=-1, separator=" é")


def test_a_hook_reads_ids_and_captions(world):
    table, samples, rows = world
    calls = []

    def hook(ids, captions):
        calls.append((ids, captions))
        return [[i % 9 + len(c) / 100 for c in r] for i, r in zip(ids, captions, strict=True)]

    ids = tf.constant([7, 8, 2**40], tf.int64)
    reward = rewards.Reward(table, SIZE, hook=hook, detokenize=join)
    plain = score(rewards.Reward(table, SIZE), samples, rows)
    wanted = [[" é".join(map(str, row)) for row in image] for image in samples.numpy()]
    numbers = np.float32(hook(ids.numpy().tolist(), wanted))
    traced = tf.function(lambda x, r, i: reward(x, reward.references(r), i), autograph=False)
    calls.clear()
    for call in (lambda: score(reward, samples, rows, ids), lambda: traced(samples, rows, ids)):
        np.testing.assert_allclose(call(), plain + numbers, rtol=1e-6)
        assert calls.pop() == ([7, 8, 2**40], wanted)
    assert not calls and traced.get_concrete_function(samples, rows, ids).output_shapes == (3, 4)


@pytest.mark.parametrize("answer", [np.zeros([4, 3]), np.full([3, 4], np.nan)])
def test_bad_results_of_a_hook_are_refused(world, answer):
    table, samples, rows = world
    reward = rewards.Reward(table, SIZE, hook=lambda ids, captions: answer, detokenize=join)
    run = tf.function(
        lambda: reward(samples, reward.references(rows), tf.range(3)), autograph=False
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="The hook of the reward must return"):
        run()
