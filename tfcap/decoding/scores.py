"""What sentences score: the probability of given ones, and the order of found ones.

Letters: B images, K sentences of an image, N rows, T `max_length`, T' length of given tokens,
V vocabulary.
"""

import tensorflow as tf

from tfcap.decoding.constraints import log_probs
from tfcap.ids import BOS, PAD
from tfcap.models.captioner import Captioner, Tree


def score(model: Captioner, context: Tree, tokens: tf.Tensor, training: bool = False) -> tf.Tensor:
    """Log-probability of each given word.

    Args:
      model: the captioner.
      context: of `model.encode`, B images.
      tokens: int32 [N, T'] without BOS: w1 ... wL EOS PAD ...
      training: switches dropout on.

    Returns:
      [N, T'] float32, natural logarithm, 0 at padding.
    """
    starts = tf.fill([tf.shape(tokens)[0], 1], BOS)
    logits = model.decode(context, tf.concat([starts, tokens[:, :-1]], 1), training)
    chosen = tf.gather(log_probs(logits), tokens, batch_dims=2)
    return tf.where(tokens == PAD, 0.0, chosen)


def normalised(
    sums: tf.Tensor, tokens: tf.Tensor, length_penalty: str, length_power: float
) -> tf.Tensor:
    """Summed log-probabilities over a measure of length, by which finished sentences are ordered.

    With n words, EOS counted: `average` divides by (n + 1) ** power, BOS counted, of which power 1
    is ExpansionNet's; `gnmt` by ((n + 5) / 6) ** power (Wu et al. 2016, equation 14). Power 0 is
    the plain sum.

    Args:
      sums: float32 [B, K].
      tokens: int32 [B, K, T].
      length_penalty: `average` or `gnmt`.
      length_power: see above.

    Raises:
      ValueError: an unknown penalty.
    """
    if length_penalty not in ("average", "gnmt"):
        raise ValueError(f"length_penalty must be average or gnmt. Received: {length_penalty!r}")
    if not length_power:
        return sums
    words = tf.reduce_sum(tf.cast(tokens != PAD, tf.float32), -1)
    measure = words + 1.0 if length_penalty == "average" else (words + 5.0) / 6.0
    return sums / measure**length_power
