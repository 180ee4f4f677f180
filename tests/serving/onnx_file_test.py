"""ONNX files compute what TensorFlow computes: every system, and every option of decoding."""

import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import small_models
from helpers.sizes import FEATURES, LENGTH, REGIONS, VOCABULARY

from tfcap.backbones.backbone import Backbone
from tfcap.backbones.clips import Clips
from tfcap.decoding import beams, sampling
from tfcap.decoding.options import Options
from tfcap.ids import EOS
from tfcap.layers import trees

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("tf2onnx")

from tfcap.serving import onnx_file  # noqa: E402

IMAGES, SAMPLES = 7, 2


def traced(model, options):
    """A graph function of features, with `draws` if the options sample."""

    def search(features, num_regions, draws=None):
        mask = tf.sequence_mask(num_regions, tf.shape(features)[1])
        context = model.encode({"features": features, "mask": mask})
        if draws is None:
            tokens, scores, _, logps = beams.beam_search(model, context, LENGTH, options)
            return {"tokens": tokens, "scores": scores, "log_probs": logps}
        draws = tf.reshape(draws, [-1, LENGTH])
        results = sampling.sample(model, context, LENGTH, draws, options)
        tokens, logps = (tf.reshape(value, [-1, SAMPLES, LENGTH]) for value in results)
        return {"tokens": tokens, "log_probs": logps, "scores": tf.reduce_sum(logps, -1)}

    specs = {
        "features": tf.TensorSpec([None, None, FEATURES], tf.float32, "features"),
        "num_regions": tf.TensorSpec([None], tf.int32, "num_regions"),
    }
    if options.search == "sample":
        specs["draws"] = tf.TensorSpec([None, SAMPLES, LENGTH], tf.float32, "draws")
    with trees.portable_graphs():
        return tf.function(search, autograph=False).get_concrete_function(**specs)


def feed(options):
    """Images of 1 to 5 regions, and random numbers if the options sample."""
    rng = np.random.default_rng(4)
    inputs = {
        "features": 3 * rng.normal(size=(IMAGES, REGIONS, FEATURES)).astype(np.float32),
        "num_regions": 1 + np.arange(IMAGES, dtype=np.int32) % REGIONS,
    }
    if options.search == "sample":
        inputs["draws"] = rng.random((IMAGES, SAMPLES, LENGTH), np.float32)
    return inputs


def opened(path):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def run(session, inputs):
    """The outputs of a file by name."""
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def check(model, options, path):
    """A function and its file compute for one image alone what the function computes for all.

    The image alone has fewer regions, too, because all shapes are open.
    """
    function = traced(model, options)
    onnx_file.convert(function, path)
    inputs = feed(options)
    expected = function(**{name: tf.constant(value) for name, value in inputs.items()})
    session = opened(path)
    alone = {name: value[2:3] for name, value in inputs.items()}
    alone["features"] = alone["features"][:, : alone["num_regions"][0]]
    of_function = function(**{name: tf.constant(value) for name, value in alone.items()})
    one = slice(2, 3)
    for rows, results in (
        (slice(None), run(session, inputs)),
        (one, run(session, alone)),
        (one, {name: value.numpy() for name, value in of_function.items()}),
    ):
        assert results.keys() == expected.keys()
        tokens = results.pop("tokens")
        assert tokens.dtype == np.int32
        np.testing.assert_array_equal(tokens, expected["tokens"][rows])
        for name, result in results.items():
            np.testing.assert_allclose(result, expected[name][rows], rtol=0, atol=1e-4)
    return expected["scores"].numpy()


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "captioner.onnx")


@pytest.mark.parametrize("name", small_models.params([*small_models.SIZES, "ensemble"]))
def test_every_system(name, path):
    scores = check(small_models.make(name, seed=1), Options(), path)
    assert np.ptp(scores[:, 0]) > 1e-3  # the captions depend on the images


# Every search with every constraint. Left out, each option changes what is found.
OPTIONS = {
    "groups": dict(
        beam=4, groups=2, diversity=2.0, no_repeat_ngram=2, length_penalty="gnmt", length_power=0.7
    ),
    "retire": dict(
        finished="retire", bad_endings=(VOCABULARY - 1,), temperature=0.5, length_power=1.0
    ),
    "prefix": dict(prefix=(5, 3, 7), min_length=4, suppress=(VOCABULARY - 2,)),
    "sample": dict(search="sample"),
    "top": dict(search="sample", top_k=3, top_p=0.5),
}


@pytest.fixture(scope="module")
def model():
    """A model whose captions end early, with one of the last words of the vocabulary."""
    model = small_models.make("updown", seed=1)
    bias = np.zeros(VOCABULARY)
    bias[[EOS, -2, -1]] = 1.5
    model.head.bias.assign(bias)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("changes", OPTIONS.values(), ids=OPTIONS)
