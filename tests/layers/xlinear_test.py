"""X-Linear attention against slow, literal float64 renderings."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from helpers import literal as formulas
from helpers.literal import sigmoid

from tfcap.layers import xlinear
from tfcap.layers.recording import recording
from tfcap.layers.trees import build_when_called

# Keras doubts a softmax over one key; one region is a real case.
ACTIVATIONS = {"relu": formulas.relu, "celu": formulas.celu}
pytestmark = pytest.mark.filterwarnings("ignore:You are using a softmax")


def make(width, heads, seed, middle=None, activation="celu", **options):
    """Returns a block with random weights, norms and biases too, and these weights in float64."""
    block = xlinear.XLinearAttention(width, heads, middle, activation, **options)
    rows = tf.zeros((1, 1, width))
    build_when_called(block)
    block(rows, *block.project(rows))
    rng = np.random.default_rng(seed)
    for variable in block.trainable_variables:
        variable.assign(rng.normal(size=variable.shape) * 0.5)
    return block, formulas.Weights(block)


def literal(w, query, key, value, visible, heads, activation, noise=None):
    """The released block: query [N, T, D], key and value [B, S, D], visible [N, T, S].

    `noise` [N, H, T, S, e] multiplies E where the released code drops. Returns [N, T, D], and the
    spatial weights [N, H, T, S].
    """
    (rows, times, _), keys = query.shape, key.shape[1]
    out, weights = np.zeros(query.shape), np.zeros((rows, heads, times, keys))
    activation = ACTIVATIONS[activation]
    for n, t in itertools.product(range(rows), range(times)):
        image, calls, kept = n // (rows // len(key)), visible[n, t], []
        factors = None if noise is None else noise[n, :, t][:, calls]
        arguments = query[n, t], key[image][calls], value[image][calls], heads, activation
        out[n, t] = w.xlinear("", *arguments, factors, kept)
        for head, spatial in enumerate(kept):
            weights[n, head, t, calls] = spatial
    return out, weights


def paper(w, query, key, value, visible, activation):
    """Equations 2 to 6 for one query [D] and keys and values [S, D]: no heads, norms or biases."""

    def projected(which, x):
        return ACTIVATIONS[activation](x @ w[f"in_proj_{which}/linear/kernel"])

    calls = np.flatnonzero(visible)
    joint_key = [projected("k", key[i]) * projected("q", query) for i in calls]
    joint_value = [projected("v2", value[i]) * projected("v1", query) for i in calls]
    middle = [np.maximum(b @ w["joint/kernel"], 0) for b in joint_key]
    spatial = np.array([(b @ w["spatial/kernel"]).item() for b in middle])
    spatial = np.exp(spatial) / np.exp(spatial).sum()
    channel = sigmoid(np.mean(middle, axis=0) @ w["channel/kernel"])
    return channel * sum(s * b for s, b in zip(spatial, joint_value, strict=True))


def draw(seed, images, group, times, keys, width):
    """Random query [N, T, D], key, value [B, S, D] and mask [B, 1, S] with a padded tail."""
    rng = np.random.default_rng(seed)
    query = rng.normal(size=(images * group, times, width))
    key, value = rng.normal(size=(2, images, keys, width))
    mask = np.arange(keys) < rng.integers(1, keys + 1, (images, 1, 1))
    return query, key, value, mask


def single(*arrays):
    return [tf.constant(a, tf.float32) for a in arrays]


def attend(block, query, key, value, visible, **options):
    query, key, value = single(query, key, value)
    visible = None if visible is None else tf.constant(visible)
    return block(query, *block.project(key, value), visible=visible, **options)


def attend_and_record(*arguments):
    """Output and spatial weights [N, H, T, S]."""
    with recording() as records:
        out = attend(*arguments)
    (record,) = records
    return out, record.weights


@pytest.mark.parametrize(
    "activation, images, group, times, keys",
    [("celu", 3, 1, 1, 5), ("relu", 2, 3, 2, 4), ("celu", 1, 2, 3, 1)],
)
def test_eight_heads_equal_the_released_block(activation, images, group, times, keys):
    block, w = make(32, 8, seed=keys, activation=activation)
    query, key, value, mask = draw(group, images, group, times, keys, 32)
    visible = np.broadcast_to(np.repeat(mask, group, 0), (images * group, times, keys))
    expected, weights = literal(w, query, key, value, visible, 8, activation)
    out, result = attend_and_record(block, query, key, value, mask)
    np.testing.assert_allclose(out, expected, atol=2e-5, rtol=2e-5)
    np.testing.assert_allclose(result, weights, atol=1e-5)
    # Without a T axis, as X-LAN and the encoder call it.
    flat = attend(block, query[:, 0], key, value, mask)
    np.testing.assert_allclose(flat, expected[:, 0], atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("group", [1, 2])
def test_each_query_can_have_its_own_mask(group):
    """As in word attention, query t reads keys up to t, and some of them are padding."""
    images, times = 2, 4
    block, w = make(16, 8, seed=4, middle=3)
    query, key, value, _ = draw(8, images, group, times, times, 16)
    rng = np.random.default_rng(2)
    visible = np.tril(rng.random((images * group, times, times)) < 0.7)
    visible[..., 0] = True
    expected, weights = literal(w, query, key, value, visible, 8, "celu")
    mask = visible.reshape(images, group * times, times)
    out, result = attend_and_record(block, query, key, value, mask)
    np.testing.assert_allclose(out, expected, atol=2e-5, rtol=2e-5)
    np.testing.assert_allclose(result, weights, atol=1e-5)


@pytest.mark.parametrize(
    "activation, keys, width, middle",
    [("celu", 6, 10, None), ("relu", 1, 7, 4), ("celu", 9, 5, 8)],
)
def test_one_head_equals_the_equations_of_the_paper(activation, keys, width, middle):
    block, w = make(width, 1, keys, middle, activation, normalize=False)
    for variable in block.trainable_variables:  # the paper writes its maps without biases
        if variable.name == "bias":
            variable.assign(np.zeros(variable.shape))
    query, key, value, mask = draw(width, 3, 1, 2, keys, width)
    out = attend(block, query, key, value, mask)
    for n, t in itertools.product(range(3), range(2)):
        expected = paper(w, query[n, t], key[n], value[n], mask[n, 0], activation)
        np.testing.assert_allclose(out[n, t], expected, atol=2e-5, rtol=2e-5)


def test_output_and_gradient_are_finite_without_visible_keys():
    """The channel gate then gets a mean of zero."""
    block, _ = make(16, 8, seed=1)
    query, key, value, mask = draw(1, 2, 1, 2, 5, 16)
    mask[1] = False
    query, key, value = single(query, key, value)
    with tf.GradientTape() as tape:
        tape.watch([query, key, value])
        out = block(query, *block.project(key, value), visible=tf.constant(mask))
        loss = tf.reduce_sum(out)
    gradients = tape.gradient(loss, [query, key, value, *block.trainable_variables])
    assert all(np.isfinite(x).all() for x in [out, *gradients])


def test_dropout_is_on_the_joint_map_in_training_only():
    """The dropout is after the ReLU and before the spatial and the channel branch."""
    block, w = make(16, 4, seed=6, middle_dropout=0.5)
    query, key, value, mask = draw(3, 2, 2, 1, 5, 16)
    quiet = attend(block, query, key, value, mask)
    np.testing.assert_array_equal(quiet, attend(block, query, key, value, mask, training=False))
    loud = attend(block, query, key, value, mask, training=True)
    assert np.abs(quiet - loud).max() > 0.01
    assert len(block.variables) == len(block.trainable_variables) + 1  # one generator

    # With known noise in place of the dropout, the result equals the released formula.
    noise = np.random.default_rng(0).integers(0, 2, (2, 4, 5, 2, 2)) * 2.0  # [B, H, S, G T, e]
    block.dropout = lambda joint, training, size: joint * noise.astype("float32")
    visible = np.repeat(mask, 2, 0)
    of_rows = noise.transpose(0, 3, 1, 2, 4).reshape(4, 4, 1, 5, 2)  # -> [N, H, T, S, e]
    expected, _ = literal(w, query, key, value, visible, 4, "celu", of_rows)
    out = attend(block, query, key, value, mask, training=True)
    np.testing.assert_allclose(out, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("depth", [4, xlinear.NARROW + 1])
def test_the_joint_map_is_the_same_where_the_graph_does_not_know_the_number_of_keys(depth):
    queries, keys = (tf.random.stateless_normal((2, 1, size, depth), (1, size)) for size in (3, 50))
    joint = xlinear.JointMap(depth=depth, middle=40)
    known = joint(queries, keys)  # more keys than 40: queries are multiplied by the weight first
    unknown = tf.function(joint, input_signature=[tf.TensorSpec((2, 1, None, depth))] * 2)
    np.testing.assert_allclose(unknown(queries, keys), known, atol=1e-5)
