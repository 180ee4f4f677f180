"""The training objectives, as pure functions.

Letters: N rows, T positions, V vocabulary.
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
