"""Beam search, with diverse groups of beams and constraints on the words.

Letters: B images, K hypotheses of an image, G groups of K / G hypotheses, N = B K rows, T
`max_length`, V vocabulary.
"""

from typing import NamedTuple

import tensorflow as tf

from tfcap.decoding.constraints import NEVER, apply_constraints, log_probs
from tfcap.decoding.options import UNCONSTRAINED, Options
from tfcap.decoding.scores import normalise_by_length
from tfcap.ids import BOS, EOS, PAD
from tfcap.layers.loops import loop
from tfcap.layers.trees import Tree, put, repeat, take
from tfcap.models.captioner import Captioner


class _Beams(NamedTuple):
    """The hypotheses of B images, K of each. With groups, B G in place of B and K / G of K.

    Attributes:
      scores: float32 [B, K], the summed log-probabilities minus the penalties; the search keeps
        the highest.
      penalties: float32 [B, K], the sum of what was subtracted for words of other groups.
      words: int32 [B K], the last word of each hypothesis.
      ended: bool [B, K], whether the hypothesis has its end mark.
      tokens: int32 [B, K, T], the words so far, PAD behind them.
      log_probs: float32 [B, K, T], the log-probability of each word under the model, 0 at PAD.
      cache: the cache of the model, every leaf [B K, ...].
    """

    scores: tf.Tensor
    penalties: tf.Tensor
    words: tf.Tensor
    ended: tf.Tensor
    tokens: tf.Tensor
    log_probs: tf.Tensor
    cache: Tree


def beam_search(
    model: Captioner,
    context: Tree,
    max_length: int,
    options: Options = UNCONSTRAINED,
) -> tuple[tf.Tensor, tf.Tensor, Tree, tf.Tensor]:
    """Finds the most probable captions by keeping the K best hypotheses of each image.

    At each position every hypothesis is extended by every word, and the K best extensions are kept.
    With G groups of hypotheses, each group keeps its K / G best extensions. The groups differ
    because a word gets a penalty for each time that an earlier group has chosen it at the same
    position (diverse beam search with the Hamming penalty, Vijayakumar et al. 2018). The penalties
    affect which captions are found, but the returned scores do not contain them. Scores are
    normalised by length only at the end, not during the search.

    Args:
      model: the captioner.
      context: what `model.encode` returned for B images.
      max_length: largest length of a caption in tokens, T; a longer caption is cut and has no end
        mark.
      options: the options, with ids in place of words (`Options.with_ids`). `beam` is K and
        `groups` is G; the options of sampling have no effect. The default has K = 3 and one group,
        and excludes no word.

    Returns:
      A tuple of four values:

      * the captions of each image, best first: tokens int32 [B, K, T], PAD after the end mark;
      * their scores, float32 [B, K]: summed natural log-probabilities after `normalise_by_length`.
        If fewer than K captions exist, the scores of the others are about -1e9;
      * the cache of the model at the end of the captions, a nest of tensors [B K, ...];
      * the natural log-probability of each word and of the end mark, float32 [B, K, T], 0 at PAD.
        It is that of the model, whatever the temperature and the constraints.
    """
    size = options.beam // options.groups
    retire = options.finished == "retire"
    state = _begin(repeat(model.init_cache(context, max_length), options.beam), size, max_length)
    # `retire` collects finished hypotheses here. `hold` passes an unused number, to share the loop.
    pool: _Beams | int = 0
    if retire:
        pool = state._replace(scores=tf.fill(tf.shape(state.scores), 2 * NEVER))

    def body(index, state, pool):
        logits, cache = model.step(context, state.cache, state.words, index)
        plain = logp = log_probs(logits)
        if options.temperature != 1:
            logp = log_probs(logits / options.temperature)
        words_so_far = tf.reshape(state.tokens, [-1, max_length])
        logp = apply_constraints(logp, words_so_far, index, options)
        state = _advance(state._replace(cache=cache), logp, plain, index, options)
        if retire:
            done = state.ended | (index == max_length - 1)
            finished = state._replace(scores=tf.where(done, state.scores, 2 * NEVER))
            pool = _best(pool, finished, size)
            # The slot of a retired hypothesis continues with a very low score, as in the released
            # code.
            state = state._replace(
                scores=tf.where(done, NEVER, state.scores), ended=tf.zeros_like(done)
            )
        return index + 1, state, pool

    def going(index, state, pool):
        if retire:  # scores only fall: one below the worst of the pool can no longer enter it
            alive = tf.reduce_any(tf.reduce_max(state.scores, 1) > tf.reduce_min(pool.scores, 1))
        else:
            alive = ~tf.reduce_all(state.ended)
        return (index < max_length) & alive

    _, state, pool = loop(going, body, (tf.constant(0), state, pool))
    return _in_order(pool if retire else state, max_length, options)


