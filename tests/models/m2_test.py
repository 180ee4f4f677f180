"""The released Meshed-Memory Transformer and ours, and what fills an image up with regions."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import contract, parity, searches, small_models

from tfcap import models
from tfcap.importers import systems, weights
from tfcap.layers.positions import sinusoids

PAD, BOS, EOS, UNKNOWN = 1, 2, 3, 0  # of the released code
# Our marks, then the words of the released code; its PAD and BOS are words here.
RELEASED = np.array([PAD, BOS, EOS, UNKNOWN, PAD, BOS, *range(4, 30)])
OURS = np.argsort(RELEASED[2:])[np.arange(30)] + 2  # released id -> our id


@pytest.fixture(scope="module")
def arrays():
    return parity.read("m2")


@pytest.fixture(scope="module")
def released(arrays):
    """Our model with the weights of the fixture, and the inputs of `encode`."""
    checkpoint = systems.recognize("m2", parity.weights_of(arrays))
    length = arrays["out/greedy"].shape[1]
    assert not checkpoint.has_sinusoids(length)
    checkpoint.store_positions(length)
    options = checkpoint.options | dict(heads=2, filled_regions=5)
    sizes = len(RELEASED), length, arrays["in/feats"].shape[-1]
    model = models.build("m2", *sizes, **options)
    weights.assign(model, checkpoint.tensors, RELEASED, checkpoint.names)
    inputs = {"features": tf.constant(arrays["in/feats"]), "mask": arrays["in/mask"] > 0}
    return model, inputs


def log_probs(logits):
    """Of the released words, in their order: PAD and BOS of ours are 30 below EOS."""
    return tf.gather(tf.nn.log_softmax(logits), OURS, axis=-1)


def test_the_released_code_gives_the_same_numbers(arrays, released):
    """Three images of 5, 4 and 2 regions, which the released code fills up to five."""
    model, inputs = released
    context = model.encode(inputs)
    words = arrays["in/seq"]
    tokens = np.where(words == PAD, 0, OURS[words]).astype(np.int32)
    tokens[:, 0] = 1
    read = (words[:, :-1] != PAD) & (words[:, 1:] != PAD)
    with tf.GradientTape() as tape:
        logps = log_probs(model.decode(model.encode(inputs), tf.constant(tokens[:, :-1])))
        picked = tf.gather(logps, words[:, 1:], batch_dims=2)
        loss = -tf.reduce_mean(picked[read])
    np.testing.assert_allclose(logps[read], arrays["out/logits"][read], atol=1e-5)

    ours = model.checkpoint_items["weights"]
    memory, gate = "encoder/1/self_att/attend/memory_keys", "decoder/1/gates/1/kernel"
    results = tape.gradient(loss, [ours[memory], ours[gate]])
    for key, result in zip(
        ("encoder.layers.1.mhatt.attention.m_k", "decoder.layers.1.fc_alpha2.weight"),
        (results[0][None], tf.transpose(results[1])),
        strict=True,
    ):
        expected = arrays[f"grad/{key}"]
        assert np.abs(result - expected).max() < 1e-4 * np.abs(expected).max()

    def sentences(words):
        """Ours: nothing after the first EOS."""
        before = np.cumsum(words == EOS, 1) - (words == EOS)
        return np.where(before > 0, 0, OURS[words])

    length = arrays["out/greedy"].shape[1]
    result, logps = searches.traced(searches.sample, model, context, length)[:2]
    expected = sentences(arrays["out/greedy"])
    np.testing.assert_array_equal(result, expected)
    count = expected > 2  # the released code gives the end no probability
    np.testing.assert_allclose(logps[count], arrays["out/greedy_logp"][count], atol=1e-5)
    result = searches.traced(searches.beam_search, model, context, 3, length)[0]
    np.testing.assert_array_equal(result[:, 0], sentences(arrays["out/beam3"]))


def test_regions_that_fill_an_image_up_are_read(batch):
    """As many as the option says, whatever padding the batch has, and however large it is."""
    model = small_models.make("m2", seed=1, filled_regions=4)
    logits = model(batch)
    loud = contract.changed(batch, "features", lambda x: x.__setitem__(~batch["mask"].numpy(), 9.0))
    contract.same(model(loud), logits, 1e-5)
    for count in (1, 2, 7):
        shown = {
            "features": tf.pad(batch["features"][2:], [[0, 0], [0, 3], [0, 0]])[:, :count],
            "mask": tf.sequence_mask([1], count),
            "tokens": batch["tokens"][2:],
        }
        contract.same(model(shown), logits[2:], 1e-5)
    hidden = small_models.make("m2", seed=1)
    contract.differ(hidden(batch)[2], logits[2])
    contract.same(hidden(batch)[0], logits[0], 1e-5)  # five regions


def test_initial_numbers(batch):
    """Sinusoids, no biases in attention and gates, and memory of the released size."""
    model = models.build("m2", 20, 6, 5, width=64, heads=2, decoder_layers=1, slots=40)
    names = model.checkpoint_items["weights"]
    zeros = [name for name, value in names.items() if not np.any(value)]
    for part in ("query/bias", "output_map/bias", "gates/0/bias"):
        assert any(name.endswith(part) for name in zeros), part
    memory = names["encoder/0/self_att/attend/memory_values"].numpy()
    limit = np.sqrt(6 / (41 * 64))
    assert 0.95 * limit < np.abs(memory).max() <= limit
    assert "position_codes/table" not in names and "head/bias" not in names
    np.testing.assert_array_equal(model.position_codes(np.arange(6)), sinusoids(6, 64))
