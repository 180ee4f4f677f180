"""Systems learn to say what only one of their inputs tells."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import searches, seeds
from helpers.sizes import LENGTH, VOCABULARY

from tfcap import models
from tfcap.models.captioner import options_of
from tfcap.objectives import losses

IMAGES, REGIONS, WIDTH = 5, 3, 8
RNG = np.random.default_rng(4)
SAME = np.tile(RNG.normal(size=(REGIONS, WIDTH)), (IMAGES, 1, 1))
PARENTS = np.array([[-1, -1, -1], [-1, 0, -1], [-1, -1, 0], [-1, -1, 1], [-1, 0, 1]])
CORNERS = np.sort(RNG.random((IMAGES, REGIONS, 2, 2)), 2).reshape(IMAGES, REGIONS, 4)
LAYERS = dict(width=32, heads=2, encoder_layers=1, decoder_layers=1)
# Options of a system, and its inputs but for the mask.
CASES = {
    "hip": (
        dict(width=32, regions=0),
        {"features": np.concatenate([SAME, PARENTS[..., None]], axis=2)},
    ),
    "m2": (LAYERS | dict(slots=4), {"features": RNG.normal(size=(IMAGES, REGIONS, WIDTH))}),
    "ort": (LAYERS, {"features": SAME, "boxes": CORNERS}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_system_learns_which_image_has_which_caption(name):
    seeds.set_seed(1)
    options, inputs = CASES[name]
    names = [option.name for option in options_of(models.MODELS[name])]
    rates = {key: 0.0 for key in names if key.endswith("_dropout")}
    model = models.build(name, VOCABULARY, LENGTH, inputs["features"].shape[-1], **options, **rates)
    tokens = tf.constant([[[1, 3, 4 + image, 9, 2, 0]] for image in range(IMAGES)])
    batch = {key: tf.constant(value, tf.float32) for key, value in inputs.items()}
    batch |= {"mask": tf.ones((IMAGES, REGIONS), tf.bool), "tokens": tokens[..., :-1]}
    optimizer = tf.keras.optimizers.Adam(0.005)

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            loss = losses.cross_entropy(model(batch, training=True), tokens[..., 1:], 0.0)[0]
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    optimizer.build(model.trainable_variables)
    for _ in range(300):
        step()
    result = searches.beam_search(model, model.encode(batch), 2, LENGTH)[0][:, 0]
    np.testing.assert_array_equal(result[:, : LENGTH - 1], tokens[:, 0, 1:])
