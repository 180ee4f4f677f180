"""Which words may follow: rules on the words of a sentence, and truncated distributions.

Letters: N rows being decoded, T `max_length`, V vocabulary.

Every function takes log-probabilities [N, V] and returns them with `NEVER` in the place of words
that are out; the others keep theirs, so that the score of a sentence stays the model's.
"""

from typing import NamedTuple

import tensorflow as tf

from tfcap.ids import BOS, EOS, PAD

NEVER = -1e9  # the score of what cannot be chosen; finite, so that differences stay finite


class Rules(NamedTuple):
    """What a sentence may be.

    Attributes:
      suppress: ids of words that are never chosen.
      bad_endings: ids of words that are never the last one, neither before EOS nor where the
        longest sentence is cut ("a man with a").
      prefix: ids of the words with which every sentence begins, whatever the other rules say.
      min_length: words before EOS, at least.
      no_repeat_ngram: n; no n words in a row occur twice in a sentence (Paulus et al. 2018 with
        n = 3). 0 allows all.
    """

    suppress: tuple[int, ...] = ()
    bad_endings: tuple[int, ...] = ()
    prefix: tuple[int, ...] = ()
    min_length: int = 0
    no_repeat_ngram: int = 0


NO_RULES = Rules()


def log_probs(logits: tf.Tensor) -> tf.Tensor:
    """Log-probabilities [..., V] float32 of `logits` [..., V] without PAD and BOS.

    They are no words: their probability goes to the others in proportion.
    """
    return tf.nn.log_softmax(without((PAD, BOS), tf.cast(logits, tf.float32)))


def without(ids: tuple[int, ...], values: tf.Tensor) -> tf.Tensor:
    """`values` [..., V] with `NEVER` for `ids`."""
    never = tf.reduce_sum(tf.one_hot(ids, values.shape[-1]), 0) > 0
    return tf.where(never, NEVER, values)


def permitted(logp: tf.Tensor, tokens: tf.Tensor, index: tf.Tensor, rules: Rules) -> tf.Tensor:
    """What may stand at place `index`.

    Args:
      logp: [N, V] float32.
      tokens: int32 [N, T], the words so far; what stands from `index` on does not count.
      index: int32 scalar.
      rules: see there.

    Returns:
      [N, V]. It may be `NEVER` throughout, where no sentence goes on from these words.
    """
    given = logp
    if rules.suppress:
        logp = without(rules.suppress, logp)
    if rules.no_repeat_ngram:
        logp = _without_repeats(logp, tokens, index, rules.no_repeat_ngram)
    if rules.bad_endings:
        last = tokens[:, tf.maximum(index - 1, 0), None]
        bad = (index > 0) & tf.reduce_any(last == tf.constant(rules.bad_endings), -1, True)
        logp = tf.where(bad, without((EOS,), logp), logp)
        at_end = index == tokens.shape[-1] - 1  # there any word is the last one
        logp = tf.where(at_end, without(rules.bad_endings, logp), logp)
    if rules.min_length:
        logp = tf.where(index < rules.min_length, without((EOS,), logp), logp)
    if rules.prefix:
        place = tf.minimum(index, len(rules.prefix) - 1)
        word = tf.one_hot(tf.constant(rules.prefix)[place], logp.shape[-1]) > 0
        forced = tf.where(word, given, NEVER)
        logp = tf.where(index < len(rules.prefix), forced, logp)
    return logp


def _without_repeats(logp, tokens, index, n):
    """Takes out the words that would end an n-gram which stands in the sentence already."""
    rows, length = tf.shape(tokens)[0], tokens.shape[-1]
    places = tf.range(length)
    # A place ends the same n-gram if the n - 1 words before it are the last n - 1 words.
    same = tf.broadcast_to((places >= n - 1) & (places < index), [rows, length])
    for back in range(1, n):
        last = tokens[:, tf.maximum(index - back, 0), None]
        before = tf.pad(tokens, [[0, 0], [back, 0]])[:, :length]
        same &= before == last
    where = tf.stack([tf.broadcast_to(tf.range(rows)[:, None], [rows, length]), tokens], -1)
    return tf.tensor_scatter_nd_min(logp, where, tf.where(same, NEVER, logp.dtype.max))


def truncated(logp: tf.Tensor, top_k: int = 0, top_p: float = 1.0) -> tf.Tensor:
    """The words that sampling draws from.

    Args:
      logp: [N, V] float32, up to a constant of each row.
      top_k: only the k most probable words (Fan et al. 2018), more if the last ones are equal; 0
        keeps all.
      top_p: then only the smallest set of most probable words whose probabilities sum to p at
        least (nucleus sampling, Holtzman et al. 2020); 1 keeps all.
    """
    if top_k:
        least = tf.math.top_k(logp, min(top_k, logp.shape[-1])).values[:, -1:]
        logp = tf.where(logp >= least, logp, NEVER)
    if top_p < 1:
        ranked = tf.sort(logp, direction="DESCENDING")
        before = tf.cumsum(tf.nn.softmax(ranked), -1, exclusive=True)
        least = tf.reduce_min(tf.where(before < top_p, ranked, ranked[:, :1]), -1, keepdims=True)
        logp = tf.where(logp >= least, logp, NEVER)
    return logp
