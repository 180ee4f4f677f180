"""The training objectives, as pure functions.

Letters: N rows, T positions, V vocabulary.
"""

import math

import tensorflow as tf


def cross_entropy(
    logits: tf.Tensor, targets: tf.Tensor, label_smoothing: float = 0.0
) -> tuple[tf.Tensor, tf.Tensor]:
    """Summed loss and number of words; their quotient is the mean loss per word.

    With smoothing e the target distribution is 1 - e on the gold word and e / (V - 1) on every
    other one, and the loss is the Kullback-Leibler divergence from it, as in the released
    X-Transformer and ExpansionNet. Keras' `label_smoothing` gives the gold word e / V as well.

    Args:
      logits: [..., T, V] float32.
      targets: int32 [..., T], 0 (PAD) where there is no word.
      label_smoothing: e, at least 0 and below 1.

    Returns:
      Sum of the losses over the words, and the number of words; both float32 scalars.
    """
    size = logits.shape[-1]
    real = tf.cast(targets != 0, tf.float32)
    normaliser = tf.reduce_logsumexp(logits, -1)
    gold = tf.gather(logits, targets, batch_dims=len(targets.shape)) - normaliser
    loss = -gold
    if label_smoothing:
        spread = label_smoothing / (size - 1)
        others = tf.reduce_sum(logits, -1) - size * normaliser - gold
        constant = (1 - label_smoothing) * math.log(1 - label_smoothing)
        constant += label_smoothing * math.log(spread)
        loss = constant - (1 - label_smoothing) * gold - spread * others
    return tf.reduce_sum(loss * real), tf.reduce_sum(real)
