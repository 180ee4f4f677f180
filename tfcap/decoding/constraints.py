"""Constrains the words of a caption, and truncates the distributions that sampling draws from.

Letters: N rows being decoded, T `max_length`, V vocabulary.

Every function takes log-probabilities [N, V] and returns them with `NEVER` in the place of words
that are excluded. Other words keep their log-probability, so that a caption keeps the score that
the model gives it.
"""

import tensorflow as tf

from tfcap.decoding.options import Options
from tfcap.ids import BOS, EOS, PAD, UNK

NEVER = -1e9  # the score of what cannot be chosen; finite, so that differences stay finite


def log_probs(logits: tf.Tensor) -> tf.Tensor:
    """Computes log-probabilities [..., V] float32 of `logits` [..., V], excluding PAD and BOS.

    PAD and BOS are not words: their probability is shared among the words in proportion.
    """
    return tf.nn.log_softmax(_exclude((PAD, BOS), tf.cast(logits, tf.float32)))


def _exclude(ids: tuple[int, ...], values: tf.Tensor) -> tf.Tensor:
    """Puts `NEVER` in the places `ids` of `values` [..., V]."""
    never = tf.reduce_sum(tf.one_hot(ids, values.shape[-1]), 0) > 0
    return tf.where(never, NEVER, values)


def apply_constraints(
    logp: tf.Tensor,
    tokens: tf.Tensor,
    index: tf.Tensor,
    options: Options,
    prefixes: tf.Tensor | None = None,
) -> tf.Tensor:
    """Excludes the words that may not stand at position `index`.

    Args:
      logp: [N, V] float32.
      tokens: int32 [N, T], the words so far; positions from `index` on are ignored.
      index: int32 scalar.
      options: with word ids instead of text.
      prefixes: int32 [B, P], words that the captions of each image begin with, PAD after them; N is
        a multiple of B. They come before `options.prefix`. None forces only that.

    Returns:
      [N, V]; `logp` itself, the same tensor, if the options constrain nothing. A row in which
      no word is allowed is `NEVER` throughout.
    """
    given = logp
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
    if prefix := options.ids("prefix"):
        logp = _force(tf.constant([prefix]), given, logp, index)
    if prefixes is not None:
        logp = _force(prefixes, given, logp, index)
    return logp


def _force(prefixes, given, logp, index):
    """Allows only the word of a prefix [B, P] at position `index`, with its value in `given`."""
    length = prefixes.shape[-1]
    words = tf.repeat(
        prefixes[:, tf.minimum(index, length - 1)], tf.shape(logp)[0] // tf.shape(prefixes)[0]
    )
    forced = tf.where(tf.one_hot(words, logp.shape[-1]) > 0, given, NEVER)
    return tf.where(((index < length) & (words != PAD))[:, None], forced, logp)


def _exclude_repeats(logp, tokens, index, n):
    """Excludes the words that would repeat an n-gram of the caption."""
    rows, length = tf.shape(tokens)[0], tokens.shape[-1]
    positions = tf.range(length)
    # A position ends the same n-gram if the n - 1 words before it are the last n - 1 words.
    same = tf.broadcast_to((positions >= n - 1) & (positions < index), [rows, length])
    for back in range(1, n):
        last = tokens[:, tf.maximum(index - back, 0), None]
        before = tf.pad(tokens, [[0, 0], [back, 0]])[:, :length]
        same &= before == last
    where = tf.stack([tf.broadcast_to(tf.range(rows)[:, None], [rows, length]), tokens], -1)
    return tf.tensor_scatter_nd_min(logp, where, tf.where(same, NEVER, logp.dtype.max))


def top_k_top_p_filter(logp: tf.Tensor, options: Options) -> tf.Tensor:
    """Excludes the words that sampling does not draw, by `top_k` and then by `top_p`.

    Among words of equal probability at the limit, all stay.

    Args:
      logp: [N, V] float32, up to a constant of each row.
      options: their `top_k` and `top_p`.
    """
    if options.top_k:
        least = tf.math.top_k(logp, min(options.top_k, logp.shape[-1])).values[:, -1:]
        logp = tf.where(logp >= least, logp, NEVER)
    if options.top_p < 1:
        ranked = tf.sort(logp, direction="DESCENDING")
        before = tf.cumsum(tf.nn.softmax(ranked), -1, exclusive=True)
        kept = tf.where(before < options.top_p, ranked, ranked[:, :1])
        least = tf.reduce_min(kept, -1, keepdims=True)
        logp = tf.where(logp >= least, logp, NEVER)
    return logp
