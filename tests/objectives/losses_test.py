"""Cross-entropy against its definition, word by word."""

import numpy as np
import pytest
import tensorflow as tf

from tfcap.objectives import losses


def draw(seed, shape=(2, 3, 5), size=11):
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(*shape, size)) * 3).astype(np.float32)
    targets = rng.integers(1, size, shape).astype(np.int32)
    targets[..., -1] = 0  # PAD
    targets[0, 0, 2:] = 0
    return logits, targets


def literal(logits, targets, smoothing):
    """Sum over words of KL(target || model) in float64, the summed -log p, and the words."""
    size, loss, nll, words = logits.shape[-1], 0.0, 0.0, 0
    for row, gold in zip(np.float64(logits.reshape(-1, size)), targets.ravel(), strict=True):
        if gold == 0:
            continue
        logp = row - np.log(np.exp(row).sum())
        for word in range(size):
            wanted = 1 - smoothing if word == gold else smoothing / (size - 1)
            if wanted:
                loss += wanted * (np.log(wanted) - logp[word])
        nll -= logp[gold]
        words += 1
    return loss, nll, words


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("size", [4, 11])
def test_cross_entropy_is_the_literal_divergence(smoothing, size):
    logits, targets = draw(size, size=size)
    result = losses.cross_entropy(tf.constant(logits), tf.constant(targets), smoothing)
    np.testing.assert_allclose(result, literal(logits, targets, smoothing), rtol=1e-5)
    assert all(x.dtype == tf.float32 and x.shape == () for x in result)


@pytest.mark.parametrize("size, offset", [(9488, 1.24085), (10000, 1.24611), (10200, 1.24809)])
def test_the_loss_is_the_released_one_less_a_constant(size, offset):
    """The loss is cross-entropy with the smooth target less its entropy, at real vocabularies."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 4, size)).astype(np.float32) * 4
    targets = rng.integers(1, size, (3, 4)).astype(np.int32)
    loss, _, words = losses.cross_entropy(tf.constant(logits), tf.constant(targets), 0.1)
    logp = logits.astype(np.float64)
    logp -= np.log(np.exp(logp).sum(-1, keepdims=True))
    gold = np.take_along_axis(logp, targets[..., None], -1)[..., 0]
    smooth = -0.9 * gold - 0.1 / (size - 1) * (logp.sum(-1) - gold)
    np.testing.assert_allclose(loss / words, smooth.mean() - offset, atol=2e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_padding_has_no_influence(smoothing):
    logits, targets = draw(2)
    other = np.where((targets == 0)[..., None], 7 * logits[..., ::-1] + 3, logits)
    pair = [tf.constant(x) for x in (logits, other)]
    with tf.GradientTape() as tape:
        tape.watch(pair)
        result = [losses.cross_entropy(x, tf.constant(targets), smoothing) for x in pair]
        total = result[0][0] + result[1][0]
    np.testing.assert_allclose(*result, rtol=1e-5)
    gradient = tape.gradient(total, pair[0]).numpy()
    assert (gradient[targets == 0] == 0).all() and (
        np.abs(gradient[targets != 0]).max(-1) > 0
    ).all()


def test_large_logits_stay_finite():
    logits = tf.constant([[[-3e4, 0.0, 3e4, 1.0]]])
    result = losses.cross_entropy(logits, tf.constant([[1]]), 0.1)
    assert np.isfinite(result).all()
    np.testing.assert_allclose(result[1], 3e4)
