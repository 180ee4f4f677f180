"""Recorded attention against literal renderings, and no cost without a recording."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import literal, seeds

from tfcap.layers import attention, recording, xlinear
from tfcap.layers.trees import build_when_called

IMAGES, GROUP, TIMES, KEYS, WIDTH, HEADS = 2, 3, 4, 5, 12, 3
MASK = np.arange(KEYS) < np.array([5, 3])[:, None, None]  # [B, 1, S]


@pytest.fixture(scope="module")
def arrays():
    """Query [N, T, D] and keys [B, S, D]."""
    rng = np.random.default_rng(3)
    query = rng.normal(size=(IMAGES * GROUP, TIMES, WIDTH))
    return tf.constant(query, tf.float32), tf.constant(
        rng.normal(size=(IMAGES, KEYS, WIDTH)), tf.float32
    )


def blocks():
    seeds.set_seed(4)
    made = {
        "additive": attention.AdditiveAttention(WIDTH, WIDTH, 7, name="additive"),
        "heads": attention.MultiHeadAttention(WIDTH, HEADS, dropout=0.5, name="heads"),
        "xlinear": xlinear.XLinearAttention(WIDTH, HEADS, name="xlinear"),
    }
    for block in made.values():
        build_when_called(block)
    return made


def call(block, query, keys, mask=MASK, **options):
    mask = tf.constant(mask)
    if block.name == "additive":
        return block(query[:, 0], block.project(keys), keys, mask)
    return block(query, *block.project(keys), visible=mask, **options)


def test_additive_weights_equal_the_formula(arrays):
    query, keys = arrays
    block = blocks()["additive"]
    with recording.recording() as records:
        call(block, query, keys)
    (record,) = records
    assert record.layer is block
    assert record.weights.shape == (IMAGES * GROUP, 1, 1, KEYS)
    assert record.weights.dtype == np.float32
    w = literal.Weights(block)
    for row in range(IMAGES * GROUP):
        calls = np.flatnonzero(MASK[row // GROUP, 0])
        joint = w.linear("key", keys[row // GROUP].numpy()[calls]) + w.linear(
            "query", query[row, 0]
        )
        expected = np.zeros(KEYS)
        expected[calls] = literal.softmax(w.linear("alpha", np.tanh(joint))[:, 0])
        np.testing.assert_allclose(record.weights[row, 0, 0], expected, atol=1e-6)


def test_multi_head_weights_equal_the_formula(arrays):
    """Recorded weights have no dropout, even in training; each query has its own mask."""
    query, keys = arrays
    block = attention.MultiHeadAttention(WIDTH, HEADS, dropout=0.5, name="heads")
    calls = np.random.default_rng(1).random((IMAGES, GROUP * TIMES, KEYS)) < 0.6
    calls[..., 0] = True
    with recording.recording() as records:
        call(block, query, keys, calls, training=True)
    (record,) = records
    assert record.weights.shape == (IMAGES * GROUP, HEADS, TIMES, KEYS)
    calls = calls.reshape(IMAGES * GROUP, TIMES, KEYS)
    w, depth = literal.Weights(block), WIDTH // HEADS
    for row in range(IMAGES * GROUP):
        q, k = w.linear("query", query[row]), w.linear("key", keys[row // GROUP])
        for head in range(HEADS):
            part = slice(head * depth, (head + 1) * depth)
            logits = np.where(calls[row], q[:, part] @ k[:, part].T / depth**0.5, -1e9)
            expected = literal.softmax(logits)
            np.testing.assert_allclose(record.weights[row, head], expected, atol=1e-5)


@pytest.mark.parametrize("name", sorted(blocks()))
def test_recording_changes_no_output_and_keeps_nothing_outside(arrays, name):
    block = blocks()[name]
    outside = call(block, *arrays)
    with recording.recording() as records:
        inside = call(block, *arrays)
    np.testing.assert_array_equal(inside, outside)
    call(block, *arrays)
    assert len(records) == 1


def test_recording_in_a_graph_is_an_error(arrays):
    block = blocks()["heads"]
    message = "The attention weights of heads can be recorded only in eager mode"
    with recording.recording() as records, pytest.raises(ValueError, match=message):
        tf.function(lambda *arrays: call(block, *arrays), autograph=False)(*arrays)
    assert not records
