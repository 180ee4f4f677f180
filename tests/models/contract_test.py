"""Every model keeps the contract of `Captioner`."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from helpers import contract, searches, small_models
from helpers.sizes import FEATURES, LENGTH
from helpers.small_models import SIZES, make

from tfcap import models
from tfcap.decoding.sampling import sample
from tfcap.ids import EOS, UNK
from tfcap.layers import precision
from tfcap.models import captioner

# Ends of the names of weights that no loss depends on: a bias before a softmax over keys.
INVARIANT = {
    "aoanet": ("/key/bias",),
    "att2in": ("alpha/bias",),
    "attention_lstm": (),
    "ensemble": (),
    "expansionnet": ("mha/key/bias",),
    "expansionnet_v2": ("mha/key/bias",),
    "gcn_lstm": (),
    "hip": (),
    "lbpf": (),
    "lstm_a": (),
    "m2": ("cross_att/attend/key/bias", "decoder/0/self_att/attend/key/bias"),
    "mrnn": (),
    "mrnn_shared": (),
    "ort": ("/key/bias",),
    # The scores are for the loss of training alone.
    "rfnet": (
        "/alpha/bias",
        *(f"score_maps/{m}/{end}" for m in range(3) for end in ("kernel", "bias")),
    ),
    "sgae": ("alpha/bias",),
    "show_tell": (),
    "transformer": ("/key/bias",),
    "updown": (),
    "xlan": ("spatial/bias",),
    "xtransformer": ("spatial/bias",),
}


@pytest.fixture(scope="module", params=small_models.params(INVARIANT))
def name(request):
    return request.param


@functools.cache
def _model(name):
    return make(name, seed=1)


@pytest.fixture(scope="module", autouse=True)
def forget():
    """Frees the models, which are kept while pytest goes through other parameters."""
    yield
    _model.cache_clear()


@pytest.fixture(scope="module")
def model(name):
    """A model whose weights belong to all tests: do not change them."""
    return _model(name)


def test_all_models_are_here():
    assert sorted(SIZES) == sorted(INVARIANT.keys() - {"ensemble"}) == sorted(models.MODELS)


@pytest.fixture(scope="module")
def batch(name, batch):
    """Captions of four words: a check changes the last and reads what comes before it."""
    if name == "rfnet":  # the last number of a row is its feature set, 0 or 1
        sets = tf.broadcast_to(tf.constant([[0.0], [1], [0], [1], [0]]), (len(batch["mask"]), 5, 1))
        batch = batch | {"features": tf.concat([batch["features"][..., :-1], sets], -1)}
    return batch | {"tokens": batch["tokens"][..., :4]}


@pytest.fixture(scope="module")
def logits(model, batch):
    return model(batch)


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
def test_contract(check, model, batch, logits):
    check(model, batch, logits)


def test_steps(model, batch):
    contract.check_step_equals_decode(model, batch)


def test_samples_that_end_leave_the_loop(model, batch):
    """The others keep their image and their rows of the cache."""
    images = len(batch["mask"])
    row, place = tf.range(8 * images)[:, None], tf.range(LENGTH)
    draws = tf.random.stateless_uniform((8 * images, LENGTH), (3, 4), 0.1)
    draws = tf.where(place > 7 * row % LENGTH, 0.0, draws)  # 0 draws the end mark
    context = model.encode(batch)
    tokens, logps = sample(model, context, LENGTH, draws)
    fewer, their_logps = sample(model, context, LENGTH, draws, drops_ended=True)
    assert len(set(tf.reduce_sum(tf.sign(tokens), 1).numpy())) > 3
    np.testing.assert_array_equal(fewer, tokens)
    np.testing.assert_allclose(their_logps, logps, rtol=0, atol=1e-5)


def test_gradients(name, model, batch):
    contract.check_gradients(model, batch, INVARIANT[name])


def test_a_checkpoint_has_every_variable(model):
    """`test_keras_file` shows that another model of the system has the same names."""
    contract.check_checkpoint_items(model)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["ensemble", "expansionnet", "xlan"], indirect=True, scope="module"
)
def test_keras_file(name, model, batch, logits, tmp_path):
    contract.check_keras_file(model, SIZES.get(name, {}), batch, tmp_path, logits)


@pytest.mark.parametrize("name", ["mrnn"], indirect=True, scope="module")
def test_weights_restore_into_a_model_without_dropout(name, model, batch, tmp_path):
    options = [option for option, *_ in captioner.options_of(models.MODELS[name])]
    rates = {key: 0.0 for key in options if key.endswith("dropout")}
    quiet = make(name, seed=3, **rates)
    assert not quiet.checkpoint_items["seeds"] and model.checkpoint_items["seeds"]
    path = tf.train.Checkpoint(**model.checkpoint_items).write(str(tmp_path / "checkpoint"))
    status = tf.train.Checkpoint(weights=quiet.checkpoint_items["weights"]).read(path)
    status.expect_partial().assert_existing_objects_matched()
    np.testing.assert_array_equal(quiet(batch), model(batch))
    batch = batch | {"tokens": tf.where(batch["tokens"] == EOS, UNK, batch["tokens"])}  # no padding
    np.testing.assert_allclose(quiet(batch, training=True), quiet(batch), atol=1e-6)
    assert np.abs(model(batch, training=True) - model(batch)).max() > 1e-3


# `onnx_file_test` searches in open graphs of all systems, and `goldens_test` exports runs.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["expansionnet"], indirect=True, scope="module")
def test_a_search_in_a_saved_graph_of_open_shapes(model, batch, tmp_path):
    """A SavedModel of a beam search finds the same for one image as for three."""
    served = tf.Module()
    served.model_variables = [variable.value for variable in model.variables]

    def search(features, mask):
        context = model.encode({"features": features, "mask": mask})
        return searches.beam_search(model, context, 2, LENGTH)[:2]

    specs = [tf.TensorSpec([None, None, FEATURES]), tf.TensorSpec([None, None], tf.bool)]
    # `save` traces a function again, but not one of its traces.
    served.search = tf.function(search, autograph=False).get_concrete_function(*specs)
    tokens, scores = served.search(batch["features"], batch["mask"])
    tf.saved_model.save(served, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    # The last image alone, with fewer regions.
    result, result_scores = loaded.search(batch["features"][-1:, :2], batch["mask"][-1:, :2])
    np.testing.assert_array_equal(result, tokens[-1:])
    np.testing.assert_allclose(result_scores, scores[-1:], atol=1e-4)


# `loops_test` has X-LAN's gradients with products in bfloat16.
PRECISIONS = [
    ("aoanet", "mixed_bfloat16", 0.1),
    ("expansionnet", "mixed_float16", 0.02),
    ("gcn_lstm", "mixed_bfloat16", 0.1),
    ("hip", "mixed_float16", 0.02),
    ("m2", "mixed_bfloat16", 0.1),
    ("mrnn_shared", "mixed_bfloat16", 0.1),
    ("ort", "mixed_bfloat16", 0.1),
    ("rfnet", "mixed_float16", 0.02),
    ("transformer", "mixed_bfloat16", 0.1),
    ("updown", "mixed_float16", 0.02),
    ("xlan", "mixed_float16", 0.02),
    ("xtransformer", precision.policy("bfloat16", accelerated=False), 0.1),
]


@pytest.mark.slow
@pytest.mark.parametrize("name, policy, tolerance", PRECISIONS, indirect=["name"], scope="module")
def test_mixed_precision(name, policy, tolerance, model, batch, logits):
    """Weights and logits in float32, steps equal to decode, and near to float32 altogether."""
    with precision.using(policy):
        low = make(name, seed=1)
    assert all(v.dtype == "float32" for v in low.trainable_variables)
    for ours, theirs in zip(low.trainable_variables, model.trainable_variables, strict=True):
        ours.assign(theirs)
    # Three words are enough for what a lower precision changes.
    begun = batch | {"tokens": batch["tokens"][..., :3]}
    rough = low(begun)
    contract.check_finite(low, begun, rough)
    cache = contract.check_step_equals_decode(low, begun, tolerance)
    assert low.compute_dtype in {leaf.dtype.name for leaf in tf.nest.flatten(cache)}
    assert 0 < np.abs(rough - logits[:, :, :3]).max() < tolerance
