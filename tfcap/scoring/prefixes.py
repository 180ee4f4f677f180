"""Scores captions as a tree of prefixes: a prefix that many captions share is computed once.

Letters: B images, S captions, L words of the longest caption, U largest number of prefixes of one
length, V vocabulary.

The 5,000 validation captions of Flickr8k have 59,206 words but only 40,161 different
prefixes; a recurrent system needs one step for each prefix.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfcap import decoding
from tfcap.ids import BOS, PAD
from tfcap.layers.loops import loop, unrolled_loop
from tfcap.models.captioner import Captioner
from tfcap.models.rows import Tree, take


class Prefixes(NamedTuple):
    """All different prefixes of t = 0 ... L - 1 words, as arrays, or as tensors inside a graph.

    Attributes:
      tokens: int32 [S, L], the captions: w1 ... EOS PAD ...
      words: int32 [L, U], the last word of each prefix; BOS for the empty prefix.
      parents: int32 [L, U], the index in row t - 1 of the prefix without its last word.
      counts: int32 [L], the number of prefixes of each length; the rest of a row is padding.
      places: int32 [L, S], the index of each caption's prefix; 0 after the caption's end.
    """

    tokens: np.ndarray
    words: np.ndarray
    parents: np.ndarray
    counts: np.ndarray
    places: np.ndarray


def tree(tokens: np.ndarray) -> Prefixes:
    """Builds the prefixes of captions.

    Args:
      tokens: int32 [S, L], w1 ... EOS PAD ...
    """
    captions, length = tokens.shape
    places = np.zeros((length, captions), np.int32)
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
        longest = int(counts.max())
        return np.array([np.pad(row, (0, longest - len(row))) for row in rows], np.int32)

    return Prefixes(tokens, padded(words), padded(parents), counts, places)


def score(model: Captioner, context: Tree, given: Prefixes) -> tf.Tensor:
    """Computes log P(caption | image) float32 [B, S], natural logarithm, by `model.step`.

    A step has one row for each prefix and image. This is correct for every system, but a cache that
    grows with the words would be copied in every step.

    Args:
      model: the captioner.
      context: what `model.encode` returned for B images.
      given: prefixes as tensors; with arrays and static shapes the loop is unrolled.
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
        return unrolled_loop(body, state, given.tokens.shape[1])[-1]
    length = tf.shape(given.tokens)[1]
    rows = tf.nest.map_structure(lambda leaf: tf.TensorShape([None, *leaf.shape[1:]]), cache)
    *_, total = loop(
        lambda t, *_: t < length,
        body,
        tf.nest.map_structure(tf.convert_to_tensor, state),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([]), rows, state[-1].shape),
        maximum_iterations=length,
    )
    return total
