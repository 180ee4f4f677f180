"""CIDEr-D, BLEU-4 and the F1 of m-RNN on token ids, as TensorFlow operations.

Letters: B images, S samples per image, C references per image, T length of the samples, U length
of the references, V vocabulary, M n-grams of the table, N images counted in it, X either
S or C.

Captions are ids without BOS: w1 ... wL EOS PAD ...; what follows the first EOS or PAD is ignored.
An n-gram of up to four words is one int64 number, exactly: its ids plus one are the digits of a
number in base V + 2, so that no two n-grams share a number and nothing is hashed. Equal numbers
are counted by comparing all with all: captions are short, and dense comparisons need no sorting.
Everything is float32 whatever the global policy is. The table of document frequencies is a hash
table on the processor, which XLA does not compile: keep `CiderD` out of `jit_compile` functions.
"""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from tfcap.ids import EOS, PAD, UNK

ORDERS = 4  # n-grams of 1 to 4 words
LARGEST_VOCABULARY = 55_106  # (V + 2) ** 4 < 2 ** 63
NONE, UNMATCHED = 0, -1  # instead of an n-gram: none starts here; one that equals no other


class CiderD:
    """CIDEr-D of samples, the "CIDEr" of pycocoevalcap for each of them (about 1 if good, <= 10).

    Vedantam et al. 2015, section 3 and equation 10 in the form of the released scorers: raw counts
    times idf(g) = ln N - ln max(1, df(g)), clipped, with the Gaussian penalty on the difference of
    lengths in bigrams, averaged over n = 1 ... 4 and the references, times 10.

    Args:
      table: document frequencies with ``ngrams`` int32 [M, 4] (0-padded), ``counts`` int32 [M]
        and ``images``, the N of the formula.
      vocab_size: V.
      count_eos: EOS is a word, as in the released rewards; False: it is none anywhere.
      unknown_matches: False: n-grams with UNK in a reference equal nothing, not even one another,
        and have the idf ln N of an unseen n-gram, in the samples too. This is the reward on
        strings of ExpansionNet, but for words outside the vocabulary that several images share
        [GUESS: ids do not tell them apart, and they are rare by definition].
      sigma: of the penalty.

    Raises:
      ValueError: V too large to pack four words, or a table of another vocabulary.
    """

    def __init__(
        self,
        table: Any,
        vocab_size: int,
        count_eos: bool = True,
        unknown_matches: bool = True,
        sigma: float = 6.0,
    ):
        self.packing = Packing(vocab_size, count_eos, unknown_matches)
        self.sigma = sigma
        ngrams = np.asarray(table.ngrams, np.int64)
        if ngrams.size and ngrams.max() >= vocab_size:
            raise ValueError(
                f"The document frequencies hold word {ngrams.max()}, the vocabulary has "
                f"{vocab_size} words. Use the table that prepare wrote with this vocabulary."
            )
        keys = np.zeros(len(ngrams), np.int64)
        for word in ngrams.T:
            keys = np.where(word == PAD, keys, keys * self.packing.base + word + 1)
        idf = math.log(table.images) - np.log(np.maximum(1.0, table.counts))
        if not unknown_matches:
            known = (ngrams != UNK).all(1)
            keys, idf = keys[known], idf[known]
        with tf.init_scope():  # made once, also when this is called while a graph is being built
            self.idf = tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(
                    tf.constant(keys, tf.int64), tf.constant(idf, tf.float32)
                ),
                default_value=tf.constant(math.log(table.images), tf.float32),
            )

    def references(self, tokens: tf.Tensor) -> dict[str, tf.Tensor]:
        """Everything that depends on the references alone, for a data pipeline or the step.

        Args:
          tokens: int32 [B, C, U]; a row of nothing but PAD is no reference. At least one of each
            image must be one.

        Returns:
          ``keys`` int64 and ``counts``, ``weights`` float32 [B, 4, C, U]: each n-gram, how often
          its reference holds it, its squared idf over the norm; ``lengths`` and ``real`` float32
          [B, C].
        """
        keys = self.packing.keys(tokens, of_references=True)
        squares, counts, norms = self._vectors(keys)
        return {
            "keys": keys,
            "counts": counts,
            "weights": tf.math.divide_no_nan(squares, norms[..., tf.newaxis]),
            "lengths": _bigrams(keys),
            "real": present(tokens),
        }

    def __call__(self, tokens: tf.Tensor, references: dict[str, tf.Tensor]) -> tf.Tensor:
        """Rewards [B, S] float32 of samples int32 [B, S, T], maybe without EOS."""
        return mean_of_real(
            self.similarities(tokens, references), references["real"][:, tf.newaxis]
        )

    def similarities(self, tokens: tf.Tensor, references: dict[str, tf.Tensor]) -> tf.Tensor:
        """CIDEr-D of every sample with every reference alone, in 0 ... 10.

        Args:
          tokens: int32 [B, S, T], maybe without EOS.
          references: of `references`, for the same images.

        Returns:
          float32 [B, S, C], 0 where there is no reference; what a call returns is its mean over
          the real ones.
        """
        keys = self.packing.keys(tokens)
        _, _, norms = self._vectors(keys)
        cosine = tf.math.divide_no_nan(_shared(keys, references), norms[..., tf.newaxis])
        delta = _bigrams(keys)[:, :, tf.newaxis] - references["lengths"][:, tf.newaxis]
        penalty = tf.exp(-tf.square(delta) / (2 * self.sigma**2))
        return 10.0 * tf.reduce_mean(cosine, 1) * penalty

    def _vectors(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Squared idf [B, 4, X, T] of each place, count in its caption, norms [B, 4, X]."""
        squares = tf.where(keys == NONE, 0.0, tf.square(self.idf.lookup(keys)))
        counts = own_counts(keys)
        return squares, counts, tf.sqrt(tf.reduce_sum(squares * counts, -1))


class NgramF1:
    """The "BLEU" by which m-RNN reranks: F1 of the n-grams of two sentences, in 0 ... 1.

    Mao et al., ICLR 2015, section 8 (consensus reranking), in the form of the released code, which
    is not BLEU: for n = 1 ... 4 precision and recall of clipped matches give F1, of which the mean
    is taken; no brevity penalty. It is 0 if either sentence has fewer than four words.

    Args and Raises: as `CiderD`, without a table.
    """

    def __init__(self, vocab_size: int, count_eos: bool = False, unknown_matches: bool = True):
        self.packing = Packing(vocab_size, count_eos, unknown_matches)

    def references(self, tokens: tf.Tensor) -> dict[str, tf.Tensor]:
        """Everything that depends on the references int32 [B, C, U] alone, as in `CiderD`.

        Returns:
          ``keys`` int64 and ``counts``, ``weights`` float32 [B, 4, C, U]: each n-gram, how often
          its reference holds it, 1 over that; ``totals`` float32 [B, 4, C], n-grams of each.
        """
        keys = self.packing.keys(tokens, of_references=True)
        counts = own_counts(keys)
        weights = tf.where(keys == NONE, 0.0, 1.0 / counts)
        return {"keys": keys, "counts": counts, "weights": weights, "totals": _totals(keys)}

    def similarities(self, tokens: tf.Tensor, references: dict[str, tf.Tensor]) -> tf.Tensor:
        """F1 [B, S, C] float32 of samples int32 [B, S, T] with every reference."""
        keys = self.packing.keys(tokens)
        matches = tf.round(_shared(keys, references))  # a sum of thirds is no whole number
        totals = _totals(keys)[..., tf.newaxis]
        others = references["totals"][:, :, tf.newaxis]
        # 2 P R / (P + R) with P = matches / totals and R = matches / others.
        f1 = tf.math.divide_no_nan(2.0 * matches, totals + others)
        long = (totals[:, 3] > 0) & (others[:, 3] > 0)
        return tf.where(long, tf.reduce_mean(f1, 1), 0.0)


class Bleu4:
    """Sentence BLEU-4 of samples against all references of their image, in 0 ... 1.

    Papineni et al. 2002 in the form of pycocoevalcap's scores of single sentences: the closest
    reference length (the shorter of two), 1e-15 added to each number of matches and 1e-9 to each
    number of n-grams instead of smoothing, so that a sentence without a common 4-gram has nearly 0.

    Args and Raises: as `CiderD`, without a table.
    """

    def __init__(self, vocab_size: int, count_eos: bool = True, unknown_matches: bool = True):
        self.packing = Packing(vocab_size, count_eos, unknown_matches)

    def references(self, tokens: tf.Tensor) -> dict[str, tf.Tensor]:
        """Everything that depends on the references int32 [B, C, U] alone, as in `CiderD`.

        Returns:
          ``keys`` int64, ``most`` and ``shares`` float32 [B, 4, C U]: each n-gram, the most that
          one reference holds of it, 1 over its places in all references; ``lengths`` and ``real``
          float32 [B, C].
        """
        keys = self.packing.keys(tokens, of_references=True)
        every = merged(keys)
        same = tf.cast(every[..., tf.newaxis] == every[:, :, tf.newaxis], tf.float32)
        most = tf.reduce_max(same * merged(own_counts(keys))[..., tf.newaxis], 2)
        return {
            "keys": every,
            "most": most,
            "shares": tf.where(every > NONE, 1.0 / tf.reduce_sum(same, 2), 0.0),
            "lengths": _lengths(keys),
            "real": present(tokens),
        }

    def __call__(self, tokens: tf.Tensor, references: dict[str, tf.Tensor]) -> tf.Tensor:
        """Rewards [B, S] float32 of samples int32 [B, S, T], maybe without EOS."""
        keys = self.packing.keys(tokens)
        found = tf.minimum(
            occurrences(references["keys"], keys), references["most"][:, :, tf.newaxis]
        )
        correct = tf.reduce_sum(found * references["shares"][:, :, tf.newaxis], -1)  # [B, 4, S]
        correct = tf.round(correct)  # a sum of thirds is no whole number
        total = tf.reduce_sum(tf.cast(keys != NONE, tf.float32), -1)
        # In logarithms, because the product of four matches of 1e-15 is no float32.
        log_bleu = tf.reduce_mean(tf.math.log(correct + 1e-15) - tf.math.log(total + 1e-9), 1)
        length = _lengths(keys)  # [B, S]
        closest = _closest(length, references["lengths"], references["real"])
        ratio = (length + 1e-15) / (closest + 1e-9)
        return tf.exp(log_bleu + tf.minimum(0.0, 1.0 - 1.0 / ratio))


class Packing:
    """Captions as n-grams, and n-grams as numbers.

    Args and Raises: as `CiderD`.
    """

    def __init__(self, vocab_size: int, count_eos: bool, unknown_matches: bool):
        if not UNK < vocab_size <= LARGEST_VOCABULARY:
            raise ValueError(
                f"Rewards pack four words into 63 bits: vocab_size must be in {UNK + 1}.."
                f"{LARGEST_VOCABULARY}. Received: {vocab_size}; prepare with a larger min_count."
            )
        self.base = vocab_size + 2
        self.count_eos, self.unknown_matches = count_eos, unknown_matches

    def words(self, tokens: tf.Tensor) -> tf.Tensor:
        """Digits int64 [B, X, T] of captions int32 [B, X, T]: id + 1, and 0 from the end on."""
        tokens = tf.convert_to_tensor(tokens)
        if tokens.shape.rank != 3:
            raise ValueError(
                f"Captions must be [B, S, T] or [B, C, U]. Received: shape {tokens.shape}."
            )
        ends = tf.cast((tokens == PAD) | (tokens == EOS), tf.float32)
        ended = tf.cumsum(ends, -1, exclusive=self.count_eos) > 0
        return tf.where(
            ended | (tokens == PAD), tf.constant(0, tf.int64), tf.cast(tokens, tf.int64) + 1
        )

    def keys(self, tokens: tf.Tensor, of_references: bool = False) -> tf.Tensor:
        """Numbers int64 [B, 4, X, T] of the n-grams that start at each place, or `NONE`."""
        words = self.words(tokens)
        length = axis_size(words, -1)
        ahead = tf.pad(words, [[0, 0], [0, 0], [0, ORDERS - 1]])
        key, keys = tf.zeros_like(words), []
        for n in range(ORDERS):
            word = ahead[..., n : n + length]
            key = key * self.base + word
            if of_references and not self.unknown_matches:
                key = tf.where((word == UNK + 1) | (key < 0), tf.cast(UNMATCHED, tf.int64), key)
            key = tf.where(word == 0, tf.cast(NONE, tf.int64), key)
            keys.append(key)
        return tf.stack(keys, 1)


def _shared(keys: tf.Tensor, references: dict[str, tf.Tensor]) -> tf.Tensor:
    """min(c_h, c_r) summed over the places of each reference, times their weights: [B, 4, S, C].

    Over different n-grams that is min(c_h, c_r) c_r, each n-gram having c_r places.

    Args:
      keys: of the samples, [B, 4, S, T].
      references: with ``keys``, ``counts`` and ``weights`` [B, 4, C, U].
    """
    found = occurrences(merged(references["keys"]), keys)  # [B, 4, S, C U]
    shared = tf.minimum(found, merged(references["counts"])[:, :, tf.newaxis])
    shared *= merged(references["weights"])[:, :, tf.newaxis]
    sizes = [axis_size(found, i) for i in range(3)]
    captions, length = (axis_size(references["keys"], i) for i in (2, 3))
    return tf.reduce_sum(tf.reshape(shared, [*sizes, captions, length]), -1)


def occurrences(keys: tf.Tensor, among: tf.Tensor) -> tf.Tensor:
    """How often each of `keys` [B, 4, X] occurs in `among` [B, 4, S, T]: [B, 4, S, X] float32."""
    # Comparing with X innermost and adding rows over T: twice as fast as sums along a row.
    same = among[..., tf.newaxis] == keys[:, :, tf.newaxis, tf.newaxis]
    return tf.reduce_sum(tf.cast(same, tf.float32), 3)


def own_counts(keys: tf.Tensor) -> tf.Tensor:
    """How often each n-gram of `keys` [B, 4, X, T] occurs in its own caption, float32."""
    same = keys[..., tf.newaxis] == keys[:, :, :, tf.newaxis]
    return tf.where(keys == UNMATCHED, 1.0, tf.reduce_sum(tf.cast(same, tf.float32), 3))


def _closest(length: tf.Tensor, lengths: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
    """The reference length nearest to each sample [B, S], the shorter if two are as near."""
    lengths = tf.where(real > 0, lengths, math.inf)[:, tf.newaxis]  # [B, 1, C]
    distance = tf.abs(length[..., tf.newaxis] - lengths)
    nearest = distance == tf.reduce_min(distance, -1, keepdims=True)
    return tf.reduce_min(tf.where(nearest, lengths, math.inf), -1)


def _lengths(keys: tf.Tensor) -> tf.Tensor:
    """Number of words float32 [B, X]."""
    return tf.reduce_sum(tf.cast(keys[:, 0] != NONE, tf.float32), -1)


def _totals(keys: tf.Tensor) -> tf.Tensor:
    """Number of n-grams float32 [B, 4, X] of every order."""
    return tf.reduce_sum(tf.cast(keys != NONE, tf.float32), -1)


def _bigrams(keys: tf.Tensor) -> tf.Tensor:
    """Number of bigrams float32 [B, X], the length of a caption in the released scorers."""
    return tf.reduce_sum(tf.cast(keys[:, 1] != NONE, tf.float32), -1)


def present(tokens: tf.Tensor) -> tf.Tensor:
    """Which rows of references int32 [B, C, U] are one: float32 [B, C]."""
    return tf.cast(tf.reduce_any(tokens != PAD, -1), tf.float32)


def mean_of_real(values: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
    """Mean [...] of values [..., C] over the real references."""
    return tf.math.divide_no_nan(tf.reduce_sum(values * real, -1), tf.reduce_sum(real, -1))


def merged(x: tf.Tensor) -> tf.Tensor:
    """[B, 4, X, T] as [B, 4, X T]."""
    return tf.reshape(x, [axis_size(x, 0), ORDERS, axis_size(x, 2) * axis_size(x, 3)])


def axis_size(x: tf.Tensor, axis: int) -> int | tf.Tensor:
    """Length of an axis, as a Python number where it is known, so that shapes stay static."""
    static = x.shape[axis]
    return tf.shape(x)[axis] if static is None else static
