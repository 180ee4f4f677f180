"""What the tests of single systems share: a tiny model, a batch with padding, dropout, names, size.

Sizes are those of `conftest`; `contract_test` holds every system to the interface.
"""

import keras
import numpy as np
import tensorflow as tf

from helpers import contract, seeds
from helpers.sizes import CAPTIONS, FEATURES, IMAGES, LENGTH, REGIONS, VOCABULARY
from tfcap import models
from tfcap.released import weights


def make(name, seed=1, **options):
    """A small model of which no weight is zero or one, as biases and normalisations start."""
    seeds.set_seed(seed)
    model = models.build(name, VOCABULARY, LENGTH, FEATURES, **options)
    rng = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        variable.assign_add(0.2 * rng.normal(size=variable.shape))
    return model


def start(name, **options):
    """The weights by name of a small model, before any training."""
    seeds.set_seed(1)
    model = models.build(name, VOCABULARY, LENGTH, FEATURES, **options)
    return {name: value.numpy() for name, value in model.checkpoint_items["weights"].items()}


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


def layer_at(model, path):
    """The layer that the chain of attributes `path` leads to."""
    for key in path.split("/"):
        model = model[int(key)] if key.isdigit() else getattr(model, key)
    return model


def check_dropout(name, sites, **sizes):
    """The model drops at these places and no others, each set by one argument.

    Args:
      name: of the system.
      sites: for each path of a Dropout layer the argument that sets it and the rate by default.
      **sizes: of a small model.
    """
    arguments = sorted({argument for argument, _ in sites.values()})
    rates = {argument: 0.01 * (i + 1) for i, argument in enumerate(arguments)}
    for options in ({}, rates):
        model = models.MODELS[name](VOCABULARY, LENGTH, FEATURES, name=name, **sizes, **options)
        seeds = {f"{site}/seed_generator_state" for site in sites}
        assert seeds == set(model.checkpoint_items["seeds"])
        found = {site: layer_at(model, site).rate for site in sites}
        assert found == {site: options.get(a, rate) for site, (a, rate) in sites.items()}


def check_names(model, family, pairs):
    """The released state dict of the names `pairs[ours]` is exactly the weights of `model`."""
    mine, rng = model.checkpoint_items["weights"], np.random.default_rng(2)
    values = {ours: rng.normal(size=mine[ours].shape).astype("float32") for ours in pairs}
    state = {pairs[ours]: v.T if "kernel" in ours else v for ours, v in values.items()}
    tensors = weights.translate(state, weights.NAMES[family])
    assert set(tensors) == set(mine)
    for ours, value in values.items():
        np.testing.assert_array_equal(tensors[ours], value, err_msg=ours)
    weights.assign(model, tensors, np.arange(model.vocab_size))
    values["head/kernel"][:, :2] = values["head/kernel"][:, 2:3]  # PAD and BOS
    values["head/bias"][:2] = values["head/bias"][2] + weights.UNLIKELY
    for ours, value in values.items():
        np.testing.assert_array_equal(mine[ours], value, err_msg=ours)


def check_contract(batch, name, half, invariant=(), **options):
    """What the interface asks, where a variant of a system is computed differently.

    Args:
      batch: without padding in its captions.
      name: of the system.
      half: the policy of lower precision to try.
      invariant: as in `contract.check_gradients`.
      **options: of the variant.
    """
    model = make(name, **options)
    batch = batch | {"tokens": batch["tokens"][..., :3]}  # the third word sees states of a step
    logits = model(batch)
    contract.check_gradients(model, batch, invariant)
    contract.check_region_padding(model, batch, logits)
    contract.check_rows_share_an_image(model, batch, logits)
    try:
        keras.mixed_precision.set_global_policy(half)
        low = make(name, **options)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    rough, tolerance = low(batch), 0.15 if "bfloat16" in half else 0.02
    for one, found, allowed in ((model, logits, 1e-5), (low, rough, tolerance)):
        contract.check_step_equals_decode(one, batch, allowed)
        contract.check_finite(one, batch, found)
    contract.same(rough, logits, tolerance)


def count(monkeypatch, name, vocabulary, length, features, **options):
    """Trainable numbers of a system at full size; the values do not matter, zeros are quick."""
    for kind in ("RandomUniform", "RandomNormal"):
        monkeypatch.setattr(
            getattr(keras.initializers, kind),
            "__call__",
            lambda self, shape, dtype=None: tf.zeros(shape),
        )
    model = models.build(name, vocabulary, length, features, **options)
    return sum(int(np.prod(v.shape)) for v in model.trainable_variables)
