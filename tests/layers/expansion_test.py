"""Expansion blocks against slow, literal float64 renderings."""

import math

import numpy as np
import pytest
import tensorflow as tf
from helpers import literal, seeds

from tfcap.layers import expansion
from tfcap.layers.trees import build_when_called

WIDTH, VECTORS, LENGTH = 12, 3, 5
SITES = literal.EXPANSION_DROPOUTS
BLOCKS = {"static": expansion.StaticExpansion, "dynamic": expansion.DynamicExpansion}


def make(kind, seed=1, vectors=VECTORS, **options):
    """Returns a block with random weights, and these weights in float64."""
    block = BLOCKS[kind](WIDTH, vectors, **options)
    build_when_called(block)
    block(tf.zeros((1, 2, WIDTH)), tf.ones((1, 1, 2), tf.bool))
    rng = np.random.default_rng(seed)
    for variable in block.trainable_variables:
        variable.assign(rng.normal(size=variable.shape) * 0.5)
    return block, literal.Weights(block)


def draw(rows=4, length=LENGTH, seed=2):
    return np.random.default_rng(seed).normal(size=(rows, length, WIDTH))


def rendering(kind, w, x, may, *rest):
    """Outputs [T, D] of one row x [T, D]."""
    return getattr(w, kind)("", x, may, *rest)


def mask_of(kind, seen):
    """Returns the mask for the block and the mask for the rendering, for regions `seen` [B, R]."""
    if kind == "static":
        return seen[:, None], seen
    pairs = seen[:, None] & seen[:, :, None]
    return pairs, pairs


def call(block, x, visible, **options):
    return block(tf.constant(x, tf.float32), tf.constant(visible), **options).numpy()


SEEN = np.arange(LENGTH) < np.array([5, 3, 1, 2])[:, None]
CAUSAL = np.tril(np.ones((1, LENGTH, LENGTH), bool))


@pytest.mark.parametrize("kind", BLOCKS)
def test_an_expansion_of_regions_equals_the_rendering(kind):
    block, w = make(kind)
    x = draw()
    visible, may = mask_of(kind, SEEN)
    out = call(block, x, visible)
    expected = [rendering(kind, w, *row) for row in zip(x, may, strict=True)]
    np.testing.assert_allclose(out, expected, atol=2e-5)
    other = call(block, np.where(SEEN[..., None], x, 99.0), visible)
    np.testing.assert_allclose(out[SEEN], other[SEEN], atol=1e-6)
    assert np.abs(out - call(block, x, np.ones_like(visible))).max() > 0.1


def test_regions_gather_the_mean_over_groups_of_vectors():
    """Of the first group all scores are positive, so that no vector of its class b is gathered."""
    groups = (1, 2, 4)
    block, w = make("static", vectors=groups)
    x, first = draw(), np.eye(WIDTH)[0]
    least = w.linear("/key_embed", x)[..., 0].min()
    block.key_embed.bias.assign(block.key_embed.bias.numpy() + (1 - least) * first)
    block.query_exp_vectors.assign([first, *block.query_exp_vectors.numpy()[1:]])
    w = literal.Weights(block)
    out = call(block, x, SEEN[:, None])
    expected = [w.static("", *row, groups=groups) for row in zip(x, SEEN, strict=True)]
    np.testing.assert_allclose(out, expected, atol=2e-5)
    one = [w.static("", *row) for row in zip(x, SEEN, strict=True)]
    assert np.abs(out - one).max() > 0.1


def test_an_expansion_of_words_is_causal():
    """Rows share one M, or each row has an own M because of padding."""
    block, w = make("dynamic")
    x = draw()
    own = CAUSAL & SEEN[:, None] & SEEN[:, :, None]
    for visible in (CAUSAL, own):
        rows = np.broadcast_to(visible, own.shape)
        expected = [rendering("dynamic", w, *row) for row in zip(x, rows, strict=True)]
        np.testing.assert_allclose(call(block, x, visible), expected, atol=2e-5)
    shared = call(block, x, CAUSAL)
    # Hiding padding changes no output before it, so decoding does not hide padding.
    np.testing.assert_allclose(call(block, x, own)[SEEN], shared[SEEN], atol=1e-6)
    changed = x.copy()
    changed[:, 3] += 1
    difference = np.abs(call(block, changed, CAUSAL) - shared).max((0, 2))
    assert difference[:3].max() < 1e-6 and difference[3:].min() > 0.01