def _begin(cache, size, max_length):
    """Returns empty hypotheses, `size` of each group, of which the first of each group is alive."""
    groups = tf.shape(tf.nest.flatten(cache)[0])[0] // size  # B G
    return _Beams(
        scores=tf.tile(tf.constant([[0.0] + [NEVER] * (size - 1)]), [groups, 1]),
        penalties=tf.zeros([groups, size]),
        words=tf.fill([groups * size], BOS),
        ended=tf.fill([groups, size], False),
        tokens=tf.zeros([groups, size, max_length], tf.int32),
        log_probs=tf.zeros([groups, size, max_length]),
        cache=cache,
    )


def _in_order(state, max_length, options):
    """Returns what `beam_search` does of the hypotheses, best first; scores without penalties."""
    beam = options.beam
    scores = tf.reshape(state.scores + state.penalties, [-1, beam])
    tokens = tf.reshape(state.tokens, [-1, beam, max_length])
    logps = tf.reshape(state.log_probs, [-1, beam, max_length])
    scores = normalise_by_length(scores, tokens, options)
    if not options.length_power and options.groups == 1:
        return tokens, scores, state.cache, logps  # they are in order already
    scores, order = tf.math.top_k(scores, beam)
    tokens, logps = (tf.gather(values, order, batch_dims=1) for values in (tokens, logps))
    return tokens, scores, take(state.cache, _rows(order, beam)), logps


def _rows(order, beam):
    """Returns the rows [B K] of the hypotheses at the indices `order` [B, K] of each image."""
    return tf.reshape(tf.range(tf.shape(order)[0])[:, None] * beam + order, [-1])


def _advance(state, logp, plain, index, options):
    """Extends every hypothesis by one word and selects the best in each group of each image.

    `logp` [N, V] are the log-probabilities of the words at position `index` that the search goes
    by, and `plain` [N, V] are those of the model.
    """
    beam = state.scores.shape[-1]
    size = logp.shape[-1]
    logp = tf.reshape(logp, [-1, beam, size])  # [N, V] -> [B G, K / G, V]
    # A finished hypothesis has one extension, which leaves it unchanged.
    stay = tf.one_hot(PAD, size, on_value=0.0, off_value=NEVER)
    logp = tf.where(state.ended[..., None], stay, logp)
    if options.groups == 1:
        scores, words, origin = _extend(state.scores, logp)
        penalties = tf.gather(state.penalties, origin, batch_dims=1)
    else:
        scores, words, origin, penalties = _extend_groups(state, logp, options)
    state = _select(state, origin, beam)
    flat = _rows(origin, beam) * size + tf.reshape(words, [-1])  # the places in `plain`
    chosen = tf.reshape(tf.gather(tf.reshape(plain, [-1]), flat), tf.shape(words))
    chosen = tf.where(words == PAD, 0.0, chosen)
    logps = put(state.log_probs, chosen[..., None], index, axis=2)
    tokens = put(state.tokens, words[..., None], index, axis=2)
    ended = state.ended | (words == EOS)
    last = tf.reshape(words, [-1])
    return _Beams(scores, penalties, last, ended, tokens, logps, state.cache)


