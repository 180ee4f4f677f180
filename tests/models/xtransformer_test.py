"""X-Transformer: size, dropout sites, options. Its numbers are compared in `parity_test`."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import seeds, systems
from helpers.systems import layer_at

from tfcap import models

# Keras doubts a softmax over one key; the first word has only itself to look at.
pytestmark = pytest.mark.filterwarnings("ignore:You are using a softmax")

# Dropout layers and rates of X-Transformer (docs/systems.md 2.5, cross-entropy). Every
# X-Linear block drops inside, in addition.
SITES = {
    "region_dropout": 0.5,
    "word_dropout": 0.1,
    "query_dropout": 0.5,
    "head_dropout": 0.5,
    "encoder/0/attn_dropout": 0.5,
    "encoder/0/bifeat_dropout": 0.3,
    "encoder/0/ff_layer/inner_dropout": 0.5,
    "encoder/0/ff_layer/dropout": 0.5,
    "encoder/0/encoder_attn/dropout": 0.1,
    "decoder/0/word_dropout": 0.5,
    "decoder/0/cross_dropout": 0.5,
    "decoder/0/bifeat_dropout": 0.3,
    "decoder/0/ff_layer/inner_dropout": 0.5,
    "decoder/0/ff_layer/dropout": 0.5,
    "decoder/0/word_attn/dropout": 0.1,
    "decoder/0/cross_att/dropout": 0.1,
    "decoder/1/word_dropout": 0.5,
    "decoder/1/cross_dropout": 0.5,
    "decoder/1/word_attn/dropout": 0.1,
    "decoder/1/cross_att/dropout": 0.1,
}
# The argument that sets each of them.
ARGUMENTS = {
    "region_dropout": ["region_dropout"],
    "word_dropout": ["word_dropout"],
    "head_dropout": ["head_dropout"],
    "encoder_dropout": ["encoder/0/attn_dropout"],
    "decoder_dropout": ["query_dropout", "decoder/0/word_dropout", "decoder/1/cross_dropout"],
    "bifeat_dropout": ["encoder/0/bifeat_dropout", "decoder/0/bifeat_dropout"],
    "feed_forward_dropout": ["encoder/0/ff_layer/dropout", "decoder/0/ff_layer/inner_dropout"],
    "middle_dropout": ["encoder/0/encoder_attn/dropout", "decoder/1/word_attn/dropout"],
}


@pytest.mark.slow
def test_dropout_rates(tiny):
    assert {f"{site}/seed_generator_state" for site in SITES} == set(tiny.checkpoint_items["seeds"])
    assert {site: layer_at(tiny, site).rate for site in SITES} == SITES


@pytest.fixture(scope="module")
def other():
    """The sizes of `tiny`, ReLU, and a different rate for every argument."""
    seeds.set_seed(4)
    sizes = dict(width=16, heads=2, encoder_layers=1, decoder_layers=2, inner_width=24)
    rates = {name: 0.01 * (i + 1) for i, name in enumerate(ARGUMENTS)}
    return models.build("xtransformer", 13, 6, 6, activation="relu", **sizes, **rates)


@pytest.mark.slow
def test_arguments_set_dropout_rates(other):
    for i, sites in enumerate(ARGUMENTS.values()):
        assert [layer_at(other, site).rate for site in sites] == [0.01 * (i + 1)] * len(sites)


@pytest.mark.slow
def test_every_dropout_layer_acts_in_training_only(other, batch):
    """All other rates are zero."""
    before = {site: layer_at(other, site).rate for site in SITES}
    for site in SITES:
        layer_at(other, site).rate = 0
    batch = batch | {"tokens": batch["tokens"][:, :1, :3]}  # the third word sees dropped states
    quiet = systems.check_every_dropout_layer(other, SITES, batch)
    for site, rate in before.items():
        layer_at(other, site).rate = rate
    np.testing.assert_array_equal(other(batch), quiet)


@pytest.mark.slow
def test_relu_is_used_in_all_places(tiny, other, batch):
    """With the same weights, ReLU differs; with CELU in all its places it is the same again."""
    for ours, theirs in zip(other.trainable_variables, tiny.trainable_variables, strict=True):
        ours.assign(theirs)
    assert np.abs(other(batch) - tiny(batch)).max() > 1e-2
    relu = other.act
    blocks = [other.encoder[0].encoder_attn]
    blocks += [block for layer in other.decoder for block in (layer.word_attn, layer.cross_att)]
    projections = [
        getattr(block, f"in_proj_{name}") for block in blocks for name in ("q", "k", "v1", "v2")
    ]
    for part in projections:
        part.activation = tiny.act
    assert np.abs(other(batch) - tiny(batch)).max() > 1e-3  # the embeddings
    other.act = tiny.act
    np.testing.assert_array_equal(other(batch), tiny(batch))
    other.act = relu
    for part in projections:
        part.activation = relu


@pytest.mark.slow
def test_the_same_seed_gives_the_same_model(tiny, batch):
    """Weights follow from Keras' seed, and dropout from the states in `checkpoint_items`."""
    seeds.set_seed(3)
    sizes = dict(width=16, heads=2, encoder_layers=1, decoder_layers=2, inner_width=24)
    model = models.build("xtransformer", 13, 6, 6, **sizes)
    np.testing.assert_array_equal(model(batch), tiny(batch))
    states = model.checkpoint_items["seeds"]
    before = {name: state.numpy() for name, state in states.items()}
    first, second = (model(batch, training=True) for _ in range(2))
    assert np.abs(first - second).max() > 1e-3
    for name, state in before.items():
        states[name].assign(state)
    np.testing.assert_array_equal(model(batch, training=True), first)


