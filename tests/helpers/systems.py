"""What the tests of single systems share: a tiny model, and a batch with padding.

Sizes are those of `conftest`; `contract_test` holds every system to the interface.
"""

import numpy as np
import tensorflow as tf

from helpers import seeds
from helpers.sizes import CAPTIONS, FEATURES, IMAGES, LENGTH, REGIONS, VOCABULARY
from tfcap import models


def make(name, seed=1, **options):
    """A small model of which no weight is zero or one, as biases and normalisations start."""
    seeds.set_seed(seed)
    model = models.build(name, VOCABULARY, LENGTH, FEATURES, **options)
    rng = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        variable.assign_add(0.2 * rng.normal(size=variable.shape))
    return model


def padded_batch(seed=8):
    """Images of 5, 3 and 1 regions with captions of 6 words and less, and padding that shows."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(2, VOCABULARY, (IMAGES, CAPTIONS, LENGTH))
    tokens[..., 0] = 1
    tokens[np.arange(LENGTH) >= np.array([[6, 4], [2, 5], [3, 6]])[..., None]] = 0
    return {
        "features": tf.constant(rng.normal(size=(IMAGES, REGIONS, FEATURES)), tf.float32),
        "mask": tf.sequence_mask([5, 3, 1], REGIONS),
        "tokens": tf.constant(tokens, tf.int32),
    }