def _extend(scores, logp):
    """Finds the K best extensions by one word, from `scores` [B, K] and `logp` [B, K, V].

    Returns their scores, their words, and the indices of the hypotheses that they extend: [B, K].
    """
    beam = scores.shape[-1]
    # At most K of the K best extensions are of one hypothesis: take K of each, then K of all.
    width = min(beam, logp.shape[-1])
    best, words = tf.math.top_k(logp, width)  # [B, K, width]
    total = tf.reshape(scores[..., None] + best, [-1, beam * width])
    scores, chosen = tf.math.top_k(total, beam)
    words = tf.gather(tf.reshape(words, [-1, beam * width]), chosen, batch_dims=1)
    return scores, words, chosen // width


def _extend_groups(state, logp, options):
    """Extends one group after the other, with penalties for the words of earlier groups.

    Returns what `_extend` does, and the penalties; all [B G, K / G].
    """
    groups = options.groups
    beam = state.scores.shape[-1]
    size = logp.shape[-1]
    before = tf.reshape(state.scores, [-1, groups, beam])
    penalties_before = tf.reshape(state.penalties, [-1, groups, beam])
    logp = tf.reshape(logp, [-1, groups, beam, size])
    used = tf.zeros_like(logp[:, 0, 0])  # [B, V], how often each word was chosen at this position
    extended = []
    for group in range(groups):
        penalty = options.diversity * used  # [B, V]
        scores, words, origin = _extend(before[:, group], logp[:, group] - penalty[:, None])
        penalties = tf.gather(penalties_before[:, group], origin, batch_dims=1)
        penalties += tf.gather(penalty, words, batch_dims=1)
        extended.append((scores, words, origin, penalties))
        # Hypotheses that have ended, and empty slots, choose no word.
        chooses = (words != PAD) & (scores > NEVER / 2)
        chosen = tf.one_hot(words, size) * tf.cast(chooses, tf.float32)[..., None]
        used += tf.reduce_sum(chosen, 1)
    return [tf.reshape(tf.stack(column, 1), [-1, beam]) for column in zip(*extended, strict=True)]


def _select(state, order, beam):
    """Returns the hypotheses at the indices `order` [B, K] of each image, of `beam`."""
    rows = _rows(order, beam)
    return _Beams(
        tf.gather(state.scores, order, batch_dims=1),
        tf.gather(state.penalties, order, batch_dims=1),
        tf.gather(state.words, rows),
        tf.gather(state.ended, order, batch_dims=1),
        tf.gather(state.tokens, order, batch_dims=1),
        tf.gather(state.log_probs, order, batch_dims=1),
        take(state.cache, rows),
    )


def _best(first, second, beam):
    """Keeps the K best of two sets of hypotheses, `beam` = K of each image in each set."""
    images = tf.shape(first.scores)[0]

    def join(a, b):
        """Joins rows [B K, ...] of both sets to rows [B 2K, ...]."""
        shape = tf.concat([[images, beam], tf.shape(a)[1:]], 0)
        both = tf.concat([tf.reshape(a, shape), tf.reshape(b, shape)], 1)
        return tf.reshape(both, tf.concat([[images * 2 * beam], tf.shape(a)[1:]], 0))

    both = _Beams(
        tf.concat([first.scores, second.scores], 1),
        tf.concat([first.penalties, second.penalties], 1),
        join(first.words, second.words),
        tf.concat([first.ended, second.ended], 1),
        tf.concat([first.tokens, second.tokens], 1),
        tf.concat([first.log_probs, second.log_probs], 1),
        tf.nest.map_structure(join, first.cache, second.cache),
    )
    order = tf.math.top_k(both.scores, beam).indices
    return _select(both, order, 2 * beam)