def test_every_option(changes, model, path):
    check(model, Options(samples=SAMPLES, **changes), path)


@pytest.fixture(scope="module")
def function(model):
    return traced(model, Options())


def test_a_file_says_what_it_holds(function, path):
    onnx_file.convert(function, path, metadata={"words": "pad\nbos"})
    file = onnx.load(path)
    assert file.opset_import[0].version == onnx_file.OPSET
    session = opened(path)
    assert session.get_modelmeta().custom_metadata_map == {"words": "pad\nbos"}
    assert {value.name: (value.type, value.shape) for value in session.get_inputs()} == {
        "features": ("tensor(float)", ["batch", "features_1", FEATURES]),
        "num_regions": ("tensor(int32)", ["batch"]),
    }
    assert {value.name: (value.type, value.shape) for value in session.get_outputs()} == {
        "log_probs": ("tensor(float)", ["batch", 3, LENGTH]),
        "scores": ("tensor(float)", ["batch", 3]),
        "tokens": ("tensor(int32)", ["batch", 3, LENGTH]),
    }


def _weights(graph):
    """All constants in a graph and in the bodies of its loops."""
    yield from map(onnx.numpy_helper.to_array, graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _weights(attribute.g)


def test_weights_are_stored_once(function, model, path):
    onnx_file.convert(function, path)
    large = [value for value in _weights(onnx.load(path).graph) if value.size > 200]
    weights = [variable.numpy() for variable in model.trainable_variables]
    assert len(large) == sum(weight.size > 200 for weight in weights) > 2


def test_large_weights_can_be_float16(function, path):
    onnx_file.convert(function, path, weights="float16")
    values = list(_weights(onnx.load(path).graph))
    assert any(value.dtype == np.float16 for value in values)
    assert all(value.dtype != np.float32 or value.nbytes <= 1024 for value in values)
    inputs = feed(Options())
    results = run(opened(path), inputs)
    expected = function(**{name: tf.constant(value) for name, value in inputs.items()})
    np.testing.assert_array_equal(results["tokens"][:, 0], expected["tokens"][:, 0])
    np.testing.assert_allclose(results["scores"][:, 0], expected["scores"][:, 0], atol=0.02)
    assert np.abs(results["scores"] - expected["scores"]).max() > 1e-5


def test_a_mask_stays_float32(path):
    mask = tf.constant(np.where(np.arange(999) % 2, -1e9, 0), tf.float32)
    function = tf.function(lambda values: {"masked": values + mask})
    function = function.get_concrete_function(tf.TensorSpec([None, 999], tf.float32, "values"))
    onnx_file.convert(function, path, weights="float16")
    masked = run(opened(path), {"values": np.ones([1, 999], np.float32)})["masked"]
    np.testing.assert_array_equal(masked, 1 + mask[None])


def test_gelu(path):
    """`Erfc`, which tf2onnx does not know."""
    function = tf.function(lambda values: {"result": keras.activations.gelu(values)})
    function = function.get_concrete_function(tf.TensorSpec([None, 8], tf.float32, "values"))
    onnx_file.convert(function, path)
    values = np.linspace(-9, 9, 48, dtype=np.float32).reshape(6, 8)
    expected = function(values=tf.constant(values))["result"]
    np.testing.assert_allclose(run(opened(path), {"values": values})["result"], expected, atol=1e-6)


def test_a_clip_of_several_pictures(path):
    """`tf.map_fn`, whose lists tf2onnx leaves behind."""
    clips = Clips(Backbone("pixels", vector=True), frames=2)
    spec = tf.TensorSpec([None, *clips.decoded_shape], tf.float32, "images")
    function = tf.function(lambda images: {"features": clips.extract(images)}, autograph=False)
    function = function.get_concrete_function(spec)
    onnx_file.convert(function, path)
    images = np.random.default_rng(1).uniform(0, 255, (3, *clips.decoded_shape)).astype(np.float32)
    expected = function(images=tf.constant(images))["features"]
    features = run(opened(path), {"images": images})["features"]
    np.testing.assert_allclose(features, expected, atol=1e-3)


def test_a_part_that_onnx_lacks_is_an_error(path):
    spec = tf.TensorSpec([None], tf.string, "files")
    function = tf.function(lambda files: {"codes": tf.strings.to_hash_bucket_fast(files, 9)})
    with pytest.raises(ValueError, match="ONNX file .*StringToHashBucketFast.* another format"):
        onnx_file.convert(function.get_concrete_function(spec), path)
    assert not os.path.exists(path)
