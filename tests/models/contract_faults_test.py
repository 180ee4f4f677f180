"""Every check of the contract of `Captioner` fails on a broken model."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf
from helpers import contract
from helpers.small_models import make

from tfcap.models.rows import take


@functools.cache
def _model(name):
    return make(name, seed=1)


@pytest.fixture(scope="module", autouse=True)
def forget():
    """Frees the models."""
    yield
    _model.cache_clear()


@pytest.fixture(scope="module")
def batch(batch):
    """Captions of four words: a check changes the last and reads what comes before it."""
    return batch | {"tokens": batch["tokens"][..., :4]}


class Broken:
    """A model with one fault; all other calls go to the real model."""

    def __init__(self, model):
        self.model = model

    def __getattr__(self, name):
        return getattr(self.model, name)

    def encode(self, inputs, training=False):
        return self.model.encode(inputs, training)

    def decode(self, context, tokens, training=False):
        return self.model.decode(context, tokens, training)

    def step(self, context, cache, tokens, index, training=False):
        return self.model.step(context, cache, tokens, index, training)

    def __call__(self, inputs, training=False):
        rows = tf.reshape(inputs["tokens"], (-1, inputs["tokens"].shape[-1]))
        logits = self.decode(self.encode(inputs, training), rows, training)
        return tf.reshape(logits, (*inputs["tokens"].shape, -1))


class CacheRolled(Broken):
    def step(self, context, cache, tokens, index, training=False):
        rolled = tf.nest.map_structure(lambda leaf: tf.roll(leaf, 1, 0), cache)
        return self.model.step(context, rolled, tokens, index, training)


class CacheZeroed(Broken):
    def step(self, context, cache, tokens, index, training=False):
        empty = tf.nest.map_structure(tf.zeros_like, cache)
        return self.model.step(context, empty, tokens, index, training)


class CacheGrows(Broken):
    def step(self, context, cache, tokens, index, training=False):
        logits, cache = self.model.step(context, cache, tokens, index, training)
        return logits, tf.nest.map_structure(lambda x: tf.concat([x, x], -1), cache)


class CacheChangesType(Broken):
    def step(self, context, cache, tokens, index, training=False):
        logits, cache = self.model.step(context, cache, tokens, index, training)
        return logits, tf.nest.map_structure(lambda x: tf.cast(x, tf.float64), cache)


class IndexShifted(Broken):
    def step(self, context, cache, tokens, index, training=False):
        return self.model.step(context, cache, tokens, index + 1, training)


class MaskDropped(Broken):
    def encode(self, inputs, training=False):
        inputs = inputs | {"mask": tf.ones_like(inputs["mask"])}
        return self.model.encode(inputs, training)


class SeesTheFuture(Broken):
    def decode(self, context, tokens, training=False):
        return self.model.decode(
            context, tf.concat([tokens[:, :1], tokens[:, 2:], tokens[:, 1:2]], 1)
        )


class MixesImages(Broken):
    def encode(self, inputs, training=False):
        first = inputs["features"][:1]
        return self.model.encode(inputs | {"features": inputs["features"] + first}, training)


class MixesRows(Broken):
    """Image-minor rows: row n reads image n % B."""

    def decode(self, context, tokens, training=False):
        images = tf.nest.flatten(context)[0].shape[0]
        return self.model.decode(take(context, np.arange(len(tokens)) % images), tokens, training)


class PaddingIsNaN(Broken):
    def decode(self, context, tokens, training=False):
        logits = self.model.decode(context, tokens, training)
        return logits / tf.cast(tf.reduce_any(tokens > 0, 1), tf.float32)[:, None, None]


class MakesVariables(Broken):
    def __init__(self, model):
        super().__init__(model)
        self.variables = list(model.variables)

    def step(self, context, cache, tokens, index, training=False):
        self.variables.append(tf.Variable(0.0))
        return self.model.step(context, cache, tokens, index, training)


class EncoderLearnsNothing(Broken):
    def encode(self, inputs, training=False):
        context = self.model.encode(inputs, training)
        return tf.nest.map_structure(tf.stop_gradient, context)


class Overflows(Broken):
    def decode(self, context, tokens, training=False):
        return self.model.decode(context, tokens, training) / 0.0


FAULTS = [
    (CacheRolled, contract.check_step_equals_decode),
    (CacheRolled, contract.check_rows_can_be_permuted),
    (CacheZeroed, contract.check_step_equals_decode),
    (CacheGrows, contract.check_step_equals_decode),
    (CacheChangesType, contract.check_step_equals_decode),
    (IndexShifted, contract.check_step_equals_decode),
    (MaskDropped, contract.check_region_padding),
    (SeesTheFuture, contract.check_causal),
    (SeesTheFuture, contract.check_step_equals_decode),
    (MixesImages, contract.check_images_apart),
    (MixesRows, contract.check_rows_share_an_image),
    (PaddingIsNaN, contract.check_padding_rows),
    (MakesVariables, contract.check_no_new_variables),
    (EncoderLearnsNothing, contract.check_gradients),
    (Overflows, contract.check_finite),
]


# The faults are faults of the wrapper: one quick system shows them. A recurrence has no positions.
def _broken(fault):
    """A model with the fault."""
    return fault(_model("transformer" if fault is IndexShifted else "attention_lstm"))


@pytest.mark.parametrize(
    "fault, check", FAULTS, ids=[f"{fault.__name__}-{check.__name__}" for fault, check in FAULTS]
)
def test_a_fault_is_seen(fault, check, batch):
    with pytest.raises((AssertionError, ValueError, tf.errors.InvalidArgumentError)):
        check(_broken(fault), batch)


def test_every_check_is_known_to_fail():
    assert {check for _, check in FAULTS} >= {*contract.STEPS, *contract.WHOLE}


class ForgetsAList:
    """Returns what `tf.train.Checkpoint(model=...)` would save: no layers in lists."""

    def __init__(self, model):
        self.model, self.variables = model, model.variables

    def __call__(self, inputs):
        return self.model(inputs)

    @property
    def checkpoint_items(self):
        items = self.model.checkpoint_items
        return {
            kind: {name: v for name, v in found.items() if not re.search(r"/\d+/", name)}
            for kind, found in items.items()
        }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ensemble", "transformer"])
def test_an_incomplete_checkpoint_is_seen(name, batch, tmp_path):
    model = _model(name)
    with pytest.raises(AssertionError):
        contract.check_checkpoint_items(ForgetsAList(model))
    with pytest.raises(AssertionError):
        contract.check_checkpoint(ForgetsAList(model), make(name, seed=2), batch, tmp_path)
