"""XLA compiles the gradients of three systems, and computes what TensorFlow computes.

`layers/loops_test.py` and `training/task_test.py` compile recurrent systems.
"""

import numpy as np
import pytest
import tensorflow as tf
from helpers.small_models import make

from tfcap import private_api
from tfcap.objectives import losses


@pytest.mark.slow
@pytest.mark.parametrize("name", ["expansionnet", "hip", "xtransformer"])
def test_xla_gives_the_same_gradients(name, batch):
    model = make(name, seed=1)
    for layer in private_api.all_layers(model):
        if hasattr(layer, "rate"):  # XLA draws other masks
            layer.rate = 0.0
    tokens = batch["tokens"][..., :3]

    def gradients():
        with tf.GradientTape() as tape:
            logits = model(batch | {"tokens": tokens[..., :-1]}, training=True)
            loss = losses.cross_entropy(logits, tokens[..., 1:], 0.1)[0]
        result = tape.gradient(loss, model.trainable_variables)
        return [tf.convert_to_tensor(gradient) for gradient in result]

    result = tf.function(gradients, autograph=False, jit_compile=True)()
    for one, two in zip(result, gradients(), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=2e-5)
