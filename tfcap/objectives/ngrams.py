"""CIDEr-D, BLEU-4 and the n-gram F1 of m-RNN on token ids, as TensorFlow operations.

Captions are ids without BOS: w1 ... wL EOS PAD ... Ids after the first EOS or PAD are ignored. An
n-gram of up to four words is packed into one int64 number, its key. The ids of its words, plus one,
are the digits of the key in base V + 2, so different n-grams have different keys. To count an
n-gram, its key is compared with all others: captions are short, and this needs no sorting.

All values are float32 under any global dtype policy. The table of document frequencies is a hash
table on the processor, which XLA does not compile: `CiderD` cannot be used in `jit_compile`
functions.

Letters: B images, S samples per image, C references per image, T length of the samples, U length of
the references, V vocabulary, M n-grams in the table of document frequencies, N images counted for
the table, X either S or C. An axis of size 4 has n-grams of 1, 2, 3 and 4 words.
"""

import math
from typing import Protocol

import numpy as np
import tensorflow as tf

from tfcap.ids import EOS, PAD, UNK

ORDERS = 4  # n-grams of 1 to 4 words
SIGMA = 6.0  # standard deviation of the penalty of CIDEr-D, in bigrams
LARGEST_VOCABULARY = 55_106  # (V + 2) ** 4 < 2 ** 63
NONE = 0  # in place of a key: no n-gram starts here
UNMATCHED = -1  # in place of a key: the n-gram equals no other one


class Frequencies(Protocol):
    """Protocol of a table that says in how many images each n-gram occurs in a reference.

    `data.document_frequency` makes such tables, and `CiderD` reads them.

    Attributes:
      ngrams: M n-grams of one to four words, int32 [M, 4]. A row has the ids of the words, then 0.
      counts: for each n-gram the number of images that have it in a reference, int32 [M].
      images: number of all images.
    """

    @property
    def ngrams(self) -> np.ndarray: ...
    @property
    def counts(self) -> np.ndarray: ...
    @property
    def images(self) -> int: ...


