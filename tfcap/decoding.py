"""Sampling, beam search, scoring and scheduled sampling: functions over the Captioner interface.

Letters: B images, S samples per image, K beams, N rows (B S or B K), T `max_length`,
T' length of given tokens, V vocabulary.

All loops are `tf.while_loop`s of stock operations that end as soon as every sentence has ended,
so that the same functions run in training, in evaluation and inside a SavedModel.
"""

import math
from typing import NamedTuple

import tensorflow as tf

from tfcap.models.captioner import Captioner, Tree, put, recurring, repeat, take

PAD, BOS, EOS = 0, 1, 2  # the ids of tfcap.data.tokens, which models and decoding do not import
NEVER = -1e9  # the score of what cannot be chosen; finite, so that differences stay finite


class _Beams(NamedTuple):
    """K hypotheses of each image."""

    scores: tf.Tensor  # [B, K] float32
    words: tf.Tensor  # [B K] int32, the last word of each
    ended: tf.Tensor  # [B, K] bool
    tokens: tf.Tensor  # [B, K, T] int32
    cache: Tree  # every leaf [B K, ...]


def log_probs(logits: tf.Tensor, suppress: tuple[int, ...] = ()) -> tf.Tensor:
    """Log-probabilities [..., V] float32 of `logits` [..., V] without PAD, BOS and `suppress`.

    PAD and BOS are no words: their probability goes to the others in proportion. `suppress`ed
    words are only never chosen, as in the released search: the others keep theirs.
    """
    size = logits.shape[-1]

    def without(ids, values):
        never = tf.reduce_sum(tf.one_hot(ids, size), 0) > 0
        return tf.where(never, NEVER, values)

    logps = tf.nn.log_softmax(without([PAD, BOS], tf.cast(logits, tf.float32)))
    return without(suppress, logps) if suppress else logps


def score(model: Captioner, context: Tree, tokens: tf.Tensor, training: bool = False) -> tf.Tensor:
    """Log-probability of each given word.

    Args:
      model: the captioner.
      context: of `model.encode`, B images.
      tokens: int32 [N, T'] without BOS: w1 ... wL EOS PAD ...
      training: switches dropout on.

    Returns:
      [N, T'] float32, natural logarithm, 0 at padding.
    """
    starts = tf.fill([tf.shape(tokens)[0], 1], BOS)
    logits = model.decode(context, tf.concat([starts, tokens[:, :-1]], 1), training)
    chosen = tf.gather(log_probs(logits), tokens, batch_dims=2)
    return tf.where(tokens == PAD, 0.0, chosen)


