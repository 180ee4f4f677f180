"""The confidence in a caption: the estimated probability that it is usable.

Two opinions are combined. The captioner's own is the mean log-probability of the words. The second
one never saw the captioner: `WordExpectation`, a small network, tells from the mean of the features
which words people would use for such an image, and the words of the caption are compared with them.
A logistic function, fitted on images with references (`inference.calibration`), turns the signals
into a probability.

Letters: B images, K captions of an image, T `max_length`, R regions, F feature width, H hidden
units, V vocabulary, S signals.
"""

import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfcap.decoding.search import Found
from tfcap.ids import PAD
from tfcap.layers.common import masked_mean

SIGNALS = ("log_prob", "support")
ARRAYS = ("mean", "hidden", "hidden_bias", "words", "words_bias", "idf")
_SMALL = 1e-6
_LEAST = 0.01  # support; below it, words say nothing more
_LEAST_LOG_PROB = -20.0  # of a word; a caption that the constraints forbid has about -1e9


def centred(vectors: tf.Tensor, mean: tf.Tensor) -> tf.Tensor:
    """Subtracts the mean vector from vectors, and scales the differences to the length sqrt(F).

    Args:
      vectors: the mean of the features of each image, float32 [B, F].
      mean: the mean of such vectors over the training images, float32 [F].

    Returns:
      float32 [B, F].
    """
    differences = vectors - mean
    size = tf.sqrt(tf.reduce_mean(tf.square(differences), -1, keepdims=True))
    return differences / tf.maximum(size, _SMALL)


class WordExpectation(tf.Module):
    """Tells from the features of an image how much weight its references give to each word.

    The weight of a word in a reference is its count times its idf, divided by the Euclidean norm of
    the weights of all words: the vector that CIDEr compares, for single words. The result is the
    mean over the references of an image. With x the mean of the features of the regions, and m the
    mean of x over the training images:

        u = sqrt(F) (x - m) / |x - m|
        weights = words relu(hidden u + hidden_bias) + words_bias

    Args:
      arrays: `mean` [F]; `hidden` [F, H] and `hidden_bias` [H]; `words` [V, H] and `words_bias`
        [V]; `idf` [V], 0 for words that count nothing. All float32.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        super().__init__(name="word_expectation")
        self.arrays = {
            name: tf.Variable(tf.cast(arrays[name], tf.float32), trainable=False, name=name)
            for name in ARRAYS
        }

    def code(self, vectors: tf.Tensor) -> tf.Tensor:
        """Returns the hidden units, float32 [B, H].

        Args:
          vectors: the mean of the features of each image, float32 [B, F].
        """
        arrays = self.arrays
        units = centred(vectors, arrays["mean"])
        return tf.nn.relu(tf.matmul(units, arrays["hidden"]) + arrays["hidden_bias"])

    def support(self, hidden: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
        """Computes how well the words of captions fit what is expected of the image.

        It is the sum of the products of the weights in the caption and the expected weights, about
        0 to 1. A word that is repeated adds once to the sum, and as often as it stands there to the
        norm of the caption.

        Args:
          hidden: the hidden units of B images, float32 [B, H], from `code`.
          tokens: K captions of each image, int32 [B, K, T]: words, then EOS, then PAD.

        Returns:
          float32 [B, K].
        """
        arrays = self.arrays
        idf = tf.where(tokens == PAD, 0.0, tf.gather(arrays["idf"], tokens))
        expected = tf.linalg.matvec(tf.gather(arrays["words"], tokens), hidden[:, None])
        expected += tf.gather(arrays["words_bias"], tokens)
        same = tf.cast(tokens[..., None] == tokens[..., None, :], tf.float32)
        counts = tf.reduce_sum(same, -1)  # [B, K, T], of each word in its caption
        norms = tf.sqrt(tf.reduce_sum(counts * tf.square(idf), -1))
        shared = tf.reduce_sum(idf / counts * expected, -1)
        return shared / tf.maximum(norms, _SMALL)


class Confidence(tf.Module):
    """Estimates for each caption the probability that it is usable.

    The signals of a caption are, in the order of `SIGNALS`:

    * the mean log-probability of its words and of its end, at least -20;
    * the natural logarithm of the support of its words by a `WordExpectation`, at least ln 0.01.

    Args:
      arrays: the arrays of the `WordExpectation`.
      calibration: the content of confidence.json. Its entries `signals`, name of the signal ->
        weight, and `bias` are the logistic function. The others say how it was fitted. It may be
        empty if only the signals are computed.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], calibration: Mapping[str, Any]):
        super().__init__(name="confidence")
        self.expectation = WordExpectation(arrays)
        # Not a dict, which a SavedModel would contain.
        self.calibration = types.MappingProxyType(dict(calibration))

    def signals(self, features: tf.Tensor, mask: tf.Tensor, found: Found) -> tf.Tensor:
        """Computes the signals of captions, float32 [B, K, S].

        Args:
          features: the features of B images, float32 [B, R, F].
          mask: bool [B, R], False for padding.
          found: K captions of each image, from a `Search`.
        """
        lengths = tf.reduce_sum(tf.cast(found.tokens != PAD, tf.float32), -1)
        code = self.expectation.code(tf.cast(masked_mean(features, mask), tf.float32))
        support = self.expectation.support(code, found.tokens)
        return tf.stack(
            [
                tf.maximum(found.log_probs / tf.maximum(lengths, 1.0), _LEAST_LOG_PROB),
                tf.math.log(tf.maximum(support, _LEAST)),
            ],
            -1,
        )

    def __call__(self, features: tf.Tensor, mask: tf.Tensor, found: Found) -> tf.Tensor:
        """Computes the confidence in captions, float32 [B, K], 0 to 1.

        Args:
          features, mask, found: as in `signals`.
        """
        weights = tf.constant([self.calibration["signals"][name] for name in SIGNALS], tf.float32)
        logits = tf.linalg.matvec(self.signals(features, mask, found), weights)
        return tf.sigmoid(logits + self.calibration["bias"])
