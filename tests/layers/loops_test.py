"""Loops with cast and transposed weights against the same steps without a loop."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import systems

from tfcap.decoding.sampling import scheduled_sampling
from tfcap.layers import common, loops, precision, recurrent
from tfcap.models.captioner import count_positions

pytestmark = pytest.mark.slow

PRODUCTS = precision.policy("bfloat16", accelerated=False)
SEED = tf.constant([1, 2])


def make_xlan():
    """An X-LAN without encoder and dropout, in the global precision; always the same weights."""
    sites = ("word", "region", "middle", "encoder", "decoder", "bifeat", "context", "head")
    rates = {f"{site}_dropout": 0.0 for site in sites}
    return systems.make("xlan", width=16, heads=2, encoder_layers=0, **rates)


@pytest.fixture(scope="module")
def xlan():
    """A model, its batch and its captions as rows."""
    model = make_xlan()
    batch = systems.padded_batch()
    return model, batch, tf.reshape(batch["tokens"], (-1, batch["tokens"].shape[-1]))[:, :4]


def step_by_step(model, context, rows):
    """Logits of `model.step` in a Python loop, which casts and transposes nothing in advance."""
    cache = model.init_cache(context, model.max_length)
    group = rows.shape[0] // tf.nest.flatten(cache)[0].shape[0]
    cache = tf.nest.map_structure(lambda leaf: tf.repeat(leaf, group, axis=0), cache)
    logits = []
    for t in range(rows.shape[1]):
        now, cache = model.step(context, cache, rows[:, t], tf.constant(t), True)
        logits.append(now)
    return tf.stack(logits, 1)


PATHS = {
    "decode": lambda model, context, rows: model.decode(context, rows, training=True),
    "scheduled": lambda model, context, rows: scheduled_sampling(
        model, context, rows, 0.0, SEED, training=True
    )[0],
}


def loss_and_gradients(model, batch, rows, logits_of):
    with tf.GradientTape() as tape:
        logits = logits_of(model, model.encode(batch, True), rows)
        words = tf.sequence_mask(count_positions(rows), rows.shape[1], tf.float32)
        loss = tf.reduce_sum(tf.sin(logits) * words[..., None])
    return loss, tape.gradient(loss, model.trainable_variables)


@pytest.fixture(scope="module")
def expected(xlan):
    """Loss and gradients by single steps."""
    return loss_and_gradients(*xlan, step_by_step)


@pytest.mark.parametrize("path", PATHS)
def test_the_gradient_through_a_loop_is_that_of_single_steps(xlan, expected, path):
    """The products inside a loop have a gradient of their own, by the transposed weight."""
    compiled = tf.function(lambda: loss_and_gradients(*xlan, PATHS[path]), autograph=False)
    loss, result = compiled()
    np.testing.assert_allclose(loss, expected[0], rtol=1e-5)
    for one, two in zip(result, expected[1], strict=True):
        one, two = (tf.convert_to_tensor(g) for g in (one, two))
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-4 * np.abs(two).max() + 1e-5)


def test_gradients_in_bfloat16_are_near_those_in_float32(xlan, expected):
    with precision.using(PRODUCTS):
        model = make_xlan()
    compiled = tf.function(
        lambda: loss_and_gradients(model, *xlan[1:], PATHS["decode"]), autograph=False
    )
    _, result = compiled()
    whole = tf.linalg.global_norm(expected[1])  # some gradients are zero but for rounding
    for one, two in zip(result, expected[1], strict=True):
        one, two = (np.ravel(tf.convert_to_tensor(gradient)) for gradient in (one, two))
        allowed = 0.3 * np.linalg.norm(two) + 0.002 * whole
        assert np.linalg.norm(one - two) < allowed  # a gradient of zero differs by its whole norm


class Sines(keras.Model):
    """Two weights, the first of which a step uses `uses` times."""

    def __init__(self, uses):
        super().__init__()
        self.uses, self.first, self.second = uses, loops.Affine(3), loops.Affine(3)

    def call(self, x):
        for _ in range(self.uses):
            x = tf.sin(self.first(x))
        return tf.sin(self.second(x)) + x


def gradients(body, x, steps, limit, kind, weights):
    """Gradients of the result of a loop that runs `body` on `x` `steps` times."""

    def through_loop():
        with tf.GradientTape() as tape:
            *_, y = loops.loop(
                lambda index, _: index < steps,
                lambda index, y: (index + 1, body(y)),
                (tf.constant(0), x),
                gradient=True,
                maximum_iterations=limit,
            )
        return tape.gradient(y, weights)

    if kind != "eager":
        through_loop = tf.function(through_loop, autograph=False, jit_compile=kind == "xla")
    return through_loop()


def without_loop(body, x, steps, weights):
    with tf.GradientTape() as tape:
        for _ in range(steps):
            x = body(x)
    return tape.gradient(x, weights)


@pytest.mark.parametrize("kind", ["eager", "graph", "xla"])
@pytest.mark.parametrize("uses, steps, limit", [(1, 4, 4), (2, 3, 6)])
def test_the_gradient_of_a_weight_counts_every_use_and_every_step(uses, steps, limit, kind):
    """Also of a weight that a step uses twice, and of a loop that ends before its limit."""
    model, x = Sines(uses), tf.random.stateless_normal((2, 3), (1, 2))
    model(x)
    weights = model.trainable_variables
    result = gradients(model, x, steps, limit, kind, weights)
    for one, two in zip(result, without_loop(model, x, steps, weights), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["eager", "graph", "xla"])
def test_a_product_that_nothing_reads_adds_nothing_to_a_gradient(kind):
    model, x = Sines(1), tf.random.stateless_normal((2, 3), (1, 2))
    model(x)
    first, second = model.first.kernel, model.second.kernel

    def body(y):
        return model.second(y) + 0 * tf.stop_gradient(model.first(y))

    result = gradients(body, x, 3, 3, kind, [first, second])
    if kind == "eager":  # where None stands for zeros
        result = [tf.zeros_like(first) if one is None else one for one in result]
    assert not result[0].numpy().any()
    np.testing.assert_allclose(result[1], without_loop(body, x, 3, second), rtol=1e-4, atol=1e-5)


class Cell(keras.Model):
    """A recurrent cell and a dense layer that compute in bfloat16."""

    def __init__(self):
        super().__init__(dtype="mixed_bfloat16")
        self.cell = recurrent.LSTMCell(3, 5, dtype="mixed_bfloat16")
        self.dense = loops.Affine(3, dtype="mixed_bfloat16")

    def call(self, x):
        h, _ = self.cell(x, tf.zeros([2, 5], x.dtype), tf.zeros([2, 5], x.dtype))
        return self.dense(h)


def loop_over(model, steps=3):
    """Runs `model` on its own output, and reads its weights in the loop or before it."""
    state = (tf.constant(0), tf.ones([2, 3], tf.bfloat16))
    return loops.loop(lambda i, _: i < steps, lambda i, x: (i + 1, model(x)), state)[1]


def read_in_loop(model):
    """The result of `loop_over`, and how many weights each step reads."""
    function = tf.function(lambda: loop_over(model), autograph=False).get_concrete_function()
    library = function.graph.as_graph_def().library.function
    (body,) = (f for f in library if "while_body" in f.signature.name)
    return function(), sum(node.op == "ReadVariableOp" for node in body.node_def)


def test_a_loop_reads_and_casts_its_weights_before_it_starts():
    """Inside the loop only the two biases of the cell and that of the dense layer are read."""
    model = Cell()
    x = expected = tf.ones([2, 3], tf.bfloat16)
    for _ in range(3):
        expected = model(expected)
    result, reads = read_in_loop(model)
    np.testing.assert_array_equal(result, expected)
    assert (expected != x).numpy().all() and reads == 3


def test_the_plain_path_gives_equal_numbers(xlan, monkeypatch):
    """`TFCAP_PLAIN_LOOPS=1` sets `PLAIN`. Each step then reads the three kernels, too."""

    def numbers():
        function = tf.function(lambda: loss_and_gradients(*xlan, PATHS["decode"]), autograph=False)
        return *function(), *read_in_loop(model)

    model = Cell()
    model(tf.ones([2, 3], tf.bfloat16))
    loss, gradients, output, reads = numbers()
    monkeypatch.setattr(loops, "PLAIN", True)
    plain_loss, plain_gradients, plain_output, plain_reads = numbers()
    assert (reads, plain_reads) == (3, 6)
    np.testing.assert_array_equal(output, plain_output)
    np.testing.assert_allclose(loss, plain_loss, rtol=1e-6)
    for one, two in zip(gradients, plain_gradients, strict=True):
        one, two = (tf.convert_to_tensor(gradient) for gradient in (one, two))
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5 * np.abs(two).max() + 1e-6)


def test_after_a_loop_the_layers_read_their_own_weights():
    """A cast copy that stayed behind would hide a later change of the weights."""
    model = Cell()
    before = loop_over(model, steps=1)
    model.dense.kernel.assign(model.dense.kernel + 1)
    assert (model(tf.ones([2, 3], tf.bfloat16)) != before).numpy().any()


def test_unset_weights_are_not_drawn(monkeypatch):
    drawn = []
    monkeypatch.setattr(
        keras.initializers.RandomUniform,
        "__call__",
        lambda self, shape, dtype=None: drawn.append(tuple(shape)) or tf.zeros(shape, dtype),
    )

    def built():
        layer = common.linear(3, 2, "map")
        layer.build((None, 3))
        return [tuple(weight.shape) for weight in layer.weights]

    with loops.unset_weights():
        assert built() == [(3, 2), (2,)] and not drawn
    assert built() == drawn == [(3, 2), (2,)]
