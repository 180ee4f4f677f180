"""XLA compiles training and beam search of some systems, and computes what TensorFlow computes."""

import numpy as np
import pytest
import tensorflow as tf
from helpers.small_models import make

from tfcap import decoding
from tfcap.objectives import losses

pytestmark = pytest.mark.slow  # XLA takes seconds to compile


WORDS = 3  # of a caption: the last reads states that a step has written


def gradients(model, batch):
    with tf.GradientTape() as tape:
        logits = model(batch | {"tokens": batch["tokens"][..., :-1]}, training=True)
        loss = losses.cross_entropy(logits, batch["tokens"][..., 1:], 0.1)[0]
    found = tape.gradient(loss, model.trainable_variables)
    return [tf.convert_to_tensor(gradient) for gradient in found]


@pytest.mark.parametrize("name", ["expansionnet", "updown"])  # all: tests/training/xla_test.py
def test_xla_gives_the_same_gradients_and_captions(name, batch):
    model = make(name, seed=1)
    for layer in model._flatten_layers():
        if hasattr(layer, "rate"):  # XLA draws other masks
            layer.rate = 0.0
    batch = batch | {"tokens": batch["tokens"][..., :WORDS]}

    def work(batch):
        found = decoding.beam_search(model, model.encode(batch), WORDS)
        return gradients(model, batch), *found[:2]

    found, tokens, scores = tf.function(work, autograph=False, jit_compile=True)(batch)
    expected, captions, best = work(batch)
    for one, two in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=2e-5)
    np.testing.assert_array_equal(tokens, captions)
    np.testing.assert_allclose(scores, best, rtol=1e-4)
