"""Log-probabilities of given captions, and scores that are divided by a measure of length."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import searches, worlds
from helpers.worlds import EOS

from tfcap.decoding.scores import word_log_probs


def test_scores_of_given_captions_belong_to_their_image():
    """Each image has three captions: row n belongs to image n // 3."""
    model, context, tables = worlds.random_world(9, images=2)
    rows = np.random.default_rng(0).integers(3, 8, (6, 4)).astype(np.int32)
    rows[::2, 2], rows[::2, 3] = EOS, 0
    result = word_log_probs(model, context, tf.constant(rows)).numpy()
    for n, row in enumerate(rows):
        logps = worlds.word_logps(tables[n // 3], model.factor)
        expected = [logps(row[:i])[w] if w else 0.0 for i, w in enumerate(row)]
        np.testing.assert_allclose(result[n], expected, atol=1e-5)


@pytest.mark.parametrize("policy", ["hold", "retire"])
@pytest.mark.parametrize("penalty, power", [("average", 0.5), ("average", 2.0), ("gnmt", 1.5)])
def test_scores_are_divided_by_length_once_at_the_end(policy, penalty, power):
    """By (words with EOS + 1) or, of GNMT, (words with EOS + 5) / 6, and only then put in order."""
    model, context, tables = worlds.random_world(5, images=8, end=1.0)
    literal = getattr(worlds, policy)
    result = [literal(worlds.word_logps(table, model.factor), 4, 6) for table in tables]
    tokens = np.array([[worlds.padded(words, 6) for words, _ in image] for image in result])
    totals = np.array([[total for _, total in image] for image in result])
    sizes = (tokens != 0).sum(-1)
    expected = totals / (sizes + 1.0 if penalty == "average" else (sizes + 5) / 6) ** power
    order = np.argsort(-expected, axis=1, kind="stable")
    chosen = {"finished": policy, "length_penalty": penalty, "length_power": power}
    result = searches.beam_search(model, context, 4, 6, **chosen)
    np.testing.assert_array_equal(result[0], np.take_along_axis(tokens, order[..., None], 1))
    np.testing.assert_allclose(result[1], np.take_along_axis(expected, order, 1), atol=1e-4)
    assert (order != np.arange(4)).any()  # worlds where it matters
