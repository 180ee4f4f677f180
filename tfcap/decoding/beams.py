"""Beam search, with diverse groups of beams and constraints on the words.

Letters: B images, K beams, G groups of beams, N = B K rows, T `max_length`, V vocabulary.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from tfcap.decoding.constraints import NEVER, apply_constraints, log_probs
from tfcap.decoding.options import UNCONSTRAINED, Options
from tfcap.decoding.scores import normalise_by_length
from tfcap.ids import BOS, EOS, PAD
from tfcap.layers.loops import loop
from tfcap.layers.trees import Tree, put, repeat, take
from tfcap.models.captioner import Captioner


class _Beams(NamedTuple):
    """The hypotheses: K of each image, or K / G of each group of an image."""

    scores: tf.Tensor  # [B, K] float32; the search keeps the highest
    penalties: tf.Tensor  # [B, K] float32, subtracted in the scores for words of other groups
    words: tf.Tensor  # [B K] int32, the last word of each
    ended: tf.Tensor  # [B, K] bool
    tokens: tf.Tensor  # [B, K, T] int32
    cache: Tree  # every leaf [B K, ...]


def beam_search(
    model: Captioner,
    context: Tree,
    max_length: int,
    options: Options = UNCONSTRAINED,
) -> tuple[tf.Tensor, tf.Tensor, Tree]:
    """Finds the most probable captions by keeping K hypotheses of each image.

    Groups of beams differ because a word gets a penalty for each time that an earlier group has
    chosen it at the same position (diverse beam search with the Hamming penalty, Vijayakumar et al.
    2018). These penalties guide the search and decide which captions are in a group; the returned
    scores do not contain them. Scores are divided by length once, at the end: the search itself
    never divides.

    Args:
      model, context: the captioner, and what `model.encode` returned for B images.
      max_length: T.
      options: the options after `with_ids`; options of sampling have no effect.

    Returns:
      Tokens [B, K, T] int32, PAD after EOS, best first; scores [B, K] float32, summed natural
      log-probabilities after `normalise_by_length`; the cache of the captions, every leaf [B K,
      ...]. If fewer than K captions exist, the empty slots score about -1e9.
    """
    beam, groups, retire = options.beam, options.groups, options.finished == "retire"
    size = beam // groups
    cache = repeat(model.init_cache(context, max_length), beam)
    sets = tf.shape(tf.nest.flatten(cache)[0])[0] // size  # B G
    state = _Beams(  # empty hypotheses, of which the first of each group is alive
        scores=tf.tile(tf.constant([[0.0] + [NEVER] * (size - 1)]), [sets, 1]),
        penalties=tf.zeros([sets, size]),
        words=tf.fill([sets * size], BOS),
        ended=tf.fill([sets, size], False),
        tokens=tf.zeros([sets, size, max_length], tf.int32),
        cache=cache,
    )
    # `retire` collects finished hypotheses here. `hold` passes an unused scalar, to share the loop.
    pool: Any = 0
    if retire:
        pool = state._replace(scores=tf.fill(tf.shape(state.scores), 2 * NEVER))

    def body(index, state, pool):
        logits, cache = model.step(context, state.cache, state.words, index)
        logp = log_probs(logits / options.temperature if options.temperature != 1 else logits)
        words_so_far = tf.reshape(state.tokens, [-1, max_length])
        logp = apply_constraints(logp, words_so_far, index, options)
        state = _advance(state._replace(cache=cache), logp, index, options)
        if retire:
            done = state.ended | (index == max_length - 1)
            pool = _best(pool, state._replace(scores=tf.where(done, state.scores, 2 * NEVER)), size)
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
    best = pool if retire else state
    scores = tf.reshape(best.scores + best.penalties, [-1, beam])
    tokens = tf.reshape(best.tokens, [-1, beam, max_length])
    scores = normalise_by_length(scores, tokens, options)
    if not options.length_power and groups == 1:
        return tokens, scores, best.cache  # they are in order already
    scores, order = tf.math.top_k(scores, beam)
    rows = tf.reshape(tf.range(tf.shape(order)[0])[:, None] * beam + order, [-1])
    return tf.gather(tokens, order, batch_dims=1), scores, take(best.cache, rows)


def _advance(state, logp, index, options):
    """Extends every hypothesis by one word and selects the best in each group of each image."""
    beam, size = state.scores.shape[-1], logp.shape[-1]
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
    tokens = put(state.tokens, words[..., None], index, axis=2)
    ended = state.ended | (words == EOS)
    return _Beams(scores, penalties, tf.reshape(words, [-1]), ended, tokens, state.cache)


def _extend(scores, logp):
    """Keeps the best K of `scores` [B, K] plus `logp` [B, K, V]: scores, words, indices [B, K]."""
    beam, size = scores.shape[-1], logp.shape[-1]
    # The best K extensions hold at most K of one hypothesis: take K of each, then K of all.
    each = min(beam, size)
    best, words = tf.math.top_k(logp, each)  # [B, K, each]
    total = tf.reshape(scores[..., None] + best, [-1, beam * each])
    scores, chosen = tf.math.top_k(total, beam)
    words = tf.gather(tf.reshape(words, [-1, beam * each]), chosen, batch_dims=1)
    return scores, words, chosen // each


def _extend_groups(state, logp, options):
    """Extends the groups in order, with the penalties of earlier groups; all [B G, K / G]."""
    groups, beam, size = options.groups, state.scores.shape[-1], logp.shape[-1]
    before = tf.reshape(state.scores, [-1, groups, beam])
    paid = tf.reshape(state.penalties, [-1, groups, beam])
    logp = tf.reshape(logp, [-1, groups, beam, size])
    used = tf.zeros_like(logp[:, 0, 0])  # [B, V], how often each word was chosen at this position
    extended = []
    for group in range(groups):
        price = options.diversity * used
        scores, words, origin = _extend(before[:, group], logp[:, group] - price[:, None])
        penalties = tf.gather(paid[:, group], origin, batch_dims=1)
        penalties += tf.gather(price, words, batch_dims=1)
        extended.append((scores, words, origin, penalties))
        # Captions that have ended and empty slots choose no word.
        chooses = (words != PAD) & (scores > NEVER / 2)
        chosen = tf.one_hot(tf.where(chooses, words, -1), size)
        used += tf.reduce_sum(chosen, 1)
    return [tf.reshape(tf.stack(column, 1), [-1, beam]) for column in zip(*extended, strict=True)]


def _select(state, order, beam):
    """Reorders the hypotheses of each image by `order` [B, K]."""
    images = tf.shape(order)[0]
    rows = tf.reshape(tf.range(images)[:, None] * beam + order, [-1])
    return _Beams(
        tf.gather(state.scores, order, batch_dims=1),
        tf.gather(state.penalties, order, batch_dims=1),
        tf.gather(state.words, rows),
        tf.gather(state.ended, order, batch_dims=1),
        tf.gather(state.tokens, order, batch_dims=1),
        take(state.cache, rows),
    )


def _best(first, second, beam):
    """Keeps the K best hypotheses of two sets of K per image."""
    images = tf.shape(first.scores)[0]

    def join(a, b):  # rows [B K, ...] of both -> [B 2K, ...]
        shape = tf.concat([[images, beam], tf.shape(a)[1:]], 0)
        both = tf.concat([tf.reshape(a, shape), tf.reshape(b, shape)], 1)
        return tf.reshape(both, tf.concat([[images * 2 * beam], tf.shape(a)[1:]], 0))

    both = _Beams(
        tf.concat([first.scores, second.scores], 1),
        tf.concat([first.penalties, second.penalties], 1),
        join(first.words, second.words),
        tf.concat([first.ended, second.ended], 1),
        tf.concat([first.tokens, second.tokens], 1),
        tf.nest.map_structure(join, first.cache, second.cache),
    )
    order = tf.math.top_k(both.scores, beam).indices
    return _select(both, order, 2 * beam)
