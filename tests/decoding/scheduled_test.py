"""Scheduled sampling: which inputs are drawn, from what, and how often; and the gradient."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import worlds
from helpers.sizes import LENGTH, VOCABULARY
from helpers.worlds import BOS

from tfcap.decoding.sampling import scheduled_sampling
from tfcap.models.captioner import Captioner

SEED = tf.constant([5, 6], tf.int64)


class Recorder(Captioner):
    """A captioner that keeps what it was given to read; run it eagerly."""

    def __init__(self, model):
        super().__init__(model.vocab_size, model.max_length, model.feature_dim)
        self.model, self.read = model, []

    def init_cache(self, context, max_length):
        self.read = []
        return self.model.init_cache(context, max_length)

    def step(self, context, cache, tokens, index, training=False):
        self.read.append(tokens.numpy())
        return self.model.step(context, cache, tokens, index, training)

    @property
    def inputs(self):
        return np.stack(self.read, 1)


@pytest.fixture(scope="module")
def rows(batch):
    """Two captions for each image, some ending early."""
    rows = batch["tokens"].numpy().reshape(-1, LENGTH)
    for row, length in enumerate([6, 3, 5, 2, 6, 4]):
        rows[row, 1:] = 3 + rows[row, 1:] % (VOCABULARY - 3)
        rows[row, length:] = 0
    return tf.constant(rows)


def drawing(tables, tokens, probability, seed=SEED, training=False, model=None):
    """Returns logits and inputs; each row has its own world."""
    model = Recorder(model or worlds.World(tables.shape[-1], tokens.shape[1], factor=7))
    context = model.model.encode({"features": tables})
    tokens = tf.constant(tokens)
    logits, read = scheduled_sampling(model, context, tokens, probability, seed, training)
    np.testing.assert_array_equal(read, model.inputs)
    return logits.numpy(), model.inputs


def captions(size, length, word=5):
    tokens = np.full((size, length), word, np.int32)
    tokens[:, 0] = BOS
    return tokens


@pytest.mark.slow
def test_logits_and_gradient_are_those_of_the_inputs(tiny, batch, rows):
    """They equal those of given inputs: no gradient flows through a draw."""
    weights = tiny.trainable_variables
    mask = tf.cast(rows != 0, tf.float32)[..., None]

    def gradient(logits_of):
        with tf.GradientTape() as tape:
            logits = logits_of(tiny.encode(batch))
            loss = tf.reduce_sum(mask * tf.sin(logits))
        return logits, tape.gradient(loss, weights)

    recorder = Recorder(tiny)

    def sampled(context):
        return scheduled_sampling(recorder, context, rows, 0.4, SEED)[0]

    result, ours = gradient(sampled)
    inputs = tf.constant(recorder.inputs)
    changed = (inputs != rows).numpy()
    assert changed.any() and not changed[:, 0].any() and not changed[rows.numpy() == 0].any()
    assert not np.isin(inputs.numpy()[changed], (0, BOS)).any()
    expected, theirs = gradient(lambda context: tiny.decode(context, inputs))
    real = rows.numpy() != 0
    np.testing.assert_allclose(result.numpy()[real], expected.numpy()[real], atol=1e-5)
    size = max(np.abs(g).max() for g in map(tf.convert_to_tensor, theirs))
    for a, b in zip(ours, theirs, strict=True):
        difference = tf.convert_to_tensor(a) - tf.convert_to_tensor(b)
        assert np.abs(difference).max() < 1e-5 * size


def test_words_are_drawn_from_the_previous_logits():
    """Each of the 5 words as often as the softmax over the world's last logits says."""
    rng = np.random.default_rng(1)
    size = 20000
    tables = np.tile(rng.normal(size=(1, 101, 7)).astype(np.float32), (size, 1, 1))
    tables[..., :2] += 9  # PAD and BOS would be preferred
    logits, inputs = drawing(tables, captions(size, 3), 1.0)
    assert (inputs[:, 0] == BOS).all()
    for place in (1, 2):
        for before in np.unique(inputs[:, place - 1]):
            here = inputs[:, place - 1] == before
            expected = np.exp(logits[here][0, place - 1])
            expected[:2] = 0
            expected /= expected.sum()
            counts = np.bincount(inputs[here, place], minlength=7)
            assert (counts[:2] == 0).all()
            spread = np.sqrt(here.sum() * expected * (1 - expected)) + 1e-9
            assert np.abs((counts - here.sum() * expected) / spread)[2:].max() < 4


@pytest.mark.parametrize("probability", [0.05, 0.5])
def test_words_are_drawn_with_the_given_probability(probability):
    """Each place of each row by itself, and not together with what is drawn."""
    size, length = 3000, 9
    tables = np.zeros((size, 101, 102), np.float32)
    tables[..., :3] = -1e4
    tables[..., 5] = -1e4  # the captions' word is never drawn
    _, inputs = drawing(tables, captions(size, length), probability)
    drawn = inputs[:, 1:] != 5
    spread = np.sqrt(probability * (1 - probability))
    assert abs(drawn.mean() - probability) < 4 * spread / np.sqrt(drawn.size)
    for axis, count in ((0, size), (1, length - 1)):
        away = np.abs(drawn.mean(axis) - probability) / (spread / np.sqrt(count))
        assert away.max() < 5 and (axis == 1 or away.max() > 0.1)
    both = (drawn[:, 1:] & drawn[:, :-1]).mean()
    assert abs(both - probability**2) < 0.01
    words = inputs[:, 1:][drawn]
    middle = np.sqrt(99 * 99 / 12 / len(words))
    assert abs(words.mean() - 52.5) < 5 * middle  # 3..101 without 5


class Dropped(worlds.World):
    """In training it prefers the word that follows the one it prefers otherwise."""

    def step(self, context, cache, tokens, index, training=False):
        logits, cache = super().step(context, cache, tokens, index)
        return tf.roll(logits, int(training), -1), cache


@pytest.mark.parametrize("training", [False, True])
def test_words_are_drawn_with_dropout(training):
    tables = np.zeros((4, 101, 8), np.float32)
    tables[..., 5] = 50
    _, inputs = drawing(tables, captions(4, 4, 7), 1.0, SEED, training, Dropped(8, 4, factor=7))
    assert (inputs[:, 1:] == 5 + training).all()
