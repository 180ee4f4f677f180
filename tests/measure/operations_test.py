"""Costs of traced functions against numbers worked out by hand."""

import gc

import pytest
import tensorflow as tf

from tfcap import configs
from tfcap.measure import graphs, workloads
from tfcap.measure.operations import flops

pytestmark = pytest.mark.slow

SIZES = workloads.Sizes(
    images=2, regions=4, features=6, vocab=30, captions=3, beam=2, sentences=4, corpus=20
)
GROUPS = dict(embed_width=5, width=7, multimodal_width=9)


def traced(function, *shapes):
    """The concrete function of `function` on float32 arguments."""
    specs = [tf.TensorSpec(shape) for shape in shapes]
    return tf.function(function, autograph=False).get_concrete_function(*specs)


def counted(function, *shapes, **options):
    return flops(traced(function, *shapes), **options)


def test_a_matrix_product_counts_2_m_n_k():
    assert counted(tf.matmul, (3, 4), (4, 5)).flops == 2 * 3 * 4 * 5
    assert counted(lambda a, b: tf.matmul(a, b, True), (4, 3), (4, 5)).flops == 2 * 3 * 4 * 5
    assert counted(tf.matmul, (6, 2, 3, 4), (4, 5)).flops == 6 * 2 * 2 * 3 * 4 * 5
    assert counted(lambda a, b: tf.matmul(a, b, adjoint_a=True), (6, 4, 3), (6, 4, 5)).flops == (
        6 * 2 * 3 * 4 * 5
    )
    assert counted(lambda a, b: a * b + tf.exp(a), (3, 4), (3, 4)).flops == 0


@pytest.mark.parametrize(
    ("equation", "first", "second", "multiplications"),
    [
        ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5), 2 * 3 * 4 * 5 * 6),
        ("...q,qk->...k", (2, 3, 4), (4, 5), 2 * 3 * 4 * 5),
        ("...qd,...kd->...qk", (1, 3, 4, 5), (2, 1, 6, 5), 2 * 3 * 4 * 5 * 6),
    ],
)
def test_an_einsum_counts_its_multiplications_twice(equation, first, second, multiplications):
    result = counted(lambda a, b: tf.einsum(equation, a, b), first, second)
    assert result.flops == 2 * multiplications
    assert result.by_type == {"Einsum": result.flops}


def test_a_convolution_counts_its_output_times_its_kernel():
    result = counted(lambda x, k: tf.nn.conv2d(x, k, 2, "SAME"), (1, 8, 8, 3), (3, 3, 3, 4))
    assert result.flops == 2 * (4 * 4 * 4) * (3 * 3 * 3)


def looped(x, w):
    """Seven products in a loop whose rows are unknown inside it, and whose length is a shape."""
    rows = tf.repeat(x, tf.shape(w)[0] // tf.shape(x)[1], axis=0)
    *_, outputs = tf.while_loop(
        lambda index, *_: index < tf.shape(x)[2],
        lambda index, rows, outputs: (
            index + 1,
            tf.matmul(rows[:, :, 0], w)[:, :, None],
            outputs.write(index, rows),
        ),
        (tf.constant(0), rows, tf.TensorArray(tf.float32, 7, element_shape=(None, 4, None))),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, None, None]), None),
    )
    return outputs.stack()


def test_a_loop_counts_each_iteration():
    result = counted(lambda x, w: looped(x[:, :, :7], w), (3, 4, 7), (4, 4))
    assert result.flops == 7 * 2 * 3 * 4 * 4 and not result.uncounted


def test_the_gradient_of_a_loop_counts_both_products():
    """The backward loop multiplies by the transposed weight and by the transposed input."""

    def gradient(x, w):
        with tf.GradientTape() as tape:
            tape.watch((x, w))
            _, y = tf.while_loop(
                lambda index, y: index < 5,
                lambda index, y: (index + 1, tf.tanh(tf.matmul(y, w))),
                (tf.constant(0), x),
                maximum_iterations=5,
            )
        return tape.gradient(y, (x, w))

    assert counted(gradient, (3, 4), (4, 4)).flops == 3 * 5 * 2 * 3 * 4 * 4


def test_a_loop_without_a_limit_counts_once_and_is_named():
    def unlimited(x, w):
        return tf.while_loop(lambda x: tf.reduce_sum(x) < 1.0, lambda x: (tf.matmul(x, w),), (x,))

    result = counted(unlimited, (3, 4), (4, 4))
    assert result.flops == 2 * 3 * 4 * 4
    (name,) = result.uncounted
    assert "while" in name
    result = counted(unlimited, (3, 4), (4, 4), loops=6)
    assert result.flops == 6 * 2 * 3 * 4 * 4 and not result.uncounted


