"""Sentences as a tree of their beginnings: what many sentences begin with is computed once.

Letters: B images, S sentences, L words of the longest, U the most beginnings of one length,
V vocabulary.

Of the 59,206 words of the 5,000 validation sentences of Flickr8k, 40,161 stand behind different
beginnings; a recurrent system needs a step for those only.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfcap import decoding
from tfcap.ids import BOS, PAD
from tfcap.layers.loops import loop, unrolled_loop
from tfcap.models.captioner import Captioner, Tree, take


class Prefixes(NamedTuple):
    """The beginnings of t = 0 ... L - 1 words; arrays, or tensors inside a graph.

    Attributes:
      tokens: int32 [S, L], w1 ... EOS PAD ..., the sentences.
      words: int32 [L, U], the last word of each beginning; BOS of the empty one.
      parents: int32 [L, U], its place without that word among the beginnings before.
      counts: int32 [L], how many there are; the rest of a row is padding.
      places: int32 [L, S], the beginning of each sentence; 0 where the sentence has ended.
    """

    tokens: np.ndarray
    words: np.ndarray
    parents: np.ndarray
    counts: np.ndarray
    places: np.ndarray


def tree(tokens: np.ndarray) -> Prefixes:
    """The beginnings of sentences `tokens` int32 [S, L]."""
    sentences, length = tokens.shape
    places = np.zeros((length, sentences), np.int32)
    words, parents = [np.array([BOS])], [np.array([0])]
    for t in range(1, length):
        alive = np.flatnonzero(tokens[:, t] != PAD)
        last, before = tokens[alive, t - 1], places[t - 1, alive]
        _, first, places[t, alive] = np.unique(
            np.stack([before, last]), axis=1, return_index=True, return_inverse=True
        )
        words.append(last[first])
        parents.append(before[first])
    counts = np.array([len(row) for row in words], np.int32)

    def padded(rows):
        return np.array([np.pad(row, (0, counts.max() - len(row))) for row in rows], np.int32)

    return Prefixes(tokens, padded(words), padded(parents), counts, places)


def score(model: Captioner, context: Tree, given: Prefixes) -> tf.Tensor:
    """log P(sentence | image) float32 [B, S], natural logarithm.

    Through `model.step`: for each length one row for each beginning and image. That is right for
    every system, but a cache that grows with the words would be copied in every step.

    With arrays and static shapes there is no loop, but a graph as long as the sentences.
    """
    first = tf.nest.flatten(context)[0]
    size = first.shape[0] or tf.shape(first)[0]
    images = tf.range(size)[:, tf.newaxis]

    def body(t, before, cache, total):
        number = given.counts[t]
        rows = images * before + given.parents[t, :number]
        cache = take(cache, tf.reshape(rows, [-1]))
        words = tf.tile(given.words[t, :number], [size])  # image-major
        logits, cache = model.step(context, cache, words, t)
        logps = tf.reshape(decoding.log_probs(logits), [-1])  # [B U V]
        now = given.tokens[:, t]
        chosen = tf.gather(logps, (images * number + given.places[t]) * model.vocab_size + now)
        return t + 1, number, cache, total + tf.where(now == PAD, 0.0, chosen)

    cache = model.init_cache(context, model.max_length)
    state = 0, 1, cache, tf.zeros([size, given.tokens.shape[0] or tf.shape(given.tokens)[0]])
    if isinstance(given.tokens, np.ndarray):
        return unrolled_loop(model, body, state, given.tokens.shape[1])[-1]
    length = tf.shape(given.tokens)[1]
    rows = tf.nest.map_structure(lambda leaf: tf.TensorShape([None, *leaf.shape[1:]]), cache)
    *_, total = loop(
        model,
        lambda t, *_: t < length,
        body,
        tf.nest.map_structure(tf.convert_to_tensor, state),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([]), rows, state[-1].shape),
        maximum_iterations=length,
    )
    return total
