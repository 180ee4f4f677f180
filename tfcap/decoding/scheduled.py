"""Scheduled sampling: teacher forcing in which some inputs are words that the model drew.

Letters: B images, N rows, T' length of given tokens, V vocabulary.
"""

import tensorflow as tf

from tfcap.decoding.constraints import log_probs
from tfcap.decoding.sampling import draw
from tfcap.ids import PAD
from tfcap.layers.loops import loop
from tfcap.layers.trees import Tree, repeat
from tfcap.models.captioner import Captioner


def scheduled_sampling(
    model: Captioner,
    context: Tree,
    tokens: tf.Tensor,
    probability: float | tf.Tensor,
    seed: tf.Tensor,
    training: bool = False,
) -> tf.Tensor:
    """Computes logits as `model.decode` does, with some inputs replaced by the model's own words.

    Scheduled sampling (Bengio et al. 2015) as in the released X-LAN (docs/systems.md 7.1): from
    the second position on, each row replaces the given word, with `probability`, by a draw from its
    previous logits, which include dropout. The draw has no gradient, and padding stays padding.
    The released code may draw its PAD, which is also its end; here PAD and BOS are never drawn.

    It calls `model.step` for every word, so it works with every system. A system whose `decode`
    computes all positions at once trains several times as fast without scheduled sampling.

    Args:
      model: the captioner.
      context: what `model.encode` returned for B images.
      tokens: int32 [N, T'], BOS first, N a multiple of B, T' at most `model.max_length`.
      probability: float32 scalar.
      seed: [2] int32 or int64. Draws depend on the seed, the row and the position only.
      training: switches dropout on.

    Returns:
      Logits [N, T', V], float32; `logits[:, t]` predicts `tokens[:, t + 1]`.
    """
    rows, length = tf.shape(tokens)[0], tf.shape(tokens)[1]
    cache = model.init_cache(context, tokens.shape[1] or model.max_length)
    group = rows // tf.shape(tf.nest.flatten(cache)[0])[0]
    cache = repeat(cache, group)
    coins, draws = tf.unstack(tf.random.split(seed))

    def body(index, drawn, cache, outputs):
        given = tokens[:, index]
        coin = tf.random.stateless_uniform([rows], tf.random.fold_in(coins, index))
        own = (coin < probability) & (given != PAD) & (index > 0)
        words = tf.where(own, drawn, given)
        logits, cache = model.step(context, cache, words, index, training)
        fresh = tf.random.stateless_uniform([rows], tf.random.fold_in(draws, index))
        drawn = draw(log_probs(tf.stop_gradient(logits)), fresh)
        return index + 1, drawn, cache, outputs.write(index, logits)

    *_, outputs = loop(
        lambda index, *_: index < length,
        body,
        (
            tf.constant(0),
            tf.zeros([rows], tf.int32),
            cache,
            tf.TensorArray(tf.float32, length, element_shape=(tokens.shape[0], model.vocab_size)),
        ),
        gradient=training,
        maximum_iterations=length,
    )
    logits = tf.transpose(outputs.stack(), (1, 0, 2))  # [T', N, V] -> [N, T', V]
    return tf.ensure_shape(logits, (tokens.shape[0], tokens.shape[1], model.vocab_size))
