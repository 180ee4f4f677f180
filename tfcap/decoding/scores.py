"""Computes log-probabilities of captions, and normalises them by length.

Letters: B images, K captions of an image, N rows, T `max_length`, T' length of the captions, V
vocabulary.
"""

import tensorflow as tf

from tfcap.decoding.constraints import log_probs
from tfcap.decoding.options import Options
from tfcap.ids import BOS, PAD
from tfcap.layers.trees import Tree
from tfcap.models.captioner import Captioner


def word_log_probs(
    model: Captioner, context: Tree, tokens: tf.Tensor, training: bool = False
) -> tf.Tensor:
    """Computes the log-probability of each word of captions under a model.

    Args:
      model: the captioner.
      context: what `model.encode` returned for B images.
      tokens: N captions of up to T' tokens without the start mark, int32 [N, T']: words, then EOS,
        then PAD. N is a multiple of B, and the captions of an image follow each other.
      training: whether dropout is on.

    Returns:
      The natural log-probability of each word and of EOS, float32 [N, T']; 0 at PAD.
    """
    starts = tf.fill([tf.shape(tokens)[0], 1], BOS)
    logits = model.decode(context, tf.concat([starts, tokens[:, :-1]], 1), training)
    chosen = tf.gather(log_probs(logits), tokens, batch_dims=2)
    return tf.where(tokens == PAD, 0.0, chosen)


def normalise_by_length(sums: tf.Tensor, tokens: tf.Tensor, options: Options) -> tf.Tensor:
    """Divides the summed log-probability of each caption by a measure of its length.

    So long and short captions can be compared. The option `length_penalty` selects the measure, for
    a caption of n tokens, the end mark included. `average` is (n + 1) ** power, where the 1 counts
    the start mark; ExpansionNet uses power 1. `gnmt` is ((n + 5) / 6) ** power (Wu et al. 2016,
    equation 14). The power is the option `length_power`; with 0 the sums are not divided.

    Args:
      sums: summed log-probabilities of K captions of each of B images, float32 [B, K].
      tokens: the captions without the start mark, int32 [B, K, T] for up to T tokens, PAD after
        EOS.
      options: the options; only `length_penalty` and `length_power` are read.

    Returns:
      The scores, float32 [B, K].
    """
    return sums / length_measure(tokens, options)


def length_measure(tokens: tf.Tensor, options: Options) -> tf.Tensor | float:
    """Returns the numbers by which `normalise_by_length` divides, float32 [B, K].

    Args:
      tokens, options: as in `normalise_by_length`.
    """
    if not options.length_power:
        return 1.0
    words = tf.reduce_sum(tf.cast(tokens != PAD, tf.float32), -1)
    measure = words + 1.0 if options.length_penalty == "average" else (words + 5.0) / 6.0
    return measure**options.length_power
