"""Beam search: hypotheses that are kept or retire, groups that differ, rules on their words.

Letters: B images, K beams, G groups of beams, N = B K rows, T `max_length`, V vocabulary.
"""

from typing import NamedTuple

import tensorflow as tf

from tfcap.decoding.constraints import NEVER, NO_RULES, Rules, log_probs, permitted
from tfcap.decoding.scores import normalised
from tfcap.ids import BOS, EOS, PAD
from tfcap.layers.loops import loop
from tfcap.models.captioner import Captioner, Tree, put, repeat, take


class _Beams(NamedTuple):
    """K hypotheses of each image; of each group of an image, where there are groups."""

    scores: tf.Tensor  # [B, K] float32, by which the search goes
    penalties: tf.Tensor  # [B, K] float32, of similarity to other groups, contained in the scores
    words: tf.Tensor  # [B K] int32, the last word of each
    ended: tf.Tensor  # [B, K] bool
    tokens: tf.Tensor  # [B, K, T] int32
    cache: Tree  # every leaf [B K, ...]


def beam_search(
    model: Captioner,
    context: Tree,
    beam: int,
    max_length: int,
    finished: str = "hold",
    length_power: float = 0.0,
    *,
    length_penalty: str = "average",
    groups: int = 1,
    diversity: float = 0.0,
    temperature: float = 1.0,
    rules: Rules = NO_RULES,
) -> tuple[tf.Tensor, tf.Tensor, Tree]:
    """The most probable sentences found by keeping `beam` hypotheses per image.

    Args:
      model: the captioner.
      context: of `model.encode`, B images.
      beam: K.
      max_length: T.
      finished: `hold` keeps finished sentences in their beam slot (the released search of X-LAN
        and X-Transformer); `retire` moves them to a list of the K best and goes on with K
        unfinished ones (the older search, behind the paper's numbers of X-LAN).
      length_power, length_penalty: of `normalised`, once at the end: the search itself never
        normalises.
      groups: G, of K / G hypotheses each. At every word a group pays for each time that the
        groups before it have chosen that word here (diverse beam search with the Hamming
        penalty, Vijayakumar et al. 2018). Its penalties lead the search and pick a group's
        sentences; the scores do not contain them.
      diversity: the penalty, in natural logarithm.
      temperature: divides the logits: the scores are those of the tempered distribution.
      rules: what a sentence may be.

    Returns:
      Tokens [B, K, T] int32, PAD after EOS, best first; scores [B, K] float32, summed
      log-probabilities in natural logarithm, `normalised`; the cache of those sentences, every
      leaf [B K, ...]. Slots that no sentence fills (fewer than K exist) score about -1e9.

    Raises:
      ValueError: if `finished` is neither `hold` nor `retire`, beam is below 1, or groups do not
        divide it.
    """
    if finished not in ("hold", "retire") or beam < 1 or groups < 1 or beam % groups:
        raise ValueError(
            "finished must be hold or retire and beam at least 1 and a multiple of groups. "
            f"Received: finished={finished!r}, beam={beam}, groups={groups}"
        )
    state = _begin(model, context, beam, beam // groups, max_length)
    size = beam // groups
    # `retire` collects here; `hold` carries it along unused (one scalar) to share the loop.
    pool = 0
    if finished == "retire":
        pool = state._replace(scores=tf.fill(tf.shape(state.scores), 2 * NEVER))

    def body(index, state, pool):
        logits, cache = model.step(context, state.cache, state.words, index)
        logp = log_probs(logits / temperature if temperature != 1 else logits)
        logp = permitted(logp, tf.reshape(state.tokens, [-1, max_length]), index, rules)
        state = _advance(state._replace(cache=cache), logp, index, groups, diversity)
        if finished == "retire":
            done = state.ended | (index == max_length - 1)
            pool = _best(pool, state._replace(scores=tf.where(done, state.scores, 2 * NEVER)), size)
            # A retired slot goes on far behind every live one, as in the released code.
            state = state._replace(
                scores=tf.where(done, NEVER, state.scores), ended=tf.zeros_like(done)
            )
        return index + 1, state, pool

    def going(index, state, pool):
        if finished == "hold":
            alive = ~tf.reduce_all(state.ended)
        else:  # scores only fall: below the worst that is finished nothing can enter the pool
            alive = tf.reduce_any(tf.reduce_max(state.scores, 1) > tf.reduce_min(pool.scores, 1))
        return (index < max_length) & alive

    _, state, pool = loop(model, going, body, (tf.constant(0), state, pool))
    found = pool if finished == "retire" else state
    scores = tf.reshape(found.scores + found.penalties, [-1, beam])
    tokens = tf.reshape(found.tokens, [-1, beam, max_length])
    scores = normalised(scores, tokens, length_penalty, length_power)
    if not length_power and groups == 1:
        return tokens, scores, found.cache  # in order
    scores, order = tf.math.top_k(scores, beam)
    rows = tf.reshape(tf.range(tf.shape(order)[0])[:, None] * beam + order, [-1])
    return tf.gather(tokens, order, batch_dims=1), scores, take(found.cache, rows)


def _begin(model, context, beam, size, max_length):
    """The empty hypotheses of all groups of `size`, the first of each group alive."""
    cache = repeat(model.init_cache(context, max_length), beam)
    sets = tf.shape(tf.nest.flatten(cache)[0])[0] // size  # B G
    return _Beams(
        scores=tf.tile(tf.constant([[0.0] + [NEVER] * (size - 1)]), [sets, 1]),
        penalties=tf.zeros([sets, size]),
        words=tf.fill([sets * size], BOS),
        ended=tf.fill([sets, size], False),
        tokens=tf.zeros([sets, size, max_length], tf.int32),
        cache=cache,
    )


def _advance(state, logp, index, groups, diversity):
    """Extends every hypothesis by one word and keeps the best of each group of each image."""
    beam, size = state.scores.shape[-1], logp.shape[-1]
    logp = tf.reshape(logp, [-1, beam, size])  # [N, V] -> [B G, K / G, V]
    # A finished hypothesis offers itself, unchanged, and nothing else.
    stay = tf.one_hot(PAD, size, on_value=0.0, off_value=NEVER)
    logp = tf.where(state.ended[..., None], stay, logp)
    if groups == 1:
        scores, words, origin = _extend(state.scores, logp)
        penalties = tf.gather(state.penalties, origin, batch_dims=1)
    else:
        scores, words, origin, penalties = _extend_groups(state, logp, groups, diversity)
    state = _select(state, origin, beam)
    tokens = put(state.tokens, words[..., None], index, axis=2)
    ended = state.ended | (words == EOS)
    return _Beams(scores, penalties, tf.reshape(words, [-1]), ended, tokens, state.cache)


def _extend(scores, logp):
    """The best extensions of hypotheses `scores` [B, K] by words `logp` [B, K, V].

    Returns their scores, words and the hypotheses that they extend, each [B, K].
    """
    beam, size = scores.shape[-1], logp.shape[-1]
    # No image can take more than K words of one hypothesis: K of each, then K of all those.
    each = min(beam, size)
    best, words = tf.math.top_k(logp, each)  # [B, K, each]
    total = tf.reshape(scores[..., None] + best, [-1, beam * each])
    scores, chosen = tf.math.top_k(total, beam)
    words = tf.gather(tf.reshape(words, [-1, beam * each]), chosen, batch_dims=1)
    return scores, words, chosen // each


def _extend_groups(state, logp, groups, diversity):
    """`_extend` for one group after the other, with the penalties of each; all [B G, K / G]."""
    beam, size = state.scores.shape[-1], logp.shape[-1]
    before = tf.reshape(state.scores, [-1, groups, beam])
    paid = tf.reshape(state.penalties, [-1, groups, beam])
    logp = tf.reshape(logp, [-1, groups, beam, size])
    used = tf.zeros_like(logp[:, 0, 0])  # [B, V], how often each word was chosen at this place
    found = []
    for group in range(groups):
        price = diversity * used
        scores, words, origin = _extend(before[:, group], logp[:, group] - price[:, None])
        penalties = tf.gather(paid[:, group], origin, batch_dims=1)
        penalties += tf.gather(price, words, batch_dims=1)
        found.append((scores, words, origin, penalties))
        # Neither sentences that have ended nor slots that hold none choose a word.
        chooses = (words != PAD) & (scores > NEVER / 2)
        chosen = tf.one_hot(tf.where(chooses, words, -1), size)
        used += tf.reduce_sum(chosen, 1)
    return [tf.reshape(tf.stack(column, 1), [-1, beam]) for column in zip(*found, strict=True)]


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
    """The K best hypotheses of two sets of K per image."""
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
