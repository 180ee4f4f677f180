"""In training, systems leave out the padding of captions; losses and gradients do not change."""

import numpy as np
import pytest
import tensorflow as tf
from helpers.small_models import make

from tfcap import private_api
from tfcap.ids import BOS, EOS, UNK
from tfcap.models.captioner import count_positions
from tfcap.objectives import losses

WORDS = [[4, 0], [2, 5], [3, 1]]  # of two captions of each image; one has no end mark


def captions(images):
    rng = np.random.default_rng(2)
    tokens = np.zeros((images, 2, 6), "int32")
    tokens[..., 0] = BOS
    for place, count in np.ndenumerate(WORDS[:images]):
        tokens[place][1 : count + 1] = rng.integers(UNK + 1, 12, count)
        tokens[place][count + 1 : count + 2] = EOS
    return tf.constant(tokens)


def test_positions_are_counted_up_to_the_end_mark_or_padding():
    tokens = captions(3)[..., :-1]
    assert count_positions(tokens[0]).numpy().tolist() == [5, 1]
    assert count_positions(tokens[1]).numpy().tolist() == [3, 5]


@pytest.mark.parametrize("name", ["xtransformer", "xlan", "lbpf", "mrnn", "mrnn_shared", "rfnet"])
def test_padding_is_left_out_in_training_and_changes_no_gradient(name, batch):
    model = make(name, seed=1)
    for layer in private_api.all_layers(model):
        if hasattr(layer, "rate"):
            layer.rate = 0.0
    tokens = captions(batch["mask"].shape[0])
    weights = [variable.value for variable in model.trainable_variables]

    def logits_and_gradients(training):
        with tf.GradientTape() as tape:
            logits = model(batch | {"tokens": tokens[..., :-1]}, training=training)
            loss = losses.cross_entropy(logits, tokens[..., 1:], 0.1)[0]
        zero = tf.UnconnectedGradients.ZERO
        gradients = tape.gradient(loss, weights, unconnected_gradients=zero)
        return logits, [tf.convert_to_tensor(gradient) for gradient in gradients]

    logits, gradients = tf.function(lambda: logits_and_gradients(True), autograph=False)()
    all_logits, all_gradients = logits_and_gradients(False)
    logits, all_logits = logits.numpy(), all_logits.numpy()
    word = (tokens[..., 1:] != 0).numpy()
    np.testing.assert_allclose(logits[word], all_logits[word], atol=1e-5)
    assert np.ptp(logits[~word], -1).max() == 0 < np.ptp(all_logits[~word], -1).min()
    for one, two in zip(gradients, all_gradients, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=2e-5)
