"""Minimum Bayes risk: the sample that agrees most with the other samples of its image.

Letters: B images, S samples per image, T their length.
"""

import tensorflow as tf

from tfcap.objectives.ngrams import CiderD


class Consensus(tf.Module):
    """The expected CIDEr-D of a sample when any of the others might be the truth.

    Minimum Bayes risk decoding (Kumar and Byrne 2004) with the gain CIDEr-D: samples of the model
    stand for its distribution, so that the one with the highest mean similarity to the others has
    the highest expected score. A sentence that was drawn twice counts twice.

    Args:
      cider: the reward; its document frequencies are those of the training captions.
    """

    def __init__(self, cider: CiderD):
        super().__init__(name="consensus")
        self.cider = cider
        self.table = cider.idf  # a SavedModel keeps what a module holds

    def __call__(self, tokens: tf.Tensor) -> tf.Tensor:
        """Means [B, S] float32, in 0 ... 10, of samples int32 [B, S, T], S at least 2."""
        similar = self.cider.similarities(tokens, self.cider.references(tokens))  # [B, S, S]
        others = tf.reduce_sum(similar, -1) - tf.linalg.diag_part(similar)
        return others / tf.cast(tf.shape(tokens)[1] - 1, tf.float32)