class CiderD:
    """Computes CIDEr-D of sampled captions, in 0 ... 10; pycocoevalcap calls this score CIDEr.

    Source: Vedantam et al. 2015, section 3 and equation 10, as the released scorers compute it. For
    a sample with counts c(g) of its n-grams g, and a reference with counts r(g):

        idf(g) = ln N - ln max(1, df(g))
        cosine_n = sum_g min(c, r) r idf^2 / (|c idf| |r idf|), over the n-grams g of n words
        CIDEr-D = 10 exp(-delta^2 / (2 * 6^2)) mean_n cosine_n, over n = 1 ... 4

    df(g) is the number of images that have g in a reference, out of N images in `table`. |.| is the
    Euclidean norm over the n-grams of n words. delta is the number of bigrams of the sample minus
    that of the reference, as in the released scorers. The score of a sample is the mean of CIDEr-D
    over the references of its image.

    Args:
      table: document frequencies df of the n-grams in the references of N images.
      vocab_size: number of words of the vocabulary, PAD, BOS, EOS and UNK included.
      count_eos: whether the end mark (EOS) counts as a word, as in the released rewards. If False,
        it is ignored.
      unknown_matches: whether the unknown word (UNK) of a sample matches UNK of a reference. If
        False, an n-gram that contains UNK never matches: each such n-gram of a reference counts as
        different from all other n-grams. Every n-gram with UNK has the idf ln N, as if it occurred
        in no image. This follows the reward of ExpansionNet, which compares words as text. One
        difference remains: in ExpansionNet, an unknown word that occurs in several images has a
        smaller idf. Here all unknown words have the same id, so their images cannot be counted (our
        reading: these words are rare, so this matters little).

    Raises:
      ValueError: `vocab_size` is above 55,106, so that four words do not fit in a 64-bit number.

    Example:
      >>> from tfcap.data.document_frequency import document_frequencies
      >>> cider = CiderD(document_frequencies([[[5, 6, 7, 8]], [[9, 8]]]), vocab_size=10)
      >>> references = cider.references(tf.constant([[[5, 6, 7, 8, 2]]]))
      >>> samples = tf.constant([[[5, 6, 7, 8, 2], [5, 6, 9, 2, 0]]])
      >>> print(cider(samples, references).numpy().round(2))
      [[10.    2.47]]
    """

    def __init__(
        self,
        table: Frequencies,
        vocab_size: int,
        count_eos: bool = True,
        unknown_matches: bool = True,
    ):
        self.packing = _Packing(vocab_size, count_eos, unknown_matches)
        ngrams = np.asarray(table.ngrams, np.int64)
        keys: np.ndarray = np.zeros(len(ngrams), np.int64)
        for word in ngrams.T:
            keys = np.where(word == PAD, keys, keys * self.packing.base + word + 1)
        idf = math.log(table.images) - np.log(np.maximum(1.0, table.counts))
        if not unknown_matches:
            has_no_unknown = (ngrams != UNK).all(1)
            keys = keys[has_no_unknown]
            idf = idf[has_no_unknown]
        with tf.init_scope():  # the table is made outside any graph that is being built
            self.idf = tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(
                    tf.constant(keys, tf.int64), tf.constant(idf, tf.float32)
                ),
                default_value=tf.constant(math.log(table.images), tf.float32),
            )

    def references(self, tokens: tf.Tensor) -> dict[str, tf.Tensor]:
        """Computes what depends only on the references, so that a data pipeline can do it.

        Args:
          tokens: C references of each of B images, int32 [B, C, U] for up to U tokens. A row of
            only PAD is not a reference; each image must have at least one reference.

        Returns:
          A dictionary, which `similarities` and the call of this object take. The axis of size 4 is
          for n-grams of 1 ... 4 words, and position u of a reference stands for the n-gram that
          begins there.

          * ``keys`` int64 [B, 4, C, U]: a number for each n-gram, equal for equal n-grams.
          * ``counts`` float32 [B, 4, C, U]: how often the n-gram occurs in its reference.
          * ``weights`` float32 [B, 4, C, U]: its squared idf, divided by the norm of the reference.
          * ``lengths`` float32 [B, C]: the number of bigrams of each reference.
          * ``real`` float32 [B, C]: 1 for a reference, 0 for a row of PAD.
        """
        keys = self.packing.keys(tokens, of_references=True)
        squares, counts, norms = self._vectors(keys)
        return {
            "keys": keys,
            "counts": counts,
            "weights": tf.math.divide_no_nan(squares, norms[..., tf.newaxis]),
            "lengths": _totals(keys)[:, 1],
            "real": _present(tokens),
        }

    def __call__(self, tokens: tf.Tensor, references: dict[str, tf.Tensor]) -> tf.Tensor:
        """Computes CIDEr-D of each sample against all references of its image.

        Args:
          tokens: S samples of each of B images, int32 [B, S, T] for up to T tokens; EOS may be
            missing.
          references: the result of the method `references` for the same images.

        Returns:
          float32 [B, S], in 0 ... 10.
        """
        return _mean_of_real(
            self.similarities(tokens, references), references["real"][:, tf.newaxis]
        )

    def similarities(self, tokens: tf.Tensor, references: dict[str, tf.Tensor]) -> tf.Tensor:
        """Computes CIDEr-D of each sample against each single reference of its image.

        Args:
          tokens: S samples of each of B images, int32 [B, S, T] for up to T tokens; EOS may be
            missing.
          references: the result of the method `references` for C references of the same images.

        Returns:
          float32 [B, S, C], in 0 ... 10; 0 where there is no reference.
        """
        keys = self.packing.keys(tokens)
        _, _, norms = self._vectors(keys)
        cosine = tf.math.divide_no_nan(_shared(keys, references), norms[..., tf.newaxis])
        delta = _totals(keys)[:, 1, :, tf.newaxis] - references["lengths"][:, tf.newaxis]
        penalty = tf.exp(-tf.square(delta) / (2 * SIGMA**2))
        return 10.0 * tf.reduce_mean(cosine, 1) * penalty

    def _vectors(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns squared idf and count of each n-gram [B, 4, X, T], and the norms [B, 4, X]."""
        squares = tf.where(keys == NONE, 0.0, tf.square(self.idf.lookup(keys)))
        counts = _counts_in_caption(keys)
        return squares, counts, tf.sqrt(tf.reduce_sum(squares * counts, -1))


class NgramF1:
    """Computes F1 of the n-grams of two captions, in 0 ... 1; m-RNN calls it BLEU in reranking.

    Source: Mao et al., ICLR 2015, section 8 (consensus reranking), and the released code. For a
    sample with counts c(g) of its n-grams g, and a reference with counts r(g):

        F1_n = 2 sum_g min(c, r) / (sum_g c + sum_g r), over the n-grams g of n words

    The result is the mean of F1_n over n = 1 ... 4, or 0 if one of the two captions has fewer than
    four words. Unlike BLEU, this score has no brevity penalty.

    Args:
      vocab_size: number of words of the vocabulary, PAD, BOS, EOS and UNK included.
      count_eos: whether the end mark (EOS) counts as a word. If False, it is ignored.
      unknown_matches: whether the unknown word (UNK) of a sample matches UNK of a reference.

    Raises:
      ValueError: `vocab_size` is above 55,106, so that four words do not fit in a 64-bit number.

    Example:
      >>> f1 = NgramF1(vocab_size=10)
      >>> references = f1.references(tf.constant([[[5, 6, 7, 8, 2]]]))
      >>> samples = tf.constant([[[5, 6, 7, 8, 2], [5, 6, 7, 9, 2]]])
      >>> print(f1.similarities(samples, references).numpy().round(2))
      [[[1.  ]
        [0.48]]]
    """

    def __init__(self, vocab_size: int, count_eos: bool = False, unknown_matches: bool = True):
        self.packing = _Packing(vocab_size, count_eos, unknown_matches)

    def references(self, tokens: tf.Tensor) -> dict[str, tf.Tensor]:
        """Computes what depends only on the references, so that a data pipeline can do it.

        Args:
          tokens: C references of each of B images, int32 [B, C, U] for up to U tokens. A row of
            only PAD is not a reference.

        Returns:
          A dictionary, which `similarities` takes. The axis of size 4 is for n-grams of 1 ... 4
          words, and position u of a reference stands for the n-gram that begins there.

          * ``keys`` int64 [B, 4, C, U]: a number for each n-gram, equal for equal n-grams.
          * ``counts`` float32 [B, 4, C, U]: how often the n-gram occurs in its reference.
          * ``weights`` float32 [B, 4, C, U]: 1 / ``counts``.
          * ``totals`` float32 [B, 4, C]: the number of n-grams of each reference.
        """
        keys = self.packing.keys(tokens, of_references=True)
        counts = _counts_in_caption(keys)
        weights = tf.where(keys == NONE, 0.0, 1.0 / counts)
        return {"keys": keys, "counts": counts, "weights": weights, "totals": _totals(keys)}

    def similarities(self, tokens: tf.Tensor, references: dict[str, tf.Tensor]) -> tf.Tensor:
        """Computes F1 of each sample and each single reference of its image.

        Args:
          tokens: S samples of each of B images, int32 [B, S, T] for up to T tokens; EOS may be
            missing.
          references: the result of the method `references` for C references of the same images.

        Returns:
          float32 [B, S, C], in 0 ... 1.
        """
        keys = self.packing.keys(tokens)
        # A sum of thirds is not exactly a whole number.
        matches = tf.round(_shared(keys, references))
        totals = _totals(keys)[..., tf.newaxis]
        others = references["totals"][:, :, tf.newaxis]
        # 2 P R / (P + R) with P = matches / totals and R = matches / others.
        f1 = tf.math.divide_no_nan(2.0 * matches, totals + others)
        long = (totals[:, 3] > 0) & (others[:, 3] > 0)
        return tf.where(long, tf.reduce_mean(f1, 1), 0.0)


class Bleu4:
    """Computes BLEU-4 of each sample against all references of its image, in 0 ... 1.

    Source: Papineni et al. 2002, as pycocoevalcap computes it for single captions:

        BLEU-4 = min(1, exp(1 - r / c)) (p_1 p_2 p_3 p_4)^(1/4)
        p_n = (matches_n + 1e-15) / (total_n + 1e-9)

    c is the number of words of the sample, and r that of the reference with the closest length; of
    two equally close references, the shorter one counts. total_n is the number of n-grams of n
    words in the sample, and matches_n is the number of these n-grams that are in a reference. An
    n-gram matches at most as often as it occurs in the reference that has it most often. A sample
    that shares no 4-gram with the references has a score of nearly 0.

    Args:
      vocab_size: number of words of the vocabulary, PAD, BOS, EOS and UNK included.
      count_eos: whether the end mark (EOS) counts as a word. If False, it is ignored.
      unknown_matches: whether the unknown word (UNK) of a sample matches UNK of a reference.

    Raises:
      ValueError: `vocab_size` is above 55,106, so that four words do not fit in a 64-bit number.

    Example:
      >>> bleu = Bleu4(vocab_size=10)
      >>> references = bleu.references(tf.constant([[[5, 6, 7, 8, 2]]]))
      >>> samples = tf.constant([[[5, 6, 7, 8, 2], [5, 6, 7, 8, 9]]])
      >>> print(bleu(samples, references).numpy().round(2))
      [[1.   0.67]]
    """

    def __init__(self, vocab_size: int, count_eos: bool = True, unknown_matches: bool = True):
        self.packing = _Packing(vocab_size, count_eos, unknown_matches)

    def references(self, tokens: tf.Tensor) -> dict[str, tf.Tensor]:
        """Computes what depends only on the references, so that a data pipeline can do it.

        Args:
          tokens: C references of each of B images, int32 [B, C, U] for up to U tokens. A row of
            only PAD is not a reference; each image must have at least one reference.

        Returns:
          A dictionary, which the call of this object takes. The axis of size 4 is for n-grams of 1
          ... 4 words. The last axis has the n-grams of all references of an image, one reference
          after the other.

          * ``keys`` int64 [B, 4, C U]: a number for each n-gram, equal for equal n-grams.
          * ``most`` float32 [B, 4, C U]: how often the n-gram occurs in the reference that has it
            most often.
          * ``shares`` float32 [B, 4, C U]: 1 divided by the number of times that the n-gram occurs
            in all references together.
          * ``lengths`` float32 [B, C]: the number of words of each reference.
          * ``real`` float32 [B, C]: 1 for a reference, 0 for a row of PAD.
        """
        keys = self.packing.keys(tokens, of_references=True)
        all_keys = _merged(keys)
        same = tf.cast(all_keys[..., tf.newaxis] == all_keys[:, :, tf.newaxis], tf.float32)
        most = tf.reduce_max(same * _merged(_counts_in_caption(keys))[..., tf.newaxis], 2)
        return {
            "keys": all_keys,
            "most": most,
            "shares": tf.where(all_keys > NONE, 1.0 / tf.reduce_sum(same, 2), 0.0),
            "lengths": _totals(keys)[:, 0],
            "real": _present(tokens),
        }

    def __call__(self, tokens: tf.Tensor, references: dict[str, tf.Tensor]) -> tf.Tensor:
        """Computes BLEU-4 of each sample against all references of its image.

        Args:
          tokens: S samples of each of B images, int32 [B, S, T] for up to T tokens; EOS may be
            missing.
          references: the result of the method `references` for the same images.

        Returns:
          float32 [B, S], in 0 ... 1.
        """
        keys = self.packing.keys(tokens)
        clipped = tf.minimum(
            _occurrences(references["keys"], keys), references["most"][:, :, tf.newaxis]
        )
        correct = tf.reduce_sum(clipped * references["shares"][:, :, tf.newaxis], -1)  # [B, 4, S]
        correct = tf.round(correct)  # a sum of thirds is not exactly a whole number
        total = _totals(keys)
        # Logarithms are summed, because the product of four numbers of 1e-15 underflows in float32.
        log_bleu = tf.reduce_mean(tf.math.log(correct + 1e-15) - tf.math.log(total + 1e-9), 1)
        length = total[:, 0]  # [B, S]
        closest = _closest(length, references["lengths"], references["real"])
        ratio = (length + 1e-15) / (closest + 1e-9)
        return tf.exp(log_bleu + tf.minimum(0.0, 1.0 - 1.0 / ratio))


class _Packing:
    """Splits captions into n-grams and packs each n-gram into one int64 number, its key.

    Args:
      vocab_size, count_eos, unknown_matches: as in `CiderD`.
    """

    def __init__(self, vocab_size: int, count_eos: bool, unknown_matches: bool):
        if vocab_size > LARGEST_VOCABULARY:
            raise ValueError(
                f"The vocabulary has {vocab_size} words, but CIDEr-D and BLEU as rewards allow at "
                f"most {LARGEST_VOCABULARY}, because they store four words in one 64-bit number. "
                "Prepare the data with a larger `min_count` of tfcap.prepare."
            )
        self.base = vocab_size + 2
        self.count_eos = count_eos
        self.unknown_matches = unknown_matches

    def _words(self, tokens: tf.Tensor) -> tf.Tensor:
        """Returns the digits of captions int32 [B, X, T]: id + 1, and 0 after the end, int64."""
        tokens = tf.convert_to_tensor(tokens)
        ends = tf.cast((tokens == PAD) | (tokens == EOS), tf.float32)
        ended = tf.cumsum(ends, -1, exclusive=self.count_eos) > 0
        return tf.where(
            ended | (tokens == PAD), tf.constant(0, tf.int64), tf.cast(tokens, tf.int64) + 1
        )

    def keys(self, tokens: tf.Tensor, of_references: bool = False) -> tf.Tensor:
        """Computes the keys of the n-grams that start at each position.

        Args:
          tokens: captions, int32 [B, X, T].
          of_references: whether they are references, in which UNK may equal no word.

        Returns:
          int64 [B, 4, X, T]; `NONE` where the caption ends before the n-gram does.
        """
        words = self._words(tokens)
        length = _axis_size(words, -1)
        ahead = tf.pad(words, [[0, 0], [0, 0], [0, ORDERS - 1]])
        key = tf.zeros_like(words)
        keys = []
        for n in range(ORDERS):
            word = ahead[..., n : n + length]
            key = key * self.base + word
            if of_references and not self.unknown_matches:
                key = tf.where((word == UNK + 1) | (key < 0), tf.cast(UNMATCHED, tf.int64), key)
            key = tf.where(word == 0, tf.cast(NONE, tf.int64), key)
            keys.append(key)
        return tf.stack(keys, 1)


def _shared(keys: tf.Tensor, references: dict[str, tf.Tensor]) -> tf.Tensor:
    """Sums the clipped counts, times the weights, over the positions of each reference.

    An n-gram with the count c in the sample and r in the reference occurs at r positions of the
    reference, so it adds r min(c, r) times its weight.

    Args:
      keys: keys of the samples, int64 [B, 4, S, T].
      references: ``keys``, ``counts`` and ``weights`` of the references, all [B, 4, C, U].

    Returns:
      float32 [B, 4, S, C].
    """
    counts = _occurrences(_merged(references["keys"]), keys)  # [B, 4, S, C U]
    shared = tf.minimum(counts, _merged(references["counts"])[:, :, tf.newaxis])
    shared *= _merged(references["weights"])[:, :, tf.newaxis]
    sizes = [_axis_size(counts, i) for i in range(3)]
    captions, length = (_axis_size(references["keys"], i) for i in (2, 3))
    return tf.reduce_sum(tf.reshape(shared, [*sizes, captions, length]), -1)


def _occurrences(keys: tf.Tensor, among: tf.Tensor) -> tf.Tensor:
    """Counts each of `keys` [B, 4, X] in each row of `among` [B, 4, S, T]: float32 [B, 4, S, X]."""
    # The sum runs over T with X innermost: twice as fast as sums along the innermost axis.
    same = among[..., tf.newaxis] == keys[:, :, tf.newaxis, tf.newaxis]
    return tf.reduce_sum(tf.cast(same, tf.float32), 3)


def _counts_in_caption(keys: tf.Tensor) -> tf.Tensor:
    """Counts each of `keys` [B, 4, X, T] in its own caption: float32 [B, 4, X, T]."""
    same = keys[..., tf.newaxis] == keys[:, :, :, tf.newaxis]
    return tf.where(keys == UNMATCHED, 1.0, tf.reduce_sum(tf.cast(same, tf.float32), 3))


def _closest(length: tf.Tensor, lengths: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
    """Returns the length of a reference that is closest to `length`; of two, the shorter.

    `length` [B, S] are the lengths of the samples; `lengths` and `real` [B, C] are of the
    references, as in `Bleu4.references`. Returns [B, S].
    """
    lengths = tf.where(real > 0, lengths, math.inf)[:, tf.newaxis]  # [B, 1, C]
    distance = tf.abs(length[..., tf.newaxis] - lengths)
    nearest = distance == tf.reduce_min(distance, -1, keepdims=True)
    return tf.reduce_min(tf.where(nearest, lengths, math.inf), -1)


def _totals(keys: tf.Tensor) -> tf.Tensor:
    """Counts the n-grams of each caption of `keys` [B, 4, X, T]: float32 [B, 4, X]."""
    return tf.reduce_sum(tf.cast(keys != NONE, tf.float32), -1)


def _present(tokens: tf.Tensor) -> tf.Tensor:
    """Returns 1 for rows of `tokens` [B, C, U] that hold a reference, else 0: float32 [B, C]."""
    return tf.cast(tf.reduce_any(tokens != PAD, -1), tf.float32)


def _mean_of_real(values: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
    """Averages `values` [..., C] over the references, where `real` [..., C] is 1: [...]."""
    return tf.math.divide_no_nan(tf.reduce_sum(values * real, -1), tf.reduce_sum(real, -1))


def _merged(x: tf.Tensor) -> tf.Tensor:
    """Returns [B, 4, C, U] as [B, 4, C U]: the n-grams of all references of an image."""
    return tf.reshape(x, [_axis_size(x, 0), ORDERS, _axis_size(x, 2) * _axis_size(x, 3)])


def _axis_size(x: tf.Tensor, axis: int) -> int | tf.Tensor:
    """Returns the size of an axis, as a Python int if it is known when the graph is made."""
    static = x.shape[axis]
    return tf.shape(x)[axis] if static is None else static
