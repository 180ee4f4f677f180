"""The training objectives, as pure functions.

Letters: B images, S samples of an image, N rows, T positions, V vocabulary.
"""

import math

import tensorflow as tf


def cross_entropy(
    logits: tf.Tensor, targets: tf.Tensor, label_smoothing: float = 0.0
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Summed loss, summed negative log-likelihood and number of words, for the caller to divide.

    With smoothing e the target distribution is 1 - e on the gold word and e / (V - 1) on every
    other one, and the loss is the Kullback-Leibler divergence from it, as in the released
    X-Transformer and ExpansionNet. Keras' `label_smoothing` gives the gold word e / V as well.

    Args:
      logits: [..., T, V] float32.
      targets: int32 [..., T], 0 (PAD) where there is no word.
      label_smoothing: e, at least 0 and below 1.

    Returns:
      Three float32 scalars: the loss and the negative log-likelihood (equal without smoothing),
      each summed over the words in natural logarithm, and the number of words.
    """
    size = logits.shape[-1]
    real = tf.cast(targets != 0, tf.float32)
    normaliser = tf.reduce_logsumexp(logits, -1)
    gold = tf.gather(logits, targets, batch_dims=len(targets.shape)) - normaliser
    nll = loss = tf.reduce_sum(-gold * real)
    if label_smoothing:
        spread = label_smoothing / (size - 1)
        others = tf.reduce_sum(logits, -1) - size * normaliser - gold
        entropy = (1 - label_smoothing) * math.log(1 - label_smoothing)
        entropy += label_smoothing * math.log(spread)
        divergence = entropy - (1 - label_smoothing) * gold - spread * others
        loss = tf.reduce_sum(divergence * real)
    return loss, nll, tf.reduce_sum(real)


def advantages(
    rewards: tf.Tensor, baseline: str, greedy: tf.Tensor | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """How much better each sample is than what was to be expected.

    Args:
      rewards: float32 [B, S].
      baseline: `greedy`, the reward of the most probable words (Rennie et al. 2017, equation 8;
        the released X-LAN and X-Transformer), or `others`, the mean reward of the other samples of
        the image (Luo 2020; ExpansionNet's equation 15, whose text divides by S where its code,
        like this, divides by S - 1).
      greedy: float32 [B, 1], the rewards of the greedy sentences; for `greedy` only.

    Returns:
      Advantages and baselines, both float32 [B, S].

    Raises:
      ValueError: an unknown baseline, `greedy` without its rewards, or `others` with one sample.
    """
    if baseline == "greedy" and greedy is not None:
        expected = tf.broadcast_to(greedy, tf.shape(rewards))
    elif baseline == "others" and rewards.shape[1] != 1:
        others = tf.cast(tf.shape(rewards)[1] - 1, tf.float32)
        expected = (tf.reduce_sum(rewards, 1, keepdims=True) - rewards) / others
    else:
        raise ValueError(
            "baseline must be greedy, with the greedy rewards, or others, with two samples or "
            f"more. Received: {baseline!r}, rewards {rewards.shape}"
        )
    return rewards - expected, expected


def self_critical(
    logps: tf.Tensor, tokens: tf.Tensor, advantages: tf.Tensor, reduction: str
) -> tuple[tf.Tensor, tf.Tensor]:
    """Summed loss of self-critical training and what to divide it by, for the caller to divide.

    The gradient of the loss is that of minus the expected reward: sum over the words, the end mark
    included, of -log p times the advantage of their sentence, which has no gradient itself.

    Args:
      logps: float32 [N, T], of each sampled word.
      tokens: int32 [N, T], 0 (PAD) after the end.
      advantages: float32 [N].
      reduction: `words` divides by their number (the released X-LAN and X-Transformer, so that a
        long sentence counts more), `sequences` by N (the expectation itself; ExpansionNet).

    Returns:
      Two float32 scalars.

    Raises:
      ValueError: an unknown reduction.
    """
    if reduction not in ("words", "sequences"):
        raise ValueError(f"reduction must be words or sequences. Received: {reduction!r}")
    real = tf.cast(tokens != 0, tf.float32)
    loss = -tf.reduce_sum(logps * real * tf.stop_gradient(advantages)[:, None])
    rows = tf.cast(tf.shape(tokens)[0], tf.float32)
    return loss, tf.reduce_sum(real) if reduction == "words" else rows
