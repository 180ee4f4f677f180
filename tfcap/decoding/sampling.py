"""Greedy decoding, sampling, and teacher forcing with sampled inputs.

Letters: B images, N rows (one or more for each image), T `max_length`, T' length of the captions, V
vocabulary.
"""

import math
from typing import NamedTuple

import tensorflow as tf

from tfcap.decoding.constraints import NEVER, apply_constraints, log_probs, top_k_top_p_filter
from tfcap.decoding.options import UNCONSTRAINED, Options, first_seed
from tfcap.ids import BOS, EOS, PAD
from tfcap.layers.loops import loop
from tfcap.layers.trees import Tree, put, repeat, take
from tfcap.models.captioner import Captioner


def sample(
    model: Captioner,
    context: Tree,
    max_length: int,
    draws: tf.Tensor | None = None,
    options: Options = UNCONSTRAINED,
    training: bool = False,
    drops_ended: bool = False,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Decodes captions greedily, or draws them from the model's distribution.

    A caption depends only on its own image and its own random numbers, not on the batch size. If
    the constraints of `options` allow no further word, the caption ends, and the log-probability of
    its end mark is about -1e9.

    Args:
      model: the captioner.
      context: what `model.encode` returned for B images.
      max_length: largest length of a caption in tokens, T; a longer caption is cut and has no end
        mark.
      draws: random numbers, uniform in [0, 1), one for each word of N captions: float32 [N, T]. N
        is a multiple of B, and the captions of an image follow each other. A negative number
        chooses the most probable word. None decodes one caption per image greedily.
      options: the options, with ids in place of words (`Options.with_ids`); the options of beam
        search have no effect. `temperature`, `top_k` and `top_p` apply after the constraints, in
        this order. The default excludes no word.
      training: whether dropout is on.
      drops_ended: whether captions that have ended leave the loop, so that later words take less
        time. But for rounding the captions are the same. It needs shapes that change, so XLA cannot
        compile it.

    Returns:
      The tokens of the captions, int32 [N, T], PAD after the end mark; and the natural
      log-probability of each token, float32 [N, T], 0 at PAD. It is the log-probability under the
      model, even if `temperature`, `top_k` or `top_p` changed the distribution that the word was
      drawn from.
    """
    cache = model.init_cache(context, max_length)
    rows = tf.shape(tf.nest.flatten(cache)[0])[0]
    if draws is not None:
        group = tf.shape(draws)[0] // rows
        cache = repeat(cache, group)
        rows = tf.shape(draws)[0]
    state = _Running(tf.fill([rows], BOS), tf.fill([rows], False), cache)
    if drops_ended:
        state = state._replace(rows=tf.range(rows), context=context)

    def body(index, tokens, logps, state):
        images = state.context if drops_ended else context
        logits, cache = model.step(images, state.cache, state.words, index, training)
        unconstrained = log_probs(logits)
        logp = apply_constraints(unconstrained, state.of(tokens), index, options)
        words = tf.argmax(logp, -1, tf.int32)
        if draws is not None:
            now = state.of(draws[:, index])
            tempered = tf.stop_gradient(logp) / options.temperature
            words = tf.where(now < 0, words, _draw(top_k_top_p_filter(tempered, options), now))
        if logp is not unconstrained:
            words = tf.where(tf.reduce_max(logp, -1) > NEVER / 2, words, EOS)
        words = tf.where(state.ended, PAD, words)
        logp = tf.where(state.ended, 0.0, tf.gather(logp, words, batch_dims=1))
        tokens = put(tokens, state.of_all(words, rows)[:, None], index, axis=1)
        logps = put(logps, state.of_all(logp, rows)[:, None], index, axis=1)
        ended = state.ended | (words == EOS)
        state = state._replace(words=words, ended=ended, cache=cache)
        return index + 1, tokens, logps, state.without_ended() if drops_ended else state

    start = (
        tf.constant(0),
        tf.zeros([rows, max_length], tf.int32),
        tf.zeros([rows, max_length]),
        state,
    )
    shapes = None
    if drops_ended:
        *shapes, _ = tf.nest.map_structure(lambda leaf: leaf.shape, start)
        fewer = tf.nest.map_structure(lambda leaf: tf.TensorShape([None, *leaf.shape[1:]]), state)
        shapes.append(fewer)
    _, tokens, logps, _ = loop(
        lambda index, tokens, logps, state: (index < max_length) & ~tf.reduce_all(state.ended),
        body,
        start,
        gradient=training,
        maximum_iterations=max_length,
        shape_invariants=shapes and tuple(shapes),
    )
    return tokens, logps


class _Running(NamedTuple):
    """What the loop of `sample` keeps of M captions: of all N, or of those that it still computes.

    Attributes:
      words: int32 [M], the last word of each caption.
      ended: bool [M], whether the caption has its end mark.
      cache: the cache of the model, every leaf [M, ...].
      rows: int32 [M], which of the N captions these are; `()` if they are all.
      context: the images, as `model.encode` returns them: B, or one for each caption after some
        captions have left the loop; `()` if `rows` is.
    """

    words: tf.Tensor
    ended: tf.Tensor
    cache: Tree
    rows: tf.Tensor | tuple[()] = ()
    context: Tree = ()

    def of(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the rows [M, ...] of these captions, from the rows `x` [N, ...] of all."""
        return x if isinstance(self.rows, tuple) else tf.gather(x, self.rows)

    def of_all(self, x: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        """Returns rows [N] of all N = `count` captions, with 0 for those not in `x` [M]."""
        if isinstance(self.rows, tuple):
            return x
        return tf.scatter_nd(self.rows[:, None], x, [count])

    def without_ended(self) -> "_Running":
        """Drops the captions that have ended, if they are at least a quarter of these.

        To copy what is left takes time, so it is not done for every caption.
        """
        size = tf.size(self.ended)
        running = tf.where(~self.ended)[:, 0]
        images = tf.shape(tf.nest.flatten(self.context)[0])[0]

        def dropped():
            context = take(self.context, tf.cast(running, tf.int32) // (size // images))
            left = (self.words, self.ended, self.cache, self.rows)
            words, ended, cache, rows = take(left, running)
            return _Running(words, ended, cache, rows, context)

        return tf.cond(4 * tf.size(running) <= 3 * size, dropped, lambda: self)


def _draw(logits, draws):
    """Draws a word from the softmax of each row.

    It is the first word at which the cumulative sum of the probabilities exceeds the random number.
    A cumulative sum over a whole vocabulary is slow, so this first finds a block of words and then
    the word inside it.

    Args:
      logits: [N, V].
      draws: random numbers, uniform in [0, 1): float32 [N].

    Returns:
      Words, int32 [N].
    """
    size = logits.shape[-1]
    block = math.isqrt(size) + 1
    probs = tf.pad(tf.nn.softmax(logits), [[0, 0], [0, -size % block]])
    probs = tf.reshape(probs, [-1, probs.shape[-1] // block, block])

    def find(sums, targets):
        """Returns the first index at which `sums` [N, ...] exceed `targets` [N], and the targets.

        A target stays below the last sum, so that the word has a probability above 0.
        """
        targets = tf.minimum(targets, sums[:, -1] * (1 - 1e-6))
        return tf.reduce_sum(tf.cast(sums <= targets[:, None], tf.int32), -1), targets

    sums = tf.cumsum(tf.reduce_sum(probs, -1), -1)
    block_index, targets = find(sums, draws * sums[:, -1])
    before = tf.gather(tf.pad(sums, [[0, 0], [1, 0]]), block_index, batch_dims=1)
    inside = tf.cumsum(tf.gather(probs, block_index, batch_dims=1), -1)
    return block_index * block + find(inside, targets - before)[0]


def image_seeds(seed: int, ids: tf.Tensor) -> tf.Tensor:
    """Makes a random seed for each image, so that an image gets the same captions in any batch.

    Args:
      seed: the seed of the whole set of images, from 0 to `LARGEST_SEED`.
      ids: ids of B images, integers [B].

    Returns:
      The seeds, int64 [B]. They differ between any two images, and between any two values of
      `seed`.
    """
    return tf.cast(ids, tf.int64) + first_seed(seed)


def scheduled_sampling(
    model: Captioner,
    context: Tree,
    tokens: tf.Tensor,
    probability: float | tf.Tensor,
    seed: tf.Tensor,
    training: bool = False,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes logits as `model.decode` does, but replaces some input words by words of the model.

    This is scheduled sampling (Bengio et al. 2015) as in the released X-LAN (docs/systems.md 7.1).
    From the second position on, the input word of a caption is replaced with the probability
    `probability`. The new word is drawn from the softmax of the logits at the previous position.
    The draw has no gradient, and padding stays padding. The released code may draw PAD, which is
    also its end mark; here PAD and BOS are never drawn.

    The function calls `model.step` for every word, so it works with every captioner.

    Args:
      model: the captioner.
      context: what `model.encode` returned for B images.
      tokens: N captions of up to T' tokens, int32 [N, T'], BOS first. N is a multiple of B, and the
        captions of an image follow each other. T' is at most `model.max_length`.
      probability: probability that an input word is replaced, a number or float32 [].
      seed: random seed, integers [2]. A draw depends only on the seed, the row of the caption in
        `tokens`, and the position.
      training: whether dropout is on.

    Returns:
      Logits float32 [N, T', V] for V words, where `logits[:, t]` predicts `tokens[:, t + 1]`; and
      the input words, int32 [N, T'].
    """
    rows = tf.shape(tokens)[0]
    length = tf.shape(tokens)[1]
    cache = model.init_cache(context, tokens.shape[1] or model.max_length)
    group = rows // tf.shape(tf.nest.flatten(cache)[0])[0]
    cache = repeat(cache, group)
    coins, draws = tf.unstack(tf.random.split(seed))

    def body(index, drawn, cache, outputs, read):
        words = tokens[:, index]
        coin = tf.random.stateless_uniform([rows], tf.random.fold_in(coins, index))
        is_replaced = (coin < probability) & (words != PAD) & (index > 0)
        words = tf.where(is_replaced, drawn, words)
        logits, cache = model.step(context, cache, words, index, training)
        numbers = tf.random.stateless_uniform([rows], tf.random.fold_in(draws, index))
        drawn = _draw(log_probs(tf.stop_gradient(logits)), numbers)
        return index + 1, drawn, cache, outputs.write(index, logits), read.write(index, words)

    *_, outputs, read = loop(
        lambda index, *_: index < length,
        body,
        (
            tf.constant(0),
            tf.zeros([rows], tf.int32),
            cache,
            tf.TensorArray(tf.float32, length, element_shape=(tokens.shape[0], model.vocab_size)),
            tf.TensorArray(tf.int32, length, element_shape=(tokens.shape[0],)),
        ),
        gradient=training,
        maximum_iterations=length,
    )
    logits = tf.transpose(outputs.stack(), (1, 0, 2))  # [T', N, V] -> [N, T', V]
    logits = tf.ensure_shape(logits, (tokens.shape[0], tokens.shape[1], model.vocab_size))
    return logits, tf.ensure_shape(tf.transpose(read.stack()), tokens.shape)
