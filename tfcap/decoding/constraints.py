"""Constrains the words of a caption, and truncates the distributions that sampling draws from.

The functions take log-probabilities [N, V] and replace those of excluded words by `NEVER`. The
log-probabilities of the other words do not change, so that a caption keeps its score under the
model.

Letters: N rows being decoded, T `max_length`, V vocabulary.
"""

import tensorflow as tf

from tfcap.decoding.options import Options
from tfcap.ids import BOS, EOS, PAD, UNK

NEVER = -1e9  # the score of what cannot be chosen; finite, so that differences stay finite
RANKED = 64  # words that nucleus sampling ranks
HALVINGS = 4  # steps of its search for them between two looks at how many are left


def log_probs(logits: tf.Tensor) -> tf.Tensor:
    """Computes log-probabilities of the next word, which is never padding (PAD) or start mark.

    The probability of PAD and of the start mark BOS is divided among the other words in proportion.

    Args:
      logits: scores of the model before the softmax, [..., V], for the V words of the vocabulary.

    Returns:
      float32 [..., V], natural logarithms; about -1e9 for PAD and BOS.
    """
    return tf.nn.log_softmax(_exclude((PAD, BOS), tf.cast(logits, tf.float32)))


def _exclude(ids: tuple[int, ...], values: tf.Tensor) -> tf.Tensor:
    """Sets `values` [..., V] to `NEVER` at these ids of words."""
    never = tf.reduce_sum(tf.one_hot(ids, values.shape[-1]), 0) > 0
    return tf.where(never, NEVER, values)


def apply_constraints(
    logp: tf.Tensor, tokens: tf.Tensor, index: tf.Tensor, options: Options
) -> tf.Tensor:
    """Excludes the words that the options do not allow at a position, for N captions at once.

    Args:
      logp: log-probabilities of the V words of the vocabulary at the position, float32 [N, V].
      tokens: the captions, int32 [N, T], where T is the largest length of a caption. Only their
        words before the position are read.
      index: the position, int32 [], from 0.
      options: the options, with ids in place of words (`Options.with_ids`).

    Returns:
      Log-probabilities [N, V], `NEVER` (-1e9) for excluded words. If a caption has no allowed word,
      its whole row is `NEVER`. If the options exclude nothing, the result is the tensor `logp`
      itself.
    """
    unconstrained = logp
    if never := ((UNK,) if options.suppress_unk else ()) + options.ids("suppress"):
        logp = _exclude(never, logp)
    if options.no_repeat_ngram:
        logp = _exclude_repeats(logp, tokens, index, options.no_repeat_ngram)
    if bad_endings := options.ids("bad_endings"):
        last = tokens[:, tf.maximum(index - 1, 0), None]
        bad = (index > 0) & tf.reduce_any(last == tf.constant(bad_endings), -1, True)
        logp = tf.where(bad, _exclude((EOS,), logp), logp)
        at_end = index == tokens.shape[-1] - 1  # here every word is the last one
        logp = tf.where(at_end, _exclude(bad_endings, logp), logp)
    if options.min_length:
        logp = tf.where(index < options.min_length, _exclude((EOS,), logp), logp)
    if prefix := options.ids("prefix"):  # its words keep the log-probability of the model
        word = tf.constant(prefix)[tf.minimum(index, len(prefix) - 1)]
        forced = tf.where(tf.one_hot(word, logp.shape[-1]) > 0, unconstrained, NEVER)
        logp = tf.where(index < len(prefix), forced, logp)
    return logp


def _exclude_repeats(logp, tokens, index, n):
    """Excludes the words that would repeat an n-gram of the caption."""
    rows = tf.shape(tokens)[0]
    length = tokens.shape[-1]
    if n > length:  # no n-gram fits into the caption
        return logp
    positions = tf.range(length)
    # The word at a position is excluded if the n - 1 words before it are the last n - 1 words.
    same = tf.broadcast_to((positions >= n - 1) & (positions < index), [rows, length])
    for back in range(1, n):
        last = tokens[:, tf.maximum(index - back, 0), None]
        before = tf.pad(tokens, [[0, 0], [back, 0]])[:, :length]
        same &= before == last
    where = tf.stack([tf.broadcast_to(tf.range(rows)[:, None], [rows, length]), tokens], -1)
    # Added up, because LiteRT and ONNX have no scatter that takes the minimum.
    excluded = tf.scatter_nd(where, tf.cast(same, tf.float32), tf.shape(logp))
    return tf.where(excluded > 0, NEVER, logp)


def top_k_top_p_filter(logp: tf.Tensor, options: Options) -> tf.Tensor:
    """Excludes the words that sampling does not draw: first by `top_k`, and then by `top_p`.

    Words with exactly the same probability are allowed or excluded together.

    Args:
      logp: logits or log-probabilities of V words for N captions, [N, V].
      options: the options; only `top_k` and `top_p` are read.

    Returns:
      `logp` [N, V] with `NEVER` (-1e9) for excluded words.
    """
    if options.top_k:
        least = tf.math.top_k(logp, min(options.top_k, logp.shape[-1])).values[:, -1:]
        logp = tf.where(logp >= least, logp, NEVER)
    if options.top_p < 1:
        logp = tf.where(_nucleus(logp, options.top_p), logp, NEVER)
    return logp


def _nucleus(logp, p):
    """Finds the nucleus: the words for which all more probable words sum to less than `p`.

    To sort a whole vocabulary takes ten times as long (250 rows of 9,490 words: 310 ms and 31 ms on
    two cores). So this halves the interval in which the least probable word of the nucleus can be,
    until it holds few words or only equal words, and ranks these words. Sums are in float32, or in
    float64 if `logp` is.

    Args:
      logp: logits or log-probabilities, [N, V].
      p: the share of the probability, above 0 and below 1.

    Returns:
      bool [N, V], True for the words of the nucleus.
    """
    values = logp if logp.dtype == tf.float64 else tf.cast(logp, tf.float32)
    size = values.shape[-1]
    few = min(RANKED, size)
    best = tf.reduce_max(values, -1, keepdims=True)
    shares = tf.exp(values - best)
    total = tf.reduce_sum(shares, -1, keepdims=True)
    goal = p * total

    def undecided(low, high):
        return (values > low) & (values <= high)

    def halve(low, high, above, _):
        """Halves (low, high]. Words above `high` are in the nucleus and sum to `above`."""
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            total_above = tf.reduce_sum(tf.where(values > middle, shares, 0), -1, keepdims=True)
            less = total_above < goal
            low = tf.where(less, low, middle)
            high = tf.where(less, middle, high)
            above = tf.where(less, total_above, above)
        left = tf.reduce_sum(tf.cast(undecided(low, high), tf.int32), -1)
        return low, high, above, tf.reduce_max(left)

    # All words below `low` together have less than 1 - p.
    low = best + tf.math.log(total * ((1 - p) / size)) - 1
    low, high, above, _ = tf.while_loop(
        lambda low, high, above, left: left > few,
        halve,
        (low, best, tf.zeros_like(best), tf.constant(size)),
        maximum_iterations=64 // HALVINGS,
    )
    ranked = tf.where(undecided(low, high), values, values.dtype.min)
    ranked = tf.math.top_k(ranked, few).values
    before = above + tf.cumsum(tf.exp(ranked - best), -1, exclusive=True)
    least = tf.where((before < goal) & (ranked > low), ranked, best)
    return values >= tf.reduce_min(least, -1, keepdims=True)
