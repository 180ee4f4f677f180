"""Log-probabilities of given captions, and scores that are divided by a measure of length."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import searches, worlds
from helpers.worlds import EOS

from tfcap import decoding


def test_scores_of_given_captions_belong_to_their_image():
    """Each image has three captions: row n belongs to image n // 3."""
    model, context, tables = worlds.random_world(9, images=2)
    rows = np.random.default_rng(0).integers(3, 8, (6, 4)).astype(np.int32)
    rows[::2, 2], rows[::2, 3] = EOS, 0
    found = decoding.score(model, context, tf.constant(rows)).numpy()
    for n, row in enumerate(rows):
        logps = worlds.word_logps(tables[n // 3], model.factor)
        expected = [logps(row[:i])[w] if w else 0.0 for i, w in enumerate(row)]
        np.testing.assert_allclose(found[n], expected, atol=1e-5)


@pytest.mark.parametrize("policy", ["hold", "retire"])
@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_scores_are_divided_by_length_once_at_the_end(policy, power):
    """Divided once at the end by (words + EOS + BOS) to the power, and only then put in order."""
    model, context, tables = worlds.random_world(5, images=8, end=1.0)
    literal = getattr(worlds, policy)
    found = [literal(worlds.word_logps(table, model.factor), 4, 6) for table in tables]
    tokens = np.array([[worlds.padded(words, 6) for words, _ in image] for image in found])
    totals = np.array([[total for _, total in image] for image in found])
    expected = totals / ((tokens != 0).sum(-1) + 1.0) ** power
    order = np.argsort(-expected, axis=1, kind="stable")
    found = searches.beam_search(model, context, 4, 6, finished=policy, length_power=power)
    np.testing.assert_array_equal(found[0], np.take_along_axis(tokens, order[..., None], 1))
    np.testing.assert_allclose(found[1], np.take_along_axis(expected, order, 1), atol=1e-4)
    assert (order != np.arange(4)).any()  # worlds where it matters


def test_gnmt_divides_by_a_shifted_length():
    model, context, tables = worlds.random_world(5, images=8, end=1.0)
    plain = searches.beam_search(model, context, 4, 6)
    sizes = (plain[0].numpy() != 0).sum(-1)
    expected = plain[1].numpy() / ((sizes + 5) / 6) ** 0.8
    order = np.argsort(-expected, axis=1, kind="stable")
    found = searches.beam_search(model, context, 4, 6, length_penalty="gnmt", length_power=0.8)
    np.testing.assert_array_equal(
        found[0], np.take_along_axis(plain[0].numpy(), order[..., None], 1)
    )
    np.testing.assert_allclose(found[1], np.take_along_axis(expected, order, 1), atol=1e-5)
    other = searches.beam_search(model, context, 4, 6, length_power=0.8)
    assert (order != np.arange(4)).any() and (other[1] != found[1]).numpy().all()
    with pytest.raises(ValueError, match="must be one of average, gnmt, not 'wu'"):
        searches.beam_search(model, context, 4, 6, length_penalty="wu")
