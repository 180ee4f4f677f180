"""Training losses: cross-entropy, and the loss of self-critical training.

Letters: B images, S samples of an image, N rows, T positions, V vocabulary.
"""

import math

import tensorflow as tf


def cross_entropy(
    logits: tf.Tensor, targets: tf.Tensor, label_smoothing: float = 0.0
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Computes the sum of the loss over all words; divide it by the number of words for the mean.

    With smoothing e, the target distribution has 1 - e on the gold word and e / (V - 1) on every
    other word. The loss is the Kullback-Leibler divergence of the model from the target, as in the
    released X-Transformer and ExpansionNet. `label_smoothing` of Keras differs: it adds e / V to
    the gold word.

    Args:
      logits: [..., T, V] float32.
      targets: int32 [..., T]; positions with 0 (PAD) do not count.
      label_smoothing: e, at least 0 and below 1.

    Returns:
      Three float32 scalars: the sum of the loss, the sum of the negative log-likelihood (equal to
      the loss without smoothing), both with natural logarithms, and the number of words.
    """
    size = logits.shape[-1]
    real = tf.cast(targets != 0, tf.float32)
    words = tf.reduce_sum(real)
    # These operations compute loss and gradient in one pass. The gradients of a gather and of a
    # logarithm of a sum write several arrays as large as the logits.
    if not label_smoothing:
        nll = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
        nll = tf.reduce_sum(nll * real)
        return nll, nll, words
    gold, spread = 1 - label_smoothing, label_smoothing / (size - 1)
    labels = tf.one_hot(targets, size, on_value=gold, off_value=spread)
    negative_entropy = gold * math.log(gold) + label_smoothing * math.log(spread)
    loss = tf.nn.softmax_cross_entropy_with_logits(labels, logits) + negative_entropy
    fixed = tf.stop_gradient(logits)
    nll = tf.reduce_logsumexp(fixed, -1) - tf.gather(fixed, targets, batch_dims=len(targets.shape))
    return tf.reduce_sum(loss * real), tf.reduce_sum(nll * real), words


def advantages(
    rewards: tf.Tensor, baseline: str, greedy: tf.Tensor | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Subtracts a baseline from the reward of each sample.

    Args:
      rewards: float32 [B, S].
      baseline: `greedy` is the reward of the greedy caption (Rennie et al. 2017, equation 8; the
        released X-LAN and X-Transformer). `others` is the mean reward of the other samples of the
        image (Luo 2020; equation 15 of ExpansionNet, whose text divides by S, while its code and
        this function divide by S - 1).
      greedy: float32 [B, 1], the rewards of the greedy captions; needed for `greedy` only.

    Returns:
      Advantages and baselines, both float32 [B, S].
    """
    if baseline == "greedy" and greedy is not None:
        expected = tf.broadcast_to(greedy, tf.shape(rewards))
    elif baseline == "others" and rewards.shape[1] != 1:
        others = tf.cast(tf.shape(rewards)[1] - 1, tf.float32)
        expected = (tf.reduce_sum(rewards, 1, keepdims=True) - rewards) / others
    else:
        raise ValueError(f"The baseline {baseline!r} needs greedy captions, or two samples.")
    return rewards - expected, expected


def self_critical(
    logps: tf.Tensor, tokens: tf.Tensor, advantages: tf.Tensor, reduction: str
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes the sum of the self-critical loss, and the number to divide it by.

    The loss is the sum over all words and end marks of -log p(word) times the advantage of the
    caption. No gradient flows through the advantage, so that the expected gradient is that of minus
    the expected reward.

    Args:
      logps: float32 [N, T], log-probability of each sampled word.
      tokens: int32 [N, T], the sampled captions; 0 (PAD) after the end.
      advantages: float32 [N], of each caption.
      reduction: `words` divides by the number of words, so that a long caption counts more (the
        released X-LAN and X-Transformer). `sequences` divides by N, which gives the expectation
        (ExpansionNet).

    Returns:
      Two float32 scalars: the sum of the loss, and the divisor.
    """
    real = tf.cast(tokens != 0, tf.float32)
    loss = -tf.reduce_sum(logps * real * tf.stop_gradient(advantages)[:, None])
    rows = tf.cast(tf.shape(tokens)[0], tf.float32)
    return loss, tf.reduce_sum(real) if reduction == "words" else rows
