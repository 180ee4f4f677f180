"""Attention that is computed position by position, and the masks of a decoder."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import seeds

from tfcap.layers import attention, xlinear

ROWS, LENGTH, WIDTH = 2, 4, 8
BLOCKS = {
    "multi-head": lambda: attention.MultiHeadAttention(WIDTH, 2),
    "attention on attention": lambda: attention.AttentionOnAttention(WIDTH, 2, 0.0),
    "xlinear": lambda: xlinear.XLinearAttention(WIDTH, 2),
}


@pytest.mark.parametrize("with_queries", [False, True], ids=["words", "queries"])
@pytest.mark.parametrize("name", BLOCKS)
def test_steps_equal_the_whole_sequence(name, with_queries):
    """The cache is larger than the sequence, as in a search of short captions."""
    seeds.set_seed(1)
    block = BLOCKS[name]()
    x, queries = tf.random.stateless_normal((2, ROWS, LENGTH, WIDTH), (1, 2))
    queries = queries if with_queries else x
    past = np.tril(np.ones((1, LENGTH, LENGTH), bool))
    keys, values = block.project(x)
    expected = block(queries, keys, values, visible=past)
    cache = block.empty(ROWS, LENGTH + 2)
    for t in range(LENGTH):
        query = queries[:, t : t + 1] if with_queries else None
        row, cache = block.step(x[:, t : t + 1], cache, tf.constant(t), query)
        np.testing.assert_allclose(row[:, 0], expected[:, t], atol=1e-5)
    assert [part.shape for part in cache] == [(ROWS, 2, LENGTH + 2, WIDTH // 2)] * 2
