"""Greedy decoding and sampling.

Letters: B images, N rows (one or more for each image), T `max_length`, V vocabulary.
"""

import math

import tensorflow as tf

from tfcap.decoding.constraints import NEVER, NO_RULES, Rules, log_probs, permitted, truncated
from tfcap.ids import BOS, EOS, PAD
from tfcap.layers.loops import loop
from tfcap.models.captioner import Captioner, Tree, put


def sample(
    model: Captioner,
    context: Tree,
    max_length: int,
    draws: tf.Tensor | None = None,
    temperature: float = 1.0,
    training: bool = False,
    *,
    rules: Rules = NO_RULES,
    top_k: int = 0,
    top_p: float = 1.0,
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
      rules: what a sentence may be; one that cannot go on by them ends there at about -1e9.
      top_k, top_p: of `constraints.truncated`, after the rules and the temperature.

    Returns:
      Tokens [N, T] int32, PAD after EOS, and the model's log-probability [N, T] of each (0 at
      PAD), whatever it was drawn from.
    """
    cache = model.init_cache(context, max_length)
    rows = tf.shape(tf.nest.flatten(cache)[0])[0]
    if draws is not None:
        group = tf.shape(draws)[0] // rows
        cache = tf.nest.map_structure(lambda leaf: tf.repeat(leaf, group, axis=0), cache)
        rows = tf.shape(draws)[0]

    def body(index, words, ended, tokens, logps, cache):
        logits, cache = model.step(context, cache, words, index, training)
        logp = permitted(log_probs(logits), tokens, index, rules)
        words = tf.argmax(logp, -1, tf.int32)
        if draws is not None:
            now = draws[:, index]
            possible = truncated(tf.stop_gradient(logp) / temperature, top_k, top_p)
            words = tf.where(now < 0, words, draw(possible, now))
        if rules != NO_RULES:
            words = tf.where(tf.reduce_max(logp, -1) > NEVER / 2, words, EOS)
        words = tf.where(ended, PAD, words)
        logp = tf.where(ended, 0.0, tf.gather(logp, words, batch_dims=1))
        tokens = put(tokens, words[:, None], index, axis=1)
        logps = put(logps, logp[:, None], index, axis=1)
        return index + 1, words, ended | (words == EOS), tokens, logps, cache

    _, _, _, tokens, logps, _ = loop(
        model,
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
        gradient=training,
    )
    return tokens, logps


def draw(logits, draws):
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


LARGEST_SEED = 2**22  # beside ids of up to 40 bits


def image_seeds(seed: int, ids: tf.Tensor) -> tf.Tensor:
    """A seed [B] int64 for each image id [B]; other for another `seed`."""
    return tf.cast(ids, tf.int64) + (seed << 40)
