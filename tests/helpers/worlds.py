"""Tiny worlds of sentences with exactly known probabilities, and literal searches over them.

A world is a captioner whose next word depends on the words so far through a small state
s' = (factor s + word) mod M, by a table of logits [M, V] that each image brings as its features.
With factor 0 and M = V it is a Markov chain; with another factor the whole history counts.

The literal searches are `systems` 8.2 and 8.3 in NumPy float64, one image, one hypothesis and
one word at a time.
"""

import collections
import itertools

import numpy as np
import tensorflow as tf

from tfcap.layers.trees import put
from tfcap.models.captioner import Captioner

BOS, EOS, UNK = 1, 2, 3


class World(Captioner):
    """See above. `steps` counts the calls of `step`."""

    def __init__(self, vocab_size, max_length, factor=0):
        super().__init__(vocab_size, max_length, feature_dim=vocab_size)
        self.factor = factor
        self.steps = tf.Variable(0, trainable=False)

    def encode(self, inputs, training=False):
        return {"table": tf.convert_to_tensor(inputs["features"])}

    def init_cache(self, context, max_length):
        images = tf.shape(context["table"])[0]
        return {
            "state": tf.zeros([images], tf.int32),
            "read": tf.zeros([images, max_length], tf.int32),
        }

    def step(self, context, cache, tokens, index, training=False):
        self.steps.assign_add(1)
        table = context["table"]
        state = (self.factor * cache["state"] + tokens) % table.shape[1]
        group = tf.shape(state)[0] // tf.shape(table)[0]
        image = tf.range(tf.shape(state)[0]) // group
        read = put(cache["read"], tokens[:, None], index, axis=1)
        return tf.gather_nd(table, tf.stack([image, state], 1)), {"state": state, "read": read}

    def decode(self, context, tokens, training=False):
        images = tf.shape(context["table"])[0]
        cache = {
            "state": tf.zeros_like(tokens[:, 0]),
            "read": tf.zeros_like(tokens),
        }
        assert len(tokens) % int(images) == 0
        logits = []
        for t in range(tokens.shape[1]):
            out, cache = self.step(context, cache, tokens[:, t], t)
            logits.append(out)
        return tf.stack(logits, 1)


def random_world(seed, images=4, vocab=8, length=6, scale=1.5, end=0.0):
    """A world with random logits, `end` added to those of EOS: model, context and tables.

    With 101 states no two sentences pass through the same ones in another order, which would be
    an exact tie.
    """
    rng = np.random.default_rng(seed)
    tables = (rng.normal(size=(images, 101, vocab)) * scale).astype(np.float32)
    tables[..., EOS] += end
    model = World(vocab, length, factor=7)
    return model, model.encode({"features": tables}), tables


def chain(length, *probabilities):
    """A Markov chain by {word: {next word: probability}} for each image."""
    size = 6
    tables = np.full((len(probabilities), size, size), -1e4, np.float32)
    for table, rows in zip(tables, probabilities, strict=True):
        table[:, EOS] = 0
        for word, row in rows.items():
            table[word] = -1e4
            for after, probability in row.items():
                table[word, after] = np.log(probability)
    model = World(size, length)
    return model, model.encode({"features": tables})


def word_logps(table, factor, suppress=()):
    """A function from the words so far (without BOS) to the log-probabilities [V] of the next."""

    def logps(words):
        state = 0
        for word in (BOS, *words):
            state = (factor * state + word) % len(table)
        logits = np.float64(table[state])
        logits[:2] = -np.inf
        logits = logits - np.log(np.exp(logits).sum())
        logits[list(suppress)] -= 1000  # the released search takes this from the unknown word
        return logits

    return logps


def sentences(words, length):
    """Every sentence over `words` (EOS apart) of at most `length`, its end included."""
    for size in range(length):
        for body in itertools.product(words, repeat=size):
            yield (*body, EOS)
    yield from itertools.product(words, repeat=length)


def logp_of(logps, sentence):
    return sum(logps(sentence[:i])[word] for i, word in enumerate(sentence))


def hold(logps, beam, length):
    """8.2: finished hypotheses stay in their slot. [(sentence, log-probability)], best first."""
    beams = [((), 0.0)]
    for _ in range(length):
        candidates = []
        for words, total in beams:
            if words and words[-1] == EOS:
                candidates.append((words, total))
                continue
            for word, logp in enumerate(logps(words)):
                candidates.append(((*words, word), total + logp))
        beams = sorted(candidates, key=lambda item: -item[1])[:beam]
    return beams


def retire(logps, beam, length):
    """8.3: finished hypotheses move to a list, their slot goes on at -1000."""
    slots, finished = [((), 0.0)], []
    for t in range(length):
        candidates = []
        for words, total in slots:
            logp = logps(words)
            for word in np.argsort(-logp)[:beam]:
                candidates.append(((*words, int(word)), total + logp[word]))
        slots = []
        for words, total in sorted(candidates, key=lambda item: -item[1])[:beam]:
            if words[-1] == EOS or t == length - 1:
                finished.append((words, total))
                total = -1000.0
            slots.append((words, total))
    return sorted(finished, key=lambda item: -item[1])[:beam]


def diverse(logps, beam, groups, price, length):
    """Diverse beam search (Vijayakumar et al. 2018) with finished hypotheses in their slots.

    For each group [(sentence, log-probability, penalties paid)], best first by what the search
    goes by: one group after the other at every place.
    """
    size = beam // groups
    sets = [[((), 0.0, 0.0)] for _ in range(groups)]
    for _ in range(length):
        used = collections.Counter()
        for group, beams in enumerate(sets):
            candidates = []
            for words, total, paid in beams:
                if words and words[-1] == EOS:
                    candidates.append((words, total, paid))
                    continue
                for word, logp in enumerate(logps(words)):
                    cost = price * used[word]
                    candidates.append(((*words, word), total + logp, paid + cost))
            sets[group] = sorted(candidates, key=lambda item: item[2] - item[1])[:size]
            going = [new for new in sets[group] if new[0] not in [old[0] for old in beams]]
            used.update(words[-1] for words, _, _ in going)
    return sets


def padded(sentence, length):
    return [*sentence, *[0] * (length - len(sentence))]
