"""Minimum Bayes risk: scores each sample by its similarity to the other samples of its image.

Letters: B images, S samples per image, T `max_length`.
"""

import tensorflow as tf

from tfcap.objectives.ngrams import CiderD


class Consensus(tf.Module):
    """Estimates the CIDEr-D that a sample would get from an unknown true caption.

    Minimum Bayes risk decoding (Kumar and Byrne 2004) with CIDEr-D as the gain: the other samples
    stand for the distribution of the true caption. So the sample with the highest mean similarity
    to the others has the highest expected score. A caption that was drawn twice counts twice.

    Args:
      cider: the reward; its document frequencies are those of the training captions.
    """

    def __init__(self, cider: CiderD):
        super().__init__(name="consensus")
        self.cider = cider
        self.table = cider.idf  # an attribute of the module, so that a SavedModel keeps it

    def __call__(self, tokens: tf.Tensor) -> tf.Tensor:
        """Computes the means [B, S] float32, 0 to 10, of samples int32 [B, S, T], S at least 2."""
        similar = self.cider.similarities(tokens, self.cider.references(tokens))  # [B, S, S]
        others = tf.reduce_sum(similar, -1) - tf.linalg.diag_part(similar)
        return others / tf.cast(tf.shape(tokens)[1] - 1, tf.float32)