def sample(
    model: Captioner,
    context: Tree,
    max_length: int,
    draws: tf.Tensor | None = None,
    temperature: float = 1.0,
    training: bool = False,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Greedy decoding, or sampling from the model's distribution.

    A row depends on its own draws alone: a batch cut in parts gives the same sentences.

    Args:
      model: the captioner.
      context: of `model.encode`, B images.
      max_length: T.
      draws: float32 [N, T], N a multiple of B, image-major: uniform in [0, 1), one for each word,
        or negative for the most probable word. None is greedy decoding of one sentence per image.
      temperature: divides the logits before sampling.
      training: switches dropout on.

    Returns:
      Tokens [N, T] int32, PAD after EOS, and the log-probability [N, T] of each (0 at PAD).
    """
    cache = model.init_cache(context, max_length)
    rows = tf.shape(tf.nest.flatten(cache)[0])[0]
    if draws is not None:
        group = tf.shape(draws)[0] // rows
        cache = tf.nest.map_structure(lambda leaf: tf.repeat(leaf, group, axis=0), cache)
        rows = tf.shape(draws)[0]

    def body(index, words, ended, tokens, logps, cache):
        logits, cache = model.step(context, cache, words, index, training)
        logp = log_probs(logits)
        words = tf.argmax(logp, -1, tf.int32)
        if draws is not None:
            now = draws[:, index]
            drawn = _draw(tf.stop_gradient(logp) / temperature, now)
            words = tf.where(now < 0, words, drawn)
        words = tf.where(ended, PAD, words)
        logp = tf.where(ended, 0.0, tf.gather(logp, words, batch_dims=1))
        tokens = put(tokens, words[:, None], index, axis=1)
        logps = put(logps, logp[:, None], index, axis=1)
        return index + 1, words, ended | (words == EOS), tokens, logps, cache

    with recurring(model, gradient=training):
        _, _, _, tokens, logps, _ = _loop(
            lambda index, words, ended, *_: (index < max_length) & ~tf.reduce_all(ended),
            body,
            (
                tf.constant(0),
                tf.fill([rows], BOS),
                tf.fill([rows], False),
                tf.zeros([rows, max_length], tf.int32),
                tf.zeros([rows, max_length]),
                cache,
            ),
        )
    return tokens, logps


def scheduled(
    model: Captioner,
    context: Tree,
    tokens: tf.Tensor,
    probability: float | tf.Tensor,
    seed: tf.Tensor,
    training: bool = False,
) -> tf.Tensor:
    """`model.decode` where some inputs are words that the model itself drew.

    Scheduled sampling (Bengio et al. 2015) as in the released X-LAN (systems 7.1): from the second
    place on, each row takes with `probability` a draw from its previous logits (with their
    dropout) in place of the given word. The draw has no gradient, and padding stays padding. The
    released code may draw its PAD, which is also its end; here PAD and BOS are never drawn.

    Works through `model.step`, so that every system has it: dearer than a parallel `decode`.

    Args:
      model: the captioner.
      context: of `model.encode`, B images.
      tokens: int32 [N, T'], BOS first, N a multiple of B, T' at most `model.max_length`.
      probability: float32 scalar.
      seed: [2] int32 or int64. Draws depend on the seed and the position only.
      training: switches dropout on.

    Returns:
      Logits [N, T', V], float32; `logits[:, t]` predicts `tokens[:, t + 1]`.
    """
    rows, length = tf.shape(tokens)[0], tf.shape(tokens)[1]
    cache = model.init_cache(context, tokens.shape[1] or model.max_length)
    group = rows // tf.shape(tf.nest.flatten(cache)[0])[0]
    cache = tf.nest.map_structure(lambda leaf: tf.repeat(leaf, group, axis=0), cache)
    coins, draws = tf.unstack(tf.random.split(seed))

    def body(index, drawn, cache, outputs):
        given = tokens[:, index]
        coin = tf.random.stateless_uniform([rows], tf.random.fold_in(coins, index))
        own = (coin < probability) & (given != PAD) & (index > 0)
        words = tf.where(own, drawn, given)
        logits, cache = model.step(context, cache, words, index, training)
        draw = tf.random.stateless_uniform([rows], tf.random.fold_in(draws, index))
        drawn = _draw(log_probs(tf.stop_gradient(logits)), draw)
        return index + 1, drawn, cache, outputs.write(index, logits)

    *_, outputs = _loop(
        lambda index, *_: index < length,
        body,
        (
            tf.constant(0),
            tf.zeros([rows], tf.int32),
            cache,
            tf.TensorArray(tf.float32, length, element_shape=(None, model.vocab_size)),
        ),
        maximum_iterations=length,
    )
    logits = tf.transpose(outputs.stack(), (1, 0, 2))  # [T', N, V] -> [N, T', V]
    return tf.ensure_shape(logits, (tokens.shape[0], tokens.shape[1], model.vocab_size))


def beam_search(
    model: Captioner,
    context: Tree,
    beam: int,
    max_length: int,
    finished: str = "hold",
    length_power: float = 0.0,
    suppress: tuple[int, ...] = (),
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
      length_power: final scores are divided by (words + EOS + BOS) ** length_power; 1 is
        ExpansionNet's normalisation. The search itself never normalises.
      suppress: word ids that are never chosen.

    Returns:
      Tokens [B, K, T] int32, PAD after EOS, best first; scores [B, K] float32, summed
      log-probabilities in natural logarithm; the cache of those sentences, every leaf [B K, ...].
      Slots that no sentence fills (fewer than K exist) score about -1e9.

    Raises:
      ValueError: if `finished` is neither `hold` nor `retire`, or beam is below 1.
    """
    if finished not in ("hold", "retire") or beam < 1:
        raise ValueError(
            "finished must be hold or retire and beam at least 1. "
            f"Received: finished={finished!r}, beam={beam}"
        )
    cache = repeat(model.init_cache(context, max_length), beam)
    images = tf.shape(tf.nest.flatten(cache)[0])[0] // beam
    state = _Beams(
        scores=tf.tile(tf.constant([[0.0] + [NEVER] * (beam - 1)]), [images, 1]),
        words=tf.fill([images * beam], BOS),
        ended=tf.fill([images, beam], False),
        tokens=tf.zeros([images, beam, max_length], tf.int32),
        cache=cache,
    )
    # `retire` collects here; `hold` carries it along unused (one scalar) to share the loop.
    pool = state._replace(scores=tf.fill([images, beam], 2 * NEVER)) if finished == "retire" else 0

    def body(index, state, pool):
        logits, cache = model.step(context, state.cache, state.words, index)
        state = _advance(state._replace(cache=cache), log_probs(logits, suppress), index, beam)
        if finished == "retire":
            done = state.ended | (index == max_length - 1)
            pool = _best(pool, state._replace(scores=tf.where(done, state.scores, 2 * NEVER)), beam)
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

    with recurring(model):
        _, state, pool = _loop(going, body, (tf.constant(0), state, pool))
    result = pool if finished == "retire" else state
    if length_power:
        lengths = tf.reduce_sum(tf.cast(result.tokens != PAD, tf.float32), -1) + 1.0
        scores, order = tf.math.top_k(result.scores / lengths**length_power, beam)
        result = _select(result, order, beam)._replace(scores=scores)
    return result.tokens, result.scores, result.cache


def _advance(state, logp, index, beam):
    """Extends every hypothesis by one word and keeps the K best of each image."""
    size = logp.shape[-1]
    logp = tf.reshape(logp, [-1, beam, size])  # [N, V] -> [B, K, V]
    # A finished hypothesis offers itself, unchanged, and nothing else.
    stay = tf.one_hot(PAD, size, on_value=0.0, off_value=NEVER)
    logp = tf.where(state.ended[..., None], stay, logp)
    # No image can take more than K words of one hypothesis: K of each, then K of all those.
    each = min(beam, size)
    best, words = tf.math.top_k(logp, each)  # [B, K, each]
    total = tf.reshape(state.scores[..., None] + best, [-1, beam * each])
    scores, chosen = tf.math.top_k(total, beam)
    words = tf.gather(tf.reshape(words, [-1, beam * each]), chosen, batch_dims=1)
    state = _select(state, chosen // each, beam)
    tokens = put(state.tokens, words[..., None], index, axis=2)
    ended = state.ended | (words == EOS)
    return _Beams(scores, tf.reshape(words, [-1]), ended, tokens, state.cache)


def _select(state, order, beam):
    """Reorders the hypotheses of each image by `order` [B, K]."""
    images = tf.shape(order)[0]
    rows = tf.reshape(tf.range(images)[:, None] * beam + order, [-1])
    return _Beams(
        tf.gather(state.scores, order, batch_dims=1),
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
        join(first.words, second.words),
        tf.concat([first.ended, second.ended], 1),
        tf.concat([first.tokens, second.tokens], 1),
        tf.nest.map_structure(join, first.cache, second.cache),
    )
    order = tf.math.top_k(both.scores, beam).indices
    return _select(both, order, 2 * beam)


def _draw(logits, draws):
    """A word [N] int32 for each row of `logits` [N, V], by its softmax and `draws` [N] in [0, 1).

    The word at which the summed probabilities pass the draw: first the block of words, then the
    word inside it, since a running sum over a whole vocabulary is slow.
    """
    size = logits.shape[-1]
    block = math.isqrt(size) + 1
    probs = tf.pad(tf.nn.softmax(logits), [[0, 0], [0, -size % block]])
    probs = tf.reshape(probs, [-1, probs.shape[-1] // block, block])

    def find(sums, targets):  # strictly below the last sum, so that what is found has some
        targets = tf.minimum(targets, sums[:, -1] * (1 - 1e-6))
        return tf.reduce_sum(tf.cast(sums <= targets[:, None], tf.int32), -1), targets

    sums = tf.cumsum(tf.reduce_sum(probs, -1), -1)
    place, targets = find(sums, draws * sums[:, -1])
    before = tf.gather(tf.pad(sums, [[0, 0], [1, 0]]), place, batch_dims=1)
    inside = tf.cumsum(tf.gather(probs, place, batch_dims=1), -1)
    return place * block + find(inside, targets - before)[0]


def _loop(going, body, state, maximum_iterations=None):
    """`tf.while_loop` that keeps the static shapes of `state`."""

    def fixed(*state):
        return tf.nest.map_structure(_keep_shape, state, body(*state))

    return tf.while_loop(going, fixed, state, maximum_iterations=maximum_iterations)


def _keep_shape(old, new):
    if isinstance(new, tf.TensorArray):
        return new
    new = tf.convert_to_tensor(new)
    new.set_shape(tf.convert_to_tensor(old).shape)
    return new