def unroll(block, x, length=LENGTH, **options):
    """Runs `step` for all positions of x [N, T, D]."""
    cache, out = block.empty(len(x), length), []
    x = tf.constant(x, tf.float32)
    for t in range(x.shape[1]):
        row, cache = block.step(x[:, t : t + 1], cache, tf.constant(t), **options)
        out.append(row)
    return tf.concat(out, 1).numpy(), cache


@pytest.mark.parametrize("length", [LENGTH, LENGTH + 2])
def test_steps_equal_the_whole_sequence(length):
    """The result does not depend on the allocated length; a changed past changes it."""
    block, _ = make("dynamic")
    x = draw()
    out, cache = unroll(block, x, length)
    np.testing.assert_allclose(out, call(block, x, CAUSAL), atol=1e-5)
    flat, deep = (4, length, WIDTH), (4, length, VECTORS, length)
    shapes = {name: tuple(leaf.shape) for name, leaf in cache.items()}
    names = dict.fromkeys(("key", "class_a", "class_b", "cond"), flat)
    names["query_scores"] = (4, VECTORS, length)
    assert shapes == names | dict.fromkeys(("expanded_a", "expanded_b"), deep)
    last = tf.constant(x[:, -1:], tf.float32)
    for name, leaf in cache.items():
        row, _ = block.step(last, cache | {name: leaf + 0.5}, tf.constant(LENGTH - 1))
        assert np.abs(row[:, 0] - out[:, -1]).max() > 1e-3, name


def noisy(block, shapes, seed=3):
    """Replaces every dropout by known noise and returns the noise of one row."""
    rng = np.random.default_rng(seed)
    noise = {site: rng.integers(0, 2, shape) * 2.0 for site, shape in shapes.items()}

    def fixed(values):
        return lambda x, training: x * tf.constant(values, x.dtype) if training else x

    for site, values in noise.items():
        setattr(block, f"{site}_dropout", fixed(values))
    return noise


@pytest.mark.parametrize("kind", BLOCKS)
def test_dropout_is_where_the_released_code_has_it(kind):
    block, w = make(kind, dropout=0.5)
    x, region = draw(rows=1), (LENGTH, WIDTH)
    visible, may = mask_of(kind, SEEN[1:2])
    assert len(block.variables) == len(block.trainable_variables) + len(SITES)
    quiet = call(block, x, visible)
    np.testing.assert_array_equal(quiet, call(block, x, visible, training=False))
    assert np.abs(call(block, x, visible, training=True) - quiet).max() > 0.1
    # With known noise in place of the dropouts, the result equals the released formula.
    front = (VECTORS,) if kind == "static" else (LENGTH, VECTORS)
    shapes = {"score": (*front, LENGTH)} | dict.fromkeys(SITES[1:3], (math.prod(front), WIDTH))
    noise = noisy(block, shapes | dict.fromkeys(SITES[3:], region))
    flat = {name: value.reshape(-1, value.shape[-1]) for name, value in noise.items()}
    expected = rendering(kind, w, x[0], may[0], flat)
    out = call(block, x, visible, training=True)
    np.testing.assert_allclose(out[0], expected, atol=2e-5)
    np.testing.assert_array_equal(quiet, call(block, x, visible))


@pytest.mark.slow
def test_a_step_drops_a_shared_score_once():
    """Row and column of Z share one score; if it is dropped, both directions lose it."""
    block, w = make("dynamic", dropout=0.5)
    x = draw(rows=1, length=1)
    for site in SITES[1:]:
        getattr(block, f"{site}_dropout").rate = 0.0
    seeds.set_seed(6)
    calls = set()
    for _ in range(40):
        out, _ = unroll(block, x, 1, training=True)
        calls.add(tuple(out.ravel().round(4)))
    possible = []
    for kept in np.ndindex(2, 2, 2):
        noise = {"score": 2.0 * np.array(kept)[:, None]}
        possible.append(rendering("dynamic", w, x[0], np.ones((1, 1)), noise).ravel())
    nearest = [min(np.abs(np.array(out) - p).max() for p in possible) for out in calls]
    assert len(calls) > 4 and max(nearest) < 2e-4


@pytest.mark.parametrize("kind", BLOCKS)
def test_output_and_gradient_are_finite_without_visible_positions(kind):
    """0 / (0 + 1e-9) is 0."""
    block, _ = make(kind)
    visible, _ = mask_of(kind, SEEN & [[True], [True], [True], [False]])
    x = tf.constant(draw(), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(block(x, tf.constant(visible)))
    gradients = tape.gradient(loss, [x, *block.trainable_variables])
    assert np.isfinite(loss) and all(np.isfinite(g).all() for g in gradients)