def test_nested_loops_branches_and_calls_are_counted():
    inner = tf.function(lambda x, w: tf.matmul(x, w), autograph=False)

    def outer(x, w):
        def turn(index, x):
            def once(place, x):
                return place + 2, inner(x, w)

            _, x = tf.while_loop(lambda place, x: place < 6, once, (tf.constant(1), x))
            return index + 1, x

        _, x = tf.while_loop(lambda index, x: index < 4, turn, (tf.constant(0), x))
        few = lambda: tf.matmul(x, w)  # noqa: E731
        many = lambda: tf.matmul(tf.matmul(x, w), w)  # noqa: E731
        return tf.cond(tf.reduce_sum(x) > 0, few, many)

    # 1, 3, 5: three turns inside each of four; of the branches the costlier one.
    assert counted(outer, (3, 4), (4, 4)).flops == (4 * 3 + 2) * 2 * 3 * 4 * 4


def test_what_nothing_needs_is_not_counted():
    def function(x, w):
        tf.matmul(x, w)
        return x + 1.0

    assert counted(function, (3, 4), (4, 4)).flops == 0


@pytest.mark.parametrize(
    ("cut", "shape"),
    [
        (lambda x, i: x[i : i + 2], [2, 20]),
        (lambda x, i: x[:, i : i + 3], [5, 3]),
        (lambda x, i: x[:i], [5, 20]),  # all, since the end depends on the data
        (lambda x, i: x[:, i, None], [5, 1]),
        (lambda x, i: x[i : i + 4 : 2], [None, 20]),
        (lambda x, i: x[i : i - 2], [None, 20]),
        (lambda x, i: x[i : 2 * i], [None, 20]),
    ],
)
def test_the_size_of_a_slice_is_known_where_it_does_not_depend_on_the_data(cut, shape):
    specs = tf.TensorSpec((5, 20)), tf.TensorSpec((), tf.int32)
    concrete = tf.function(cut, autograph=False).get_concrete_function(*specs)
    [found] = graphs.flatten(concrete).outputs
    assert found.shape.as_list() == shape


def test_products_of_open_shapes_are_named_and_not_counted():
    function = tf.function(tf.matmul, autograph=False).get_concrete_function(
        tf.TensorSpec((None, 4)), tf.TensorSpec((4, 5))
    )
    result = flops(function)
    assert result.flops == 0 and len(result.uncounted) == 1 and "MatMul" in result.uncounted[0]
    assert flops(function, shapes=[(3, 4), (4, 5)]).flops == 2 * 3 * 4 * 5


def mrnn(**task):
    """m-RNN tiny: its configuration and its compiled training step."""
    params = configs.resolve("mrnn").replace(
        task={"max_length": 4, "model": {"mrnn": GROUPS}, **task}
    )
    return params, workloads.build("xe", params, SIZES)


@pytest.fixture(scope="module")
def step():
    return mrnn()


def _mrnn_forward(images, captions=3, length=4, vocab=30, features=6, regions=4):
    """Words, recurrence, multimodal layer (word, history, image) and logits; see `models.mrnn`.

    The mean over the regions is a product as well.
    """
    embed, width, multimodal = GROUPS.values()
    rows = images * captions * length
    return 2 * (
        rows * (embed * width + width * width + 2 * width * multimodal + multimodal * vocab)
        + images * features * (multimodal + regions)
    )


def test_operations_of_a_training_step_follow_the_formula(step):
    """Backward is two products for each, but the features are no weight: one, and no mean."""
    prefixes = step[1].prefixes
    forward = _mrnn_forward(2)
    image = 2 * 2 * 6 * 9 + 2 * 2 * (2 * 4 * 6)
    assert flops(prefixes["forward"]).flops == forward
    assert flops(prefixes["backward"]).flops == 3 * forward - image
    assert flops(prefixes["optimizer"]).flops == 3 * forward - image


def test_micro_batches_take_the_same_operations(step):
    _, parts = mrnn(micro_batches=2)
    assert list(parts.prefixes) == ["optimizer"]
    one, two = (flops(work.prefixes["optimizer"]) for work in (step[1], parts))
    assert one.flops == two.flops and not two.uncounted


@pytest.mark.parametrize("what", ["beam", "greedy"])
def test_operations_of_decoding_follow_the_formula(what):
    params = configs.resolve("mrnn").replace(task={"max_length": 4, "model": {"mrnn": GROUPS}})
    work = workloads.build(what, params, SIZES)
    gc.collect()  # the work keeps its model alive
    rows = SIZES.beam if what == "beam" else 1
    found = flops(work.prefixes["decode"])
    assert found.flops == _mrnn_forward(2, captions=rows) and not found.uncounted


def test_all_products_of_a_step_of_expansionnet_are_counted():
    """Products of batches and layers of many shapes; no product stays open."""
    model = dict(width=16, heads=2, encoder_layers=1, decoder_layers=1)
    params = configs.resolve("expansionnet").replace(
        task={"max_length": 4, "model": {"expansionnet": model}}
    )
    work = workloads.build("xe", params, SIZES, stages=False)
    found = flops(work.prefixes["optimizer"])
    assert {"MatMul", "BatchMatMulV2"} <= set(found.by_type) and not found.uncounted