def test_positions_change_the_prediction(tiny, batch):
    """The same word at another place gives another prediction."""
    tokens = tf.constant([[1, 5, 5, 5, 5, 5]] * 3)
    logits = tiny.decode(tiny.encode(batch), tokens).numpy()
    assert np.abs(np.diff(logits[:, 1:], axis=1)).max(-1).min() > 1e-4


def test_captions_of_any_length_are_decoded(tiny, batch):
    context = tiny.encode(batch)
    tokens = batch["tokens"][:, 0]
    long = tiny.decode(context, tokens)
    for length in (1, 3):
        short = tiny.decode(context, tokens[:, :length])
        np.testing.assert_allclose(short, long[:, :length], atol=1e-5)


def test_padding_after_the_end_changes_nothing_before_it(tiny, batch):
    tokens = batch["tokens"][:, 0].numpy()
    padded = tokens.copy()
    padded[:, 4:] = 0
    context = tiny.encode(batch)
    a, b = tiny.decode(context, tf.constant(tokens)), tiny.decode(context, tf.constant(padded))
    np.testing.assert_allclose(a[:, :4], b[:, :4], atol=1e-6)


@pytest.mark.slow
def test_the_full_size_model_has_the_released_number_of_weights(monkeypatch):
    """137,521,826 trainable numbers, exactly as many as in the released code (docs/systems.md 3).

    Both count a vocabulary of V rows. The released V = 9488 has one id for start, end and
    padding where ours has three, so that the same words make a model with two rows more here.
    """
    for kind in ("RandomUniform", "RandomNormal"):  # the values do not matter, zeros are quick
        monkeypatch.setattr(
            getattr(keras.initializers, kind),
            "__call__",
            lambda self, shape, dtype: tf.zeros(shape),
        )
    model = models.build("xtransformer", 9488, 17, 2048)
    weights = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    assert weights == 137_521_826
    shapes = [tuple(v.shape) for v in model.trainable_variables]
    rows = sum(int(np.prod(shape)) // 9488 for shape in shapes if 9488 in shape)
    assert rows == 768 + 768 + 1  # of a word: embedding, and column and bias of the head
    del model
    gc.collect()


def test_heads_must_divide_width():
    with pytest.raises(ValueError, match="multiple of heads. Received: width=20, heads=8"):
        models.build("xtransformer", 10, 5, 4, width=20)
