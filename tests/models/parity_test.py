"""The released PyTorch models of X-LAN's authors and ours give the same numbers."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from helpers import parity, searches, small_models

from tfcap import decoding, models
from tfcap.layers import positions

T = 17
FEATURES, RELEASED_WORDS = 32, 60


def _xlan(context, arrays):
    """Pairs of what X-LAN's encoder gives and what it should; padded regions included."""
    yield context["global"], arrays["out/gv"]
    yield context["regions"], arrays["out/att"]
    ((keys, values),) = context["keys"]
    yield tf.concat([keys, values], -1), arrays["out/p_att"]


def _xtransformer(context, arrays):
    yield context["global"], arrays["out/gx"]
    yield context["encoded"], arrays["out/enc"]


@dataclasses.dataclass
class Case:
    """A released model at the sizes of its fixture.

    Attributes:
      system: a name of MODELS.
      options: its sizes.
      encoded: pairs of intermediate outputs (ours, expected) from context and fixture.
      blind: the released code ignores the mask of the regions.
    """

    system: str
    options: dict
    encoded: Callable
    blind: bool = False


SIZES = dict(width=64, middle_width=6)
CASES = {
    "xlan": Case("xlan", SIZES, _xlan),
    "xlan_relu0": Case(
        "xlan",
        SIZES | dict(encoder_layers=0, activation="relu"),
        _xlan,
    ),
    "xtransformer": Case(
        "xtransformer",
        SIZES | dict(encoder_layers=2, decoder_layers=3),
        _xtransformer,
    ),
    "updown": Case(
        "updown",
        dict(width=64, attention_width=24, embed_regions=False, embed_activation="none"),
        lambda context, arrays: (),
        blind=True,
    ),
}

# Also served: one of each system. The other X-LAN has no layers in its encoder.
SERVED = small_models.params(CASES.keys() - {"xlan_relu0"})


@pytest.fixture(scope="module", params=small_models.params(CASES))
def name(request):
    return request.param


@pytest.fixture(scope="module")
def case(name):
    return CASES[name]


@pytest.fixture(scope="module")
def arrays(name):
    return parity.read(name)


@pytest.fixture(scope="module")
def vocabulary():
    return parity.Vocabulary(RELEASED_WORDS)


@pytest.fixture(scope="module")
def model(case, arrays, vocabulary):
    model = models.build(case.system, RELEASED_WORDS + 2, T, FEATURES, **case.options)
    parity.assign(model, case.system, arrays, vocabulary)
    return model


@pytest.fixture(scope="module")
def inputs(case, arrays):
    mask = arrays["in/mask"] > 0
    assert not mask.all()
    return {
        "features": tf.constant(arrays["in/feats"]),
        "mask": tf.constant(mask | case.blind),
    }


@pytest.fixture(scope="module")
def context(model, inputs):
    return model.encode(inputs)


def distance(a, b):
    return np.abs(np.asarray(a) - np.asarray(b)).max()


def test_position_codes_equal_the_released_ones():
    """The released buffer is float32 arithmetic on CPU: 1e-6."""
    codes = parity.read("xtransformer")["w/decoder.embed_positions.pe"]
    assert distance(positions.sinusoids(*codes.shape), codes) < 1e-6


def test_the_encoder_equals_the_released_one(case, arrays, context):
    for ours, expected in case.encoded(context, arrays):
        assert distance(ours, expected) < 5e-6


def test_logits_of_teacher_forcing_equal_the_released_ones(arrays, vocabulary, model, context):
    tokens = tf.constant(vocabulary.inputs(arrays["in/seq"]))
    logits = model.decode(context, tokens).numpy()
    assert distance(vocabulary.logits(logits), arrays["out/logits"]) < 5e-6
    # PAD and BOS, which the released model does not have.
    assert distance(logits[..., :2], logits[..., 2:3] + parity.weights.UNLIKELY) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["updown", "xlan"], indirect=True, scope="module")
def test_greedy_search_finds_the_released_captions(arrays, vocabulary, model, context):
    tokens, logps = searches.sample(model, context, T)[:2]
    np.testing.assert_array_equal(tokens, vocabulary.sentences(arrays["out/greedy"]))
    assert distance(logps, arrays["out/greedy_logp"]) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVED, indirect=True, scope="module")
def test_beam_search_finds_the_released_captions(arrays, vocabulary, model, inputs, context):
    """With five beams, in a graph for any number of images and regions, as an export has it.

    `tests/convert_test.py` has three beams for X-LAN and Up-Down.
    """
    specs = [tf.TensorSpec([None, None, FEATURES]), tf.TensorSpec([None, None], tf.bool)]

    @tf.function(input_signature=specs, autograph=False)
    def search(features, mask):
        context = model.encode({"features": features, "mask": mask})
        return searches.beam_search(model, context, 5, T)[:2]

    tokens, scores = search(**inputs)
    expected = arrays["out/beam5_logp"]
    np.testing.assert_array_equal(tokens[:, 0], vocabulary.sentences(arrays["out/beam5"]))
    assert distance(scores[:, 0], expected.sum(1)) < 1e-4
    assert (np.diff(scores, axis=1) <= 0).all()  # best first
    words = decoding.score(model, context, tokens[:, 0])
    assert distance(words, expected) < 1e-4
    assert distance(np.cumsum(words, 1), np.cumsum(expected, 1)) < 1e-4


@pytest.mark.parametrize("name", ["xlan", "xlan_relu0"], indirect=True, scope="module")
def test_the_older_beam_search_finds_the_released_captions(arrays, vocabulary, model, context):
    """The search behind the paper's numbers of X-LAN: finished sentences leave their slot."""
    unknown = 3
    tokens, scores, _ = searches.beam_search(
        model, context, 3, T, finished="retire", suppress=(unknown,)
    )
    np.testing.assert_array_equal(tokens[:, 0], vocabulary.sentences(arrays["out/oldbeam3"]))
    assert distance(scores[:, 0], arrays["out/oldbeam3_p"]) < 1e-4
