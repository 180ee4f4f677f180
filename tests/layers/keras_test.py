"""Layers in somebody else's functional model: fit, save, load, and the masks of a Keras user."""

import functools
import subprocess
import sys

import keras
import numpy as np
import pytest

from tfcap.layers import attention, expansion, recurrent, xlinear

WIDTH = 8
block = functools.partial(xlinear.XLinearAttention, WIDTH, 2)

# The layer, and the shapes of its inputs in a functional model; None is a number of regions.
CASES = {
    "XLinearEncoderLayer": (
        lambda: xlinear.XLinearEncoderLayer(WIDTH, block, 0.1, 0.1),
        (WIDTH,),
        (None, WIDTH),
    ),
    "AttentionOnAttention": (
        lambda: attention.AttentionOnAttention(WIDTH, 2, 0.3, dtype="mixed_bfloat16"),
        (WIDTH,),
        (None, WIDTH),
    ),
    "DynamicExpansion": (
        lambda: expansion.DynamicExpansion(WIDTH, 3, 0.1),
        (5, WIDTH),
    ),
    "LSTMCell": (lambda: recurrent.LSTMCell(4, WIDTH), (4,), (WIDTH,), (WIDTH,)),
}


def functional(make, *shapes):
    """A model of somebody's own: inputs, the layer, and one affine map."""
    inputs = [keras.Input(shape) for shape in shapes]
    outputs = make()(*inputs)
    pooled = [keras.ops.mean(x, axis=tuple(range(1, len(x.shape) - 1))) for x in _flat(outputs)]
    model = keras.Model(inputs, keras.layers.Dense(3)(keras.ops.concatenate(pooled, axis=-1)))
    model.compile("adam", "mse", run_eagerly=True)
    return model


def _flat(outputs):
    return list(outputs) if isinstance(outputs, tuple | list) else [outputs]


def numbers(shapes, rows=6, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(rows, *(n or 5 for n in shape))) for shape in shapes]


@pytest.mark.slow
def test_the_import_of_the_package_registers_every_layer():
    """A saved model is loaded by the names of its layers."""
    program = (
        "import inspect, pathlib, importlib, keras, tfcap.layers\n"
        "names = set(keras.saving.get_custom_objects())\n"
        "for path in pathlib.Path(tfcap.layers.__file__).parent.glob('*.py'):\n"
        "    importlib.import_module(f'tfcap.layers.{path.stem}')\n"
        "new = set(keras.saving.get_custom_objects()) - names\n"
        "assert not new and 'tfcap>XLinearAttention' in names, (new, names)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_layer_is_trained_saved_and_loaded_in_a_functional_model(name, tmp_path):
    make, *shapes = CASES[name]
    model, x = functional(make, *shapes), numbers(shapes)
    model.fit(x, np.ones((6, 3)), batch_size=3, verbose=0)
    expected = model(x).numpy()
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert np.isfinite(expected).all() and np.ptp(expected) > 0
    policies = [[layer.dtype_policy.name for layer in one.layers] for one in (model, loaded)]
    assert policies[0] == policies[1]
    np.testing.assert_array_equal(loaded(x), expected)


MASKED = {
    "xlinear": block,
    "additive": lambda: attention.AdditiveAttention(WIDTH, WIDTH, 5),
    "multi-head": lambda: attention.MultiHeadAttention(WIDTH, 2),
    "attention on attention": lambda: attention.AttentionOnAttention(WIDTH, 2, 0.0),
}


@pytest.mark.parametrize("name", MASKED)
def test_keys_are_projected_inside_and_a_mask_leaves_regions_out(name):
    layer = MASKED[name]()
    query, regions = (np.float32(x) for x in numbers([(4, WIDTH), (None, WIDTH)]))
    calls = np.arange(5) < np.array([5, 3, 1, 5, 2, 4])[:, None]  # [B, S]
    got = layer(query, regions, visible=calls).numpy()
    assert got.shape == query.shape
    for image, count in enumerate(calls.sum(axis=1)):
        alone = layer(query[[image]], regions[[image], :count]).numpy()
        np.testing.assert_allclose(got[[image]], alone, rtol=1e-4, atol=1e-5)
    for t in range(4):  # a query of one position, as in a decoder
        np.testing.assert_allclose(
            layer(query[:, t], regions, visible=calls), got[:, t], rtol=1e-4, atol=1e-5
        )
    projected = layer.project(regions)
    projected = projected if isinstance(projected, tuple) else (projected, regions)
    faster = layer(query, *projected, visible=calls[:, None])
    np.testing.assert_allclose(faster, got, rtol=1e-4, atol=1e-5)
    regions[:, 3:] = 0  # the mask of Keras that keys carry
    carried = layer(query, keras.layers.Masking()(regions))
    np.testing.assert_allclose(carried, layer(query, regions[:, :3]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [expansion.StaticExpansion, expansion.DynamicExpansion])
def test_an_expansion_reads_all_regions_or_those_of_a_mask(make):
    layer = make(WIDTH, 3)
    (x,) = (np.float32(x) for x in numbers([(None, WIDTH)]))
    calls = np.arange(5) < np.array([5, 3, 1, 5, 2, 4])[:, None]
    got = layer(x, visible=calls).numpy()
    for image, count in enumerate(calls.sum(axis=1)):
        alone = layer(x[[image], :count]).numpy()
        np.testing.assert_allclose(got[[image], :count], alone, rtol=1e-4, atol=1e-5)
    x[~calls] = 0
    np.testing.assert_allclose(layer(keras.layers.Masking()(x))[calls], got[calls], atol=1e-6)
